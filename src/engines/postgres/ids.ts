import { randomBytes } from 'node:crypto';

/**
 * Element ids as text: `<tag><length><digits>`, where the digits are the element's number in base 36 and
 * the length says how many there are. So ids sort as texts in the order of insertion. The tag is random per
 * schema: an id of another store matches nothing here. An id is no secret; every verb checks it against the
 * queue it is used with.
 */
export class Ids {
  #tag = '';

  /** Known once the schema was opened. */
  setTag(tag: string): void {
    this.#tag = tag;
  }

  text(seq: number): string {
    const digits = seq.toString(36);
    return this.#tag + digits.length.toString(36) + digits;
  }

  /** The number behind a text, or null where this store never gave that text out. */
  parse(text: string): number | null {
    const seq = Number.parseInt(text.slice(this.#tag.length + 1), 36);
    return Number.isSafeInteger(seq) && seq > 0 && this.text(seq) === text ? seq : null;
  }
}

const TOKEN_BYTES = 6;
/** Drawn in one go, since each draw has a fixed cost. */
const POOL_TOKENS = 512;

/** Equals no token: what a text that was never given out stands for. */
const NO_TOKEN = -1;

/** Lease tokens: random numbers of 48 bits, which two reservations of one delivery do not share. */
export class Tokens {
  #pool = Buffer.alloc(0);
  #at = 0;

  next(): number {
    if (this.#at === this.#pool.length) {
      this.#pool = randomBytes(TOKEN_BYTES * POOL_TOKENS);
      this.#at = 0;
    }
    const token = this.#pool.readUIntBE(this.#at, TOKEN_BYTES);
    this.#at += TOKEN_BYTES;
    return token;
  }
}

export function tokenText(token: number): string {
  return token.toString(36);
}

export function parseToken(text: string): number {
  const token = Number.parseInt(text, 36);
  return Number.isSafeInteger(token) && token >= 0 && tokenText(token) === text ? token : NO_TOKEN;
}
