import { ELEMENT_HEADER_PREFIX } from '../model/headers.ts';

/**
 * Headers that SEND and MESSAGE give a meaning. STOMP asks that every other header of a SEND is passed on to the
 * receivers of the message: each is kept as an element header, and MESSAGE has it under both names.
 */
export const OWN_HEADERS: ReadonlySet<string> = new Set([
  'destination',
  'content-type',
  'content-length',
  'content-encoding',
  'receipt',
  'transaction',
  'subscription',
  'message-id',
  'ack',
  'x-ks-groups',
  'x-ks-group',
  'x-ks-ttl',
  'x-next-t',
  'x-delta-t',
  'x-tries',
  'x-mature',
]);

/**
 * The element header that a header of a SEND is kept as, in lower case and without its prefix; null for those
 * that are not kept.
 */
export function elementHeaderName(name: string): string | null {
  const lower = name.toLowerCase();
  if (!lower.startsWith(ELEMENT_HEADER_PREFIX)) return OWN_HEADERS.has(lower) ? null : lower;
  return lower.length === ELEMENT_HEADER_PREFIX.length ? null : lower.slice(ELEMENT_HEADER_PREFIX.length);
}
