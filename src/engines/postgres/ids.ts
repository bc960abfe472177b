import { type LeaseTokens, TOKEN_BYTES } from '../../model/lease-token.ts';

/**
 * Element ids as text: `<tag><length><digits>`, where the digits are the element's number in base 36 and
 * the length says how many there are. So ids sort as texts in the order of insertion. The tag is random per
 * schema: an id of another store matches nothing here. An id is no secret; every operation checks it against the
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

  /** The number behind a text, or null if this store never gave that text out. */
  parse(text: string): number | null {
    const seq = Number.parseInt(text.slice(this.#tag.length + 1), 36);
    return Number.isSafeInteger(seq) && seq > 0 && this.text(seq) === text ? seq : null;
  }
}

/** Bytes of a token's number, and of its secret. */
const NUMBER_BYTES = 6;
const SECRET_BYTES = TOKEN_BYTES - NUMBER_BYTES;

/** 128 random bits: a number, from which those of the further reservations of a request are counted, and a secret. */
export interface Token {
  readonly number: number;
  readonly secret: Buffer;
}

/** Equals no token: what a text that was never given out stands for. */
const NO_TOKEN: Token = { number: -1, secret: Buffer.alloc(0) };

/** One draw is enough for a request: all of its reservations belong to one user. */
export function drawToken(tokens: LeaseTokens): Token {
  const bytes = tokens.bytes();
  return { number: bytes.readUIntBE(0, NUMBER_BYTES), secret: bytes.subarray(NUMBER_BYTES) };
}

/** @param secret in hexadecimal digits */
export function tokenText(number: number, secret: string): string {
  return `${number.toString(36)}-${secret}`;
}

const TOKEN = new RegExp(`^([0-9a-z]{1,11})-([0-9a-f]{${2 * SECRET_BYTES}})$`);

export function parseToken(text: string): Token {
  const [, digits = '', secret = ''] = TOKEN.exec(text) ?? [];
  const number = Number.parseInt(digits, 36);
  // Digits with leading zeros are no text that was given out.
  if (!Number.isSafeInteger(number) || number.toString(36) !== digits) return NO_TOKEN;
  return { number, secret: Buffer.from(secret, 'hex') };
}
