export interface ConcurrencyLimitOptions {
  /** Work of one key in progress at once. */
  readonly perKey: number;
  /** Work of all keys in progress at once; not given: no further bound. */
  readonly total?: number;
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
 * whose own bound is reached does not delay the others.
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
    const { perKey, total = Number.POSITIVE_INFINITY } = this.#options;
    return (this.#running.get(key) ?? 0) < perKey && this.#total < total;
  }

  #start(key: string): void {
    this.#running.set(key, (this.#running.get(key) ?? 0) + 1);
    this.#total += 1;
  }

  /** The place goes to the first that may start; nothing can take it in between. */
  #end(key: string): void {
    this.#total -= 1;
    const left = (this.#running.get(key) ?? 0) - 1;
    if (left === 0) this.#running.delete(key);
    else this.#running.set(key, left);
    const at = this.#waiting.findIndex((pending) => this.#hasPlace(pending.key));
    const [next] = at === -1 ? [] : this.#waiting.splice(at, 1);
    if (next === undefined) return;
    this.#start(next.key);
    next.enter();
  }
}
