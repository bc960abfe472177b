import { type LeaseTokens, TOKEN_BYTES } from '../../model/lease-token.ts';

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

/** Bytes of a token's number. */
const NUMBER_BYTES = 6;

/** Equals no token: what a text that was never given out stands for. */
const NO_TOKEN: Token = { number: -1, secret: null };

/**
 * 128 random bits: a number, from which those of the further reservations of a request are counted, and a secret. One
 * draw does for a request: all of its reservations belong to one user.
 */
export interface Token {
  readonly number: number;
  /** Hexadecimal digits; null in tokens of the versions before. */
  readonly secret: string | null;
}

export function drawToken(tokens: LeaseTokens): Token {
  const bytes = tokens.bytes();
  return { number: bytes.readUIntBE(0, NUMBER_BYTES), secret: bytes.toString('hex', NUMBER_BYTES) };
}

/** Bytes of a secret. */
export const SECRET_BYTES = TOKEN_BYTES - NUMBER_BYTES;

export function tokenText({ number, secret }: Token): string {
  return secret === null ? number.toString(36) : `${number.toString(36)}-${secret}`;
}

const SECRET = new RegExp(`^[0-9a-f]{${2 * SECRET_BYTES}}$`);

export function parseToken(text: string): Token {
  const dash = text.indexOf('-');
  const token = {
    number: Number.parseInt(dash < 0 ? text : text.slice(0, dash), 36),
    secret: dash < 0 ? null : text.slice(dash + 1),
  };
  const isOurs = Number.isSafeInteger(token.number) && token.number >= 0 && tokenText(token) === text;
  return isOurs && (token.secret === null || SECRET.test(token.secret)) ? token : NO_TOKEN;
}
