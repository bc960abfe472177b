import { createHash, type Hash } from 'node:crypto';
import { compareTexts } from '../util/compare-texts.ts';
import type { NewElement } from './element.ts';

/** What tracing adds: a repeat of the same insert is another span. */
const OF_TRACING: ReadonlySet<string> = new Set(['traceparent', 'tracestate', 'baggage']);

/** 128 bits in base64url. */
const LENGTH = 22;

/** What the producer says of an element. */
type GivenContent = Omit<NewElement, 'dedupKey' | 'fingerprint' | 'expiresAt'>;

/**
 * 128 bits of a hash over all that an insert says of an element: body, content type and encoding, headers, groups,
 * maturity, delay, tries and time to live. The context of a trace is left out. The order of headers and groups does not
 * count: proxies may change it. SHA-256 is what current processors compute in hardware, 1.5 GB/s; it is computed only
 * if a key is given.
 */
export function contentFingerprint(element: GivenContent, ttlMs: number | null = null): string {
  const hash = createHash('sha256')
    .update(JSON.stringify(factsOf(element, ttlMs)))
    .update('\0');
  return textOf(hash.update(element.body));
}

/** 128 bits of a hash of a text: a short name of what it says. */
export function textFingerprint(text: string): string {
  return textOf(createHash('sha256').update(text));
}

/** What `contentFingerprint` says of an element, over all elements of a request, in their order. */
export class RequestFingerprint {
  readonly #hash = createHash('sha256');
  #last: { readonly element: GivenContent; readonly ttlMs: number | null; readonly facts: string } | null =
    null;

  add(element: GivenContent, ttlMs: number | null): void {
    // In a large request nearly all elements are alike, and the facts of one cost more than its hash.
    if (this.#last === null || this.#last.ttlMs !== ttlMs || !isAlike(this.#last.element, element)) {
      this.#last = { element, ttlMs, facts: JSON.stringify(factsOf(element, ttlMs)) };
    }
    // The length says where the body ends and the next element begins.
    this.#hash.update(`${element.body.byteLength}${this.#last.facts}`).update(element.body);
  }

  text(): string {
    return textOf(this.#hash);
  }
}

/** Whether two elements differ at most in their bodies, as far as that shows at a glance. */
function isAlike(a: GivenContent, b: GivenContent): boolean {
  return (
    a.headers.length === 0 &&
    b.headers.length === 0 &&
    a.groups === b.groups &&
    a.contentType === b.contentType &&
    a.contentEncoding === b.contentEncoding &&
    a.matureAt === b.matureAt &&
    a.delayMs === b.delayMs &&
    a.tries === b.tries
  );
}

function textOf(hash: Hash): string {
  return hash.digest('base64url').slice(0, LENGTH);
}

/** All but the body. */
function factsOf(element: GivenContent, ttlMs: number | null): unknown[] {
  const { contentType, contentEncoding, headers, matureAt, delayMs, tries, groups } = element;
  const pairs: [string, string][] = [];
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const [name = '', value = ''] = [headers[i], headers[i + 1]];
    if (!OF_TRACING.has(name)) pairs.push([name, value]);
  }
  pairs.sort(([a], [b]) => compareTexts(a, b));
  return [contentType, contentEncoding, matureAt, delayMs, tries, [...new Set(groups)].sort(), pairs, ttlMs];
}

/** Whether two inserts have the same content, as far as both fingerprints are known. */
export function isSameContent(a: string | null | undefined, b: string | null | undefined): boolean {
  return !a || !b || a === b;
}

/** Keys of different users are different keys. A user name has no colon, so the two parts stay apart. */
export function userKey(user: string, key: string): string {
  return `${user}:${key}`;
}

/** The key of a whole request; none is the key of an element, since no user name is empty. */
export function requestKey(user: string, key: string): string {
  return `:${userKey(user, key)}`;
}

/** The key of an element or a request as its user gave it. */
export function keyOfUser(dedupKey: string): string {
  return dedupKey.slice(dedupKey.indexOf(':', 1) + 1);
}
