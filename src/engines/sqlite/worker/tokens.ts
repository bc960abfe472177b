import type { LeaseTokens } from '../../../model/lease-token.ts';

// Lease tokens. A take draws 128 random bits, which are stored with each of its reservations, so that these can be
// written, and finished, by ranges: 1.9 and 0.8 µs a delivery; with bits of its own each took 2.3 and 2.3 (ADR 9). The
// token of a reservation is those bits, the last 32 exclusive-or the last 32 of the delivery's element. So no two
// tokens of a take are alike, and none settles another reservation than its own.

const DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
/** The value of each digit by its code; -1: it is none. */
const VALUES = new Int8Array(128).fill(-1);
/** Two digits by their value. */
const PAIRS: string[] = [];
for (const [value, digit] of [...DIGITS].entries()) {
  VALUES[digit.charCodeAt(0)] = value;
  for (const second of DIGITS) PAIRS.push(digit + second);
}

const LENGTH = 22;
/** The last 32 bits begin at a digit's boundary. */
const PREFIX = 16;
/**
 * Ends what is stored for the tokens of a take. A file of version 0.1.0 may hold tokens as they are, which have no such
 * end.
 */
const END = '+';

/** The tokens of one take. */
export class TakeTokens {
  /** What is stored with each reservation of the take. */
  readonly stored: string;
  readonly #prefix: string;
  readonly #word: number;

  constructor(stored: string) {
    this.stored = stored;
    this.#prefix = stored.slice(0, PREFIX);
    this.#word = wordOf(stored) ?? 0;
  }

  static draw(tokens: LeaseTokens): TakeTokens {
    return new TakeTokens(tokens.text() + END);
  }

  /** Those of the take that a token is from. */
  static from(token: string, element: number): TakeTokens {
    return new TakeTokens(storedToken(token, element));
  }

  /** The token of an element's reservation. */
  of(element: number): string {
    return this.#prefix + digitsOf(this.#word ^ element);
  }

  /** Whether a token is that of an element's reservation. */
  fits(token: string, element: number): boolean {
    if (token.length !== LENGTH || !token.startsWith(this.#prefix)) return false;
    return wordOf(token) === (this.#word ^ element);
  }
}

/** What is stored with the reservation of an element that has this token; '' if it cannot be a token. */
export function storedToken(token: string, element: number): string {
  const word = token.length === LENGTH ? wordOf(token) : null;
  return word === null ? '' : token.slice(0, PREFIX) + digitsOf(word ^ element) + END;
}

/** Whether a token is that of an element's reservation. */
export function isTokenOf(token: string, element: number, stored: string | null): boolean {
  return token.length === LENGTH && (stored === storedToken(token, element) || stored === token);
}

function digitsOf(word: number): string {
  const pair = (value: number): string => PAIRS[value & 0xfff] ?? '';
  return pair(word >>> 20) + pair(word >>> 8) + pair((word & 0xff) << 4);
}

/** The last 32 bits of a token; null if no token ends so. */
function wordOf(token: string): number | null {
  let word = 0;
  for (let at = PREFIX; at < LENGTH - 1; at++) {
    const value = VALUES[token.charCodeAt(at)] ?? -1;
    if (value < 0) return null;
    word = (word << 6) | value;
  }
  const last = VALUES[token.charCodeAt(LENGTH - 1)] ?? -1;
  // The last digit has two bits of the word, and no second text may stand for the same token.
  return last < 0 || (last & 15) !== 0 ? null : (word << 2) | (last >> 4);
}
