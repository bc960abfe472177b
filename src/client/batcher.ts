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
  readonly #send: (items: readonly I[]) => Promise<readonly R[]>;
  readonly #limits: BatchLimits;
  readonly #pending = new Set<PendingItem<I, R>>();
  #inFlight = 0;
  #isScheduled = false;

  /**
   * @param send returns a result for each item, or throws if all failed. If `details.line` of the error is the number
   * of an item, from 1, the others are sent again without it
   */
  constructor(limits: BatchLimits, send: (items: readonly I[]) => Promise<readonly R[]>) {
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
    if (batch.length === 0) return;
    try {
      const results = await this.#send(batch.map(({ item }) => item));
      for (const [index, { resolve }] of batch.entries()) resolve(results[index] as R);
    } catch (error) {
      // The caller's `auth` function may throw anything.
      const { code, status, outcome, details } = Object(error) as Partial<QuaysideError>;
      const isTooLarge = batch.length > 1 && (code === 'too-many-groups' || status === 413);
      // An item that is too large may be accepted with fewer others. One that is invalid fails alone.
      const invalid = isTooLarge ? undefined : batch[Number(details?.line) - 1];
      // Do not split after an unknown outcome: the halves would be new requests, and the whole may have been executed.
      if (outcome === 'unknown' || !(isTooLarge || invalid)) {
        for (const { reject } of batch) reject(error);
        return;
      }
      invalid?.reject(error);
      const rest = batch.filter((entry) => entry !== invalid);
      // Halves: if many are invalid, the others would be sent again for each of them.
      await this.#settle(rest.slice(0, rest.length >> 1));
      await this.#settle(rest.slice(rest.length >> 1));
    }
  }
}
