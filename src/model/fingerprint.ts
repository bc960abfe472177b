import { createHash } from 'node:crypto';
import type { NewElement } from './element.ts';

/** 128 bits in base64url. */
const LENGTH = 22;

/**
 * 128 bits of a hash over all that an insert says of an element: body, content type and encoding, headers, groups,
 * maturity, delay, tries and time to live. The order of headers and groups does not count: proxies may change it. SHA-256 is what
 * current processors compute in hardware, 1.5 GB/s; it is computed only if a key is given.
 */
export function contentFingerprint(
  element: Omit<NewElement, 'dedupKey' | 'fingerprint' | 'expiresAt'>,
  ttlMs: number | null = null,
): string {
  const { body, contentType, contentEncoding, headers, matureAt, delayMs, tries, groups } = element;
  const pairs: [string, string][] = [];
  for (let i = 0; i + 1 < headers.length; i += 2) pairs.push([headers[i] ?? '', headers[i + 1] ?? '']);
  pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  const named = [
    contentType,
    contentEncoding,
    matureAt,
    delayMs,
    tries,
    [...new Set(groups)].sort(),
    pairs,
    ttlMs,
  ];
  const hash = createHash('sha256').update(JSON.stringify(named)).update('\0').update(body);
  return hash.digest('base64url').slice(0, LENGTH);
}

/** Whether two inserts have the same content, as far as both fingerprints are known. */
export function isSameContent(a: string | null | undefined, b: string | null | undefined): boolean {
  return !a || !b || a === b;
}
