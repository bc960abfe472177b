import { CALL_TIMEOUT_MS } from '../engine/calls.ts';
import { contentBytes, type NewElement } from '../model/element.ts';
import { overloaded, type QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';

/**
 * Bytes that an engine is given to store, and to read, at a time. An engine serves calls in order, so the call of one
 * user waits behind at most this much of others, or behind one larger take.
 */
const MAX_BYTES = 4 * 1_048_576;
/** Bytes that each user may have in flight even if others use all of `MAX_BYTES`. */
const GUARANTEED_BYTES = 65_536;
/** Bytes that an element counts in addition to its content: it costs an engine about as much time as a KiB of body. */
const ELEMENT_BYTES = 1024;
/**
 * The time that must remain for the engine when a call gets its permit. With less, the outcome of the call would most
 * likely be unknown, so it is rejected instead.
 */
const MIN_ENGINE_MS = 1_000;
const TIMEOUT_MS = CALL_TIMEOUT_MS - MIN_ENGINE_MS;

/** Reads that are expected to return no more bytes than this need no permit. */
export const FREE_BYTES = 16_384;

/**
 * Permits of users to store elements in one engine and to read from it, limited by bytes: large inserts and takes do
 * not delay calls of other users.
 */
export class EnginePermits {
  readonly #inserts: ConcurrencyLimit;
  /**
   * Permits to read from the engine, whose size is the expected number of bytes. A wait for one is rejected with
   * `overloaded` after `TIMEOUT_MS`.
   */
  readonly reads: ConcurrencyLimit;

  constructor(clock: Clock) {
    const limit = (rejection: () => Error): ConcurrencyLimit =>
      new ConcurrencyLimit({
        perKey: MAX_BYTES,
        total: MAX_BYTES,
        guaranteed: GUARANTEED_BYTES,
        timeout: { clock, ms: TIMEOUT_MS },
        rejection,
      });
    this.#inserts = limit(insertRejection);
    this.reads = limit(readRejection);
  }

  /**
   * Calls `store` when the user has a permit for it; before this returns if that is now. Calls of one user keep their
   * order. Rejects with `overloaded` if there is no permit within `TIMEOUT_MS`, else as `store` does. Not async: this
   * is on the path of every insert.
   * @param user null: the service itself, which needs no permit
   */
  insert<T>(
    user: string | null,
    elements: readonly Pick<NewElement, 'body' | 'headers'>[],
    store: () => Promise<T>,
  ): Promise<T> {
    if (user !== null) {
      let size = elements.length * ELEMENT_BYTES;
      for (const element of elements) size += contentBytes(element);
      return this.#inserts.run(user, store, { size });
    }
    try {
      return store();
    } catch (error) {
      return Promise.reject(error);
    }
  }
}

function insertRejection(): QuaysideError {
  return overloaded(
    `The store cannot keep up with the inserts of all users; nothing was stored within ${TIMEOUT_MS / 1000} s. Insert less at a time, or retry later.`,
  );
}

/** The error of a user who got no permit to read in time. */
export function readRejection(): QuaysideError {
  return overloaded(
    'The store cannot keep up with the reads of large elements; nothing was read in time. Read less at a time, or retry later.',
  );
}
