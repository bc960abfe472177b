import type { CancelTimer, Clock } from './clock.ts';

interface ConcurrencyLimitOptions {
  /** Maximum running work of one key, in units of `size`. */
  readonly perKey: number;
  /** Maximum running work of all keys; unlimited by default. */
  readonly total?: number;
  /** Work of one key that may run even if other keys have reached `total`; defaults to 0. */
  readonly guaranteed?: number;
  /**
   * Whether a task waits until it fits within `perKey` and `total`. By default the task that starts last below a bound
   * may exceed it: otherwise small tasks of other keys could starve a large one. `guaranteed` prevents that, too.
   */
  readonly isExact?: boolean;
  /** Maximum number of waiting tasks of one key; further ones are rejected. Unlimited by default. */
  readonly maxWaiting?: number;
  /** How long a task waits before it is rejected; unlimited by default. */
  readonly timeout?: { readonly clock: Pick<Clock, 'after'>; readonly ms: number };
  /** Creates the error of a rejected task; needed if a task may be rejected. */
  readonly rejection?: () => Error;
}

interface WorkOptions {
  /** Size of the task, such as bytes; defaults to 1. A task of size 0 waits only for other tasks of its key. */
  readonly size?: number;
  /** A lower bound for tasks that should wait only in a shorter queue; 0: start now or be rejected. */
  readonly maxWaiting?: number;
  /** Called if the task waits. After `cancel`, it waits no longer and never starts; no effect if it has started. */
  readonly onWait?: (cancel: () => void) => void;
}

interface PendingEntry {
  readonly size: number;
  readonly enter: () => void;
}

/** State of a key that has running or waiting tasks. */
class KeyState {
  /** Total size of the running tasks. */
  running = 0;
  /** Number of running tasks: `running` is 0 if all of them have size 0. */
  tasks = 0;
  /** In order of arrival. */
  readonly waiting = new Set<PendingEntry>();
  readonly #order = this.waiting.values();
  #first: PendingEntry | undefined;

  /**
   * The first waiting task. One iterator finds all of them: a new one would pass the tasks that were removed since the
   * set was last compacted, thousands if so many wait.
   */
  get first(): PendingEntry | undefined {
    while (this.waiting.size > 0 && (this.#first === undefined || !this.waiting.has(this.#first))) {
      this.#first = this.#order.next().value;
    }
    return this.waiting.size > 0 ? this.#first : undefined;
  }
}

const NO_TASKS = new KeyState();

type NextTask = [key: string, state: KeyState, entry: PendingEntry];

/**
 * Limits concurrent work per key (a user, an exchange) and in total. Tasks of one key start in order; a key that has
 * reached its own bound does not delay the others. Free capacity goes to the key with the least running work, however
 * many tasks of other keys wait; among equals, keys take turns.
 */
export class ConcurrencyLimit {
  readonly #options: ConcurrencyLimitOptions &
    Required<Pick<ConcurrencyLimitOptions, 'maxWaiting' | 'rejection'>>;
  readonly #keys = new Map<string, KeyState>();
  /** Keys with waiting tasks, in the order of their turns. */
  readonly #waiting = new Map<string, KeyState>();
  #total = 0;
  /** Resolved when no task is left; null: nobody waits for that. */
  #idle: PromiseWithResolvers<void> | null = null;

  constructor(options: ConcurrencyLimitOptions) {
    this.#options = {
      maxWaiting: Number.POSITIVE_INFINITY,
      rejection: () => new Error('too many tasks wait'),
      ...options,
    };
  }

  /**
   * Runs `work` once it may start; if that is now, before this method returns. Rejects if the task waits too long or
   * too many of its key wait, else settles as `work` does.
   */
  run<T>(key: string, work: () => Promise<T>, options: WorkOptions = {}): Promise<T> {
    const { size = 1 } = options;
    if (this.#startNow(key, size)) return this.#execute(key, size, work);
    return this.#wait(key, options).then(() => this.#execute(key, size, work));
  }

  /**
   * Waits until a task of the key may start. Resolves to a function that ends the task; calling it again has no effect.
   * Rejects if the task waits too long or too many of its key wait.
   */
  async enter(key: string, options: WorkOptions = {}): Promise<() => void> {
    const { size = 1 } = options;
    if (!this.#startNow(key, size)) await this.#wait(key, options);
    return this.#onceEnd(key, size);
  }

  /** Like `enter`, but returns null instead of waiting if the task cannot start now. */
  tryEnter(key: string, { size = 1 }: Pick<WorkOptions, 'size'> = {}): (() => void) | null {
    return this.#startNow(key, size) ? this.#onceEnd(key, size) : null;
  }

  /**
   * Counts work of varying size that is running already. Returns a function that sets the size, at first 0; 0 ends the
   * work.
   */
  track(key: string): (size: number) => void {
    let counted = 0;
    return (size) => {
      const before = counted;
      if (size === before) return;
      counted = size;
      if (size > 0) this.#start(key, this.#keys.get(key) ?? new KeyState(), size);
      if (before > 0) this.#end(key, before);
    };
  }

  /** Whether a task of the key would have to wait for running ones. */
  isFull(key: string): boolean {
    return !this.#hasCapacity(this.#keys.get(key) ?? NO_TASKS, 1);
  }

  /** Resolves when no task is running or waiting. */
  async idle(): Promise<void> {
    if (this.#keys.size === 0) return;
    this.#idle ??= Promise.withResolvers();
    await this.#idle.promise;
  }

  #onceEnd(key: string, size: number): () => void {
    let hasEnded = false;
    return () => {
      if (!hasEnded) this.#end(key, size);
      hasEnded = true;
    };
  }

  #execute<T>(key: string, size: number, work: () => Promise<T>): Promise<T> {
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
    const state = this.#keys.get(key) ?? new KeyState();
    if (state.waiting.size > 0 || !this.#hasCapacity(state, size)) return false;
    this.#start(key, state, size);
    return true;
  }

  #start(key: string, state: KeyState, size: number): void {
    this.#keys.set(key, state);
    state.running += size;
    state.tasks += 1;
    this.#total += size;
  }

  #hasCapacity({ running }: KeyState, size: number): boolean {
    if (size === 0) return true;
    const { perKey, total = Number.POSITIVE_INFINITY, guaranteed = 0, isExact = false } = this.#options;
    // If the task may exceed the bound, less than the bound must be used.
    const needed = isExact ? size : 1;
    return running + needed <= perKey && (this.#total + needed <= total || running < guaranteed);
  }

  /** Resolves once the task has been counted as running. */
  #wait(
    key: string,
    { size = 1, maxWaiting = this.#options.maxWaiting, onWait }: WorkOptions,
  ): Promise<void> {
    const { rejection, timeout } = this.#options;
    const state = this.#keys.get(key) ?? new KeyState();
    if (state.waiting.size >= maxWaiting) return Promise.reject(rejection());
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    let cancelTimer: CancelTimer | null = null;
    const enter = (): void => {
      cancelTimer?.();
      resolve();
    };
    const entry: PendingEntry = { size, enter };
    this.#keys.set(key, state);
    this.#waiting.set(key, state);
    state.waiting.add(entry);
    const cancel = (): void => {
      cancelTimer?.();
      if (state.waiting.delete(entry)) this.#prune(key, state);
    };
    if (timeout !== undefined) {
      cancelTimer = timeout.clock.after(timeout.ms, () => {
        cancel();
        reject(rejection());
      });
    }
    onWait?.(cancel);
    return promise;
  }

  /** Starts waiting tasks synchronously, so that no other caller can take the freed capacity first. */
  #end(key: string, size: number): void {
    this.#total -= size;
    const state = this.#keys.get(key) as KeyState;
    state.running -= size;
    state.tasks -= 1;
    this.#prune(key, state);
    for (let next = this.#next(); next !== null; next = this.#next()) {
      const [nextKey, nextState, entry] = next;
      nextState.waiting.delete(entry);
      this.#start(nextKey, nextState, entry.size);
      // Moves the key to the end, so that other keys have their turns first.
      this.#waiting.delete(nextKey);
      this.#waiting.set(nextKey, nextState);
      this.#prune(nextKey, nextState);
      entry.enter();
    }
  }

  /** Drops the state of a key without tasks. */
  #prune(key: string, state: KeyState): void {
    if (state.waiting.size > 0) return;
    this.#waiting.delete(key);
    if (state.tasks > 0) return;
    this.#keys.delete(key);
    if (this.#keys.size > 0) return;
    this.#idle?.resolve();
    this.#idle = null;
  }

  /** The next task of the first in turn among the keys with the least running work; null if no task may start. */
  #next(): NextTask | null {
    let next: NextTask | null = null;
    for (const [key, state] of this.#waiting) {
      if (state.running >= (next?.[1].running ?? Number.POSITIVE_INFINITY)) continue;
      const entry = state.first;
      if (entry !== undefined && this.#hasCapacity(state, entry.size)) next = [key, state, entry];
    }
    return next;
  }
}
