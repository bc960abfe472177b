import { checkRight } from '../access/user.ts';
import { requireExpiry, requireTiming } from '../broker/capabilities.ts';
import { delayUntil, momentIn } from '../broker/engine-time.ts';
import { FINISH, type Queue, type ReleaseAction } from '../broker/queue.ts';
import { type NewElement, NO_HEADERS } from '../model/element.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { checkContentHeader, checkHeaders, ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import type { Outstanding } from '../session/outstanding.ts';
import { NameSpelling } from '../session/spelling.ts';
import { decodeText, parseGroups, parseInteger, parseMilliseconds, parseMoment } from '../session/values.ts';
import { fromByteString, quoteBytes, textOfByteString } from '../util/byte-string.ts';
import { ownString } from '../util/own-bytes.ts';
import { headerOf, type StompFrame, type Version } from './codec.ts';
import { PROTOCOL_HEADERS, requireHeader } from './headers.ts';
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

function begin(session: StompSession, frame: StompFrame): void {
  session.transactions.begin(transactionIdOf(frame), session.owner);
  session.confirm(headerOf(frame.headers, 'receipt'));
}

function commit(session: StompSession, frame: StompFrame): void {
  const transaction = session.transactions.startCommit(transactionIdOf(frame));
  // The user may have lost the right since the SENDs.
  for (const ns of transaction.targets) checkRight(session.destinations.user, 'write', ns);
  void session.commit(transaction, headerOf(frame.headers, 'receipt'));
}

function abort(session: StompSession, frame: StompFrame): void {
  session.transactions.abort(transactionIdOf(frame));
  session.confirm(headerOf(frame.headers, 'receipt'));
}

function transactionIdOf(frame: StompFrame): string {
  return requireHeader(frame.command, 'transaction', headerOf(frame.headers, 'transaction'));
}

/** Headers of a forwarded MESSAGE are ignored: a client may send them with its SEND. */
const SEND_SPELLING = new NameSpelling({
  kind: 'header',
  known: ['x-ks-groups', 'x-ks-ttl', 'x-next-t', 'x-delta-t', 'x-tries'],
  ignored: PROTOCOL_HEADERS,
});
/** Extension headers whose spelling is checked: all but element headers, whose names the client chooses. */
const SPELLING_CHECKED = /^x-(?!ks-hdr-)/i;

/** SEND: inserts one element into one queue, now or when its transaction is committed. */
function send(session: StompSession, { headers, body, bytes }: StompFrame): void {
  const stored = elementHeaders(headers);
  const name = requireHeader('SEND', 'destination', headerOf(headers, 'destination'));
  const queue = session.destinations.find(name, 'write');
  const element = elementOf(headers, stored, body, queue);
  const receipt = headerOf(headers, 'receipt');
  const transaction = headerOf(headers, 'transaction');
  if (transaction === null) {
    session.inserts.add(queue, element, receipt, bytes);
    return;
  }
  session.transactions.find(transaction).addSend(queue, element);
  session.confirm(receipt);
}

const TIMING_NAMES = { matureAt: 'x-next-t', delayMs: 'x-delta-t' };

function elementOf(
  headers: StompFrame['headers'],
  stored: readonly string[] | null,
  body: Buffer,
  queue: Queue,
): NewElement {
  const matureAt = parseMoment('x-next-t', headerOf(headers, 'x-next-t'));
  const delayMs = parseMilliseconds('x-delta-t', headerOf(headers, 'x-delta-t'), 0, 0);
  const expiresAt = parseExpiry(headers, queue);
  const names = expiresAt === null ? TIMING_NAMES : { ...TIMING_NAMES, expiresAt: expiryHeader(headers) };
  requireTiming(queue.namespace, queue.key, { matureAt, delayMs, expiresAt }, names);
  return {
    body,
    contentType: checkContentHeader('content-type', headerOf(headers, 'content-type')),
    contentEncoding: checkContentHeader('content-encoding', headerOf(headers, 'content-encoding')),
    headers:
      stored === null
        ? NO_HEADERS
        : checkHeaders(stored, { spell: (name) => textOfByteString(spellingOf(headers, name)) }),
    matureAt,
    delayMs,
    tries: parseInteger('x-tries', headerOf(headers, 'x-tries'), { to: LIMITS.tries, unit: 'a count' }, 0),
    groups: queue.groups(parseGroups('x-ks-groups', headerOf(headers, 'x-ks-groups')), 'x-ks-groups'),
    dedupKey: null,
    expiresAt,
  };
}

/** `x-ks-ttl` overrides `expires`, which depends on the client's clock. `expires:0` means never. */
function parseExpiry(headers: StompFrame['headers'], { namespace, key }: Queue): number | null {
  const ttlMs = parseMilliseconds('x-ks-ttl', headerOf(headers, 'x-ks-ttl'), 1, null);
  const expiresAt = parseMoment('expires', headerOf(headers, 'expires')) || null;
  return ttlMs === null ? expiresAt : momentIn(ttlMs, namespace, key);
}

/** The header that {@link parseExpiry} used. */
function expiryHeader(headers: StompFrame['headers']): string {
  return headerOf(headers, 'x-ks-ttl') === null ? 'expires' : 'x-ks-ttl';
}

/**
 * The headers of a SEND that are stored with the element, as flat pairs: names in lower case, without prefix, the first
 * of repeated ones. Null if there are none.
 */
function elementHeaders(headers: StompFrame['headers']): string[] | null {
  let stored: string[] | null = null;
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] as string;
    if (PROTOCOL_HEADERS.has(name)) continue;
    if (SPELLING_CHECKED.test(name)) SEND_SPELLING.check(name);
    const storedName = elementHeaderName(name);
    if (storedName === null || (stored !== null && headerOf(stored, storedName) !== null)) continue;
    stored ??= [];
    stored.push(storedName, headers[at + 1] as string);
  }
  return stored;
}

/**
 * The name of the element header that a header of a SEND is stored as, in lower case and without prefix; null if it is
 * a header of the protocol.
 */
function elementHeaderName(name: string): string | null {
  const lower = name.toLowerCase();
  if (!lower.startsWith(ELEMENT_HEADER_PREFIX)) return PROTOCOL_HEADERS.has(lower) ? null : lower;
  return lower.slice(ELEMENT_HEADER_PREFIX.length);
}

/** The header of a SEND that is stored under this name, as the client spells it. */
function spellingOf(headers: StompFrame['headers'], stored: string): string {
  const spelled = headers.find(
    (name, at) => at % 2 === 0 && !PROTOCOL_HEADERS.has(name) && elementHeaderName(name) === stored,
  );
  return spelled ?? stored;
}

/** A misspelt group or delay would be ignored, and the element settled in another way than the client intends. */
const SETTLE_SPELLING = new NameSpelling({
  kind: 'header',
  known: ['x-ks-group', 'x-ks-reason', 'x-next-t', 'x-delta-t'],
});

/**
 * ACK commits; NACK rolls back, so that the element is ready after a delay. Now, or when the transaction is committed.
 */
function settle(session: StompSession, { command, headers, bytes }: StompFrame): void {
  for (let at = 0; at < headers.length; at += 2) {
    const name = headers[at] as string;
    if (SPELLING_CHECKED.test(name)) SETTLE_SPELLING.check(name);
  }
  const { subscription, settled } = findSettled(session, command, headers);
  const nextAt = command === 'ACK' ? null : parseMoment('x-next-t', headerOf(headers, 'x-next-t'));
  const action = command === 'ACK' ? FINISH : parseRelease(subscription, headers, nextAt);
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
function findSettled(
  session: StompSession,
  command: string,
  headers: StompFrame['headers'],
): { subscription: StompSubscription; settled: Outstanding<string>[] } {
  const { acksByHeader } = session;
  const name = acksByHeader ? 'id' : 'message-id';
  const id = requireHeader(command, name, headerOf(headers, name));
  // The value of an `ack` header starts with the number of the subscription.
  const key = acksByHeader ? id.slice(id.indexOf('-') + 1) : id;
  const group = headerOf(headers, 'x-ks-group');
  for (const subscription of candidateSubscriptions(session, command, headers, id)) {
    const settled = subscription.select(key);
    if (settled.length > 0 && matchesGroup(group, subscription)) return { subscription, settled };
  }
  const suffix = group === null ? '' : ` for group ${quoteBytes(group)}`;
  throw new QuaysideError(
    'element-not-found',
    `This session has no unacknowledged message ${quoteBytes(id)}${suffix}.`,
  );
}

/** The subscriptions that may hold the element, by the rules of the session's version. */
function candidateSubscriptions(
  session: StompSession,
  command: string,
  headers: StompFrame['headers'],
  id: string,
): Iterable<StompSubscription> {
  const { version, acksByHeader, subscriptions } = session;
  const given = headerOf(headers, 'subscription');
  // In 1.0, the frame may have the message's id alone.
  if (version === '1.0' && given === null) return subscriptions.consuming();
  const named = acksByHeader
    ? subscriptions.findByNumber(id.slice(0, Math.max(0, id.indexOf('-'))))
    : subscriptions.find(requireHeader(command, 'subscription', given));
  return named === undefined ? [] : [named];
}

/**
 * A given group must be that of the subscription (spec 4.3), trimmed as in SUBSCRIBE; null matches any subscription.
 */
function matchesGroup(group: string | null, subscription: StompSubscription): boolean {
  return group === null || fromByteString(group)?.trim() === subscription.group;
}

/** @param nextAt a moment of the engine's clock; null: `x-delta-t`, or the default delay, applies */
function parseRelease(
  { namespace, queue }: StompSubscription,
  headers: readonly string[],
  nextAt: number | null,
): ReleaseAction {
  const delayMs = parseMilliseconds('x-delta-t', headerOf(headers, 'x-delta-t'), 0, null);
  const reason = headerOf(headers, 'x-ks-reason');
  if (reason !== null) {
    requireExpiry(namespace, 'x-ks-reason', 'reasons');
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
    reason: reason === null ? null : ownString(decodeText('x-ks-reason', reason)),
  };
}
