import { type QuaysideError, TimeoutError } from './errors.ts';
import type { CallOptions } from './options.ts';
import { after, nextTurn, unlessAborted } from './time.ts';

export interface BatchLimits {
  readonly maxItems: number;
  /** Of the sizes of a batch's items; one larger item is a batch of its own. */
  readonly maxSize: number;
}

/** Two, so that the server works on one batch while the next one is made and sent. */
const MAX_IN_FLIGHT = 2;

interface PendingItem<I, R> {
  readonly item: I;
  readonly size: number;
  readonly resolve: (result: R) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Gathers concurrent calls into one request: those of one turn of the event loop, and those that come while earlier
 * requests are in flight. A single call waits for nothing but the end of its turn.
 */
export class RequestBatcher<I, R> {
  readonly #send: (items: readonly I[]) => Promise<readonly (R | Error)[]>;
  readonly #limits: BatchLimits;
  readonly #pending = new Set<PendingItem<I, R>>();
  #inFlight = 0;
  #isScheduled = false;

  /** @param send returns one result for each item, an error for one that failed; throws if all failed */
  constructor(limits: BatchLimits, send: (items: readonly I[]) => Promise<readonly (R | Error)[]>) {
    this.#limits = limits;
    this.#send = send;
  }

  /** @throws the reason of the signal; the item is then not sent, or its outcome is unknown */
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
        // What is still pending is not sent any more.
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
      // The caller's function for credentials may throw anything.
      const { code, status, outcome } = Object(error) as QuaysideError;
      const half = batch.length >> 1;
      // An earlier attempt of the request may have been executed: its halves would be other requests.
      if (half > 0 && outcome !== 'unknown' && (code === 'too-many-groups' || status === 413)) {
        // Too many, or too large, together.
        await this.#settle(batch.slice(0, half));
        await this.#settle(batch.slice(half));
      } else for (const { reject } of batch) reject(error);
    }
  }
}
