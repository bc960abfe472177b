import { QuaysideError } from '../model/errors.ts';

/** Tries that are under way, at most: each may keep the one selector worker for a second. */
const MOST_OF_USER = 2;
const MOST_IN_ALL = 16;

/**
 * Bounds the tries of selectors that are under way. They take turns with the exchanges of everybody, and hold what
 * was sent until they end.
 */
export class Tries {
  /** By user. */
  readonly #underWay = new Map<string, number>();
  #all = 0;

  /** @throws QuaysideError `overloaded` at once where too many are under way; else what the try throws */
  async run<T>(user: string, tryOut: () => Promise<T>): Promise<T> {
    const own = this.#underWay.get(user) ?? 0;
    if (own >= MOST_OF_USER || this.#all >= MOST_IN_ALL) throw tooMany();
    this.#underWay.set(user, own + 1);
    this.#all += 1;
    try {
      return await tryOut();
    } finally {
      this.#all -= 1;
      const left = (this.#underWay.get(user) ?? 0) - 1;
      if (left === 0) this.#underWay.delete(user);
      else this.#underWay.set(user, left);
    }
  }
}

function tooMany(): QuaysideError {
  return new QuaysideError(
    'overloaded',
    `Too many exchanges are being tried: at most ${MOST_OF_USER} of a user at once, and ${MOST_IN_ALL} in all.`,
    { retryAfterMs: 1000 },
  );
}
