import type { DatabaseSync } from 'node:sqlite';
import { tooManyGroups } from '../../../engine/calls.ts';
import type { NamespacePolicy } from '../../../engine/engine.ts';
import { limitedCount, NamespacePolicies, type QueueDefaults } from '../../../engine/queue-policy.ts';
import type { QueueOptions } from '../../../engine/storage.ts';
import type { DeliveryState, GroupName } from '../../../model/element.ts';
import type { QueueKey } from '../../../model/names.ts';
import { keyOf, nameOf, type QueueName } from '../protocol.ts';
import { prepareAll, type Statements } from './schema.ts';

/** The state of a queue in memory. */
export interface WorkerQueue {
  readonly id: number;
  readonly key: QueueKey;
  readonly subscriptions: Map<GroupName, Subscription>;
  /** `QueueOptions` as JSON; null if the queue has none. */
  options: string | null;
  /** The effective options: its own, and for the others those of its namespace. */
  policy: QueueDefaults;
  /** When it was last used, to within {@link USE_NOTED_MS}. */
  usedAt: number;
  /** With a retention: no waiting element was inserted before this; Infinity if none waits; or {@link UNKNOWN}. */
  oldestAt: number;
  /** Before this moment it is kept for its counters, as long as it has nothing else; 0: unknown. */
  countersUntil: number;
  /** Null if nothing was counted since the queue was read from the tables, or if the counts are no longer valid. */
  shared: SharedCounts | null;
}

/**
 * How many more deliveries than elements there are in each state, since an element of several groups counts once. Kept
 * in memory, and only for elements that have not changed since: so a count reads the changed ones, not a backlog of
 * millions.
 */
export interface SharedCounts {
  readonly excess: StateCounts;
  /** The time of the counts, ms since 1970. */
  readonly countedAt: number;
  /** The last element that was counted; Infinity if all were. Later ones count once for each of their groups. */
  readonly readTo: number;
  /** Elements that have changed and were not counted again. */
  readonly changed: Set<number>;
  /** Whether the last count did not reach all elements; the next one counts more. */
  readonly isPart: boolean;
}

/** Numbers of deliveries or elements by state. */
export type StateCounts = Record<DeliveryState, number>;

/** A bound that has not been computed since the queue was read from the tables. */
export const UNKNOWN = Number.NEGATIVE_INFINITY;

/** A use is stored only if the stored one is older than this: one write an hour for a busy queue. */
export const USE_NOTED_MS = 3_600_000;
/** Empty groups that one call evicts, at most. */
const MAX_EVICTED_PER_CALL = 1000;

/**
 * One consumer group of one queue, with its counts. These are kept in memory, and stored in its row by each transaction
 * that changes them: reading them needs no scan, which took seconds for ten million elements, not even after a start.
 *
 * "Ready" means due at `countedAt`, which follows the clock. Advancing it is free if nothing becomes due, or if all
 * that was scheduled does. Otherwise it costs one count over that range of the index, so each delayed delivery is
 * counted at most once in its life.
 */
export interface Subscription {
  readonly id: number;
  readonly queue: WorkerQueue;
  readonly group: GroupName;
  countedAt: number;
  ready: number;
  scheduled: number;
  reserved: number;
  /** No scheduled delivery is due before this moment; Infinity if none is scheduled. */
  scheduledFrom: number;
  /** No lease ends before this moment; Infinity if there is none; or {@link UNKNOWN}. */
  leaseEndsFrom: number;
  /** Whether this transaction changed its counts. */
  isChanged: boolean;
}

type SubscriptionRow = Pick<
  Subscription,
  'id' | 'group' | 'countedAt' | 'ready' | 'scheduled' | 'reserved'
> & { readonly queue: number };

const SQL = {
  queues: 'SELECT id, ns, name, used_at AS usedAt, options FROM queue',
  subscriptions:
    'SELECT id, queue, grp AS "group", counted_at AS countedAt, ready, scheduled, reserved FROM subscription',
  // An id above those of all keys, some of which may be of removed queues.
  addQueue: `INSERT INTO queue (id, ns, name, used_at) VALUES (
      1 + max(coalesce((SELECT max(id) FROM queue), 0), coalesce((SELECT max(queue) FROM dedup), 0)), ?, ?, 0
    ) RETURNING id`,
  addSubscription: 'INSERT INTO subscription (queue, grp) VALUES (?, ?) RETURNING id',
  removeQueue: 'DELETE FROM queue WHERE id = ?',
  removeSubscription: 'DELETE FROM subscription WHERE id = ?',
  removeStats: 'DELETE FROM stats WHERE queue = ?',
  hasDamaged: 'SELECT 1 FROM damaged WHERE queue = ? LIMIT 1',
  noteUse: 'UPDATE queue SET used_at = ? WHERE id = ?',
  setOptions: 'UPDATE queue SET options = ? WHERE id = ?',
  save: 'UPDATE subscription SET counted_at = ?, ready = ?, scheduled = ?, reserved = ? WHERE id = ?',
} as const;

/** All queues and subscriptions, in memory. Names are passed to SQL only as bound values. */
export class Queues {
  readonly #policies: NamespacePolicies;
  readonly #byName = new Map<QueueName, WorkerQueue>();
  readonly #subscriptions = new Map<number, Subscription>();
  /** Subscriptions whose counts this transaction changed. */
  readonly #changed: Subscription[] = [];
  readonly #sql: Statements<typeof SQL>;

  constructor(db: DatabaseSync, namespaces: readonly NamespacePolicy[]) {
    this.#sql = prepareAll(db, SQL);
    this.#policies = new NamespacePolicies(namespaces);
    this.reload();
  }

  /** Reads all state from the tables: at the start, and after a rollback, so that no change needs to be undone. */
  reload(): void {
    this.#byName.clear();
    this.#subscriptions.clear();
    this.#changed.length = 0;
    const byId = new Map<number, WorkerQueue>();
    for (const { id, ns, name, usedAt, options } of this.#sql.queues.all<QueueKey & WorkerQueue>()) {
      byId.set(id, this.#put(id, { ns, name }, { options, usedAt, oldestAt: UNKNOWN }));
    }
    for (const row of this.#sql.subscriptions.all<SubscriptionRow>()) {
      const queue = byId.get(row.queue);
      if (queue !== undefined) this.#putSubscription(queue, row);
    }
  }

  all(): Iterable<WorkerQueue> {
    return this.#byName.values();
  }

  /** Null if the queue does not exist. */
  find(name: QueueName): WorkerQueue | null {
    return this.#byName.get(name) ?? null;
  }

  /** Returns the queue of a name, created if it does not exist, and notes its use. */
  use(name: QueueName, now: number): WorkerQueue {
    const queue = this.find(name) ?? this.#create(keyOf(name));
    this.noteUse(queue, now);
    return queue;
  }

  /** Notes that the queue is used, so that it is not removed for a day. */
  noteUse(queue: WorkerQueue, now: number): void {
    if (now - queue.usedAt < USE_NOTED_MS && now >= queue.usedAt) return;
    queue.usedAt = now;
    this.#sql.noteUse.run(now, queue.id);
  }

  /** Notes that the queue has a waiting element that was inserted at `insertedAt`. */
  noteWaiting(queue: WorkerQueue, insertedAt: number): void {
    if (queue.policy.retentionMs !== null) queue.oldestAt = Math.min(queue.oldestAt, insertedAt);
  }

  /** When the next element exceeds its retention, if `oldestAt` of all queues is exact; null if none will. */
  nextRetentionEnd(): number | null {
    let next = Number.POSITIVE_INFINITY;
    for (const { oldestAt, policy } of this.all()) {
      if (policy.retentionMs !== null) next = Math.min(next, oldestAt + policy.retentionMs);
    }
    return Number.isFinite(next) ? next : null;
  }

  /** @param options JSON; the string 'null' removes stored options, null leaves them unchanged */
  declare(names: readonly QueueName[], options: string | null, now: number): void {
    for (const name of names) {
      const queue = this.use(name, now);
      if (options !== null) this.#setOptions(queue, options === 'null' ? null : options);
    }
  }

  #setOptions(queue: WorkerQueue, options: string | null): void {
    queue.options = options;
    queue.policy = this.#policyOf(queue.key, options);
    queue.oldestAt = UNKNOWN;
    this.#sql.setOptions.run(options, queue.id);
  }

  subscription(queue: WorkerQueue, group: GroupName): Subscription {
    const known = queue.subscriptions.get(group);
    if (known !== undefined) return known;
    const id = Number(this.#sql.addSubscription.value(queue.id, group));
    return this.#putSubscription(queue, { id, group, countedAt: 0, ready: 0, scheduled: 0, reserved: 0 });
  }

  subscriptions(): Iterable<Subscription> {
    return this.#subscriptions.values();
  }

  /** Null if there is no such subscription. */
  subscriptionById(id: number): Subscription | null {
    return this.#subscriptions.get(id) ?? null;
  }

  /**
   * Removes a queue without elements, even if it has options. Returns false if it has elements, or had damaged ones.
   */
  drop(queue: WorkerQueue | null): boolean {
    if (queue === null) return true;
    if (deliveriesIn(queue) > 0 || this.hasDamaged(queue)) return false;
    this.remove(queue);
    return true;
  }

  /** Whether the table `damaged` has elements of the queue. */
  hasDamaged(queue: WorkerQueue): boolean {
    return this.#sql.hasDamaged.value(queue.id) !== null;
  }

  /**
   * Removes a queue without elements, with its counters. Its idempotency keys may be millions: they remain until the
   * sweep forgets them as old, and mean nothing, since no later queue gets the same id.
   */
  remove(queue: WorkerQueue): void {
    this.#sql.removeStats.run(queue.id);
    for (const subscription of queue.subscriptions.values()) this.#removeSubscription(subscription);
    this.#sql.removeQueue.run(queue.id);
    this.#byName.delete(nameOf(queue.key));
  }

  #removeSubscription({ queue, group, id }: Subscription): void {
    this.#sql.removeSubscription.run(id);
    queue.subscriptions.delete(group);
    this.#subscriptions.delete(id);
  }

  /** The queues of a namespace. */
  inNamespace(ns: string): WorkerQueue[] {
    return [...this.#byName.values()].filter(({ key }) => key.ns === ns);
  }

  /**
   * Enforces the namespace's limit of groups before deliveries to the groups of these elements are stored. If it would
   * be exceeded, empty groups are evicted, because producers choose the names, which must not accumulate.
   * Called before a call stores anything; does not create the queue.
   * @param elements with their groups, joined by commas
   * @throws QuaysideError `too-many-groups` if too few groups are empty
   */
  enforceGroupLimit(name: QueueName, elements: readonly { readonly groups: string }[]): void {
    const queue = this.find(name);
    const key = queue?.key ?? keyOf(name);
    const limit = this.#policies.groupLimit(key.ns);
    if (limit === null) return;
    const subscriptions: ReadonlyMap<GroupName, Subscription> = queue?.subscriptions ?? new Map();
    const groups = new Set<GroupName>();
    // Elements of one call usually have the same groups.
    const groupLists = new Set(elements.map((element) => element.groups));
    for (const joined of groupLists) for (const group of joined.split(',')) groups.add(group);
    let missing = 0;
    for (const group of groups) if (!subscriptions.has(group) && !limit.defaults.has(group)) missing++;
    if (missing === 0) return;
    const excess = limitedCount(limit, subscriptions) + missing - limit.max;
    if (excess <= 0) return;
    const empty: Subscription[] = [];
    for (const subscription of subscriptions.values()) {
      const { group } = subscription;
      if (deliveriesOf(subscription) > 0 || groups.has(group) || limit.defaults.has(group)) continue;
      if (empty.push(subscription) === MAX_EVICTED_PER_CALL) break;
    }
    if (empty.length < excess) throw tooManyGroups(key.name, limit.max);
    for (const subscription of empty) this.#removeSubscription(subscription);
  }

  /** The groups of elements in the queue's dead-letter queue, joined by commas. */
  defaultGroups({ key }: WorkerQueue): string {
    return this.#policies.defaultGroups(key.ns).join(',');
  }

  /** Must be called when a subscription's counts change. */
  noteChanged(subscription: Subscription): void {
    if (subscription.isChanged) return;
    subscription.isChanged = true;
    this.#changed.push(subscription);
  }

  /** Stores the counts that this transaction changed, one row per subscription. Called before the commit. */
  save(): void {
    for (const subscription of this.#changed) {
      const { countedAt, ready, scheduled, reserved, id } = subscription;
      this.#sql.save.run(countedAt, ready, scheduled, reserved, id);
      subscription.isChanged = false;
    }
    this.#changed.length = 0;
  }

  #create(key: QueueKey): WorkerQueue {
    const id = Number(this.#sql.addQueue.value(key.ns, key.name));
    return this.#put(id, key, { options: null, usedAt: 0, oldestAt: Number.POSITIVE_INFINITY });
  }

  #put(id: number, key: QueueKey, facts: Pick<WorkerQueue, 'options' | 'usedAt' | 'oldestAt'>): WorkerQueue {
    const policy = this.#policyOf(key, facts.options);
    const own = { id, key, subscriptions: new Map(), policy, countersUntil: 0, shared: null };
    const queue: WorkerQueue = { ...own, ...facts };
    this.#byName.set(nameOf(key), queue);
    return queue;
  }

  #putSubscription(queue: WorkerQueue, row: Omit<SubscriptionRow, 'queue'>): Subscription {
    const subscription: Subscription = {
      ...row,
      queue,
      // UNKNOWN: computed when it is first needed.
      scheduledFrom: row.scheduled === 0 ? Number.POSITIVE_INFINITY : UNKNOWN,
      leaseEndsFrom: row.reserved === 0 ? Number.POSITIVE_INFINITY : UNKNOWN,
      isChanged: false,
    };
    queue.subscriptions.set(row.group, subscription);
    this.#subscriptions.set(row.id, subscription);
    return subscription;
  }

  #policyOf(key: QueueKey, options: string | null): QueueDefaults {
    const defaults = this.#policies.defaultsOf(key);
    return options === null ? defaults : { ...defaults, ...(JSON.parse(options) as QueueOptions) };
  }
}

/** Number of deliveries of a group, in all states. */
export function deliveriesOf({ ready, scheduled, reserved }: Subscription): number {
  return ready + scheduled + reserved;
}

/** Number of deliveries of all groups of a queue, in all states. */
export function deliveriesIn({ subscriptions }: WorkerQueue): number {
  let deliveries = 0;
  for (const subscription of subscriptions.values()) deliveries += deliveriesOf(subscription);
  return deliveries;
}
