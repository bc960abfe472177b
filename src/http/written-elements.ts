import { isUtf8 } from 'node:buffer';
import { randomBytes } from 'node:crypto';
import type { Portion } from '../broker/joint-take.ts';
import type { Delivery, ElementContent, ElementHeaders } from '../model/element.ts';
import { ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { ORIGIN_ID } from '../model/service-headers.ts';
import type { SearchPage } from '../operations/search.ts';
import type { ScannedDelivery } from '../operations/transfer.ts';
import { payloadName } from '../sandbox/sandbox.ts';
import { textOfByteString } from '../util/byte-string.ts';
import { isJson } from '../util/json-scanner.ts';
import { headerLines } from './route.ts';

// Formats elements for responses: as headers and a body, as lines of JSON, and as parts of `multipart/mixed`.

/**
 * Appends the headers that describe an element, as flat pairs: for the response to a get (spec 2.1), and for a part of
 * `multipart/mixed`. Each character of a value stands for one byte.
 */
export function pushElementHeaders(headers: string[], delivery: Delivery): void {
  const { body, contentType, contentEncoding, headers: elementHeaders, lease } = delivery;
  headers.push('content-type', contentType ?? 'application/octet-stream');
  headers.push('content-length', String(body.byteLength));
  if (contentEncoding !== null) headers.push('content-encoding', contentEncoding);
  headers.push('x-ks-id', delivery.id, 'x-ks-tries', String(delivery.tries));
  headers.push('x-ks-mature', isoTime(delivery.matureAt));
  if (lease !== null) {
    headers.push('x-ks-lease', lease.token, 'x-ks-lease-until', isoTime(lease.until));
  }
  for (let at = 0; at + 1 < elementHeaders.length; at += 2) {
    const name = elementHeaders[at] as string;
    headers.push(ELEMENT_HEADER_PREFIX + name, elementHeaders[at + 1] as string);
    if (name === ORIGIN_ID) headers.push(name, elementHeaders[at + 1] as string);
  }
}

/**
 * Documents the headers of {@link pushElementHeaders} that do not depend on a reservation; routes document the others.
 */
export const ELEMENT_HEADER_NOTES = {
  'x-ks-hdr-*': 'Its element headers.',
  'x-ks-origin-id': 'Of a dead letter: the first id of the element.',
  'content-encoding': 'As it was inserted; omitted if it had none.',
} as const;

/** The media type of lines of JSON. */
export const NDJSON = 'application/x-ndjson';

/** The media type of bodies that are several elements, byte for byte (RFC 2046). */
export const MULTIPART = 'multipart/mixed';

/** How the elements of a take of many are written. */
export interface ManyFormat {
  readonly isMultipart: boolean;
  /** Whether bodies of JSON types are written as JSON values; for lines only. */
  readonly asJson: boolean;
  /** Whether each element names the queue from which it was taken. */
  readonly namesSource: boolean;
}

/** Formats the elements of a take of many as the body of its response. */
export function writeMany(
  portions: readonly Portion[],
  { isMultipart, asJson, namesSource }: ManyFormat,
): { readonly contentType: string; readonly pieces: Iterable<string | Buffer> } {
  if (!isMultipart) return { contentType: NDJSON, pieces: writeLines(portions, asJson, namesSource) };
  // No producer can know these 128 random bits and put the boundary into a body.
  const boundary = `quayside-${randomBytes(16).toString('base64url')}`;
  const contentType = `${MULTIPART}; boundary="${boundary}"`;
  return { contentType, pieces: writeParts(portions, boundary, namesSource) };
}

function* writeLines(
  portions: readonly Portion[],
  asJson: boolean,
  namesSource: boolean,
): Generator<string, void, undefined> {
  for (const { queue, deliveries } of portions) {
    const source = namesSource ? { ns: queue.key.ns, queue: queue.key.name } : null;
    for (const delivery of deliveries) yield elementLine(delivery, asJson, source);
  }
}

function* writeParts(
  portions: readonly Portion[],
  boundary: string,
  namesSource: boolean,
): Generator<Buffer, void, undefined> {
  for (const { queue, deliveries } of portions) {
    const { ns, name } = queue.key;
    // Names may contain characters that header values may not, so they are percent-encoded as in paths.
    const source = namesSource
      ? ['x-ks-ns', encodeURIComponent(ns), 'x-ks-queue', encodeURIComponent(name)]
      : [];
    for (const delivery of deliveries) yield elementPart(boundary, delivery, source);
  }
  yield multipartEnd(boundary);
}

/** The queue of an element, for lines of several queues. */
interface LineSource {
  readonly ns: string;
  readonly queue: string;
}

/**
 * A delivery as one line of NDJSON, its line feed included: `{"ns", "queue", "id", "tries", "mature", "contentType",
 * "contentEncoding", "headers", "json" or "text" or "base64", "lease", "leaseUntil"}`. Moments are ISO 8601; missing
 * values are null. `ns` and `queue` are present if `source` is not null.
 * @param asJson whether bodies of JSON types are values (`json`); one that does not parse is `text`
 */
export function elementLine(delivery: Delivery, asJson: boolean, source: LineSource | null = null): string {
  const { id, tries, matureAt, lease } = delivery;
  const sourceMembers =
    source === null ? '' : `"ns":${JSON.stringify(source.ns)},"queue":${JSON.stringify(source.queue)},`;
  const leaseMembers =
    lease === null
      ? '"lease":null,"leaseUntil":null'
      : `"lease":${JSON.stringify(lease.token)},"leaseUntil":"${isoTime(lease.until)}"`;
  return (
    `{${sourceMembers}"id":${JSON.stringify(id)},"tries":${tries},"mature":"${isoTime(matureAt)}",` +
    `${contentMembers(delivery, asJson)},${leaseMembers}}\n`
  );
}

/** The content of an element as members of a JSON object. */
function contentMembers(content: ElementContent, asJson: boolean): string {
  const { contentType, contentEncoding, headers } = content;
  return (
    `"contentType":${jsonOfBytes(contentType)},"contentEncoding":${jsonOfBytes(contentEncoding)},` +
    `"headers":${jsonOfHeaders(headers)},${bodyMember(content, asJson)}`
  );
}

/**
 * A body as the member of a JSON object: `"json":…` if `asJson` is set and it is JSON by type and syntax, `"text":"…"`
 * if its bytes are UTF-8, else `"base64":"…"`. Contains no line feed.
 */
function bodyMember(content: ElementContent, asJson: boolean): string {
  const { body, contentType, contentEncoding } = content;
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
  if (!isUtf8(bytes)) return `"base64":"${bytes.toString('base64')}"`;
  const text = bytes.toString('utf8');
  if (asJson && payloadName(contentType, contentEncoding) === 'json' && isJson(text)) {
    // Write the source, not the parsed value: numbers keep their digits, objects their repeated names. In JSON, line
    // ends occur only between tokens.
    return `"json":${text.replace(LINE_ENDS, ' ')}`;
  }
  return `"text":${JSON.stringify(text)}`;
}

/** Element headers as a JSON object. */
function jsonOfHeaders(headers: ElementHeaders): string {
  if (headers.length === 0) return '{}';
  let json = '';
  for (let at = 0; at + 1 < headers.length; at += 2) {
    json += `${at === 0 ? '{' : ','}${JSON.stringify(headers[at])}:${jsonOfBytes(headers[at + 1] as string)}`;
  }
  return `${json}}`;
}

/** A stored value as JSON: a string, or null. */
function jsonOfBytes(value: string | null): string {
  return value === null ? 'null' : JSON.stringify(textOfByteString(value));
}

const LINE_ENDS = /[\r\n]+/g;

/** Maximum bytes of a body in a preview. */
export const PREVIEW_BYTES = 512;

/** How much of each body a browse returns. */
export type ShownBody = 'none' | 'preview' | 'full';

/** A delivery as JSON, for a page of a browse. */
export function browsedElement(delivery: SearchPage['matches'][number], shown: ShownBody): string {
  const { id, state, matureAt, insertedAt, expiresAt, tries, reason, bytes, contentType } = delivery;
  const { contentEncoding, headers, holder, lease } = delivery;
  const holderJson =
    holder === null || lease === null
      ? 'null'
      : JSON.stringify({
          tid: holder.tid,
          user: holder.user,
          since: isoTime(holder.since),
          until: isoTime(lease.until),
        });
  const body = shown === 'preview' ? previewOf(delivery.body) : delivery.body;
  const isCut = shown !== 'none' && body.length < bytes;
  return (
    `{"id":${JSON.stringify(id)},"state":"${state}","mature":"${isoTime(matureAt)}",` +
    `"insertedAt":"${isoTime(insertedAt)}","expiresAt":${expiresAt === null ? 'null' : `"${isoTime(expiresAt)}"`},"tries":${tries},"reason":${JSON.stringify(reason)},"bytes":${bytes},` +
    `"contentType":${jsonOfBytes(contentType)},"contentEncoding":${jsonOfBytes(contentEncoding)},` +
    `"headers":${jsonOfHeaders(headers)},"holder":${holderJson},` +
    `${shown === 'none' ? '' : `${bodyMember({ ...delivery, body }, false)},`}"truncated":${isCut}}`
  );
}

/** The start of a body; of UTF-8, only whole characters. */
function previewOf(body: Uint8Array): Uint8Array {
  if (body.length <= PREVIEW_BYTES) return body;
  const start = body.subarray(0, PREVIEW_BYTES);
  // A character of UTF-8 has up to four bytes, and the last one may be cut.
  for (let cut = 0; cut < 4; cut += 1) {
    const whole = start.subarray(0, PREVIEW_BYTES - cut);
    if (isUtf8(whole)) return whole;
  }
  return start;
}

let lastAt = Number.NaN;
let lastTime = '';
let earlierAt = Number.NaN;
let earlierTime = '';

/** Formats a moment as ISO 8601. Caches two, because elements inserted and reserved together share both moments. */
export function isoTime(at: number): string {
  if (at === earlierAt) return earlierTime;
  if (at !== lastAt) {
    [earlierAt, earlierTime] = [lastAt, lastTime];
    lastAt = at;
    lastTime = new Date(at).toISOString();
  }
  return lastTime;
}

/**
 * A delivery with its whole state as one line of an export, its line feed included: `{"id", "state", "group", "mature",
 * "expiresAt", "insertedAt", "tries", "reason", "contentType", "contentEncoding", "headers", "text" or "base64"}`.
 * `mature` is in seconds as on an insert, the other moments are ISO 8601. `group` is present for streams only. Missing
 * values are null.
 */
export function exportedLine(delivery: ScannedDelivery, isStream: boolean): string {
  const { id, state, group, matureAt, expiresAt, insertedAt, tries, reason } = delivery;
  return (
    `{"id":"${id}","state":"${state}",${isStream ? `"group":${JSON.stringify(group)},` : ''}"mature":${matureAt / 1000},` +
    `"expiresAt":${expiresAt === null ? 'null' : `"${isoTime(expiresAt)}"`},"insertedAt":"${isoTime(insertedAt)}","tries":${tries},` +
    `"reason":${JSON.stringify(reason)},${contentMembers(delivery, false)}}\n`
  );
}

/**
 * A delivery as one part, with the headers and the body of the response to a get. A body of `multipart/mixed` is a
 * sequence of parts, followed by {@link multipartEnd}.
 * @param moreHeaders additional headers, as flat pairs; each character of a value stands for one byte
 */
export function elementPart(
  boundary: string,
  delivery: Delivery,
  moreHeaders: readonly string[] = [],
): Buffer {
  const headers = [...moreHeaders];
  pushElementHeaders(headers, delivery);
  const head = `--${boundary}\r\n${headerLines(headers)}\r\n`;
  const { body } = delivery;
  const part = Buffer.allocUnsafe(head.length + body.byteLength + 2);
  part.write(head, 'latin1');
  part.set(body, head.length);
  part.write('\r\n', head.length + body.byteLength, 'latin1');
  return part;
}

/** The closing delimiter, which follows the last part. */
function multipartEnd(boundary: string): Buffer {
  return Buffer.from(`--${boundary}--\r\n`, 'latin1');
}
