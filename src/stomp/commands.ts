import { delayUntil, momentIn } from '../broker/engine-time.ts';
import { FINISH, type ReleaseAction } from '../broker/queue.ts';
import { needsExpiry, needsFor } from '../broker/queue-options.ts';
import { type NewElement, NO_HEADERS } from '../model/element.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { checkContentHeader, checkHeaders, ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import type { Destination } from '../session/client-session.ts';
import type { Outstanding } from '../session/push-consumer.ts';
import { groupsOf, milliseconds, moment, textOf, whole } from '../session/values.ts';
import { textOfBytes } from '../util/byte-text.ts';
import { ownString } from '../util/own-bytes.ts';
import { quoteBytes } from '../util/quote.ts';
import { headerOf, type StompFrame, VERSIONS, type Version } from './codec.ts';
import { HeaderSpelling, needed, OWN_HEADERS } from './headers.ts';
import { STOMP_LIMITS } from './options.ts';
import type { StompSession } from './session.ts';
import type { StompSubscription } from './subscriptions.ts';

/** Executes a frame of a logged-in client. @throws QuaysideError which is sent as ERROR */
type StompCommand = (session: StompSession, frame: StompFrame) => void;

/** Every command except CONNECT and STOMP; `docs/protocols/stomp.md` lists the same. */
export const COMMANDS: Readonly<Record<string, { readonly since: Version; readonly run: StompCommand }>> = {
  SEND: { since: '1.0', run: send },
  SUBSCRIBE: { since: '1.0', run: (session, frame) => session.subscriptions.subscribe(frame) },
  UNSUBSCRIBE: { since: '1.0', run: (session, frame) => session.subscriptions.unsubscribe(frame) },
  ACK: { since: '1.0', run: settle },
  NACK: { since: '1.1', run: settle },
  BEGIN: { since: '1.0', run: begin },
  COMMIT: { since: '1.0', run: commit },
  ABORT: { since: '1.0', run: abort },
  DISCONNECT: {
    since: '1.0',
    run: (session, frame) => session.disconnect(headerOf(frame.headers, 'receipt')),
  },
};

/** The commands of each version, by name. */
export const COMMANDS_OF: ReadonlyMap<Version, ReadonlyMap<string, StompCommand>> = new Map(
  VERSIONS.map((version) => [
    version,
    new Map(
      Object.entries(COMMANDS).flatMap(([name, { since, run }]) => (since > version ? [] : [[name, run]])),
    ),
  ]),
);

function begin(session: StompSession, frame: StompFrame): void {
  session.transactions.begin(transactionIn(frame), session.owner);
  session.confirm(headerOf(frame.headers, 'receipt'));
}

function commit(session: StompSession, frame: StompFrame): void {
  const transaction = session.transactions.end(transactionIn(frame));
  // The user may have lost the right since the SENDs.
  for (const ns of transaction.targets) session.destinations.check('write', ns);
  void session.commit(transaction, headerOf(frame.headers, 'receipt'));
}

function abort(session: StompSession, frame: StompFrame): void {
  session.transactions.end(transactionIn(frame)).abort();
  session.confirm(headerOf(frame.headers, 'receipt'));
}

function transactionIn(frame: StompFrame): string {
  return needed(frame.command, 'transaction', headerOf(frame.headers, 'transaction'));
}

/** Headers of a forwarded MESSAGE are ignored: a client may send them with its SEND. */
const SEND_SPELLING = new HeaderSpelling(
  ['x-ks-groups', 'x-ks-ttl', 'x-next-t', 'x-delta-t', 'x-tries'],
  OWN_HEADERS,
);
/** Extension headers whose spelling is checked: all but element headers, whose names the client chooses. */
const CHECKED = /^x-(?!ks-hdr-)/i;

/** SEND: inserts one element into one queue, now or when its transaction is committed. */
function send(session: StompSession, { headers, body, bytes }: StompFrame): void {
  const own = elementHeaders(headers);
  const name = needed('SEND', 'destination', headerOf(headers, 'destination'));
  const destination = session.destinations.find(name, 'write');
  const element = elementOf(headers, own, body, destination);
  const receipt = headerOf(headers, 'receipt');
  const transaction = headerOf(headers, 'transaction');
  if (transaction === null) {
    session.inserts.add(destination.queue, element, receipt, bytes);
    return;
  }
  session.transactions.find(transaction).addSend(destination.queue, element);
  session.confirm(receipt);
}

function elementOf(
  headers: StompFrame['headers'],
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

/** `x-ks-ttl` overrides `expires`, which depends on the client's clock. `expires:0` means never. */
function expiryOf(headers: StompFrame['headers'], { namespace, queue }: Destination): number | null {
  const ttlMs = milliseconds('x-ks-ttl', headerOf(headers, 'x-ks-ttl'), 1, null);
  const expiresAt = moment('expires', headerOf(headers, 'expires')) || null;
  return ttlMs === null ? expiresAt : momentIn(ttlMs, namespace, queue.key);
}

/**
 * The headers of a SEND that are stored with the element, as flat pairs: names in lower case, without prefix, the first
 * of repeated ones. Null if there are none.
 */
function elementHeaders(headers: StompFrame['headers']): string[] | null {
  let own: string[] | null = null;
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] as string;
    if (OWN_HEADERS.has(name)) continue;
    if (CHECKED.test(name)) SEND_SPELLING.check(name);
    const kept = elementHeaderName(name);
    if (kept === null || (own !== null && headerOf(own, kept) !== null)) continue;
    own ??= [];
    own.push(kept, headers[at + 1] as string);
  }
  return own;
}

/**
 * The name of the element header that a header of a SEND is stored as, in lower case and without prefix; null if it is
 * not stored.
 */
function elementHeaderName(name: string): string | null {
  const lower = name.toLowerCase();
  if (!lower.startsWith(ELEMENT_HEADER_PREFIX)) return OWN_HEADERS.has(lower) ? null : lower;
  return lower.length === ELEMENT_HEADER_PREFIX.length ? null : lower.slice(ELEMENT_HEADER_PREFIX.length);
}

/** A misspelt group or delay would be ignored, and the element settled in another way than the client intends. */
const SETTLE_SPELLING = new HeaderSpelling(['x-ks-group', 'x-ks-reason', 'x-next-t', 'x-delta-t']);

/**
 * ACK commits; NACK rolls back, so that the element is ready after a delay. Now, or when the transaction is committed.
 */
function settle(session: StompSession, { command, headers, bytes }: StompFrame): void {
  for (let at = 0; at < headers.length; at += 2) {
    const name = headers[at] as string;
    if (CHECKED.test(name)) SETTLE_SPELLING.check(name);
  }
  const { subscription, settled } = find(session, command, headers);
  const nextAt = command === 'ACK' ? null : moment('x-next-t', headerOf(headers, 'x-next-t'));
  const action = command === 'ACK' ? FINISH : releaseOf(subscription, headers, nextAt);
  const receipt = headerOf(headers, 'receipt');
  const transaction = headerOf(headers, 'transaction');
  if (transaction !== null) {
    session.transactions.find(transaction).addSettlement(subscription, settled, action, nextAt);
    session.confirm(receipt);
    return;
  }
  subscription.forget(settled);
  session.planFill(subscription);
  session.settles.add(subscription.queue, settled, action, receipt, bytes);
}

/** The elements that an ACK or NACK settles: one, or in mode `client` all up to that one. */
function find(
  session: StompSession,
  command: string,
  headers: StompFrame['headers'],
): { subscription: StompSubscription; settled: Outstanding<string>[] } {
  const name = session.version === '1.2' ? 'id' : 'message-id';
  const id = needed(command, name, headerOf(headers, name));
  // In 1.2, the id starts with the number of the subscription.
  const key = session.version === '1.2' ? id.slice(id.indexOf('-') + 1) : id;
  const group = headerOf(headers, 'x-ks-group');
  for (const subscription of candidates(session, command, headers, id)) {
    const settled = subscription.select(key);
    if (settled.length > 0 && fits(group, subscription)) return { subscription, settled };
  }
  const about = group === null ? '' : ` for group ${quoteBytes(group)}`;
  throw new QuaysideError(
    'element-not-found',
    `This session holds no unacknowledged message ${quoteBytes(id)}${about}.`,
  );
}

/** The subscriptions that may hold the element, by the rules of the session's version. */
function candidates(
  session: StompSession,
  command: string,
  headers: StompFrame['headers'],
  id: string,
): Iterable<StompSubscription> {
  const { version, subscriptions } = session;
  const given = headerOf(headers, 'subscription');
  // In 1.0, the frame may have the message's id alone.
  if (version === '1.0' && given === null) return subscriptions.consuming();
  const named =
    version === '1.2'
      ? subscriptions.numbered(id.slice(0, Math.max(0, id.indexOf('-'))))
      : subscriptions.find(needed(command, 'subscription', given));
  return named === undefined ? [] : [named];
}

/**
 * A given group must be that of the subscription (spec 4.3), trimmed as in SUBSCRIBE; null matches any subscription.
 */
function fits(group: string | null, subscription: StompSubscription): boolean {
  return group === null || textOfBytes(group)?.trim() === subscription.group;
}

/** @param nextAt a moment of the engine's clock; null: `x-delta-t`, or the default delay, applies */
function releaseOf(
  { namespace, queue }: StompSubscription,
  headers: readonly string[],
  nextAt: number | null,
): ReleaseAction {
  const delayMs = milliseconds('x-delta-t', headerOf(headers, 'x-delta-t'), 0, null);
  const reason = headerOf(headers, 'x-ks-reason');
  if (reason !== null) {
    needsExpiry(namespace, 'reasons');
    if (reason.length === 0 || reason.length > LIMITS.reasonBytes) {
      const allowed = `Allowed: 1 to ${LIMITS.reasonBytes} bytes of UTF-8.`;
      throw invalidParameter('x-ks-reason', `x-ks-reason has ${reason.length} bytes. ${allowed}`);
    }
  }
  return {
    kind: 'release',
    delayMs:
      nextAt === null ? (delayMs ?? STOMP_LIMITS.nackDelayMs) : delayUntil(nextAt, namespace, queue.key),
    isDefaultDelay: nextAt === null && delayMs === null,
    countTry: true,
    // A copy, since a transaction may keep it until its COMMIT.
    reason: reason === null ? null : ownString(textOf('x-ks-reason', reason)),
  };
}
