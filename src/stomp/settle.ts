import { engineNow } from '../broker/engine-time.ts';
import { FINISH, type ReleaseAction } from '../broker/queue.ts';
import { needsExpiry } from '../broker/queue-options.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import type { Outstanding } from '../session/push-consumer.ts';
import { milliseconds, moment, textOf } from '../session/values.ts';
import { textOfBytes } from '../util/byte-text.ts';
import { quoteBytes } from '../util/quote.ts';
import { type Frame, headerOf } from './codec.ts';
import { HeaderSlips, needed } from './headers.ts';
import { STOMP_LIMITS } from './options.ts';
import type { StompSession } from './session.ts';
import type { Subscription } from './subscriptions.ts';

/** A misspelt group or delay would settle otherwise than the client means. */
const SLIPS = new HeaderSlips(['x-ks-group', 'x-ks-reason', 'x-next-t', 'x-delta-t']);
const EXTENSION = /^x-/i;

/** ACK: commits, now or when its transaction is committed. */
export function ack(session: StompSession, frame: Frame): void {
  settle(session, 'ACK', frame);
}

/** NACK: rolls back, to come again after a delay. */
export function nack(session: StompSession, frame: Frame): void {
  settle(session, 'NACK', frame);
}

function settle(session: StompSession, command: 'ACK' | 'NACK', { headers }: Frame): void {
  for (let at = 0; at < headers.length; at += 2) {
    const name = headers[at] as string;
    if (EXTENSION.test(name)) SLIPS.check(name);
  }
  const { subscription, settled } = find(session, command, headers);
  const action = command === 'ACK' ? FINISH : releaseOf(subscription, headers);
  const receipt = headerOf(headers, 'receipt');
  const transaction = headerOf(headers, 'transaction');
  if (transaction !== null) {
    session.transactions.find(transaction).settle(subscription, settled, action);
    session.confirm(receipt);
    return;
  }
  subscription.settle(settled);
  session.planFill(subscription);
  session.settles.add(subscription.queue, settled, action, receipt);
}

/** What the frame is about: one element, or in mode `client` all up to that one. */
function find(
  session: StompSession,
  command: string,
  headers: readonly string[],
): { subscription: Subscription; settled: Outstanding<string>[] } {
  const id = needed(
    command,
    session.version === '1.2' ? 'id' : 'message-id',
    headerOf(headers, session.version === '1.2' ? 'id' : 'message-id'),
  );
  const group = headerOf(headers, 'x-ks-group');
  for (const { subscription, key } of candidates(session, command, headers, id)) {
    const settled = subscription.select(key);
    if (settled.length > 0 && fits(group, subscription)) return { subscription, settled };
  }
  const about = group === null ? '' : ` for group ${quoteBytes(group)}`;
  throw new QuaysideError(
    'element-not-found',
    `This session holds no unacknowledged message ${quoteBytes(id)}${about}.`,
  );
}

interface Candidate {
  readonly subscription: Subscription;
  readonly key: string;
}

/** Where the element may be held, by the rules of the session's version. */
function candidates(
  session: StompSession,
  command: string,
  headers: readonly string[],
  id: string,
): Iterable<Candidate> {
  if (session.version === '1.2') {
    const dash = id.indexOf('-');
    const subscription = session.subscriptions.numbered(id.slice(0, dash));
    return subscription === undefined ? [] : [{ subscription, key: id.slice(dash + 1) }];
  }
  const given = headerOf(headers, 'subscription');
  // In 1.0 the message's id is all that there is.
  if (given === null && session.version === '1.0') return everywhere(session, id);
  const subscription = session.subscriptions.find(needed(command, 'subscription', given));
  return subscription === undefined ? [] : [{ subscription, key: id }];
}

function* everywhere(session: StompSession, key: string): Iterable<Candidate> {
  for (const subscription of session.subscriptions.consuming()) yield { subscription, key };
}

/** A group that is given must be the one of the reserve (spec 4.3); not given, that one is meant. */
function fits(group: string | null, subscription: Subscription): boolean {
  return group === null || textOfBytes(group) === subscription.group;
}

function releaseOf(subscription: Subscription, headers: readonly string[]): ReleaseAction {
  const reason = headerOf(headers, 'x-ks-reason');
  if (reason !== null) {
    needsExpiry(subscription.namespace, 'reasons');
    if (reason.length === 0 || reason.length > LIMITS.reasonBytes) {
      const allowed = `Allowed: 1 to ${LIMITS.reasonBytes} bytes of UTF-8.`;
      throw invalidParameter('x-ks-reason', `x-ks-reason has ${reason.length} bytes. ${allowed}`);
    }
  }
  return {
    kind: 'release',
    delayMs: delayOf(subscription, headers),
    isDefaultDelay: headerOf(headers, 'x-next-t') === null && headerOf(headers, 'x-delta-t') === null,
    countTry: true,
    reason: reason === null ? null : textOf('x-ks-reason', reason),
  };
}

/** How long an element stays away after a NACK. A moment is one of the engine's clock, as everywhere. */
function delayOf({ namespace, queue }: Subscription, headers: readonly string[]): number {
  const at = moment('x-next-t', headerOf(headers, 'x-next-t'));
  const delayMs = milliseconds('x-delta-t', headerOf(headers, 'x-delta-t'), 0, STOMP_LIMITS.nackDelayMs);
  if (at === null) return delayMs;
  return Math.min(LIMITS.delayMs, Math.max(0, at - engineNow(namespace, queue.key)));
}
