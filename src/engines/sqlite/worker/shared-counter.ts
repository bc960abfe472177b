import type { DatabaseSync } from 'node:sqlite';
import { DELIVERY_STATES } from '../../../model/element.ts';
import type { StateCounts, Subscription, WorkerQueue } from './queues.ts';
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

const STATES = `SELECT sum(d.lease_until IS NULL AND d.due_at <= :now) AS ready,
       sum(d.lease_until IS NULL AND d.due_at > :now) AS scheduled, sum(d.lease_until IS NOT NULL) AS reserved`;

const SQL = {
  sharedStates: `${STATES}, e.seq FROM element e INDEXED BY element_shared CROSS JOIN delivery d ON d.element = e.seq
       WHERE e.queue = :queue AND e.groups > 1 AND e.seq > :after GROUP BY e.seq ORDER BY e.seq`,
  statesOf: `${STATES} FROM element e CROSS JOIN delivery d ON d.element = e.seq
       WHERE e.seq = :element AND e.groups > 1 GROUP BY e.seq`,
  becameDue: `SELECT d.element FROM delivery d WHERE d.subscription = ? AND d.lease_until IS NULL
       AND d.due_at > ? AND d.due_at <= ? LIMIT ${BOUND}`,
} as const;

/** Maintains the {@link SharedCounts} of queues. */
export class SharedCounter {
  readonly #sql: Statements<typeof SQL>;

  constructor(db: DatabaseSync) {
    this.#sql = prepareAll(db, SQL);
  }

  /** Updates {@link SharedCounts}. Must be called after all subscriptions of the queue were counted at `now`. */
  count(queue: WorkerQueue, now: number): StateCounts {
    this.#noteDue(queue, now);
    const excess: StateCounts = queue.shared?.excess ?? { ready: 0, scheduled: 0, reserved: 0 };
    const changed = queue.shared?.changed ?? new Set();
    let left = ELEMENTS_PER_COUNT;
    for (const element of changed) {
      if (left <= 0) break;
      changed.delete(element);
      left -= addExcess(excess, this.#statesOf(element, now), 1);
    }
    const readTo = this.#readShared(queue, now, excess, left);
    let holdsUntil = Number.POSITIVE_INFINITY;
    for (const { scheduledFrom } of queue.subscriptions.values()) {
      holdsUntil = Math.min(holdsUntil, scheduledFrom);
    }
    const isPart = changed.size > 0 || readTo < Number.POSITIVE_INFINITY;
    queue.shared = { excess: excess, readTo, countedAt: now, validUntil: holdsUntil, changed, isPart };
    return excess;
  }

  /** Counts up to `maxReads` further elements. Returns the last one that is counted, as {@link SharedCounts.readTo}. */
  #readShared({ id, shared }: WorkerQueue, now: number, excess: StateCounts, maxReads: number): number {
    const after = shared?.readTo ?? Number.MIN_SAFE_INTEGER;
    let left = maxReads;
    if (after === Number.POSITIVE_INFINITY || left <= 0) return after;
    for (const row of this.#sql.sharedStates.iterate({ now, queue: id, after })) {
      left -= addExcess(excess, row as unknown as StateCounts, 1);
      if (left <= 0) return Number(row.seq);
    }
    return Number.POSITIVE_INFINITY;
  }

  /**
   * Deliveries that became due since the last count change the states of their elements. If they are more than one
   * count may read, or the clock was set back, all elements are counted again, a part at a time.
   */
  #noteDue(queue: WorkerQueue, now: number): void {
    const { shared } = queue;
    if (shared === null || (now >= shared.countedAt && now < shared.validUntil)) return;
    let left = now < shared.countedAt ? 0 : ELEMENTS_PER_COUNT;
    for (const subscription of queue.subscriptions.values()) {
      if (left <= 0) break;
      const most = Math.ceil(left * DELIVERIES_PER_READ);
      const due = this.#sql.becameDue.all(subscription.id, shared.countedAt, now, most);
      left -= due.length / DELIVERIES_PER_READ;
      for (const { element } of due) {
        if (left <= 0) break;
        left -= this.beforeChange(subscription, element as number | null);
      }
    }
    if (left <= 0) queue.shared = null;
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

  #statesOf(element: number, now: number): StateCounts | undefined {
    return this.#sql.statesOf.get({ now, element }) as unknown as StateCounts | undefined;
  }
}

/**
 * Adds or subtracts the difference between the deliveries of an element and the element itself. Returns how much of
 * {@link ELEMENTS_PER_COUNT} reading them used.
 */
function addExcess(excess: StateCounts, states: StateCounts | undefined, sign: 1 | -1): number {
  if (states === undefined) return 1;
  for (const state of DELIVERY_STATES) excess[state] += sign * states[state];
  excess[states.ready > 0 ? 'ready' : states.scheduled > 0 ? 'scheduled' : 'reserved'] -= sign;
  return Math.max(1, (states.ready + states.scheduled + states.reserved) / DELIVERIES_PER_READ);
}
