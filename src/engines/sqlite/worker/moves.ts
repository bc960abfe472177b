import { retryDelayMs } from '../../../engine/queue-policy.ts';
import { EXPIRED, LEASE_EXPIRED } from '../../../engine/storage.ts';
import { PLAIN_GROUP } from '../../../model/element.ts';
import { deadLetterHeaders } from '../../../model/service-headers.ts';
import { bytesOfText } from '../../../util/byte-text.ts';
import { fromMore, nameOf, toMore } from '../protocol.ts';
import { elementChecksum } from './checksums.ts';
import { insertOne } from './insert.ts';
import type { Queue, Subscription } from './names.ts';
import { type DeliveryRow, type ElementRow, isWholeDelivery } from './rows.ts';
import type { Store } from './store.ts';

// What takes an element out of its queue although nobody consumed it: dead letters, copies to another queue, damage.

/** A try that failed: by a release that counts it, or by a lease that ended. */
interface FailedTry {
  /** When the delivery is eligible again, if there is a next try. */
  readonly dueAt: number;
  /** The moment from which the queue's retry delay, if it has one, counts in place of `dueAt`; null: it does not. */
  readonly retryFrom: number | null;
  /** Kept if the lease ended, so that the late worker may still commit. */
  readonly token: string | null;
  readonly reason: string | null;
}

/** Where failed elements of the queue go; null: they stay. Those of the dead-letter queue itself would only move to where they are. */
function deadLetterQueue({ policy, key }: Queue): string | null {
  const { deadLetter } = policy;
  return deadLetter === null || deadLetter.queue === key.name ? null : deadLetter.queue;
}

/** Counts a failed try. The one that reaches the queue's `maxTries` moves the element to the dead-letter queue. */
export function failTry(
  store: Store,
  subscription: Subscription,
  row: DeliveryRow,
  { dueAt, retryFrom, token, reason }: FailedTry,
): 'done' | 'dead-lettered' | 'not-found' {
  const { queue } = subscription;
  const tries = row.tries + 1;
  const to = deadLetterQueue(queue);
  if (to !== null && tries >= (queue.policy.deadLetter?.maxTries ?? 0)) {
    return toDeadLetterQueue(store, subscription, row, to, tries, reason);
  }
  const { retryDelay } = queue.policy;
  const retryAt =
    retryFrom === null || retryDelay === null
      ? dueAt
      : retryFrom + retryDelayMs(retryDelay, tries, elementOf(row));
  store.rows.wait(subscription, row, { dueAt: retryAt, tries, token, reason }, store.now);
  store.upkeep.releasedInto(queue);
  return 'done';
}

/** Moves an element to the dead-letter queue whatever its tries. If there is none, it waits again. */
export function deadLetter(
  store: Store,
  subscription: Subscription,
  row: DeliveryRow,
  tries: number,
  reason: string | null,
): 'done' | 'dead-lettered' | 'not-found' {
  const to = deadLetterQueue(subscription.queue);
  if (to !== null) return toDeadLetterQueue(store, subscription, row, to, tries, reason);
  const { now } = store;
  const last = tries > row.tries ? reason : row.reason;
  store.rows.wait(subscription, row, { dueAt: now, tries, token: null, reason: last }, now);
  store.upkeep.releasedInto(subscription.queue);
  return 'done';
}

/**
 * Moves a delivery's element to the queue's dead-letter queue: a new element with the same content and some more headers,
 * for the namespace's default groups, with no tries. In a stream only this group's delivery is finished; the
 * others continue with the original. An element whose checksum does not fit is set aside instead.
 */
function toDeadLetterQueue(
  store: Store,
  subscription: Subscription,
  row: DeliveryRow,
  to: string,
  tries: number,
  reason: string | null,
): 'dead-lettered' | 'not-found' {
  const { queue, group } = subscription;
  const content = soundContent(store, row);
  if (content === null) return 'not-found';
  const { contentEncoding, headers } = fromMore(content.more);
  const deadHeaders = deadLetterHeaders(headers, {
    from: bytesOfText(queue.key.name),
    at: store.now,
    tries,
    id: store.ids.text(elementOf(row)),
    reason,
  });
  const target = store.names.use(nameOf({ ns: queue.key.ns, name: to }), store.now);
  const { groups } = queue.policy;
  const facts = { dueAt: store.now, tries: 0, expiresAt: null, reason };
  insertOne(store, target, {
    ...content,
    more: toMore(contentEncoding, deadHeaders),
    ...facts,
    groups,
    extra: null,
  });
  store.rows.remove(subscription, row);
  store.records.countOne(queue, group, 'deadletter');
  store.records.countOne(target, PLAIN_GROUP, 'put');
  if (groups !== '') for (const one of groups.split(',')) store.records.countOne(target, one, 'put');
  store.affected(target);
  return 'dead-lettered';
}

/** Finishes a delivery and stores a copy of its element, with its maturity and expiry. */
export function move(
  store: Store,
  subscription: Subscription,
  row: DeliveryRow,
  target: Queue,
  { groups, tries, headers }: { groups: string; tries: number | null; headers: readonly (string | null)[] },
): 'done' | 'not-found' {
  const content = soundContent(store, row);
  if (content === null) return 'not-found';
  const { dueAt, expiresAt } = row;
  const facts = { dueAt, tries: tries ?? row.tries, expiresAt, reason: null };
  store.rows.remove(subscription, row);
  insertOne(store, target, {
    ...content,
    more: headers.length === 0 ? content.more : withHeaders(content.more, headers),
    ...facts,
    groups,
    extra: null,
  });
  store.affected(target);
  return 'done';
}

/** @param replaced names and values; null: the header goes */
function withHeaders(more: string | null, replaced: readonly (string | null)[]): string | null {
  const { contentEncoding, headers } = fromMore(more);
  const values = new Map<string, string | null>();
  for (let i = 0; i < replaced.length; i += 2) values.set(replaced[i] ?? '', replaced[i + 1] ?? null);
  const kept: string[] = [];
  for (let i = 0; i < headers.length; i += 2) {
    if (!values.has(headers[i] ?? '')) kept.push(headers[i] ?? '', headers[i + 1] ?? '');
  }
  for (const [name, value] of values) if (value !== null) kept.push(name, value);
  return toMore(contentEncoding, kept);
}

/** An expired delivery goes to the dead-letter queue if there is one, else away. */
export function expire(store: Store, subscription: Subscription, row: DeliveryRow): void {
  const to = deadLetterQueue(subscription.queue);
  if (!isWholeDelivery(row)) setAsideDamaged(store, row.seq);
  else if (to === null) store.rows.remove(subscription, row);
  else toDeadLetterQueue(store, subscription, row, to, row.tries, EXPIRED);
}

/**
 * Ends leases that ran out, each a failed try whose element waits again from the lease's end, or the queue's retry delay
 * after it. Run before
 * each batch in which one may have ended, so no operation depends on `sweep` being called in time.
 */
export function endLeases(store: Store): void {
  const { rows, names, now } = store;
  if (!rows.mayLeaseHaveEnded(now)) return;
  for (const row of rows.endedLeases(now)) {
    const subscription = names.subscriptionById(row.subscription);
    // One that came before it may have set the element aside as damaged, with the deliveries of all groups.
    if (subscription === null || rows.bySeq(row.seq) === null) continue;
    store.affected(subscription.queue);
    // A try counted on damaged fields would give them a sound checksum.
    if (!isWholeDelivery(row)) setAsideDamaged(store, row.seq);
    else {
      const { token, leaseUntil } = row;
      const endedAt = leaseUntil ?? now;
      const failed = { dueAt: endedAt, retryFrom: endedAt, token, reason: LEASE_EXPIRED };
      failTry(store, subscription, row, failed);
    }
  }
  rows.refreshLeases(now);
}

/**
 * Takes a delivery whose checksum, or that of its content, does not fit out of its queue, and keeps its content in the table
 * `damaged`. It is never handed out as good, does not block what is behind it, and is not lost to a person who can still
 * make sense of it. A warning names its id and queue. If it is the content that does not fit, it goes for all groups;
 * a damaged delivery goes alone, since its field `element` may name the element of another.
 */
export function setAsideDamaged(store: Store, seq: number): void {
  const { rows, names, now } = store;
  const found = rows.bySeq(seq);
  const group = names.subscriptionById(found?.subscription ?? 0)?.group;
  if (found === null || group === undefined) return;
  // On a plain queue both have one number.
  const first = group === PLAIN_GROUP && found.element !== null ? { ...found, element: seq } : found;
  const element = elementOf(first);
  const queues = new Set<Queue>();
  let isKept = false;
  for (const row of isWholeDelivery(found) ? rows.ofElement(element) : [first]) {
    const subscription = names.subscriptionById(row.subscription);
    if (subscription === null) continue;
    const { queue } = subscription;
    queues.add(queue);
    const content: ElementRow | null = isKept ? null : rows.contentOf(row);
    if (content !== null) rows.setAside(element, queue.id, content, now);
    isKept ||= content !== null;
    rows.remove(subscription, row);
  }
  // A damaged maturity, or group, was counted as the one that it had before.
  for (const { subscriptions } of queues) for (const one of subscriptions.values()) rows.recount(one, now);
  const [queue] = queues;
  const rest = isKept ? 'kept in the table "damaged"' : 'lost: its content is missing';
  store.warn(
    { element: store.ids.text(element), namespace: queue?.key.ns ?? '', queue: queue?.key.name ?? '' },
    `an element fails its checksum; it was taken out of its queue and ${rest}`,
  );
}

/** The content of a delivery, null if it is missing or its checksum does not fit: then the element is set aside. */
function soundContent(store: Store, row: DeliveryRow): ElementRow | null {
  const content = store.rows.contentOf(row);
  if (content !== null) {
    const { type, more, body, crc } = content;
    if (elementChecksum(elementOf(row), type, more, body) === crc) return content;
  }
  setAsideDamaged(store, row.seq);
  return null;
}

/** The number of a delivery's element. */
export function elementOf({ seq, element }: Pick<DeliveryRow, 'seq' | 'element'>): number {
  return element ?? seq;
}
