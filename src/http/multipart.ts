import { randomBytes } from 'node:crypto';
import type { Delivery } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { ORIGIN_ID } from '../model/service-headers.ts';
import { quote, quoteBytes } from '../util/quote.ts';

/** The media type of bodies that are several elements, byte for byte (RFC 2046). */
export const MULTIPART = 'multipart/mixed';

/** A boundary that no body can have been made to contain: 128 random bits. */
export function newBoundary(): string {
  return `quayside-${randomBytes(16).toString('base64url')}`;
}

/** The content type of a body with that boundary. */
export function multipartType(boundary: string): string {
  return `${MULTIPART}; boundary="${boundary}"`;
}

/**
 * A delivery as one part: the headers and the body that the response to a get has. A body of `multipart/mixed` is parts one after
 * the other, and {@link multipartEnd}.
 * @param more flat headers of the part in addition; each character of a value is one byte
 */
export function elementPart(boundary: string, delivery: Delivery, more: readonly string[] = []): Buffer {
  const headers = [...more];
  pushElementHeaders(headers, delivery);
  let head = `--${boundary}\r\n`;
  for (let at = 0; at + 1 < headers.length; at += 2) head += `${headers[at]}: ${headers[at + 1]}\r\n`;
  head += '\r\n';
  const { body } = delivery;
  const part = Buffer.allocUnsafe(head.length + body.byteLength + 2);
  part.write(head, 'latin1');
  part.set(body, head.length);
  part.write('\r\n', head.length + body.byteLength, 'latin1');
  return part;
}

/** What follows the last part. */
export function multipartEnd(boundary: string): Buffer {
  return Buffer.from(`--${boundary}--\r\n`, 'latin1');
}

/** The longest boundary (RFC 2046). */
const MAX_BOUNDARY = 70;
/** Bytes of the headers of one part: as many as a request may have. */
const MAX_HEAD_BYTES = 16_384;
const CRLF = '\r\n';
const HEAD_END = Buffer.from('\r\n\r\n');
const BOUNDARY = /;\s*boundary\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";,]+))\s*(?:;|$)/i;
/** RFC 2046 `bchars`, the last of which is no space. */
const BOUNDARY_CHARACTERS = /^[0-9A-Za-z'()+_,\-./:=? ]*[0-9A-Za-z'()+_,\-./:=?]$/;
const HEADER_LINE =
  /^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t ]*((?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?)[\t ]*$/;

/** One part of a body: its headers, flat, each character of a value a byte, and its content. */
export interface BodyPart {
  readonly headers: readonly string[];
  readonly content: Buffer;
}

/** The boundary that a content type names. @throws QuaysideError `invalid-header` */
export function boundaryOf(contentType: string): string {
  const [, quoted, token] = BOUNDARY.exec(contentType) ?? [];
  const boundary = quoted?.replace(/\\(.)/g, '$1') ?? token ?? '';
  if (boundary.length <= MAX_BOUNDARY && BOUNDARY_CHARACTERS.test(boundary)) return boundary;
  const message = `Content-Type ${quote(contentType)} has no boundary of 1 to ${MAX_BOUNDARY} characters (RFC 2046).`;
  throw new QuaysideError('invalid-header', message, { parameter: 'content-type' });
}

/**
 * The parts of a body, one after the other; their contents are views of it. What stands before the first boundary and behind the
 * last one is left out, as RFC 2046 has it. Lines end with CRLF. A line that only begins with the boundary is an error:
 * readers differ about it.
 * @throws QuaysideError `invalid-body` when the iteration comes to it; the part that it is in is the next one
 */
export function* readParts(body: Buffer, boundary: string): Generator<BodyPart, void, undefined> {
  const delimiter = Buffer.from(`${CRLF}--${boundary}`, 'latin1');
  const opening = delimiter.subarray(2);
  const isFirst = body.subarray(0, opening.length).equals(opening);
  let at = isFirst ? opening.length : afterDelimiter(body, delimiter, 0);
  for (;;) {
    if (at === -1) throw broken(`There is no further line --${boundary}-- to end the body`);
    if (body[at] === DASH && body[at + 1] === DASH) return;
    while (body[at] === SPACE || body[at] === TAB) at += 1;
    if (body[at] !== CR || body[at + 1] !== LF) throw broken(`A line only begins with --${boundary}`);
    const contentAt = headEnd(body, at);
    const next = afterDelimiter(body, delimiter, contentAt - 2);
    // Without headers the empty line that ends them may be the one that belongs to the next boundary.
    const contentEnd = Math.max(contentAt, (next === -1 ? body.length : next) - delimiter.length);
    const headers = readHeaders(body.toString('latin1', at + 2, contentAt - 2));
    if (next === -1) throw broken(`There is no further line --${boundary}-- to end the body`);
    yield { headers, content: body.subarray(contentAt, contentEnd) };
    at = next;
  }
}

const [DASH, SPACE, TAB, CR, LF] = [0x2d, 0x20, 0x09, 0x0d, 0x0a];

/** Behind the next delimiter; -1: there is none. */
function afterDelimiter(body: Buffer, delimiter: Buffer, from: number): number {
  const at = body.indexOf(delimiter, from);
  return at === -1 ? -1 : at + delimiter.length;
}

/** Behind the empty line that ends the headers of a part. @param from the end of the line before them */
function headEnd(body: Buffer, from: number): number {
  const end = body.indexOf(HEAD_END, from);
  if (end === -1 || end - from > MAX_HEAD_BYTES) {
    throw broken(`No empty line ends its headers within ${MAX_HEAD_BYTES} bytes`);
  }
  return end + HEAD_END.length;
}

/** @param head lines, each with its end */
function readHeaders(head: string): string[] {
  const headers: string[] = [];
  for (const line of head.split(CRLF)) {
    if (line === '') continue;
    const [, name, value] = HEADER_LINE.exec(line) ?? [];
    if (name === undefined || value === undefined) throw broken(`${quoteBytes(line)} is not a header`);
    headers.push(name, value);
  }
  return headers;
}

function broken(what: string): QuaysideError {
  return new QuaysideError('invalid-body', `${what}.`);
}

/**
 * The headers that describe an element, flat: those of the response to a get (spec 2.1), and of a part of `multipart/mixed`.
 * Each character of a value is one byte.
 */
export function pushElementHeaders(headers: string[], delivery: Delivery): void {
  const { body, contentType, contentEncoding, headers: own, lease } = delivery;
  headers.push('content-type', contentType ?? 'application/octet-stream');
  headers.push('content-length', String(body.byteLength));
  if (contentEncoding !== null) headers.push('content-encoding', contentEncoding);
  headers.push('x-ks-id', delivery.id, 'x-ks-tries', String(delivery.tries));
  headers.push('x-ks-mature', new Date(delivery.matureAt).toISOString());
  if (lease !== null) {
    headers.push('x-ks-lease', lease.token, 'x-ks-lease-until', new Date(lease.until).toISOString());
  }
  for (let at = 0; at + 1 < own.length; at += 2) {
    const name = own[at] as string;
    headers.push(ELEMENT_HEADER_PREFIX + name, own[at + 1] as string);
    if (name === ORIGIN_ID) headers.push(name, own[at + 1] as string);
  }
}

/** What {@link pushElementHeaders} gives whether or not the element is reserved, for the documents; what differs is given by the route. */
export const ELEMENT_HEADER_NOTES = [
  { name: 'x-ks-hdr-*', description: 'Its element headers.' },
  { name: 'x-ks-origin-id', description: 'Of a dead letter: the first id of the element.' },
  { name: 'content-encoding', description: 'As it was inserted, where it was.' },
] as const;
