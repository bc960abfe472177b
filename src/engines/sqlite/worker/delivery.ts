import { retryDelayMs } from '../../../engine/queue-policy.ts';
import {
  type DeadLetterAction,
  type DeadLetterPolicy,
  EXPIRED,
  LEASE_EXPIRED,
  MAX_REASON_BYTES,
  type MoveAction,
  type ReleaseAction,
  type SettleOutcome,
} from '../../../engine/storage.ts';
import { decodeMetadata, encodeMetadata } from '../../../engine/stored-metadata.ts';
import { PLAIN_GROUP } from '../../../model/element.ts';
import { deadLetterHeaders } from '../../../model/service-headers.ts';
import { toByteString } from '../../../util/byte-string.ts';
import { truncateUtf8 } from '../../../util/truncate-utf8.ts';
import { joinGroups, nameOf, type QueueName } from '../protocol.ts';
import { type Incoming, insertAll } from './insert.ts';
import type { Subscription, WorkerQueue } from './queues.ts';
import { type DeliveryRow, type ElementRow, elementOf, isIntactContent, isIntactDelivery } from './rows.ts';
import type { Store } from './store.ts';

/** A failed try: a release that counts it, or a lease expiry. */
interface FailedTry {
  /** When the delivery becomes eligible again, unless the element becomes a dead letter. */
  readonly dueAt: number;
  /** The moment from which the queue's retry delay, if any, counts instead of `dueAt`; null: it does not apply. */
  readonly retryFrom: number | null;
  /** The token to store: that of an expired lease, so that the late worker may still commit; else null. */
  readonly token: string | null;
  readonly reason: string | null;
}

/** A delivery with its transitions that the queue's policy decides, or that move its element to another queue. */
export class StoredDelivery {
  readonly #store: Store;
  readonly #subscription: Subscription;
  readonly #row: DeliveryRow;

  constructor(store: Store, subscription: Subscription, row: DeliveryRow) {
    this.#store = store;
    this.#subscription = subscription;
    this.#row = row;
  }

  /**
   * Whether its checksum matches. If not, it is set aside. Must be called before any transition, since a change
   * computed from damaged fields would get a valid checksum.
   */
  isIntact(): boolean {
    if (isIntactDelivery(this.#row)) return true;
    setAsideDamaged(this.#store, this.#row.seq);
    return false;
  }

  release(action: ReleaseAction): SettleOutcome {
    const { now } = this.#store;
    const { leaseUntil, tries, reason } = this.#row;
    const { delayMs, dueAt, countTry } = action;
    const isReturned = leaseUntil !== null && !countTry && delayMs === 0;
    const moment = dueAt ?? (isReturned ? this.#row.dueAt : now + delayMs);
    if (!countTry) return this.#setWaiting({ dueAt: moment, tries, token: null, reason });
    const retryFrom = action.isDefaultDelay ? now : null;
    return this.#failTry({ dueAt: moment, retryFrom, token: null, reason: cutReason(action.reason) });
  }

  /** A failed try. The element waits again from the end of the lease, or from the queue's retry delay after it. */
  endLease(): void {
    const { token, leaseUntil } = this.#row;
    const endedAt = leaseUntil ?? this.#store.now;
    this.#failTry({ dueAt: endedAt, retryFrom: endedAt, token, reason: LEASE_EXPIRED });
  }

  /** Moves the element to the dead-letter queue, whatever its tries. If there is none, it waits again. */
  deadLetter(action: DeadLetterAction): SettleOutcome {
    const tries = this.#row.tries + (action.countTry ? 1 : 0);
    const policy = this.#deadLetterPolicy;
    if (policy !== null) return this.#toDeadLetterQueue(policy, tries, cutReason(action.reason));
    const reason = action.countTry ? cutReason(action.reason) : this.#row.reason;
    return this.#setWaiting({ dueAt: this.#store.now, tries, token: null, reason });
  }

  /** Moves the expired element to the dead-letter queue; removes the delivery if there is none. */
  expire(): void {
    const policy = this.#deadLetterPolicy;
    if (policy !== null) this.#toDeadLetterQueue(policy, this.#row.tries, EXPIRED);
    else this.#store.rows.remove(this.#subscription, [this.#row]);
  }

  /** Moves the element, with the same maturity and expiry. */
  move({ to, groups, tries, head }: MoveAction): SettleOutcome {
    const content = this.#intactContent();
    if (content === null) return 'not-found';
    const { dueAt, expiresAt } = this.#row;
    const changed = head && {
      type: head.contentType,
      more: encodeMetadata(head.contentEncoding, head.headers),
    };
    const facts = { dueAt, tries: tries ?? this.#row.tries, expiresAt, reason: null };
    this.#moveTo(nameOf(to), { ...content, ...changed, ...facts, groups: joinGroups(groups) });
    return 'done';
  }

  /** Counts a failed try. When the tries reach the queue's `maxTries`, the element moves to the dead-letter queue. */
  #failTry({ dueAt, retryFrom, token, reason }: FailedTry): SettleOutcome {
    const tries = this.#row.tries + 1;
    const policy = this.#deadLetterPolicy;
    if (policy !== null && tries >= policy.maxTries) return this.#toDeadLetterQueue(policy, tries, reason);
    const { retryDelay } = this.#subscription.queue.policy;
    const retryAt =
      retryFrom === null || retryDelay === null
        ? dueAt
        : retryFrom + retryDelayMs(retryDelay, tries, elementOf(this.#row));
    return this.#setWaiting({ dueAt: retryAt, tries, token, reason });
  }

  #setWaiting(facts: Pick<DeliveryRow, 'dueAt' | 'tries' | 'token' | 'reason'>): 'done' {
    const { rows, queues, now } = this.#store;
    rows.setWaiting(this.#subscription, this.#row, facts, now);
    // It may be older than all others.
    queues.noteWaiting(this.#subscription.queue, Number.MIN_SAFE_INTEGER);
    return 'done';
  }

  /** Null if failed elements stay in their queue, as in the dead-letter queue itself. */
  get #deadLetterPolicy(): DeadLetterPolicy | null {
    const { policy, key } = this.#subscription.queue;
    return policy.deadLetter?.queue === key.name ? null : policy.deadLetter;
  }

  /**
   * Moves the element to the dead-letter queue: a new element with the same content and further headers, for the
   * namespace's default groups, with 0 tries. In a stream only this group's delivery is finished; the others still
   * refer to the original. An element whose checksum does not match is set aside instead.
   */
  #toDeadLetterQueue({ queue: to }: DeadLetterPolicy, tries: number, reason: string | null): SettleOutcome {
    const { ids, queues, records, now } = this.#store;
    const { queue, group } = this.#subscription;
    const content = this.#intactContent();
    if (content === null) return 'not-found';
    const { contentEncoding, headers } = decodeMetadata(content.more);
    const deadHeaders = deadLetterHeaders(headers, {
      from: toByteString(queue.key.name),
      group,
      at: now,
      tries,
      id: ids.format(elementOf(this.#row)),
      reason,
    });
    const more = encodeMetadata(contentEncoding, deadHeaders);
    const groups = queues.defaultGroups(queue);
    const facts = { dueAt: now, tries: 0, expiresAt: null, reason };
    const target = this.#moveTo(nameOf({ ns: queue.key.ns, name: to }), {
      ...content,
      more,
      ...facts,
      groups,
    });
    records.countOne(queue, group, 'deadletter');
    records.countOne(target, PLAIN_GROUP, 'put');
    if (groups !== '') for (const one of groups.split(',')) records.countOne(target, one, 'put');
    return 'dead-lettered';
  }

  /** Finishes the delivery, and stores a copy of its element in another queue, which is returned. */
  #moveTo(to: QueueName, copy: Omit<Incoming, 'key' | 'fingerprint'>): WorkerQueue {
    const store = this.#store;
    const target = store.queues.use(to, store.now);
    store.rows.remove(this.#subscription, [this.#row]);
    insertAll(store, target, [{ ...copy, key: null, fingerprint: null }]);
    store.copiedBytes += copy.body.byteLength;
    store.affected.add(to);
    return target;
  }

  /** The element's content. If it is missing or its checksum does not match, sets it aside and returns null. */
  #intactContent(): ElementRow | null {
    const content = this.#store.rows.contentOf(this.#row);
    if (content !== null && isIntactContent(this.#row, content)) return content;
    setAsideDamaged(this.#store, this.#row.seq);
    return null;
  }
}

function cutReason(reason: string | null | undefined): string | null {
  return reason == null ? null : truncateUtf8(reason, MAX_REASON_BYTES);
}

/**
 * Ends expired leases. Called before each batch in which a lease may have ended, so that no operation depends on
 * `sweep` being called in time. What exceeds one step is left to the next.
 */
export function endLeases(store: Store): void {
  const { rows, queues, now, copiedBytes } = store;
  if (!rows.mayLeaseHaveEnded(now)) return;
  rows.writeReservations();
  for (const row of rows.endedLeases(now)) {
    if (!store.mayCopyMore(copiedBytes)) break;
    const subscription = queues.subscriptionById(row.subscription);
    // An earlier row of the loop may have set aside the element as damaged, with the deliveries of all groups.
    if (subscription === null || rows.bySeq(row.seq) === null) continue;
    store.affected.add(nameOf(subscription.queue.key));
    const delivery = new StoredDelivery(store, subscription, row);
    if (delivery.isIntact()) delivery.endLease();
  }
  rows.findNextLeaseEnd();
}

/**
 * Removes a delivery whose checksum, or that of its content, does not match from its queue, and stores its content in
 * the table `damaged`. So it is never delivered as valid, does not block the elements behind it, and can still be
 * inspected by a person. A warning names its id and queue. If the content is damaged, the deliveries of all groups are
 * removed; a damaged delivery is removed alone, since its field `element` may refer to another delivery's element.
 */
export function setAsideDamaged(store: Store, seq: number): void {
  const { rows, queues, counter, now } = store;
  const found = rows.bySeq(seq);
  const group = queues.subscriptionById(found?.subscription ?? 0)?.group;
  if (found === null || group === undefined) return;
  // On a plain queue, the delivery has the number of its element.
  const first = group === PLAIN_GROUP && found.element !== null ? { ...found, element: seq } : found;
  const element = elementOf(first);
  const affected = new Set<WorkerQueue>();
  let isKept = false;
  for (const row of isIntactDelivery(found) ? rows.ofElement(element) : [first]) {
    const subscription = queues.subscriptionById(row.subscription);
    if (subscription === null) continue;
    const { queue } = subscription;
    affected.add(queue);
    const content: ElementRow | null = isKept ? null : rows.contentOf(row);
    if (content !== null) rows.setAside(element, queue.id, content, now);
    isKept ||= content !== null;
    rows.remove(subscription, [row]);
  }
  // A damaged maturity or subscription is still counted with its value from before the damage.
  for (const { subscriptions } of affected)
    for (const one of subscriptions.values()) counter.recount(one, now);
  const [queue] = affected;
  const fate = isKept ? 'kept in the table "damaged"' : 'lost: its content is missing';
  store.warn(
    { element: store.ids.format(element), namespace: queue?.key.ns ?? '', queue: queue?.key.name ?? '' },
    `an element fails its checksum; it was removed from its queue and ${fate}`,
  );
}
