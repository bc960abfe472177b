import { CALL_TIMEOUT_MS } from '../engine/calls.ts';
import type { Storage } from '../engine/storage.ts';
import type { NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';

/**
 * What an engine is given to store at once: an engine takes calls in their order, so whatever one user sends, another's call waits
 * behind this at most.
 */
const MAX_BYTES = 4 * 1_048_576;
/** What a user may have stored at once although others have reached that. */
const GUARANTEED_BYTES = 65_536;
/** An element counts so much in addition to its content: it takes an engine about as long as a KiB of a large body. */
const ELEMENT_BYTES = 1024;
/** What an insert leaves of its time to the engine, or it is rejected: with less it would most likely end with an unknown outcome. */
const LEFT_MS = 1_000;
const TIMEOUT_MS = CALL_TIMEOUT_MS - LEFT_MS;

/** Lets users store elements in turn, by bytes: what one of them sends does not delay the others' calls. */
export class InsertTurns {
  readonly #clock: Clock;
  readonly #limits = new WeakMap<Storage, ConcurrencyLimit>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Calls `store` in the user's turn: before this returns, if that is now. Calls of one user keep their order.
   * Rejects with `overloaded` if the turn does not come in time, else as `store` does.
   */
  run<T>(
    storage: Storage,
    user: string,
    elements: readonly NewElement[],
    store: () => Promise<T>,
  ): Promise<T> {
    let limit = this.#limits.get(storage);
    if (limit === undefined) {
      limit = new ConcurrencyLimit({
        perKey: MAX_BYTES,
        total: MAX_BYTES,
        guaranteed: GUARANTEED_BYTES,
        maxWaiting: Number.POSITIVE_INFINITY,
        timeout: { clock: this.#clock, ms: TIMEOUT_MS },
        rejection,
      });
      this.#limits.set(storage, limit);
    }
    return limit.run(user, store, { size: sizeOf(elements) });
  }

  /** Resolves when all that waits for a turn of the user has been given to the engine, or rejected; null: nothing waits. */
  whenStarted(storage: Storage, user: string): Promise<void> | null {
    return this.#limits.get(storage)?.whenStarted(user) ?? null;
  }
}

function sizeOf(elements: readonly NewElement[]): number {
  let size = elements.length * ELEMENT_BYTES;
  for (const { body, headers } of elements) {
    size += body.byteLength;
    for (const text of headers) size += text.length;
  }
  return size;
}

function rejection(): QuaysideError {
  return new QuaysideError(
    'overloaded',
    `The store is slower than the elements of all users come; nothing was stored within ${TIMEOUT_MS / 1000} s. Insert less at once, or retry later.`,
    { retryAfterMs: 1000 },
  );
}
