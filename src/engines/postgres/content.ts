import { MAX_REASON_BYTES } from '../../engine/storage.ts';
import {
  type ElementContent,
  type ElementHeaders,
  type GroupName,
  PLAIN_GROUP,
} from '../../model/element.ts';
import { withChanges } from '../../model/headers.ts';
import { type LeaseTokens, TOKEN_BYTES } from '../../model/lease-token.ts';
import { deadLetterHeaders } from '../../model/service-headers.ts';
import { toByteString } from '../../util/byte-string.ts';
import { truncateUtf8 } from '../../util/truncate-utf8.ts';

/**
 * The column `head`: an element without its body. Lines of JSON, which escapes characters that PostgreSQL's text type
 * cannot store. The first line is `[contentType, contentEncoding, name, value, …]`. Statements that copy an element
 * append a line, so that SQL need not parse any, and headers are computed when an element is read:
 * - `["d", queue, at, tries, seq, reason, group]`: it became a dead letter. Lines of earlier releases have no group.
 * - `["h", name, value, …]`: a move replaced these headers; the value null removed one.
 */
type Head = readonly [contentType: string | null, contentEncoding: string | null, ...headers: string[]];
type Line =
  | readonly [
      'd',
      queue: string,
      at: number,
      tries: number,
      seq: number,
      reason: string | null,
      group?: GroupName,
    ]
  | readonly ['h', ...changes: (string | null)[]];

type DecodedHead = Omit<ElementContent, 'body'>;

export function encodeHead({ contentType, contentEncoding, headers }: DecodedHead): string {
  return JSON.stringify([contentType, contentEncoding, ...headers] satisfies Head);
}

/** The line that a move appends to a head; empty if it replaces no headers. */
export function encodeChanges(headers: readonly (string | null)[]): string {
  return headers.length === 0 ? '' : `\n${JSON.stringify(['h', ...headers])}`;
}

export function decodeHead(text: string, ids: Ids): DecodedHead {
  const [first = '', ...lines] = text.split('\n');
  const [contentType, contentEncoding, ...stored] = JSON.parse(first) as Head;
  let headers: ElementHeaders = stored;
  for (const line of lines) headers = applyLine(headers, JSON.parse(line) as Line, ids);
  return { contentType, contentEncoding, headers };
}

function applyLine(headers: ElementHeaders, line: Line, ids: Ids): ElementHeaders {
  if (line[0] === 'd') {
    const [, queue, at, tries, seq, reason, group = PLAIN_GROUP] = line;
    const from = toByteString(queue);
    return deadLetterHeaders(headers, { from, group, at, tries, id: ids.format(seq), reason });
  }
  const [, ...changes] = line;
  return withChanges(headers, changes);
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
