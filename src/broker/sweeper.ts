import type { Storage } from '../engine/storage.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import { EarliestTimer } from '../util/earliest-timer.ts';
import type { EventLog } from '../util/log.ts';
import { LogOnChange } from '../util/log-on-change.ts';
import { untilDue } from './engine-time.ts';

/** How often to sweep at least, ± half: the lease of a node that died may end at any time. */
const POLL_MS = 5_000;
const RETRY_MS = 1_000;
/** How soon to sweep again if the engine reports a next lease end that has passed. */
const REST_MS = 20;

/**
 * Ends leases on time, for all queues of one engine, even if no consumer waits there: dead letters and counts depend on
 * it. One timer, armed for the earliest lease end that this node knows.
 */
export class LeaseSweeper {
  readonly #clocks: { readonly storage: Storage; readonly clock: Clock };
  readonly #random: () => number;
  readonly #failures: LogOnChange;
  readonly #onAffected: (queues: readonly QueueKey[]) => void;
  readonly #timer: EarliestTimer;
  #sweeping: Promise<void> | null = null;
  #stopped = false;

  constructor(
    storage: Storage,
    environment: { clock: Clock; random: () => number; log: EventLog },
    onAffected: (queues: readonly QueueKey[]) => void,
  ) {
    this.#clocks = { storage, clock: environment.clock };
    this.#random = environment.random;
    const { log } = environment;
    this.#failures = new LogOnChange({
      failed: (err) =>
        log.warn(
          { err },
          'elements with expired leases could not be released yet; the node retries until they are',
        ),
      worksAgain: () => log.info({}, 'elements with expired leases are released again'),
    });
    this.#onAffected = onAffected;
    this.#timer = new EarliestTimer(environment.clock, () => {
      // A sweep in flight may have started before the lease ended.
      if (this.#sweeping !== null) void this.#sweeping.then(() => this.#wakeIn(0));
      else void this.sweep();
    });
  }

  /** Schedules a sweep for a lease that ends at `at`, by the engine's clock. */
  wakeAt(at: number): void {
    this.#wakeIn(untilDue(at, this.#clocks));
  }

  /** Sweeps now. Called at the start, too: leases may have expired while no node was running. */
  sweep(): Promise<void> {
    this.#sweeping ??= this.#sweepOnce().finally(() => {
      this.#sweeping = null;
    });
    return this.#sweeping;
  }

  /** Reports the queues that gained elements, such as dead letters, since the last report. */
  reportAffected(): void {
    this.#onAffected(this.#clocks.storage.takeAffected());
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#timer.cancel();
    await this.#sweeping;
  }

  async #sweepOnce(): Promise<void> {
    this.#timer.cancel();
    let nextAt: number | null;
    try {
      nextAt = await this.#clocks.storage.sweep();
    } catch (error) {
      this.#failures.failed(error);
      this.#wakeIn(RETRY_MS);
      return;
    } finally {
      // A sweep that failed may have ended leases, too.
      this.reportAffected();
    }
    this.#failures.worked();
    const pollMs = POLL_MS * (0.5 + this.#random());
    const nextMs = nextAt === null ? pollMs : untilDue(nextAt, this.#clocks);
    this.#wakeIn(nextMs > 0 ? Math.min(nextMs, pollMs) : REST_MS);
  }

  #wakeIn(ms: number): void {
    if (!this.#stopped) this.#timer.within(ms);
  }
}
