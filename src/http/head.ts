import { type ElementHeaders, NO_HEADERS } from '../model/element.ts';
import { malformedRequest, QuaysideError } from '../model/errors.ts';
import { checkContentHeader, ELEMENT_HEADER_PREFIX, headerParameter } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import { quote } from '../util/quote.ts';

/** Name of a header, its field, and the separator that joins repeated headers; null if it may be sent only once. */
const TEXT_FIELDS = [
  ['host', 'host', null],
  ['authorization', 'authorization', null],
  ['content-type', 'contentType', null],
  ['content-encoding', 'contentEncoding', ', '],
  ['accept', 'accept', ', '],
  ['prefer', 'prefer', ', '],
  ['cookie', 'cookie', '; '],
  // Sent by the console.
  ['x-csrf-token', 'csrfToken', ', '],
  ['idempotency-key', 'idempotencyKey', null],
  ['expect', 'expect', null],
  ['if-match', 'ifMatch', ', '],
  ['last-event-id', 'lastEventId', null],
  ['origin', 'origin', null],
  ['sec-fetch-site', 'fetchSite', null],
  ['sec-purpose', 'purpose', ', '],
  // Sent by older browsers.
  ['purpose', 'oldPurpose', ', '],
  // Written by proxies; believed only from trusted ones.
  ['forwarded', 'forwarded', ', '],
  ['x-forwarded-for', 'forwardedFor', ', '],
] as const;
const FIELDS = new Map(
  TEXT_FIELDS.map(([name, field, separator]) => [name as string, { field, separator } as const]),
);

/** The request headers that this server uses; null if not sent. */
export interface RequestHead extends Record<(typeof TEXT_FIELDS)[number][1], string | null> {
  /** -1 if not sent. Validated by Node's parser. */
  contentLength: number;
  isChunked: boolean;
  /** Names are in lower case, without their prefix; values of repeated headers are joined. Not validated yet. */
  elementHeaders: ElementHeaders;
}

/** The head of a request that has not been read yet, or could not be. */
export const EMPTY_HEAD = {
  ...Object.fromEntries(TEXT_FIELDS.map(([, field]) => [field, null])),
  contentLength: -1,
  isChunked: false,
  elementHeaders: NO_HEADERS,
} as RequestHead;

/**
 * Reads the known headers from Node's flat list, in one pass. Node's own `headers` drops repetitions silently and uses
 * the first of two `Authorization` headers, whereas some proxies use the last one.
 * @throws QuaysideError `malformed-request`, `invalid-header`, `expectation-failed`
 */
export function readHead(rawHeaders: readonly string[], isHttp10: boolean): RequestHead {
  const head = { ...EMPTY_HEAD };
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] as string;
    const value = rawHeaders[at + 1] as string;
    const lower = name.toLowerCase();
    const known = FIELDS.get(lower);
    if (known !== undefined) {
      const previous = head[known.field];
      if (previous !== null && known.separator === null) throw repeatedHeader(lower, previous, value);
      // An empty value adds nothing to a list (RFC 9110, 5.6.1): `, gzip` would be stored with an element.
      head[known.field] = previous === null || previous === '' ? value : previous + known.separator + value;
    } else if (lower.startsWith(ELEMENT_HEADER_PREFIX)) {
      readElementHeader(head, lower, value);
    } else if (lower === 'content-length') head.contentLength = Number(value);
    else if (lower === 'transfer-encoding') {
      if (head.isChunked || value.includes(','))
        throw unsupportedCodings(rareHeader(rawHeaders, lower) ?? value);
      head.isChunked = true;
    }
  }
  head.contentType = checkContentHeader('content-type', head.contentType);
  head.contentEncoding = checkContentHeader('content-encoding', head.contentEncoding);
  if (isHttp10) {
    if (head.isChunked) {
      throw malformedRequest(
        'Transfer-Encoding "chunked" is not allowed in HTTP/1.0. Use HTTP/1.1 or Content-Length.',
      );
    }
    return head;
  }
  if (head.host === null) throw malformedRequest('The Host header is missing; HTTP/1.1 requires it.');
  if (head.expect !== null && head.expect.toLowerCase() !== '100-continue') {
    throw new QuaysideError(
      'expectation-failed',
      `Expect: ${quote(head.expect)} cannot be met. Allowed: 100-continue.`,
      { parameter: 'expect' },
    );
  }
  return head;
}

/** A header that is rarely needed, repeated ones joined; null if not sent. `name` is in lower case. */
export function rareHeader(rawHeaders: readonly string[], name: string): string | null {
  let found: string | null = null;
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    if (rawHeaders[at]?.length !== name.length || rawHeaders[at]?.toLowerCase() !== name) continue;
    found = found === null ? (rawHeaders[at + 1] as string) : `${found}, ${rawHeaders[at + 1]}`;
  }
  return found;
}

/** Whether the response may be compressed with gzip. */
export function acceptsGzip(rawHeaders: readonly string[]): boolean {
  const accepted = rareHeader(rawHeaders, 'accept-encoding') ?? '';
  return /\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))/i.test(accepted);
}

/** @param lower the name in lower case */
function readElementHeader(head: RequestHead, lower: string, value: string): void {
  const shortName = lower.slice(ELEMENT_HEADER_PREFIX.length);
  const headers = head.elementHeaders === NO_HEADERS ? [] : (head.elementHeaders as string[]);
  head.elementHeaders = headers;
  for (let at = 0; at < headers.length; at += 2) {
    if (headers[at] !== shortName) continue;
    headers[at + 1] = `${headers[at + 1]}, ${value}`;
    return;
  }
  // Each new name is compared with all earlier ones, so their number must be bounded.
  if (headers.length >= 2 * LIMITS.headerCount) {
    throw new QuaysideError(
      'invalid-header',
      `Header ${quote(lower)} is one too many: an element has at most ${LIMITS.headerCount} headers.`,
      { parameter: headerParameter(lower) },
    );
  }
  headers.push(shortName, value);
}

/**
 * Node checks only the last transfer coding. It accepts any codings before that, in the same header or in repeated
 * ones, and would pass on a body that is still encoded.
 */
function unsupportedCodings(codings: string): QuaysideError {
  return malformedRequest(`Transfer-Encoding ${quote(codings)} is not supported. Allowed: chunked.`);
}

function repeatedHeader(lower: string, previous: string, value: string): QuaysideError {
  const code = lower === 'host' || lower === 'authorization' ? 'malformed-request' : 'invalid-header';
  // Errors never quote credentials.
  const values = lower === 'authorization' ? '' : `, as ${quote(previous)} and as ${quote(value)}`;
  return new QuaysideError(code, `Header ${lower} was sent twice${values}. Send it once.`, {
    parameter: lower,
  });
}

/** Maximum length of an idempotency key, in characters. */
export const MAX_KEY_LENGTH = 255;

/** The idempotency key of an insert, as its user gave it; null: none. @throws QuaysideError `invalid-header` */
export function idempotencyKeyOf({ idempotencyKey: key }: RequestHead): string | null {
  if (key === null || (key !== '' && key.length <= MAX_KEY_LENGTH)) return key;
  throw new QuaysideError(
    'invalid-header',
    `Idempotency-Key ${quote(key)} has ${key.length} characters. Allowed: 1 to ${MAX_KEY_LENGTH}.`,
    { parameter: 'idempotency-key' },
  );
}

/** A version as the value of `ETag`. */
export function entityTag(version: string): string {
  return `"${version}"`;
}

/** The versions in `If-Match`, with or without quotes; null: any (`*`, or not sent). Weak entity tags match nothing. */
export function readVersions({ ifMatch }: RequestHead): ReadonlySet<string> | null {
  if (ifMatch === null || ifMatch.trim() === '*') return null;
  return new Set(ifMatch.split(',').map((tag) => tag.trim().replace(/^"(.*)"$/, '$1')));
}
