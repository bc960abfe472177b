import type { Queue } from '../broker/queue.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import type { Outstanding } from './outstanding.ts';

/** Checks in each lease, so that every lease is extended while at least half of it is left. */
const CHECKS = 4;

/**
 * Extends the leases of a consumer's outstanding elements for as long as its session lives. A client that was
 * sent a thousand elements works on them one by one; without this the leases of the last ones would have expired
 * by the time that it comes to them. A node that dies extends nothing, and its leases expire.
 */
export class LeaseRenewer {
  readonly #queue: Queue;
  readonly #leaseMs: number;
  readonly #session: LeaseSession;
  readonly #outstanding: ReadonlyMap<unknown, Outstanding>;
  #cancel: CancelTimer | null = null;
  #isStopped = false;

  constructor(
    queue: Queue,
    leaseMs: number,
    session: LeaseSession,
    outstanding: ReadonlyMap<unknown, Outstanding>,
  ) {
    this.#queue = queue;
    this.#leaseMs = leaseMs;
    this.#session = session;
    this.#outstanding = outstanding;
  }

  /** Starts checking, if it does not yet. To be called when an element becomes outstanding. */
  watch(): void {
    if (this.#cancel !== null || this.#isStopped) return;
    this.#cancel = this.#session.clock.after(this.#leaseMs / CHECKS, () => {
      this.#cancel = null;
      void this.#extendOld();
      if (this.#outstanding.size > 0) this.watch();
    });
  }

  stop(): void {
    this.#isStopped = true;
    this.#cancel?.();
  }

  async #extendOld(): Promise<void> {
    const now = this.#session.clock.monotonic();
    const old = [...this.#outstanding.values()].filter(
      ({ leasedAt }) => now - leasedAt >= this.#leaseMs / CHECKS,
    );
    if (old.length === 0) return;
    const action = { kind: 'extend', leaseMs: this.#leaseMs } as const;
    try {
      const results = await this.#queue.settleAll(old.map((one) => this.#queue.item(one, action)));
      for (const [i, result] of results.entries()) {
        const one = old[i];
        if (one !== undefined && result.outcome === 'done') one.leasedAt = now;
      }
    } catch (error) {
      this.#session.warn(error, 'leases could not be extended; the next check tries again');
    }
  }
}

interface LeaseSession {
  readonly clock: Clock;
  warn(error: unknown, message: string): void;
}
