import { momentIn } from '../../broker/engine-time.ts';
import { needsFor } from '../../broker/needs.ts';
import { type ElementHeaders, type NewElement, NO_HEADERS } from '../../model/element.ts';
import { checkContentHeader, checkHeaders } from '../../model/headers.ts';
import { LIMITS } from '../../model/limits.ts';
import type { Destination } from '../../session/client-session.ts';
import { groupsOf, milliseconds, moment, whole } from '../../session/values.ts';
import type { Frame } from '../codec/frame.ts';
import { elementHeaderName, HeaderSlips, OWN_HEADERS } from '../element-headers.ts';
import type { StompSession } from '../session.ts';
import { needed } from '../values.ts';

/** Of the headers that are not passed on; a client that forwards a MESSAGE sends those of MESSAGE as well. */
const SLIPS = new HeaderSlips(['x-ks-groups', 'x-ks-ttl', 'x-next-t', 'x-delta-t', 'x-tries'], OWN_HEADERS);
const EXTENSION = /^x-(?!ks-hdr-)/i;

/** The headers of a SEND that mean something here; null where one was not sent. */
interface SendHeaders {
  destination: string | null;
  contentType: string | null;
  contentEncoding: string | null;
  receipt: string | null;
  transaction: string | null;
  groups: string | null;
  nextT: string | null;
  deltaT: string | null;
  tries: string | null;
  ttl: string | null;
  expires: string | null;
  /** Flat pairs, names in lower case and without prefix. */
  own: string[] | null;
}

/** SEND: one element into one queue, now or when its transaction is committed. */
export function send(session: StompSession, { headers, body }: Frame): void {
  const given = readHeaders(headers);
  const destination = session.destinations.find(needed('SEND', 'destination', given.destination), 'write');
  const element = elementOf(given, body, destination);
  if (given.transaction === null) {
    session.inserts.add(destination.queue, element, given.receipt);
    return;
  }
  session.transactions.find(given.transaction).send(destination.queue, element);
  session.confirm(given.receipt);
}

function elementOf(given: SendHeaders, body: Buffer, destination: Destination): NewElement {
  const { namespace, queue } = destination;
  const matureAt = moment('x-next-t', given.nextT);
  const delayMs = milliseconds('x-delta-t', given.deltaT, 0, 0);
  const expiresAt = expiryOf(given, destination);
  needsFor(namespace, { matureAt, delayMs, expiresAt });
  return {
    body,
    contentType: checkContentHeader('content-type', given.contentType),
    contentEncoding: checkContentHeader('content-encoding', given.contentEncoding),
    headers: elementHeaders(given.own),
    matureAt,
    delayMs,
    tries: whole('x-tries', given.tries, { to: LIMITS.tries, unit: 'a count' }, 0),
    groups: queue.groups(groupsOf('x-ks-groups', given.groups)),
    dedupKey: null,
    expiresAt,
  };
}

/** A length needs no clock that sender and server agree on, so it goes before a moment. `expires:0` is never. */
function expiryOf({ ttl, expires }: SendHeaders, { namespace, queue }: Destination): number | null {
  const ttlMs = milliseconds('x-ks-ttl', ttl, 1, null);
  const expiresAt = moment('expires', expires) || null;
  return ttlMs === null ? expiresAt : momentIn(ttlMs, namespace, queue.key);
}

function elementHeaders(own: string[] | null): ElementHeaders {
  return own === null ? NO_HEADERS : checkHeaders(own);
}

/** One pass; of repeated headers the first counts. */
function readHeaders(headers: readonly string[]): SendHeaders {
  const given: SendHeaders = {
    destination: null,
    contentType: null,
    contentEncoding: null,
    receipt: null,
    transaction: null,
    groups: null,
    nextT: null,
    deltaT: null,
    tries: null,
    ttl: null,
    expires: null,
    own: null,
  };
  for (let at = 0; at + 1 < headers.length; at += 2) {
    readHeader(given, headers[at] as string, headers[at + 1] as string);
  }
  return given;
}

function readHeader(given: SendHeaders, name: string, value: string): void {
  switch (name) {
    case 'destination':
      given.destination ??= value;
      return;
    case 'content-type':
      given.contentType ??= value;
      return;
    case 'content-encoding':
      given.contentEncoding ??= value;
      return;
    case 'receipt':
      given.receipt ??= value;
      return;
    case 'transaction':
      given.transaction ??= value;
      return;
    case 'x-ks-groups':
      given.groups ??= value;
      return;
    case 'x-next-t':
      given.nextT ??= value;
      return;
    case 'x-delta-t':
      given.deltaT ??= value;
      return;
    case 'x-ks-ttl':
      given.ttl ??= value;
      return;
    case 'expires':
      given.expires ??= value;
      // Its receiver may want to know: JMS has it as JMSExpiration.
      keepHeader(given, name, value);
      return;
    case 'x-tries':
      given.tries ??= value;
      return;
    default:
      keepHeader(given, name, value);
  }
}

function keepHeader(given: SendHeaders, name: string, value: string): void {
  if (EXTENSION.test(name)) SLIPS.check(name);
  const kept = elementHeaderName(name);
  if (kept === null) return;
  given.own ??= [];
  const { own } = given;
  for (let at = 0; at < own.length; at += 2) if (own[at] === kept) return;
  own.push(kept, value);
}
