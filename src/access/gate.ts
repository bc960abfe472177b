import { QuaysideError } from '../model/errors.ts';

/**
 * Lets few pieces of work run at once and few wait. Hashing a password fills a thread of libuv's four for
 * tens of milliseconds; the rest of the process needs the others (reliability, S2).
 */
export class Gate {
  readonly #atOnce: number;
  readonly #waitingMost: number;
  readonly #waiting: (() => void)[] = [];
  #running = 0;

  constructor(atOnce: number, waitingMost: number) {
    this.#atOnce = atOnce;
    this.#waitingMost = waitingMost;
  }

  /** @throws QuaysideError `overloaded` at once where too many wait; else what the work throws */
  async run<T>(work: () => Promise<T>): Promise<T> {
    await this.#enter();
    try {
      return await work();
    } finally {
      this.#leave();
    }
  }

  #enter(): Promise<void> {
    if (this.#running < this.#atOnce) {
      this.#running += 1;
      return Promise.resolve();
    }
    if (this.#waiting.length >= this.#waitingMost) {
      return Promise.reject(
        new QuaysideError('overloaded', 'Too many logins wait to be checked; try again soon.', {
          retryAfterMs: 1000,
        }),
      );
    }
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiting.push(resolve);
    return promise;
  }

  /** The place of who leaves goes to who waits longest; nobody can slip in between. */
  #leave(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#running -= 1;
    else next();
  }
}
