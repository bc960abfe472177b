import type { Storage, SweepResult } from '../engine/storage.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import { EarliestTimer } from '../util/earliest-timer.ts';
import { LogOnChange } from '../util/log-on-change.ts';
import { toLocal } from './engine-time.ts';
import type { BrokerLog } from './ports.ts';

/** Even if no lease of ours runs out, that of a node that died may: look at least this often, ± half. */
const POLL_MS = 5_000;
const RETRY_MS = 1_000;
/** If the next end seems past, the engine is queried again after this long. */
const REST_MS = 20;
/** Between two sweeps for dead letters: the first one is reported at once, many at once cost few sweeps. */
const DEAD_LETTER_MS = 100;

/**
 * Ends leases on time, for all queues of one engine, whether or not anybody waits there: dead letters and
 * sizes depend on it. One timer, armed for the earliest lease end that this node knows.
 */
export class LeaseSweeper {
  readonly #storage: Storage;
  readonly #clock: Clock;
  readonly #clocks: { readonly storage: Storage; readonly clock: Clock };
  readonly #random: () => number;
  readonly #failures: LogOnChange;
  readonly #onAffected: (queues: readonly QueueKey[]) => void;
  readonly #timer: EarliestTimer;
  #sweeping: Promise<void> | null = null;
  /** When it last swept for dead letters. */
  #deadLettersAt = Number.NEGATIVE_INFINITY;
  #stopped = false;

  constructor(
    storage: Storage,
    environment: { clock: Clock; random: () => number; log: BrokerLog },
    onAffected: (queues: readonly QueueKey[]) => void,
  ) {
    this.#storage = storage;
    this.#clock = environment.clock;
    this.#clocks = { storage, clock: environment.clock };
    this.#random = environment.random;
    const { log } = environment;
    this.#failures = new LogOnChange({
      failed: (err) => log.warn({ err }, 'ended leases could not be returned; that is tried until it works'),
      worksAgain: () => log.info({}, 'ended leases are returned again'),
    });
    this.#onAffected = onAffected;
    this.#timer = new EarliestTimer(this.#clock, () => {
      // A sweep in flight may have looked before the moment that was waited for.
      if (this.#sweeping !== null) void this.#sweeping.then(() => this.#wakeAt(this.#clock.now()));
      else void this.sweep();
    });
  }

  /** A reservation ends at `at`, by the engine's clock: be awake then. */
  wakeAt(at: number): void {
    this.#wakeAt(toLocal(at, this.#clocks));
  }

  /** Sweeps now, as at the start: leases may have expired while no node was running. */
  sweep(): Promise<void> {
    this.#sweeping ??= this.#sweepOnce().finally(() => {
      this.#sweeping = null;
    });
    return this.#sweeping;
  }

  /** An element died, and the engine's next sweep names its dead-letter queue: sweeps now, or if it just did, soon. */
  sweepForDeadLetters(): void {
    const now = this.#clock.now();
    const at = Math.max(now, this.#deadLettersAt + DEAD_LETTER_MS);
    if (at > now || this.#sweeping !== null) this.#wakeAt(at);
    else {
      this.#deadLettersAt = now;
      void this.sweep();
    }
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#timer.cancel();
    await this.#sweeping;
  }

  async #sweepOnce(): Promise<void> {
    this.#timer.cancel();
    let result: SweepResult;
    try {
      result = await this.#storage.sweep();
    } catch (error) {
      this.#failures.failed(error);
      this.#wakeAt(this.#clock.now() + RETRY_MS);
      return;
    }
    this.#failures.worked();
    this.#onAffected(result.affected);
    const now = this.#clock.now();
    const pollAt = now + POLL_MS * (0.5 + this.#random());
    const nextAt = result.nextAt === null ? pollAt : toLocal(result.nextAt, this.#clocks);
    this.#wakeAt(nextAt > now ? Math.min(nextAt, pollAt) : now + REST_MS);
  }

  #wakeAt(at: number): void {
    if (!this.#stopped) this.#timer.within(at - this.#clock.now());
  }
}
