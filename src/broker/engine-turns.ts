import { CALL_TIMEOUT_MS } from '../engine/calls.ts';
import type { Storage } from '../engine/storage.ts';
import { contentBytes, type NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';

/**
 * What an engine is given to store, and to read, at once: an engine takes calls in their order, so whatever one user
 * sends, another's call waits behind this at most, or behind one larger take.
 */
const MAX_BYTES = 4 * 1_048_576;
/** What a user may have stored, or read, at once although others have reached that. */
const GUARANTEED_BYTES = 65_536;
/** An element counts so much in addition to its content: it takes an engine about as long as a KiB of a large body. */
const ELEMENT_BYTES = 1024;
/**
 * What a call leaves of its time to the engine, or it is rejected: with less it would most likely end with an unknown
 * outcome.
 */
const LEFT_MS = 1_000;
const TIMEOUT_MS = CALL_TIMEOUT_MS - LEFT_MS;

/** What is expected to read no more than this waits for no turn. */
export const FREE_BYTES = 16_384;

/** What counts of an element that is stored. */
export type WeighedContent = Pick<NewElement, 'body' | 'headers'>;

/** The work of one engine that users have in turn. */
interface Limits {
  readonly inserts: ConcurrencyLimit;
  readonly reads: ConcurrencyLimit;
}

/**
 * Lets users store and read elements in turn, by bytes: what one of them sends or takes does not delay the others'
 * calls.
 */
export class EngineTurns {
  readonly #clock: Clock;
  readonly #limits = new WeakMap<Storage, Limits>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Calls `store` in the user's turn: before this returns, if that is now. Calls of one user keep their order.
   * Rejects with `overloaded` if the turn does not come in time, else as `store` does.
   */
  insert<T>(
    storage: Storage,
    user: string,
    elements: readonly WeighedContent[],
    store: () => Promise<T>,
  ): Promise<T> {
    return this.#of(storage).inserts.run(user, store, { size: sizeOf(elements) });
  }

  /**
   * Begins the user's turn to read about so many bytes, if it is now. Returns what ends it; null: it has to be waited
   * for.
   */
  tryRead(storage: Storage, user: string, bytes: number): (() => void) | null {
    return this.#of(storage).reads.tryEnter(user, { size: bytes });
  }

  /**
   * Resolves when the user's turn to read begins, with what ends it. Rejects with `overloaded` if it does not come in
   * time.
   */
  read(storage: Storage, user: string, bytes: number): Promise<() => void> {
    return this.#of(storage).reads.enter(user, { size: bytes });
  }

  #of(storage: Storage): Limits {
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
    `The store is slower than the elements of all users come; nothing was stored within ${TIMEOUT_MS / 1000} s. Insert less at once, or retry later.`,
    { retryAfterMs: 1000 },
  );
}

/** A user's turn to read did not come in time. */
export function readRejection(): QuaysideError {
  return new QuaysideError(
    'overloaded',
    'The store is slower than users read large elements, and nothing was read in time. Read less at once, or retry later.',
    { retryAfterMs: 1000 },
  );
}
