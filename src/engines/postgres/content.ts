import { MAX_REASON_BYTES } from '../../engine/storage.ts';
import { withLines } from '../../engine/stored-metadata.ts';
import type { ElementHead } from '../../model/element.ts';
import { type LeaseTokens, TOKEN_BYTES } from '../../model/lease-token.ts';
import { truncateUtf8 } from '../../util/truncate-utf8.ts';

/**
 * The column `head`: an element without its body, as text. JSON escapes characters that PostgreSQL's text type cannot
 * store. The first line is `[contentType, contentEncoding, name, value, …]`; statements that move dead letters append
 * others, see `engine/stored-metadata.ts`.
 */
type Head = readonly [contentType: string | null, contentEncoding: string | null, ...headers: string[]];

export function encodeHead({ contentType, contentEncoding, headers }: ElementHead): string {
  return JSON.stringify([contentType, contentEncoding, ...headers] satisfies Head);
}

export function decodeHead(text: string, ids: Ids): ElementHead {
  const [first = '', ...lines] = text.split('\n');
  const [contentType, contentEncoding, ...stored] = JSON.parse(first) as Head;
  const headers = withLines(stored, lines, (seq) => ids.format(Number(seq)));
  return { contentType, contentEncoding, headers };
}

/** Decodes a body from PostgreSQL's text format: `\x` and two hexadecimal digits per byte. */
export function decodeBody(hex: string): Buffer {
  return Buffer.from(hex.slice(2), 'hex');
}

/** Encodes a reason for storage: JSON, so that it may contain any character, like headers. */
export function encodeReason(reason: string | null | undefined): string | null {
  return reason == null ? null : JSON.stringify(truncateUtf8(reason, MAX_REASON_BYTES));
}

/**
 * Converts sequence numbers to element ids, `<tag><length><digits>`: the digits are the number in base 36, and the
 * length is their count, so that ids sort in the order of insertion. The tag is random per schema: an id of another
 * store matches nothing here. An id is not secret; every operation checks it against the queue it is used with.
 */
export class Ids {
  #tag = '';

  /** Called when the schema was opened. */
  setTag(tag: string): void {
    this.#tag = tag;
  }

  format(seq: number): string {
    const digits = seq.toString(36);
    return this.#tag + digits.length.toString(36) + digits;
  }

  /** The sequence number of an id, or null if this store cannot have issued that id. */
  parse(text: string): number | null {
    const seq = Number.parseInt(text.slice(this.#tag.length + 1), 36);
    return Number.isSafeInteger(seq) && seq > 0 && this.format(seq) === text ? seq : null;
  }
}

/** Sizes of a token's number and of its secret, in bytes. */
const NUMBER_BYTES = 6;
const SECRET_BYTES = TOKEN_BYTES - NUMBER_BYTES;

/** 128 random bits: a number, which is incremented for each further reservation of a request, and a secret. */
export interface Token {
  readonly number: number;
  readonly secret: Buffer;
}

/** Equals no token: the result for a malformed string. */
const NO_TOKEN: Token = { number: -1, secret: Buffer.alloc(0) };

/** Draws one token for all reservations of a request, since they belong to one user. */
export function drawToken(tokens: LeaseTokens): Token {
  const bytes = tokens.bytes();
  return { number: bytes.readUIntBE(0, NUMBER_BYTES), secret: bytes.subarray(NUMBER_BYTES) };
}

/** @param secret in hexadecimal digits */
export function formatToken(number: number, secret: string): string {
  return `${number.toString(36)}-${secret}`;
}

const TOKEN = new RegExp(`^([0-9a-z]{1,11})-([0-9a-f]{${2 * SECRET_BYTES}})$`);

export function parseToken(text: string): Token {
  const [, digits = '', secret = ''] = TOKEN.exec(text) ?? [];
  const number = Number.parseInt(digits, 36);
  // Rejects leading zeros, with which a token is never issued.
  if (!Number.isSafeInteger(number) || number.toString(36) !== digits) return NO_TOKEN;
  return { number, secret: Buffer.from(secret, 'hex') };
}
