import { momentIn } from '../broker/engine-time.ts';
import { needsFor } from '../broker/queue-options.ts';
import { type NewElement, NO_HEADERS } from '../model/element.ts';
import { checkContentHeader, checkHeaders, ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import type { Destination } from '../session/client-session.ts';
import { groupsOf, milliseconds, moment, whole } from '../session/values.ts';
import { type Frame, headerOf } from './codec.ts';
import { HeaderSlips, needed, OWN_HEADERS } from './headers.ts';
import type { StompSession } from './session.ts';

/** Of the headers that are not passed on; a client that forwards a MESSAGE sends those of MESSAGE as well. */
const SLIPS = new HeaderSlips(['x-ks-groups', 'x-ks-ttl', 'x-next-t', 'x-delta-t', 'x-tries'], OWN_HEADERS);
const EXTENSION = /^x-(?!ks-hdr-)/i;

/** SEND: one element into one queue, now or when its transaction is committed. */
export function send(session: StompSession, { headers, body }: Frame): void {
  const own = elementHeaders(headers);
  const name = needed('SEND', 'destination', headerOf(headers, 'destination'));
  const destination = session.destinations.find(name, 'write');
  const element = elementOf(headers, own, body, destination);
  const receipt = headerOf(headers, 'receipt');
  const transaction = headerOf(headers, 'transaction');
  if (transaction === null) {
    session.inserts.add(destination.queue, element, receipt);
    return;
  }
  session.transactions.find(transaction).send(destination.queue, element);
  session.confirm(receipt);
}

function elementOf(
  headers: Frame['headers'],
  own: readonly string[] | null,
  body: Buffer,
  destination: Destination,
): NewElement {
  const { namespace, queue } = destination;
  const matureAt = moment('x-next-t', headerOf(headers, 'x-next-t'));
  const delayMs = milliseconds('x-delta-t', headerOf(headers, 'x-delta-t'), 0, 0);
  const expiresAt = expiryOf(headers, destination);
  needsFor(namespace, { matureAt, delayMs, expiresAt });
  return {
    body,
    contentType: checkContentHeader('content-type', headerOf(headers, 'content-type')),
    contentEncoding: checkContentHeader('content-encoding', headerOf(headers, 'content-encoding')),
    headers: own === null ? NO_HEADERS : checkHeaders(own),
    matureAt,
    delayMs,
    tries: whole('x-tries', headerOf(headers, 'x-tries'), { to: LIMITS.tries, unit: 'a count' }, 0),
    groups: queue.groups(groupsOf('x-ks-groups', headerOf(headers, 'x-ks-groups'))),
    dedupKey: null,
    expiresAt,
  };
}

/** A length needs no clock that sender and server agree on, so it goes before a moment. `expires:0` is never. */
function expiryOf(headers: Frame['headers'], { namespace, queue }: Destination): number | null {
  const ttlMs = milliseconds('x-ks-ttl', headerOf(headers, 'x-ks-ttl'), 1, null);
  const expiresAt = moment('expires', headerOf(headers, 'expires')) || null;
  return ttlMs === null ? expiresAt : momentIn(ttlMs, namespace, queue.key);
}

/** What is passed on: flat pairs, names in lower case and without prefix, of repeated ones the first; null if there are none. */
function elementHeaders(headers: Frame['headers']): string[] | null {
  let own: string[] | null = null;
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] as string;
    if (OWN_HEADERS.has(name)) continue;
    if (EXTENSION.test(name)) SLIPS.check(name);
    const kept = elementHeaderName(name);
    if (kept === null || (own !== null && headerOf(own, kept) !== null)) continue;
    own ??= [];
    own.push(kept, headers[at + 1] as string);
  }
  return own;
}

/**
 * The element header that a header of a SEND is kept as, in lower case and without its prefix; null for those
 * that are not kept.
 */
function elementHeaderName(name: string): string | null {
  const lower = name.toLowerCase();
  if (!lower.startsWith(ELEMENT_HEADER_PREFIX)) return OWN_HEADERS.has(lower) ? null : lower;
  return lower.length === ELEMENT_HEADER_PREFIX.length ? null : lower.slice(ELEMENT_HEADER_PREFIX.length);
}
