import { type QuaysideError, TimeoutError } from './errors.ts';
import type { CallOptions } from './options.ts';
import { after, nextTurn, unlessAborted } from './time.ts';

export interface BatchLimits {
  readonly maxItems: number;
  /** Maximum sum of the items' sizes. A larger item is sent alone. */
  readonly maxSize: number;
}

/** Two, so that the server processes one batch while the next one is built and sent. */
const MAX_IN_FLIGHT = 2;

interface PendingItem<I, R> {
  readonly item: I;
  readonly size: number;
  readonly resolve: (result: R) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Combines concurrent calls into one request: those of one turn of the event loop, and those made while earlier
 * requests are in flight. A single call is sent at the end of its turn.
 */
export class RequestBatcher<I, R> {
  readonly #send: (items: readonly I[]) => Promise<readonly (R | Error)[]>;
  readonly #limits: BatchLimits;
  readonly #pending = new Set<PendingItem<I, R>>();
  #inFlight = 0;
  #isScheduled = false;

  /** @param send returns a result for each item, or an error for one that failed; throws if all failed */
  constructor(limits: BatchLimits, send: (items: readonly I[]) => Promise<readonly (R | Error)[]>) {
    this.#limits = limits;
    this.#send = send;
  }

  /** @throws the reason of the signal, or TimeoutError; the item is then not sent, or its outcome is unknown */
  async add(item: I, size: number, { signal, timeoutMs }: CallOptions = {}): Promise<R> {
    let entry!: PendingItem<I, R>;
    const result = new Promise<R>((resolve, reject) => {
      entry = { item, size, resolve, reject };
    });
    this.#pending.add(entry);
    this.#schedule();
    const cancel =
      timeoutMs !== undefined &&
      after(timeoutMs, () => {
        // A pending item is not sent any more.
        const outcome = this.#pending.has(entry) ? 'nothing-changed' : 'unknown';
        entry.reject(new TimeoutError(`No response within ${timeoutMs} ms.`, { outcome }));
      });
    try {
      return await unlessAborted([signal], () => result);
    } finally {
      this.#pending.delete(entry);
      if (cancel) cancel();
    }
  }

  #schedule(): void {
    if (this.#isScheduled || this.#pending.size === 0 || this.#inFlight >= MAX_IN_FLIGHT) return;
    this.#isScheduled = true;
    nextTurn(() => {
      this.#isScheduled = false;
      const batch = this.#nextBatch();
      if (batch.length > 0) void this.#run(batch);
      this.#schedule();
    });
  }

  #nextBatch(): PendingItem<I, R>[] {
    const { maxItems, maxSize } = this.#limits;
    const batch: PendingItem<I, R>[] = [];
    let size = 0;
    for (const entry of this.#pending) {
      size += entry.size;
      if (batch.length === maxItems || (batch.length > 0 && size > maxSize)) break;
      batch.push(entry);
      this.#pending.delete(entry);
    }
    return batch;
  }

  async #run(batch: readonly PendingItem<I, R>[]): Promise<void> {
    this.#inFlight += 1;
    await this.#settle(batch);
    this.#inFlight -= 1;
    this.#schedule();
  }

  async #settle(batch: readonly PendingItem<I, R>[]): Promise<void> {
    try {
      const results = await this.#send(batch.map(({ item }) => item));
      batch.forEach(({ resolve, reject }, index) => {
        const result = results[index] as R;
        (result instanceof Error ? reject : resolve)(result);
      });
    } catch (error) {
      // The caller's `auth` function may throw anything.
      const { code, status, outcome } = Object(error) as QuaysideError;
      const half = batch.length >> 1;
      // Do not split after an unknown outcome: the halves would be new requests, and the whole may have been executed.
      if (half > 0 && outcome !== 'unknown' && (code === 'too-many-groups' || status === 413)) {
        // The batch was too large: send its halves.
        await this.#settle(batch.slice(0, half));
        await this.#settle(batch.slice(half));
      } else for (const { reject } of batch) reject(error);
    }
  }
}
