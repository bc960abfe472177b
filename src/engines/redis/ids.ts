import type { ElementId } from '../../model/element.ts';
import { TOKEN_BYTES } from '../../model/lease-token.ts';

/**
 * Ids of elements: the tag of the queue (12 hex digits, random when the queue is made), then the element's
 * number (10 digits of base 32). They sort by insertion, and an id of another queue is not found in this one.
 */
const ID = /^[0-9a-f]{12}[0-9a-v]{10}$/;
const TAG_LENGTH = 12;
const NUMBER_LENGTH = 10;
const LARGEST_NUMBER = 2 ** 48 - 1;

/** What no queue has for its tag. */
const NO_TAG = '\0'.repeat(TAG_LENGTH);

/** The last two digits of a number, ready made; the digits before them change seldom from id to id. */
const LAST_DIGITS = Array.from({ length: 1024 }, (_, number) => number.toString(32).padStart(2, '0'));
let front = { tag: '', high: -1, text: '' };

export function elementId(tag: string, number: number): ElementId {
  const low = number % 1024;
  const high = (number - low) / 1024;
  if (front.high !== high || front.tag !== tag) {
    front = { tag, high, text: tag + high.toString(32).padStart(NUMBER_LENGTH - 2, '0') };
  }
  return front.text + LAST_DIGITS[low];
}

/** Writes tag(12) and number(6). A string that is no id of ours gets a tag that no queue has. */
export function writeId(id: ElementId, target: Buffer, at: number): void {
  const number = ID.test(id) ? Number.parseInt(id.slice(TAG_LENGTH), 32) : Number.POSITIVE_INFINITY;
  const known = number <= LARGEST_NUMBER;
  target.write(known ? id.slice(0, TAG_LENGTH) : NO_TAG, at, 'latin1');
  target.writeUIntBE(known ? number : 0, at + TAG_LENGTH, 6);
}

export const ID_BYTES = TAG_LENGTH + 6;

export function encodeIds(ids: readonly ElementId[]): Buffer {
  const target = Buffer.allocUnsafe(ids.length * ID_BYTES);
  for (const [i, id] of ids.entries()) writeId(id, target, i * ID_BYTES);
  return target;
}

const TOKEN = /^[A-Za-z0-9_-]{22}$/;

/**
 * The token of a delivery of one take. Its first four bytes are counted up from delivery to delivery, so that one
 * draw of random bits does for a take: all of its reservations belong to one user.
 */
export function tokenText(first: Buffer, index: number): string {
  if (index === 0) return first.toString('base64url');
  const token = Buffer.from(first);
  token.writeUInt32BE((token.readUInt32BE(0) + index) % 2 ** 32, 0);
  return token.toString('base64url');
}

/** Writes a token(16). One that is not ours is written as zeros, which match no reservation (`library/settle.lua`). */
export function writeToken(token: string | null, target: Buffer, at: number): void {
  if (token !== null && TOKEN.test(token)) target.write(token, at, TOKEN_BYTES, 'base64url');
  else target.fill(0, at, at + TOKEN_BYTES);
}
