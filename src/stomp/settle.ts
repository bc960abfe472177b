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

/** ACK commits, NACK rolls back, to come again after a delay; now or when its transaction is committed. */
export function settle(session: StompSession, { command, headers }: Frame): void {
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
  headers: Frame['headers'],
): { subscription: Subscription; settled: Outstanding<string>[] } {
  const name = session.version === '1.2' ? 'id' : 'message-id';
  const id = needed(command, name, headerOf(headers, name));
  // In 1.2 the number of the subscription stands before it.
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

/** Which may hold the element, by the rules of the session's version. */
function candidates(
  session: StompSession,
  command: string,
  headers: Frame['headers'],
  id: string,
): Iterable<Subscription> {
  const { version, subscriptions } = session;
  const given = headerOf(headers, 'subscription');
  // In 1.0 the message's id may be all that there is.
  if (version === '1.0' && given === null) return subscriptions.consuming();
  const named =
    version === '1.2'
      ? subscriptions.numbered(id.slice(0, Math.max(0, id.indexOf('-'))))
      : subscriptions.find(needed(command, 'subscription', given));
  return named === undefined ? [] : [named];
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
