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

/** The head of a request whose head was not read, or could not be. */
export const UNREAD: RequestHead = {
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

type TextField = Exclude<keyof RequestHead, 'contentLength' | 'isChunked' | 'elementHeaders'>;

/** The field of a header, and what joins the values of several lines; null: only one line may be sent. */
const FIELDS: ReadonlyMap<string, { readonly field: TextField; readonly separator: string | null }> = new Map(
  [
    ['host', { field: 'host', separator: null }],
    ['authorization', { field: 'authorization', separator: null }],
    ['content-type', { field: 'contentType', separator: null }],
    ['content-encoding', { field: 'contentEncoding', separator: ', ' }],
    ['accept', { field: 'accept', separator: ', ' }],
    ['prefer', { field: 'prefer', separator: ', ' }],
    ['cookie', { field: 'cookie', separator: '; ' }],
    ['idempotency-key', { field: 'idempotencyKey', separator: null }],
    ['expect', { field: 'expect', separator: null }],
    ['if-match', { field: 'ifMatch', separator: ', ' }],
    ['last-event-id', { field: 'lastEventId', separator: null }],
    ['origin', { field: 'origin', separator: null }],
    ['sec-fetch-site', { field: 'fetchSite', separator: null }],
    ['sec-purpose', { field: 'purpose', separator: ', ' }],
    ['purpose', { field: 'purpose', separator: ', ' }],
    ['forwarded', { field: 'forwarded', separator: ', ' }],
    ['x-forwarded-for', { field: 'forwardedFor', separator: ', ' }],
  ] as const,
);

/**
 * Reads what matters out of Node's flat list of header lines, in one pass. Node's own `headers` would drop
 * repetitions silently, and of two `Authorization` lines take the first, as some proxies take the last.
 * @throws QuaysideError `malformed-request`, `invalid-header`, `expectation-failed`
 */
export function readHead(raw: readonly string[], isHttp10: boolean): RequestHead {
  const head = { ...UNREAD };
  for (let at = 0; at + 1 < raw.length; at += 2) {
    const name = raw[at] as string;
    const value = raw[at + 1] as string;
    const lower = name.toLowerCase();
    const known = FIELDS.get(lower);
    if (known !== undefined) {
      const before = head[known.field];
      if (before !== null && known.separator === null) throw sentTwice(lower, before, value);
      head[known.field] = before === null ? value : before + known.separator + value;
    } else if (lower.startsWith(ELEMENT_HEADER_PREFIX)) {
      readElementHeader(head, lower, value);
    } else if (lower === 'content-length') head.contentLength = Number(value);
    else if (lower === 'transfer-encoding') head.isChunked = isChunked(value);
  }
  head.contentType = checkContentHeader('content-type', head.contentType);
  head.contentEncoding = checkContentHeader('content-encoding', head.contentEncoding);
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

/** A header that few requests are asked for, all its lines joined; null if not sent. `name` is in lower case. */
export function rareHeader(raw: readonly string[], name: string): string | null {
  let found: string | null = null;
  for (let at = 0; at + 1 < raw.length; at += 2) {
    if (raw[at]?.length !== name.length || raw[at]?.toLowerCase() !== name) continue;
    found = found === null ? (raw[at + 1] as string) : `${found}, ${raw[at + 1]}`;
  }
  return found;
}

/** @param lower the name in lower case */
function readElementHeader(head: RequestHead, lower: string, value: string): void {
  const short = lower.slice(ELEMENT_HEADER_PREFIX.length);
  if (short === '') return;
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

function sentTwice(lower: string, before: string, value: string): QuaysideError {
  const code = lower === 'host' || lower === 'authorization' ? 'malformed-request' : 'invalid-header';
  // Credentials are never repeated to anyone.
  const values = lower === 'authorization' ? '' : `, as ${quote(before)} and as ${quote(value)}`;
  return new QuaysideError(code, `Header ${lower} was sent twice${values}. Send it once.`, {
    parameter: lower,
  });
}
