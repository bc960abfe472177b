import { isUtf8 } from 'node:buffer';
import type { Delivery, ElementContent, ElementHeaders } from '../model/element.ts';
import { payloadName } from '../sandbox/sandbox.ts';
import { textOfBytes } from '../util/byte-text.ts';

/** The media type of lines of JSON. */
export const NDJSON = 'application/x-ndjson';

/** Where an element was, for lines of several queues. */
export interface LineSource {
  readonly ns: string;
  readonly queue: string;
}

/**
 * A delivery as one line of NDJSON, its line feed included: `{"ns", "queue", "id", "tries", "mature", "contentType",
 * "contentEncoding", "headers", "json" or "text" or "base64", "lease", "leaseUntil"}`. Moments are ISO 8601; what the element
 * does not have is null. The first two are there if `source` is not null.
 * @param asJson whether bodies of JSON types are values (`json`); one that does not parse is text like any other
 */
export function elementLine(delivery: Delivery, asJson: boolean, source: LineSource | null = null): string {
  const { id, tries, matureAt, contentType, contentEncoding, headers, lease } = delivery;
  const from =
    source === null ? '' : `"ns":${JSON.stringify(source.ns)},"queue":${JSON.stringify(source.queue)},`;
  const end =
    lease === null
      ? '"lease":null,"leaseUntil":null'
      : `"lease":${JSON.stringify(lease.token)},"leaseUntil":"${isoTime(lease.until)}"`;
  return (
    `{${from}"id":${JSON.stringify(id)},"tries":${tries},"mature":"${isoTime(matureAt)}",` +
    `"contentType":${jsonOfBytes(contentType)},"contentEncoding":${jsonOfBytes(contentEncoding)},` +
    `"headers":${jsonOfHeaders(headers)},${bodyMember(delivery, asJson)},${end}}\n`
  );
}

/**
 * A body as the member of a JSON object: `"json":…` if that is wanted and the content type says so, `"text":"…"` if its bytes
 * are UTF-8, else `"base64":"…"`. Never has a line feed.
 */
export function bodyMember(content: ElementContent, asJson: boolean): string {
  const { body, contentType, contentEncoding } = content;
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
  if (!isUtf8(bytes)) return `"base64":"${bytes.toString('base64')}"`;
  const text = bytes.toString('utf8');
  if (asJson && payloadName(contentType, contentEncoding) === 'json' && isJson(text)) {
    // The text itself, not what it was parsed to: numbers keep their digits, objects their repeated names. In JSON text
    // the ends of lines can only stand between tokens.
    return `"json":${text.replace(LINE_ENDS, ' ')}`;
  }
  return `"text":${JSON.stringify(text)}`;
}

/** Element headers as a JSON object. Bytes that are not UTF-8 are taken for ISO 8859-1, as on STOMP and AMQP. */
export function jsonOfHeaders(headers: ElementHeaders): string {
  if (headers.length === 0) return '{}';
  let json = '';
  for (let at = 0; at + 1 < headers.length; at += 2) {
    json += `${at === 0 ? '{' : ','}${JSON.stringify(headers[at])}:${jsonOfBytes(headers[at + 1] as string)}`;
  }
  return `${json}}`;
}

/** A stored value as JSON: a string, or null. */
export function jsonOfBytes(value: string | null): string {
  return value === null ? 'null' : JSON.stringify(textOfBytes(value) ?? value);
}

const LINE_ENDS = /[\r\n]+/g;

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

let lastAt = Number.NaN;
let lastTime = '';
let earlierAt = Number.NaN;
let earlierTime = '';

/** Elements that were inserted and reserved together have the same two moments. */
export function isoTime(at: number): string {
  if (at === earlierAt) return earlierTime;
  if (at !== lastAt) {
    [earlierAt, earlierTime] = [lastAt, lastTime];
    lastAt = at;
    lastTime = new Date(at).toISOString();
  }
  return lastTime;
}
