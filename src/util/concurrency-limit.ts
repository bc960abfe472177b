export interface ConcurrencyLimitOptions {
  /** Work of one key in progress at once. */
  readonly perKey: number;
  /** Work of all keys in progress at once; not given: no further bound. */
  readonly total?: number;
  /** Work of one key that may be in progress although `total` is reached by others; defaults to 0. */
  readonly guaranteed?: number;
  /** Work of one key that waits; more is rejected. */
  readonly maxWaiting: number;
  /** Makes the error of a rejection. */
  readonly rejection: () => Error;
}

interface PendingEntry {
  readonly key: string;
  readonly enter: () => void;
}

/**
 * Bounds the work in progress, for each key (a user, an exchange) and in all. Work of one key starts in order; a key
 * whose own bound is reached does not delay the others. A place that becomes free goes to the key with the least work in
 * progress, however much of others waits.
 */
export class ConcurrencyLimit {
  readonly #options: ConcurrencyLimitOptions;
  /** In progress, by key. */
  readonly #running = new Map<string, number>();
  #total = 0;
  readonly #waiting: PendingEntry[] = [];

  constructor(options: ConcurrencyLimitOptions) {
    this.#options = options;
  }

  /**
   * Does the work when it may start. Rejects at once if too much of its key waits, else as the work does.
   * @param maxWaiting for work that should wait behind less than others may; 0: it starts now or is rejected
   */
  async run<T>(key: string, work: () => Promise<T>, maxWaiting?: number): Promise<T> {
    const leave = await this.enter(key, maxWaiting);
    try {
      return await work();
    } finally {
      leave();
    }
  }

  /**
   * Resolves when work of the key may start, with a function that ends it; further calls of that do nothing.
   * Rejects at once if too much of its key waits.
   */
  async enter(key: string, maxWaiting = this.#options.maxWaiting): Promise<() => void> {
    const before = this.#waiting.reduce((count, pending) => count + (pending.key === key ? 1 : 0), 0);
    if (before === 0 && this.#hasPlace(key)) this.#start(key);
    else if (before >= maxWaiting) throw this.#options.rejection();
    else await new Promise<void>((resolve) => this.#waiting.push({ key, enter: resolve }));
    let isOver = false;
    return () => {
      if (!isOver) this.#end(key);
      isOver = true;
    };
  }

  #hasPlace(key: string): boolean {
    const { perKey, total = Number.POSITIVE_INFINITY, guaranteed = 0 } = this.#options;
    const own = this.#running.get(key) ?? 0;
    return own < perKey && (this.#total < total || own < guaranteed);
  }

  #start(key: string): void {
    this.#running.set(key, (this.#running.get(key) ?? 0) + 1);
    this.#total += 1;
  }

  /** The place goes to another that may start; nothing can take it in between. */
  #end(key: string): void {
    this.#total -= 1;
    const left = (this.#running.get(key) ?? 0) - 1;
    if (left === 0) this.#running.delete(key);
    else this.#running.set(key, left);
    const next = this.#next();
    if (next === null) return;
    this.#waiting.splice(this.#waiting.indexOf(next), 1);
    this.#start(next.key);
    next.enter();
  }

  /** Of the keys with the least work in progress, the first that may start; null: none may. */
  #next(): PendingEntry | null {
    let next: PendingEntry | null = null;
    let fewest = Number.POSITIVE_INFINITY;
    for (const pending of this.#waiting) {
      const own = this.#running.get(pending.key) ?? 0;
      if (own >= fewest || !this.#hasPlace(pending.key)) continue;
      next = pending;
      fewest = own;
    }
    return next;
  }
}
