import { randomInt } from 'node:crypto';
import type { ElementId } from '../../model/element.ts';

/** Ids of one millisecond: 2048 a node, then the next millisecond's. */
const PER_MS = 2048;
/** Digits in base 36 of the largest number, so that ids sort as texts. */
const WIDTH = 11;
const TAG_LENGTH = 6;

/**
 * Element ids: the time, then a tag of this node. They grow, so that among equal maturities the order of ids is
 * the order of insertion: exactly within a node, and between nodes as exactly as they know the server's time.
 */
export class Ids {
  readonly #tag = randomText(TAG_LENGTH);
  #last = 0;

  /** @param now the server's time, ms */
  next(now: number): ElementId {
    this.#last = Math.max(this.#last + 1, Math.floor(now) * PER_MS);
    return `${this.#last.toString(36).padStart(WIDTH, '0')}-${this.#tag}`;
  }
}

/** Names of changes. That of a reservation is its token, too. */
export class Ops {
  readonly #tag = randomText(12);
  #count = 0;

  next(): string {
    this.#count += 1;
    return `${this.#tag}${this.#count.toString(36)}`;
  }
}

function randomText(length: number): string {
  return Array.from({ length }, () => randomInt(36).toString(36)).join('');
}
