import { createHash, type Hash } from 'node:crypto';
import { compareStrings } from '../util/compare-strings.ts';
import type { NewElement } from './element.ts';

/** Headers of tracing, which are ignored: a repeat of the same insert belongs to another span. */
const TRACING_HEADERS: ReadonlySet<string> = new Set(['traceparent', 'tracestate', 'baggage']);

/** 128 bits in base64url. */
const LENGTH = 22;

/** The part of an element that the producer specifies. */
type GivenContent = Omit<NewElement, 'dedupKey' | 'fingerprint' | 'expiresAt'>;

/**
 * 128 bits of a hash of everything that an insert specifies: body, content type and encoding, headers, groups,
 * maturity, delay, tries and time to live. Trace context is ignored, and so is the order of headers and groups, which
 * proxies may change. SHA-256 because current processors compute it in hardware, 1.5 GB/s; called only if the insert
 * has a key.
 */
export function contentFingerprint(element: GivenContent, ttlMs: number | null = null): string {
  const hash = createHash('sha256')
    .update(JSON.stringify(hashedFields(element, ttlMs)))
    .update('\0');
  return digestOf(hash.update(element.body));
}

/** 128 bits of a hash of a string: a short name for its content. */
export function textFingerprint(text: string): string {
  return digestOf(createHash('sha256').update(text));
}

/** The fingerprint of a request: that of `contentFingerprint`, over all elements in their order. */
export class RequestFingerprint {
  readonly #hash = createHash('sha256');
  #last: { readonly element: GivenContent; readonly ttlMs: number | null; readonly facts: string } | null =
    null;

  add(element: GivenContent, ttlMs: number | null): void {
    // In a large request nearly all elements have the same facts, whose serialization costs more than their hash.
    if (this.#last === null || this.#last.ttlMs !== ttlMs || !isAlike(this.#last.element, element)) {
      this.#last = { element, ttlMs, facts: JSON.stringify(hashedFields(element, ttlMs)) };
    }
    // The length separates the body from the next element.
    this.#hash.update(`${element.body.byteLength}${this.#last.facts}`).update(element.body);
  }

  text(): string {
    return digestOf(this.#hash);
  }
}

/**
 * Whether two elements differ at most in their bodies, judged by cheap comparisons; may return false for equal ones.
 */
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

function digestOf(hash: Hash): string {
  return hash.digest('base64url').slice(0, LENGTH);
}

/** The hashed facts, except the body. */
function hashedFields(element: GivenContent, ttlMs: number | null): unknown[] {
  const { contentType, contentEncoding, headers, matureAt, delayMs, tries, groups } = element;
  const pairs: [string, string][] = [];
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const [name = '', value = ''] = [headers[i], headers[i + 1]];
    if (!TRACING_HEADERS.has(name)) pairs.push([name, value]);
  }
  pairs.sort(([a], [b]) => compareStrings(a, b));
  return [contentType, contentEncoding, matureAt, delayMs, tries, [...new Set(groups)].sort(), pairs, ttlMs];
}

/** Whether two inserts have the same content; also true if one of the fingerprints is unknown. */
export function isSameContent(a: string | null | undefined, b: string | null | undefined): boolean {
  return !a || !b || a === b;
}

/**
 * The index of the first element of a call that has the key of an earlier one and different content, so that the call
 * is rejected; -1 if there is none.
 */
export function contradictionIn(elements: readonly Pick<NewElement, 'dedupKey' | 'fingerprint'>[]): number {
  const known = new Map<string, string | null | undefined>();
  return elements.findIndex(({ dedupKey, fingerprint }) => {
    if (dedupKey === null) return false;
    if (known.has(dedupKey)) return !isSameContent(fingerprint, known.get(dedupKey));
    known.set(dedupKey, fingerprint);
    return false;
  });
}

/** Scopes a key to its user. A user name contains no colon, so the two parts cannot be confused. */
export function userKey(user: string, key: string): string {
  return `${user}:${key}`;
}

/** The key of a whole request. It differs from all keys of elements, since no user name is empty. */
export function requestKey(user: string, key: string): string {
  return `:${userKey(user, key)}`;
}

/** The key of an element or request, as the user specified it. */
export function keyOfUser(dedupKey: string): string {
  return dedupKey.slice(dedupKey.indexOf(':', 1) + 1);
}
