import type { LeaseTokens } from '../../../model/lease-token.ts';

// Lease tokens. A take generates 128 random bits, which are stored with each of its reservations, so that these can be
// written, and finished, by ranges: 1.9 and 0.8 µs per delivery, and 2.3 and 2.3 µs with random bits for each (ADR 9).
// The token of a reservation is those bits, with the number of the delivery's element XORed into the last 32. So all
// tokens of a take differ, and each settles only its own reservation.

const DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
/** The value of each digit by its character code; -1 for other characters. */
const DIGIT_VALUES = new Int8Array(128).fill(-1);
/** Each pair of digits, by its value. */
const DIGIT_PAIRS: string[] = [];
for (const [value, digit] of [...DIGITS].entries()) {
  DIGIT_VALUES[digit.charCodeAt(0)] = value;
  for (const second of DIGITS) DIGIT_PAIRS.push(digit + second);
}

const TOKEN_LENGTH = 22;
/** The last 32 bits begin at the boundary of a digit. */
const PREFIX_LENGTH = 16;
/** Suffix of the stored form. Files of schema 1 may contain plain tokens, which lack it. */
const STORED_SUFFIX = '+';

/** Draws the secret of a take, in the form in which each of its reservations stores it. */
export function drawStoredToken(tokens: LeaseTokens): string {
  return tokens.text() + STORED_SUFFIX;
}

/** The token of an element's reservation. */
export function tokenOf(stored: string, element: number): string {
  return combine(stored, wordOf(stored) ?? 0, element);
}

/** The stored form of an element's token; '' if the token is not valid. */
export function storedToken(token: string, element: number): string {
  const word = token.length === TOKEN_LENGTH ? wordOf(token) : null;
  return word === null ? '' : combine(token, word, element) + STORED_SUFFIX;
}

/** Whether a token is that of an element's reservation. */
export function isTokenOf(token: string, element: number, stored: string | null): boolean {
  if (stored === null || token.length !== TOKEN_LENGTH) return false;
  if (stored.length === TOKEN_LENGTH) return stored === token;
  const word = wordOf(token);
  if (word === null || word !== ((wordOf(stored) ?? 0) ^ element)) return false;
  return token.startsWith(stored.slice(0, PREFIX_LENGTH));
}

function combine(token: string, word: number, element: number): string {
  const combined = word ^ element;
  const pair = (value: number): string => DIGIT_PAIRS[value & 0xfff] ?? '';
  const digits = pair(combined >>> 20) + pair(combined >>> 8) + pair((combined & 0xff) << 4);
  return token.slice(0, PREFIX_LENGTH) + digits;
}

/** The last 32 bits of a token; null if its end is not valid. */
function wordOf(token: string): number | null {
  let word = 0;
  for (let at = PREFIX_LENGTH; at < TOKEN_LENGTH - 1; at++) {
    const value = DIGIT_VALUES[token.charCodeAt(at)] ?? -1;
    if (value < 0) return null;
    word = (word << 6) | value;
  }
  const last = DIGIT_VALUES[token.charCodeAt(TOKEN_LENGTH - 1)] ?? -1;
  // Only two bits of the last digit are used; the others must be 0, so that each token has only one form.
  return last < 0 || (last & 15) !== 0 ? null : (word << 2) | (last >> 4);
}
