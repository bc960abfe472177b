import { QuaysideError } from '../model/errors.ts';

/** Checks and dry runs in progress, at most: each may keep the one selector worker for a second. */
const MAX_OF_USER = 2;
const MAX_IN_ALL = 16;
/** Creates of one user that wait for their check, at most. */
const MAX_WAITING_OF_USER = 32;

interface Waiting {
  readonly user: string;
  readonly enter: () => void;
}

/**
 * Bounds the checks and dry runs of selectors that are in progress. They share the selector worker with the exchanges,
 * and hold what was sent until they end.
 */
export class CheckLimit {
  /** In progress, by user. */
  readonly #running = new Map<string, number>();
  #all = 0;
  readonly #waiting: Waiting[] = [];

  /** @throws QuaysideError `overloaded` at once if too many are in progress; else what the work throws */
  run<T>(user: string, work: () => Promise<T>): Promise<T> {
    if (!this.#hasRoom(user)) return Promise.reject(tooMany());
    this.#enter(user);
    return this.#runEntered(user, work);
  }

  /** The same, but waits for its turn. @throws QuaysideError `overloaded` if too many of the user wait already */
  async runInTurn<T>(user: string, work: () => Promise<T>): Promise<T> {
    const own = this.#waiting.filter((waiting) => waiting.user === user);
    if (own.length >= MAX_WAITING_OF_USER) throw tooMany();
    if (own.length > 0 || !this.#hasRoom(user)) {
      await new Promise<void>((resolve) => this.#waiting.push({ user, enter: resolve }));
    } else this.#enter(user);
    return this.#runEntered(user, work);
  }

  async #runEntered<T>(user: string, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } finally {
      this.#leave(user);
    }
  }

  #hasRoom(user: string): boolean {
    return (this.#running.get(user) ?? 0) < MAX_OF_USER && this.#all < MAX_IN_ALL;
  }

  #enter(user: string): void {
    this.#running.set(user, (this.#running.get(user) ?? 0) + 1);
    this.#all += 1;
  }

  #leave(user: string): void {
    this.#all -= 1;
    const left = (this.#running.get(user) ?? 0) - 1;
    if (left === 0) this.#running.delete(user);
    else this.#running.set(user, left);
    const next = this.#waiting.findIndex((waiting) => this.#hasRoom(waiting.user));
    const [waiting] = next < 0 ? [] : this.#waiting.splice(next, 1);
    if (waiting === undefined) return;
    this.#enter(waiting.user);
    waiting.enter();
  }
}

function tooMany(): QuaysideError {
  return new QuaysideError(
    'overloaded',
    `Too many selectors are being checked or tried: at most ${MAX_OF_USER} requests of a user at once, and ${MAX_IN_ALL} in all.`,
    { retryAfterMs: 1000 },
  );
}
