import type { DatabaseSync } from 'node:sqlite';
import { queueDefinitionKey } from '../../../engine/definitions.ts';
import { deliveriesIn, type Queues, USE_NOTED_MS, type WorkerQueue } from './queues.ts';
import { prepareAll, type Statements } from './schema.ts';
import { endLeases, expire } from './settle.ts';
import type { Store } from './store.ts';

/**
 * Expired deliveries, deliveries past their retention, and idempotency keys past their window: about this many of each
 * are removed by one call.
 */
const MAX_ROWS_PER_CALL = 1000;

/**
 * How long a queue is unused before it is removed, if it is empty and not paused. Its last use is known to the hour.
 */
const UNUSED_MS = 86_400_000 + USE_NOTED_MS;
/** Pause between two passes over all queues, and the queues that one call removes, at most. */
const PAUSE_MS = 600_000;
const MAX_QUEUES_PER_CALL = 200;

/** Free pages that are not returned, for the next burst: growing the file again costs more. */
const PAGES_KEPT = 4096;
/** Pages returned per call: a few milliseconds, since each may require moving a page from the end of the file. */
const PAGES_PER_CALL = 500;

const SQL = {
  overdue: `SELECT DISTINCT e.seq, e.inserted_at
       FROM element e INDEXED BY element_age
       CROSS JOIN delivery d ON d.element = e.seq AND d.lease_until IS NULL
       WHERE e.queue = ? AND e.groups > 0 AND e.inserted_at <= ? ORDER BY e.inserted_at LIMIT ?`,
  insertedAfter: `SELECT inserted_at AS at FROM element INDEXED BY element_age
       WHERE queue = ? AND groups > 0 AND inserted_at > ? ORDER BY inserted_at LIMIT 1`,
  hasKeys: 'SELECT 1 FROM dedup WHERE queue = ? LIMIT 1',
  vacuum: `PRAGMA incremental_vacuum(${PAGES_PER_CALL})`,
} as const;

/**
 * Sweeps in bounded steps. Implements retention of streams, removal of unused queues, and return of free pages.
 *
 * `WorkerQueue.oldestAt` tells whether a queue may have an element past its retention, so that checking costs nothing
 * until one is due.
 */
export class Sweeper {
  readonly #sql: Statements<typeof SQL>;
  readonly #queues: Queues;
  #nextPassAt = Number.NEGATIVE_INFINITY;

  constructor(db: DatabaseSync, queues: Queues) {
    this.#sql = prepareAll(db, SQL);
    this.#queues = queues;
  }

  /** Returns when to sweep again; null: when something changes. */
  sweep(store: Store): number | null {
    const { now, rows, queues, records } = store;
    endLeases(store);
    const expired = rows.expired(now, MAX_ROWS_PER_CALL);
    const copiedBefore = store.copiedBytes;
    let isStepOver = false;
    for (const row of expired) {
      isStepOver = !store.mayCopyMore(copiedBefore);
      if (isStepOver) break;
      const subscription = queues.subscriptionById(row.subscription);
      if (subscription !== null && rows.bySeq(row.seq) !== null) expire(store, subscription, row);
    }
    const areOldLeft = this.#dropOld(store);
    const areKeysLeft = records.forgetKeys(now, MAX_ROWS_PER_CALL);
    this.#removeUnused(store);
    const arePagesLeft = this.#returnPages(store);
    const isMore =
      isStepOver || expired.length === MAX_ROWS_PER_CALL || areOldLeft || areKeysLeft || arePagesLeft;
    const next = [rows.findNextLeaseEnd(), rows.nextExpiry(), this.#nextAt()].filter((at) => at !== null);
    if (isMore) return now;
    return next.length === 0 ? null : Math.min(...next);
  }

  /**
   * Removes the waiting deliveries of an element, which is deleted with the last delivery. Reserved ones stay until
   * they are settled. Returns the number of removed deliveries.
   */
  #dropWaiting({ rows, queues }: Store, element: number): number {
    let dropped = 0;
    for (const row of rows.ofElement(element)) {
      const subscription = queues.subscriptionById(row.subscription);
      if (row.leaseUntil !== null || subscription === null) continue;
      rows.remove(subscription, [row]);
      dropped += 1;
    }
    return dropped;
  }

  /** Notes that the queue has a waiting element that was inserted at `insertedAt`. */
  noteAdded(queue: WorkerQueue, insertedAt: number): void {
    if (queue.policy.retentionMs !== null) queue.oldestAt = Math.min(queue.oldestAt, insertedAt);
  }

  /** Notes that the queue has a waiting delivery that may be older than all others. */
  noteReleased(queue: WorkerQueue): void {
    this.noteAdded(queue, Number.MIN_SAFE_INTEGER);
  }

  /** Removes waiting deliveries past their retention. Returns whether there may be more. */
  #dropOld(store: Store): boolean {
    const { now } = store;
    let left = MAX_ROWS_PER_CALL;
    for (const queue of this.#queues.all()) {
      const { id, oldestAt, policy } = queue;
      if (policy.retentionMs === null || oldestAt > now - policy.retentionMs) continue;
      const last = now - policy.retentionMs;
      for (const { seq } of this.#sql.overdue.all(id, last, left)) {
        left -= this.#dropWaiting(store, Number(seq));
        if (left <= 0) return true;
      }
      // The oldest element is now the first one that was inserted after `last`.
      queue.oldestAt = Number(this.#sql.insertedAfter.get(id, last)?.at ?? Number.POSITIVE_INFINITY);
    }
    return false;
  }

  /** When the next element exceeds its retention; null if none will. Must be called after `#dropOld`. */
  #nextAt(): number | null {
    let next = Number.POSITIVE_INFINITY;
    for (const { oldestAt, policy } of this.#queues.all()) {
      if (policy.retentionMs !== null) next = Math.min(next, oldestAt + policy.retentionMs);
    }
    return Number.isFinite(next) ? next : null;
  }

  /** Removes unused queues, with their counters, so that names do not accumulate. */
  #removeUnused(store: Store): void {
    const { now, queues } = store;
    if (now < this.#nextPassAt) return;
    let left = MAX_QUEUES_PER_CALL;
    for (const queue of [...queues.all()]) {
      if (now - queue.usedAt < UNUSED_MS || !this.#isRemovable(store, queue)) continue;
      if (left-- === 0) return;
      store.records.deleteDefinition('queue', queueDefinitionKey(queue.key), 'any');
      queues.remove(queue);
    }
    this.#nextPassAt = now + PAUSE_MS;
  }

  #isRemovable({ records, queues }: Store, queue: WorkerQueue): boolean {
    if (queue.options !== null || deliveriesIn(queue) > 0) return false;
    const [, value = 'null'] = records.definition('queue', queueDefinitionKey(queue.key)) ?? [];
    if ((JSON.parse(value) as { readonly paused?: unknown } | null)?.paused === true) return false;
    return this.#sql.hasKeys.get(queue.id) === undefined && !queues.hasDamaged(queue);
  }

  /**
   * Shrinks the file a little (`auto_vacuum = INCREMENTAL`) if more than a quarter of it is free; on a full disk, down
   * to the last free page. Returns whether there is more to do.
   */
  #returnPages(store: Store): boolean {
    if (!isShrinkable(store)) return false;
    this.#sql.vacuum.all();
    // The file shrinks only at the next checkpoint.
    store.requestCheckpoint();
    return isShrinkable(store);
  }
}

/** Whether enough of the file is free to shrink it. */
function isShrinkable(store: Store): boolean {
  const free = store.freePages();
  if (store.space?.isNearlyFull) return free > 0;
  return free > PAGES_KEPT && free * 4 > store.pages();
}
