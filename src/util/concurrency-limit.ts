import type { CancelTimer, Clock } from './clock.ts';
import { Fifo } from './fifo.ts';

export interface ConcurrencyLimitOptions {
  /** Work of one key in progress at once. */
  readonly perKey: number;
  /** Work of all keys in progress at once; not given: no further bound. */
  readonly total?: number;
  /** Work of one key that may be in progress although `total` is reached by others; defaults to 0. */
  readonly guaranteed?: number;
  /** Pieces of work of one key that wait; more is rejected. */
  readonly maxWaiting: number;
  /** How long a piece of work waits before it is rejected; not given: any time. */
  readonly timeout?: { readonly clock: Pick<Clock, 'after'>; readonly ms: number };
  /** Makes the error of a rejection. */
  readonly rejection: () => Error;
}

interface WorkOptions {
  /**
   * What it counts, such as bytes; defaults to 1. Work that counts nothing waits for other work of its key only. The
   * last piece that starts below a bound may exceed it: otherwise small pieces of other keys would pass a large one for
   * ever.
   */
  readonly size?: number;
  /** For work that should wait behind less than others may; 0: it starts now or is rejected. */
  readonly maxWaiting?: number;
}

interface PendingEntry {
  readonly size: number;
  readonly enter: () => void;
  hasExpired: boolean;
}

/** What is known of a key while any of its work is in progress or waits. */
class KeyState {
  /** The size of all that is in progress. */
  running = 0;
  /** The pieces of work in progress: some have no size. */
  pieces = 0;
  /** Those that have expired are dropped when their turn comes. */
  readonly waiting = new Fifo<PendingEntry>();
  waitingCount = 0;
}

/**
 * Bounds the work in progress, for each key (a user, an exchange) and in all. Work of one key starts in order; a key
 * whose own bound is reached does not delay the others. Capacity that becomes free goes to the key with the least work
 * in progress, however much of others waits, and to those with equally much in turn.
 */
export class ConcurrencyLimit {
  readonly #options: ConcurrencyLimitOptions;
  readonly #keys = new Map<string, KeyState>();
  /** Keys of which something waits, in the order of their turns. */
  readonly #waiting = new Map<string, KeyState>();
  #total = 0;

  constructor(options: ConcurrencyLimitOptions) {
    this.#options = options;
  }

  /**
   * Does the work when it may start: before this returns, if that is now. Rejects if it waits too long or too much of
   * its key waits, else as the work does.
   */
  run<T>(key: string, work: () => Promise<T>, options: WorkOptions = {}): Promise<T> {
    const { size = 1 } = options;
    if (!this.#startNow(key, size)) return this.#wait(key, options).then(() => this.#do(key, size, work));
    return this.#do(key, size, work);
  }

  /**
   * Resolves when work of the key may start, with a function that ends it; further calls of that do nothing.
   * Rejects if it waits too long or too much of its key waits.
   */
  async enter(key: string, options: WorkOptions = {}): Promise<() => void> {
    const { size = 1 } = options;
    if (!this.#startNow(key, size)) await this.#wait(key, options);
    return this.#onceEnd(key, size);
  }

  /** The same if work of the key may start now; else null, and nothing waits. */
  tryEnter(key: string, { size = 1 }: Pick<WorkOptions, 'size'> = {}): (() => void) | null {
    return this.#startNow(key, size) ? this.#onceEnd(key, size) : null;
  }

  #onceEnd(key: string, size: number): () => void {
    let isOver = false;
    return () => {
      if (!isOver) this.#end(key, size);
      isOver = true;
    };
  }

  #do<T>(key: string, size: number, work: () => Promise<T>): Promise<T> {
    const end = (): void => this.#end(key, size);
    let done: Promise<T>;
    try {
      done = work();
    } catch (error) {
      done = Promise.reject(error);
    }
    done.then(end, end);
    return done;
  }

  #startNow(key: string, size: number): boolean {
    let state = this.#keys.get(key);
    if (state !== undefined && (state.waitingCount > 0 || !this.#hasPlace(state, size))) return false;
    if (state === undefined) {
      state = new KeyState();
      if (!this.#hasPlace(state, size)) return false;
      this.#keys.set(key, state);
    }
    this.#start(state, size);
    return true;
  }

  #start(state: KeyState, size: number): void {
    state.running += size;
    state.pieces += 1;
    this.#total += size;
  }

  #hasPlace({ running }: KeyState, size: number): boolean {
    if (size === 0) return true;
    const { perKey, total = Number.POSITIVE_INFINITY, guaranteed = 0 } = this.#options;
    return running < perKey && (this.#total < total || running < guaranteed);
  }

  /** Resolves when the work counts as started. */
  #wait(key: string, { size = 1, maxWaiting = this.#options.maxWaiting }: WorkOptions): Promise<void> {
    const { rejection, timeout } = this.#options;
    const state = this.#keys.get(key) ?? new KeyState();
    if (state.waitingCount >= maxWaiting) return Promise.reject(rejection());
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    let cancelTimer: CancelTimer | null = null;
    const enter = (): void => {
      cancelTimer?.();
      resolve();
    };
    const entry: PendingEntry = { size, enter, hasExpired: false };
    this.#keys.set(key, state);
    this.#waiting.set(key, state);
    state.waiting.push(entry);
    state.waitingCount += 1;
    if (timeout !== undefined) {
      cancelTimer = timeout.clock.after(timeout.ms, () => {
        entry.hasExpired = true;
        state.waitingCount -= 1;
        this.#drop(key, state);
        reject(rejection());
      });
    }
    return promise;
  }

  /** The capacity goes to others that may start; nothing can take it in between. */
  #end(key: string, size: number): void {
    this.#total -= size;
    const state = this.#keys.get(key) as KeyState;
    state.running -= size;
    state.pieces -= 1;
    this.#drop(key, state);
    for (let next = this.#next(); next !== null; next = this.#next()) {
      const [nextKey, found] = next;
      const entry = found.waiting.shift() as PendingEntry;
      found.waitingCount -= 1;
      this.#start(found, entry.size);
      // To the end: others have their turns first.
      this.#waiting.delete(nextKey);
      this.#waiting.set(nextKey, found);
      this.#drop(nextKey, found);
      entry.enter();
    }
  }

  /** Drops what has expired in front of the others, and the state of a key that has nothing any more. */
  #drop(key: string, state: KeyState): void {
    while (state.waiting.first?.hasExpired) state.waiting.shift();
    if (state.waiting.length > 0) return;
    this.#waiting.delete(key);
    if (state.pieces === 0) this.#keys.delete(key);
  }

  /** Of the keys with the least work in progress, the one whose turn is first; null: none may start. */
  #next(): [key: string, state: KeyState] | null {
    let next: [key: string, state: KeyState] | null = null;
    for (const [key, state] of this.#waiting) {
      if (state.running >= (next?.[1].running ?? Number.POSITIVE_INFINITY)) continue;
      if (this.#hasPlace(state, state.waiting.first?.size ?? 0)) next = [key, state];
    }
    return next;
  }
}
