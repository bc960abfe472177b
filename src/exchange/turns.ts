/** Lets changes of the same thing happen one after the other, in the order in which they were asked for. */
export class Turns {
  readonly #last = new Map<string, Promise<void>>();

  take<T>(key: string, change: () => Promise<T>): Promise<T> {
    const result = (this.#last.get(key) ?? Promise.resolve()).then(change);
    const ended = result.then(noop, noop).then(() => {
      if (this.#last.get(key) === ended) this.#last.delete(key);
    });
    this.#last.set(key, ended);
    return result;
  }

  /** Resolves when no change is under way or waits. */
  async idle(): Promise<void> {
    while (this.#last.size > 0) await Promise.all(this.#last.values());
  }
}

function noop(): void {}
