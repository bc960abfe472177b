import { queueDefinitionKey } from '../../../engine/definitions.ts';
import { DELIVERY_STATES } from '../../../model/element.ts';
import { endLeases, StoredDelivery } from './delivery.ts';
import { deliveriesIn, deliveriesOf, USE_NOTED_MS, type WorkerQueue } from './queues.ts';
import type { Run, Store } from './store.ts';

/**
 * Expired deliveries, deliveries past their retention, and idempotency keys past their window: about this many of each
 * are removed by one call.
 */
const MAX_ROWS_PER_CALL = 1000;

/**
 * How long a queue is unused before it is removed, if it is empty and not paused. Its last use is known to the hour.
 */
const UNUSED_MS = 86_400_000 + USE_NOTED_MS;
/**
 * The same for a queue of which the file only ever had counters, since the last count: its elements are in another
 * engine (`stats: {url: …}`), where they may wait for long.
 */
const UNUSED_COUNTERS_MS = 30 * 86_400_000;
/** Pause between two passes over all queues, and the queues that one call removes, at most. */
const PAUSE_MS = 600_000;
const MAX_QUEUES_PER_CALL = 200;

/** Free pages that are not returned, for the next burst: growing the file again costs more. */
const PAGES_KEPT = 4096;

/**
 * Housekeeping in bounded steps: ends leases, expires elements, applies the retention of streams, forgets idempotency
 * keys, removes unused queues and returns free pages. Returns when to sweep again; null: when something changes.
 */
export function sweep(store: Store): number | null {
  const { now, rows, queues, records } = store;
  endLeases(store);
  const expired = rows.expired(now, MAX_ROWS_PER_CALL);
  const copiedBefore = store.copiedBytes;
  let isStepOver = false;
  for (const row of expired) {
    isStepOver = !store.mayCopyMore(copiedBefore);
    if (isStepOver) break;
    const subscription = queues.subscriptionById(row.subscription);
    if (subscription === null || rows.bySeq(row.seq) === null) continue;
    const delivery = new StoredDelivery(store, subscription, row);
    if (delivery.isIntact()) delivery.expire();
  }
  const areOldLeft = dropOld(store);
  const areKeysLeft = records.forgetKeys(now, MAX_ROWS_PER_CALL);
  removeUnused(store);
  const arePagesLeft = returnPages(store);
  const isMore =
    isStepOver || expired.length === MAX_ROWS_PER_CALL || areOldLeft || areKeysLeft || arePagesLeft;
  const next = [rows.findNextLeaseEnd(), rows.nextExpiry(), queues.nextRetentionEnd()].filter(
    (at) => at !== null,
  );
  if (isMore) return now;
  return next.length === 0 ? null : Math.min(...next);
}

/**
 * Removes waiting deliveries past their retention; reserved ones stay until they are settled. Returns whether there may
 * be more. `WorkerQueue.oldestAt` tells whether a queue may have any, so that checking costs nothing until one is due.
 */
function dropOld({ queues, rows, now }: Store): boolean {
  let left = MAX_ROWS_PER_CALL;
  for (const queue of queues.all()) {
    const { oldestAt, policy } = queue;
    if (policy.retentionMs === null || oldestAt > now - policy.retentionMs) continue;
    const last = now - policy.retentionMs;
    for (const element of rows.waitingUntil(queue, last, left)) {
      for (const row of rows.ofElement(element)) {
        const subscription = queues.subscriptionById(row.subscription);
        if (row.leaseUntil !== null || subscription === null) continue;
        rows.remove(subscription, [row]);
        left -= 1;
      }
      if (left <= 0) return true;
    }
    queue.oldestAt = rows.firstInsertedAfter(queue, last);
  }
  return false;
}

/** Removes unused queues, with their counters, so that names do not accumulate. */
function removeUnused(store: Store): void {
  const { now, queues, records } = store;
  if (now < store.nextUnusedPassAt) return;
  let left = MAX_QUEUES_PER_CALL;
  for (const queue of [...queues.all()]) {
    if (now - queue.usedAt < UNUSED_MS || isKeptForCounters(store, queue) || !isRemovable(store, queue)) {
      continue;
    }
    if (left-- === 0) return;
    records.deleteDefinition('queue', queueDefinitionKey(queue.key), 'any');
    queues.remove(queue);
  }
  store.nextUnusedPassAt = now + PAUSE_MS;
}

/** Queries the table once for each queue, not at each pass: for 100,000 queues that takes 0.1 s. */
function isKeptForCounters({ now, records }: Store, queue: WorkerQueue): boolean {
  if (queue.subscriptions.size > 0) return false;
  if (now < queue.countersUntil) return true;
  const until = queue.usedAt + UNUSED_COUNTERS_MS;
  if (now >= until || !records.hasCounts(queue)) return false;
  queue.countersUntil = until;
  return true;
}

function isRemovable({ records, queues }: Store, queue: WorkerQueue): boolean {
  if (queue.options !== null || deliveriesIn(queue) > 0) return false;
  const [, value = 'null'] = records.definition('queue', queueDefinitionKey(queue.key)) ?? [];
  if ((JSON.parse(value) as { readonly paused?: unknown } | null)?.paused === true) return false;
  return !records.hasKeys(queue) && !queues.hasDamaged(queue);
}

/**
 * Shrinks the file a little (`auto_vacuum = INCREMENTAL`) if more than a quarter of it is free; on a full disk, down to
 * the last free page. Returns whether there is more to do.
 */
function returnPages(store: Store): boolean {
  if (!isShrinkable(store)) return false;
  store.vacuum();
  return isShrinkable(store);
}

/** Whether enough of the file is free to shrink it. */
function isShrinkable(store: Store): boolean {
  const free = store.freePages();
  if (store.space?.isNearlyFull) return free > 0;
  return free > PAGES_KEPT && free * 4 > store.pages();
}

/** Deliveries that one step of a purge removes, at most: 10 ms. */
const MAX_PURGED_PER_STEP = 2000;
/** Pages that one step of a purge frees, about: 128 MiB, which also takes 10 ms. */
const MAX_PURGED_PAGES = 32_768;
/** Deliveries that a purge removes between two queries of the number of free pages, which take 16 µs each. */
const PURGED_PER_PAGE_CHECK = 128;

/**
 * Removes deliveries of all groups in one bounded step. It is the last step if it finds fewer than it may remove.
 * @param requested states of the deliveries to remove; null: all
 */
export const purge: Run<'purge'> = (store, name, requested) => {
  const { queues, rows, now } = store;
  const states = DELIVERY_STATES.filter((state) => requested === null || requested.includes(state));
  const maxFreePages = store.freePages() + MAX_PURGED_PAGES;
  let removed = 0;
  for (const subscription of queues.find(name)?.subscriptions.values() ?? []) {
    // A stream may have a thousand groups, of which earlier steps have emptied most.
    if (deliveriesOf(subscription) === 0) continue;
    for (const state of states) {
      const found = rows.inState(subscription, state, now, MAX_PURGED_PER_STEP - removed);
      for (let from = 0; from < found.length; from += PURGED_PER_PAGE_CHECK) {
        const chunk = found.slice(from, from + PURGED_PER_PAGE_CHECK);
        rows.remove(subscription, chunk);
        removed += chunk.length;
        const areSmall = chunk.every(({ element }) => element === null);
        if (!areSmall && store.freePages() >= maxFreePages) return { removed, isDone: false };
      }
      if (removed === MAX_PURGED_PER_STEP) return { removed, isDone: false };
    }
  }
  return { removed, isDone: true };
};
