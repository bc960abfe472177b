import type { DatabaseSync } from 'node:sqlite';
import { type GroupCounts, NO_COUNTS, type QueueCounts } from '../../../engine/storage.ts';
import { DELIVERY_STATES, type GroupName, PLAIN_GROUP } from '../../../model/element.ts';
import type { QueueName } from '../protocol.ts';
import {
  deliveriesOf,
  type Queues,
  type StateCounts,
  type Subscription,
  type WorkerQueue,
} from './queues.ts';
import { BOUND, prepareAll, type Statements } from './schema.ts';

/**
 * Elements of several groups that one count reads, at most: 70 ms. There may be millions after a start, and as many may
 * become due at the same moment.
 */
const ELEMENTS_PER_COUNT = 20_000;
/** Deliveries that count as one element of {@link ELEMENTS_PER_COUNT}: an element of more groups counts as several. */
const DELIVERIES_PER_READ = 3;

/** Elements of several groups that may change between two counts of their queue; with more, all are read again. */
const MAX_CHANGED = 250_000;

const WAITING = 'FROM delivery d WHERE d.subscription = ? AND d.lease_until IS NULL';
const STATES = `SELECT sum(d.lease_until IS NULL AND d.due_at <= :now) AS ready,
       sum(d.lease_until IS NULL AND d.due_at > :now) AS scheduled, sum(d.lease_until IS NOT NULL) AS reserved`;

const SQL = {
  due: `SELECT count(*) ${WAITING} AND d.due_at > ? AND d.due_at <= ?`,
  reserved: 'SELECT count(*) FROM delivery d WHERE d.subscription = ? AND d.lease_until IS NOT NULL',
  firstDue: `SELECT d.due_at ${WAITING} ORDER BY d.due_at LIMIT 1`,
  firstDueAfter: `SELECT d.due_at ${WAITING} AND d.due_at > ? ORDER BY d.due_at LIMIT 1`,
  sharedStates: `${STATES}, e.seq FROM element e INDEXED BY element_shared CROSS JOIN delivery d ON d.element = e.seq
       WHERE e.queue = :queue AND e.groups > 1 AND e.seq > :after GROUP BY e.seq ORDER BY e.seq`,
  statesOf: `${STATES} FROM element e CROSS JOIN delivery d ON d.element = e.seq
       WHERE e.seq = :element AND e.groups > 1 GROUP BY e.seq`,
  becameDue: `SELECT d.element ${WAITING} AND d.due_at > ? AND d.due_at <= ? LIMIT ${BOUND}`,
} as const;

type Counts = { -readonly [K in keyof GroupCounts]: GroupCounts[K] };

/** Counts deliveries and elements by state: maintains the counts of {@link Subscription} and {@link SharedCounts}. */
export class QueueCounter {
  readonly #queues: Queues;
  readonly #sql: Statements<typeof SQL>;
  /** How many elements that became due the running count may still read. */
  #leftToRead = 0;

  constructor(db: DatabaseSync, queues: Queues) {
    this.#queues = queues;
    this.#sql = prepareAll(db, SQL);
  }

  /**
   * Counts of one group or, if `group` is null, of the queue and each of its groups.
   * @returns the counts, and whether another call counts more of the elements of several groups
   */
  counts(name: QueueName, group: string | null, now: number): [counts: QueueCounts, isPart: boolean] {
    const queue = this.#queues.find(name);
    const groups = new Map<GroupName, GroupCounts>();
    this.#leftToRead = ELEMENTS_PER_COUNT;
    if (queue === null || group !== null) {
      const subscription = queue?.subscriptions.get(group ?? PLAIN_GROUP);
      const counted = subscription === undefined ? NO_COUNTS : this.#groupCounts(subscription, now);
      return [{ ...counted, groups }, false];
    }
    for (const subscription of queue.subscriptions.values()) {
      const counted = this.#groupCounts(subscription, now);
      const isListed = subscription.group === PLAIN_GROUP || deliveriesOf(subscription) > 0;
      if (isListed) groups.set(subscription.group, counted);
    }
    const total = this.#elementCounts(queue, [...groups.values()], now);
    groups.delete(PLAIN_GROUP);
    return [{ ...total, groups }, queue.shared?.isPart === true];
  }

  #groupCounts(subscription: Subscription, now: number): Counts {
    const { ready, scheduled, reserved } = this.#advance(subscription, now);
    const nextMatureAt = ready + scheduled === 0 ? null : this.firstDueAt(subscription);
    return { ready, scheduled, reserved, nextMatureAt };
  }

  /**
   * Counts each element of a queue once. The sum over the groups counts an element of several groups several times, so
   * the excess is subtracted. A queue without such elements, such as every plain one, needs no scan.
   */
  #elementCounts(queue: WorkerQueue, groups: readonly GroupCounts[], now: number): Counts {
    const total: Counts = { ...NO_COUNTS };
    for (const { ready, scheduled, reserved, nextMatureAt } of groups) {
      total.ready += ready;
      total.scheduled += scheduled;
      total.reserved += reserved;
      if (nextMatureAt !== null && nextMatureAt < (total.nextMatureAt ?? Number.POSITIVE_INFINITY)) {
        total.nextMatureAt = nextMatureAt;
      }
    }
    if (groups.length < 2) return total;
    const { ready, scheduled, reserved } = this.#countShared(queue, now);
    total.ready -= ready;
    total.scheduled -= scheduled;
    total.reserved -= reserved;
    return total;
  }

  /** Advances a subscription's counts to `now` (see {@link Subscription}); changes no delivery. */
  #advance(subscription: Subscription, now: number): Subscription {
    const { id, countedAt, scheduledFrom } = subscription;
    // After a restart the clock may be earlier: deliveries that are ready only at the later time are scheduled again.
    const isClockBehind = now < countedAt;
    if (isClockBehind || scheduledFrom <= now) {
      const next = this.#sql.firstDueAfter.value<number>(id, now);
      let due = subscription.scheduled;
      if (isClockBehind) due = -this.#countDue(id, now, countedAt);
      // If none remains, all are due: to count a million would take 70 ms.
      else if (next !== null) due = this.#countDue(id, countedAt, now);
      subscription.ready += due;
      subscription.scheduled -= due;
      subscription.scheduledFrom = next ?? Number.POSITIVE_INFINITY;
      this.#noteDue(subscription, now);
    }
    subscription.countedAt = now;
    return subscription;
  }

  /** The earliest maturity of waiting deliveries, due or not; null if there are none. */
  firstDueAt({ id }: Subscription): number | null {
    return this.#sql.firstDue.value(id);
  }

  /** Counts the rows of the table, which is slow: for when the counts in memory may no longer match it. */
  recount(subscription: Subscription, now: number): void {
    this.#queues.noteChanged(subscription);
    const { id, queue } = subscription;
    queue.shared = null;
    subscription.countedAt = now;
    subscription.ready = this.#countDue(id, Number.MIN_SAFE_INTEGER, now);
    subscription.scheduled = this.#countDue(id, now, Number.MAX_SAFE_INTEGER);
    subscription.reserved = Number(this.#sql.reserved.value(id));
    subscription.scheduledFrom = this.#sql.firstDueAfter.value<number>(id, now) ?? Number.POSITIVE_INFINITY;
  }

  /** Waiting deliveries that are due after `from`, and until `to`. */
  #countDue(subscription: number, from: number, to: number): number {
    return Number(this.#sql.due.value(subscription, from, to));
  }

  /** Also advances the counts to `now` if that is free. */
  waitingAdded(subscription: Subscription, dueAt: number, now: number): void {
    this.#queues.noteChanged(subscription);
    if (subscription.countedAt < now && subscription.scheduledFrom > now) subscription.countedAt = now;
    if (dueAt <= subscription.countedAt) subscription.ready++;
    else {
      subscription.scheduled++;
      if (dueAt < subscription.scheduledFrom) subscription.scheduledFrom = dueAt;
    }
  }

  waitingRemoved(subscription: Subscription, dueAt: number): void {
    this.#queues.noteChanged(subscription);
    if (dueAt <= subscription.countedAt) subscription.ready--;
    else if (--subscription.scheduled === 0) subscription.scheduledFrom = Number.POSITIVE_INFINITY;
  }

  reservedChanged(subscription: Subscription, difference: number): void {
    this.#queues.noteChanged(subscription);
    subscription.reserved += difference;
  }

  // Elements of several groups.

  /** Updates {@link SharedCounts}. Must be called after all subscriptions of the queue were counted at `now`. */
  #countShared(queue: WorkerQueue, now: number): StateCounts {
    const excess: StateCounts = queue.shared?.excess ?? { ready: 0, scheduled: 0, reserved: 0 };
    const changed = queue.shared?.changed ?? new Set();
    let left = ELEMENTS_PER_COUNT;
    for (const element of changed) {
      if (left <= 0) break;
      changed.delete(element);
      left -= addExcess(excess, this.#statesOf(element, now), 1);
    }
    const readTo = this.#readShared(queue, now, excess, left);
    const isPart = changed.size > 0 || readTo < Number.POSITIVE_INFINITY;
    queue.shared = { excess, readTo, countedAt: now, changed, isPart };
    return excess;
  }

  /** Counts up to `maxReads` further elements. Returns the last one that is counted, as {@link SharedCounts.readTo}. */
  #readShared({ id, shared }: WorkerQueue, now: number, excess: StateCounts, maxReads: number): number {
    const after = shared?.readTo ?? Number.MIN_SAFE_INTEGER;
    let left = maxReads;
    if (after === Number.POSITIVE_INFINITY || left <= 0) return after;
    type Row = StateCounts & { readonly seq: number };
    for (const row of this.#sql.sharedStates.iterate<Row>({ now, queue: id, after })) {
      left -= addExcess(excess, row, 1);
      if (left <= 0) return row.seq;
    }
    return Number.POSITIVE_INFINITY;
  }

  /**
   * Deliveries that became due since the last count change the states of their elements. If they are more than one
   * count may read, or the clock was set back, all elements are counted again, a part at a time.
   */
  #noteDue(subscription: Subscription, now: number): void {
    const { id, queue, countedAt } = subscription;
    if (now < countedAt) queue.shared = null;
    if (queue.shared === null) return;
    const most = Math.ceil(this.#leftToRead * DELIVERIES_PER_READ);
    const due = this.#sql.becameDue.arrays<[number | null]>(id, countedAt, now, most);
    this.#leftToRead -= due.length / DELIVERIES_PER_READ;
    for (const [element] of due) {
      if (this.#leftToRead <= 0) break;
      this.#leftToRead -= this.beforeChange(subscription, element);
    }
    if (this.#leftToRead <= 0) queue.shared = null;
  }

  /**
   * Must be called before a delivery of the element changes, is added or is removed; null: its content is in its own
   * row. Returns how much of {@link ELEMENTS_PER_COUNT} it used.
   */
  beforeChange({ queue }: Subscription, element: number | null): number {
    const { shared } = queue;
    if (shared === null || element === null || element > shared.readTo || shared.changed.has(element))
      return 0;
    const read = addExcess(shared.excess, this.#statesOf(element, shared.countedAt), -1);
    shared.changed.add(element);
    // Reading this many one by one costs as much as reading all.
    if (shared.changed.size >= MAX_CHANGED) queue.shared = null;
    return read;
  }

  #statesOf(element: number, now: number): StateCounts | null {
    return this.#sql.statesOf.get({ now, element });
  }
}

/**
 * Adds or subtracts the difference between the deliveries of an element and the element itself. Returns how much of
 * {@link ELEMENTS_PER_COUNT} reading them used.
 */
function addExcess(excess: StateCounts, states: StateCounts | null, sign: 1 | -1): number {
  if (states === null) return 1;
  for (const state of DELIVERY_STATES) excess[state] += sign * states[state];
  excess[states.ready > 0 ? 'ready' : states.scheduled > 0 ? 'scheduled' : 'reserved'] -= sign;
  return Math.max(1, (states.ready + states.scheduled + states.reserved) / DELIVERIES_PER_READ);
}
