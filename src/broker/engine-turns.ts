import { CALL_TIMEOUT_MS } from '../engine/calls.ts';
import type { Storage } from '../engine/storage.ts';
import { contentBytes, type NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
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
 * The time that must remain for the engine when the turn comes. With less, the outcome of the call would most likely be
 * unknown, so it is rejected instead.
 */
const MIN_ENGINE_MS = 1_000;
const TIMEOUT_MS = CALL_TIMEOUT_MS - MIN_ENGINE_MS;

/** Reads that are expected to return no more bytes than this need no turn. */
export const FREE_BYTES = 16_384;

/** The parts of an element whose bytes count. */
export type WeighedContent = Pick<NewElement, 'body' | 'headers'>;

/** The limits of one engine, which give users their turns. */
interface Limits {
  readonly inserts: ConcurrencyLimit;
  readonly reads: ConcurrencyLimit;
}

/**
 * Gives users turns to store and read elements, by bytes: large inserts and takes do not delay calls of other users.
 */
export class EngineTurns {
  readonly #clock: Clock;
  readonly #limits = new WeakMap<Storage, Limits>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Calls `store` in the user's turn; before this returns if the turn is now. Calls of one user keep their order.
   * Rejects with `overloaded` if the turn does not come within `TIMEOUT_MS`, else as `store` does.
   */
  insert<T>(
    storage: Storage,
    user: string,
    elements: readonly WeighedContent[],
    store: () => Promise<T>,
  ): Promise<T> {
    return this.#limitsOf(storage).inserts.run(user, store, { size: sizeOf(elements) });
  }

  /**
   * Starts the user's turn to read about this many bytes if it is available now. Returns a function that ends the turn;
   * null if the user has to wait for it.
   */
  tryRead(storage: Storage, user: string, bytes: number): (() => void) | null {
    return this.#limitsOf(storage).reads.tryEnter(user, { size: bytes });
  }

  /**
   * Waits for the user's turn to read about this many bytes, and resolves with a function that ends the turn. Rejects
   * with `overloaded` if it does not come within `TIMEOUT_MS`.
   */
  read(storage: Storage, user: string, bytes: number): Promise<() => void> {
    return this.#limitsOf(storage).reads.enter(user, { size: bytes });
  }

  #limitsOf(storage: Storage): Limits {
    let limits = this.#limits.get(storage);
    if (limits === undefined) {
      limits = { inserts: this.#limit(insertRejection), reads: this.#limit(readRejection) };
      this.#limits.set(storage, limits);
    }
    return limits;
  }

  #limit(rejection: () => Error): ConcurrencyLimit {
    return new ConcurrencyLimit({
      perKey: MAX_BYTES,
      total: MAX_BYTES,
      guaranteed: GUARANTEED_BYTES,
      maxWaiting: Number.POSITIVE_INFINITY,
      timeout: { clock: this.#clock, ms: TIMEOUT_MS },
      rejection,
    });
  }
}

function sizeOf(elements: readonly WeighedContent[]): number {
  let size = elements.length * ELEMENT_BYTES;
  for (const element of elements) size += contentBytes(element);
  return size;
}

function insertRejection(): QuaysideError {
  return new QuaysideError(
    'overloaded',
    `The store cannot keep up with the inserts of all users; nothing was stored within ${TIMEOUT_MS / 1000} s. Insert less at a time, or retry later.`,
    { retryAfterMs: 1000 },
  );
}

/** The error of a user whose turn to read did not come in time. */
export function readRejection(): QuaysideError {
  return new QuaysideError(
    'overloaded',
    'The store cannot keep up with the reads of large elements; nothing was read in time. Read less at a time, or retry later.',
    { retryAfterMs: 1000 },
  );
}
