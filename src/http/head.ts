import { type ElementHeaders, NO_HEADERS } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { checkContentHeader, ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import { quote } from '../util/quote.ts';

/** The headers of a request that mean something to this server; null if not sent. */
export interface RequestHead {
  host: string | null;
  authorization: string | null;
  contentType: string | null;
  contentEncoding: string | null;
  /** -1 if not sent. The parser has checked it. */
  contentLength: number;
  accept: string | null;
  prefer: string | null;
  cookie: string | null;
  idempotencyKey: string | null;
  expect: string | null;
  ifMatch: string | null;
  lastEventId: string | null;
  origin: string | null;
  fetchSite: string | null;
  /** `Sec-Purpose` and the `Purpose` of older browsers. */
  purpose: string | null;
  /** `Forwarded` and `X-Forwarded-For`, as proxies write them; believed only from trusted ones. */
  forwarded: string | null;
  forwardedFor: string | null;
  isChunked: boolean;
  /** Names in lower case and without their prefix; a repeated one is joined. Not checked yet. */
  elementHeaders: ElementHeaders;
}

/**
 * Reads what matters out of Node's flat list of header lines, in one pass. Node's own `headers` would drop
 * repetitions silently, and of two `Authorization` lines take the first, as some proxies take the last.
 * @throws QuaysideError `malformed-request`, `invalid-header`, `expectation-failed`
 */
export function readHead(raw: readonly string[], isHttp10: boolean): RequestHead {
  const head: RequestHead = {
    host: null,
    authorization: null,
    contentType: null,
    contentEncoding: null,
    contentLength: -1,
    accept: null,
    prefer: null,
    cookie: null,
    idempotencyKey: null,
    expect: null,
    ifMatch: null,
    lastEventId: null,
    origin: null,
    fetchSite: null,
    purpose: null,
    forwarded: null,
    forwardedFor: null,
    isChunked: false,
    elementHeaders: NO_HEADERS,
  };
  for (let at = 0; at + 1 < raw.length; at += 2) readLine(head, raw[at] as string, raw[at + 1] as string);
  if (isHttp10) {
    if (head.isChunked) {
      throw new QuaysideError(
        'malformed-request',
        'Transfer-Encoding is not allowed in HTTP/1.0. Use HTTP/1.1 or Content-Length.',
      );
    }
    return head;
  }
  if (head.host === null)
    throw new QuaysideError('malformed-request', 'The Host header is missing; HTTP/1.1 requires it.');
  if (head.expect !== null && head.expect.toLowerCase() !== '100-continue') {
    throw new QuaysideError(
      'expectation-failed',
      `Expect: ${quote(head.expect)} cannot be met. Allowed: 100-continue.`,
      { parameter: 'expect' },
    );
  }
  return head;
}

/** The length tells most names apart, so that a line costs one comparison or none. */
function readLine(head: RequestHead, name: string, value: string): void {
  switch (name.length) {
    case 4:
      if (is(name, 'host')) head.host = once(head.host, name, value);
      return;
    case 6:
      if (is(name, 'accept')) head.accept = joined(head.accept, value);
      else if (is(name, 'prefer')) head.prefer = joined(head.prefer, value);
      else if (is(name, 'origin')) head.origin = once(head.origin, name, value);
      else if (is(name, 'cookie')) head.cookie = head.cookie === null ? value : `${head.cookie}; ${value}`;
      else if (is(name, 'expect')) head.expect = once(head.expect, name, value);
      return;
    case 7:
      if (is(name, 'purpose')) head.purpose = joined(head.purpose, value);
      return;
    case 8:
      if (is(name, 'if-match')) head.ifMatch = joined(head.ifMatch, value);
      return;
    case 9:
      if (is(name, 'forwarded')) head.forwarded = joined(head.forwarded, value);
      return;
    case 11:
      if (is(name, 'sec-purpose')) head.purpose = joined(head.purpose, value);
      else readElementHeader(head, name, value);
      return;
    case 12:
      if (is(name, 'content-type')) {
        head.contentType = checkContentHeader('content-type', once(head.contentType, name, value));
      } else readElementHeader(head, name, value);
      return;
    case 13:
      if (is(name, 'authorization')) head.authorization = once(head.authorization, name, value);
      else if (is(name, 'last-event-id')) head.lastEventId = once(head.lastEventId, name, value);
      else readElementHeader(head, name, value);
      return;
    case 14:
      if (is(name, 'content-length')) head.contentLength = Number(value);
      else if (is(name, 'sec-fetch-site')) head.fetchSite = once(head.fetchSite, name, value);
      else readElementHeader(head, name, value);
      return;
    case 15:
      if (is(name, 'idempotency-key')) head.idempotencyKey = once(head.idempotencyKey, name, value);
      else if (is(name, 'x-forwarded-for')) head.forwardedFor = joined(head.forwardedFor, value);
      else readElementHeader(head, name, value);
      return;
    case 16:
      if (is(name, 'content-encoding')) {
        head.contentEncoding = checkContentHeader('content-encoding', joined(head.contentEncoding, value));
      } else readElementHeader(head, name, value);
      return;
    case 17:
      if (is(name, 'transfer-encoding')) head.isChunked = isChunked(value);
      else readElementHeader(head, name, value);
      return;
    default:
      readElementHeader(head, name, value);
  }
}

/** A header that few requests are asked for, all its lines joined; null if not sent. `name` is in lower case. */
export function rareHeader(raw: readonly string[], name: string): string | null {
  let found: string | null = null;
  for (let at = 0; at + 1 < raw.length; at += 2) {
    if (is(raw[at] as string, name)) found = joined(found, raw[at + 1] as string);
  }
  return found;
}

function readElementHeader(head: RequestHead, name: string, value: string): void {
  if (name.length <= ELEMENT_HEADER_PREFIX.length) return;
  const first = name.charCodeAt(0);
  if (first !== 0x78 && first !== 0x58) return;
  const lower = name.toLowerCase();
  if (!lower.startsWith(ELEMENT_HEADER_PREFIX)) return;
  const short = lower.slice(ELEMENT_HEADER_PREFIX.length);
  const headers = head.elementHeaders === NO_HEADERS ? [] : (head.elementHeaders as string[]);
  head.elementHeaders = headers;
  for (let at = 0; at < headers.length; at += 2) {
    if (headers[at] !== short) continue;
    headers[at + 1] = `${headers[at + 1]}, ${value}`;
    return;
  }
  // Each further name is compared with all before it; a request of nothing else must not cost more than that.
  if (headers.length >= 2 * LIMITS.headerCount) {
    throw new QuaysideError(
      'invalid-header',
      `Header ${quote(lower)} is one too many: an element has at most ${LIMITS.headerCount} headers.`,
    );
  }
  headers.push(short, value);
}

/** Node sees to what comes last. It takes any codings before that, and would hand over a body that is still coded. */
function isChunked(codings: string): boolean {
  if (!codings.includes(',')) return true;
  throw new QuaysideError(
    'malformed-request',
    `Transfer-Encoding ${quote(codings)} is not supported. Allowed: chunked.`,
  );
}

function is(name: string, lower: string): boolean {
  return name === lower || name.toLowerCase() === lower;
}

function once(before: string | null, name: string, value: string): string {
  if (before === null) return value;
  const lower = name.toLowerCase();
  const code = lower === 'host' || lower === 'authorization' ? 'malformed-request' : 'invalid-header';
  // Credentials are never repeated to anyone.
  const values = lower === 'authorization' ? '' : `, as ${quote(before)} and as ${quote(value)}`;
  throw new QuaysideError(code, `Header ${lower} was sent twice${values}. Send it once.`, {
    parameter: lower,
  });
}

function joined(before: string | null, value: string): string {
  return before === null ? value : `${before}, ${value}`;
}
