import type { Storage, SweepResult } from '../engine/storage.ts';
import type { QueueKey } from '../model/names.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
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
export class Sweeper {
  readonly #storage: Storage;
  readonly #clock: Clock;
  readonly #clocks: { readonly storage: Storage; readonly clock: Clock };
  readonly #random: () => number;
  readonly #failures: LogOnChange;
  readonly #onAffected: (queues: readonly QueueKey[]) => void;
  #timer: CancelTimer | null = null;
  #timerAt = Number.POSITIVE_INFINITY;
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
    this.#disarm();
    await this.#sweeping;
  }

  async #sweepOnce(): Promise<void> {
    this.#disarm();
    let result: SweepResult;
    try {
      result = await this.#storage.sweep();
    } catch (error) {
      this.#failures.failed(error);
      if (!this.#stopped) this.#arm(this.#clock.now() + RETRY_MS);
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
    if (at < this.#timerAt && !this.#stopped) this.#arm(at);
  }

  #arm(at: number): void {
    this.#disarm();
    this.#timerAt = at;
    this.#timer = this.#clock.after(Math.max(0, at - this.#clock.now()), () => {
      this.#disarm();
      if (this.#sweeping === null) void this.sweep();
      // The sweep under way may have looked before this lease ended.
      else void this.#sweeping.then(() => this.#wakeAt(at));
    });
  }

  #disarm(): void {
    this.#timer?.();
    this.#timer = null;
    this.#timerAt = Number.POSITIVE_INFINITY;
  }
}
