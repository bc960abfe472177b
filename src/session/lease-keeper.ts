import type { Queue } from '../broker/queue.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import type { Held } from './handout.ts';

export interface LeaseHost {
  readonly clock: Clock;
  warn(error: unknown, message: string): void;
}

/** What a client holds now, under whatever keys. */
type HeldElements = ReadonlyMap<unknown, Held<unknown>>;

/** Looked at this often within a lease, so that each is extended with half of it to spare at least. */
const LOOKS = 4;

/**
 * Extends the leases of what a client holds, for as long as its session lives. A client that was sent a
 * thousand elements works on them one by one; without this the last ones would be another's by the time that
 * it comes to them. A node that dies extends nothing, and its leases end.
 */
export class LeaseKeeper {
  readonly #queue: Queue;
  readonly #leaseMs: number;
  readonly #host: LeaseHost;
  readonly #held: HeldElements;
  #cancel: CancelTimer | null = null;
  #isOver = false;

  constructor(queue: Queue, leaseMs: number, host: LeaseHost, held: HeldElements) {
    this.#queue = queue;
    this.#leaseMs = leaseMs;
    this.#host = host;
    this.#held = held;
  }

  /** There is something to watch over. */
  watch(): void {
    if (this.#cancel !== null || this.#isOver) return;
    this.#cancel = this.#host.clock.after(this.#leaseMs / LOOKS, () => {
      this.#cancel = null;
      void this.#extendOld();
      if (this.#held.size > 0) this.watch();
    });
  }

  stop(): void {
    this.#isOver = true;
    this.#cancel?.();
  }

  async #extendOld(): Promise<void> {
    const now = this.#host.clock.monotonic();
    const old = [...this.#held.values()].filter(({ leasedAt }) => now - leasedAt >= this.#leaseMs / LOOKS);
    if (old.length === 0) return;
    const action = { kind: 'extend', leaseMs: this.#leaseMs } as const;
    try {
      const results = await this.#queue.settleAll(old.map((held) => this.#queue.item(held, action)));
      for (const [i, result] of results.entries()) {
        const held = old[i];
        if (held !== undefined && result.outcome === 'done') held.leasedAt = now;
      }
    } catch (error) {
      this.#host.warn(error, 'leases could not be extended; the next look tries again');
    }
  }
}
