import type { DatabaseSync } from 'node:sqlite';
import { tooManyGroups } from '../../../engine/calls.ts';
import type { NamespacePolicy } from '../../../engine/engine.ts';
import { limitedCount, NamespacePolicies, type QueueDefaults } from '../../../engine/queue-policy.ts';
import { type GroupCounts, NO_COUNTS, type QueueCounts, type QueueOptions } from '../../../engine/storage.ts';
import { type DeliveryState, type GroupName, PLAIN_GROUP } from '../../../model/element.ts';
import type { QueueKey } from '../../../model/names.ts';
import { keyOf, nameOf, type QueueName } from '../protocol.ts';
import { prepareAll, type Statements } from './schema.ts';
import type { Store } from './store.ts';

/** A queue, as kept in memory. */
export interface WorkerQueue {
  readonly id: number;
  readonly key: QueueKey;
  readonly subscriptions: Map<GroupName, Subscription>;
  /** JSON text of `QueueOptions`; null: none. */
  options: string | null;
  /** Its own options over those that its namespace has for its name. */
  policy: QueueDefaults;
  /** When it was last used, to {@link USE_NOTED_MS}. */
  usedAt: number;
  /**
   * With a retention: nothing that waits there was inserted before this moment. Infinity: nothing waits; or
   * {@link UNKNOWN}.
   */
  oldestAt: number;
  /**
   * Null: they were not counted since the queue was read from the tables, or what was counted does not hold any more.
   */
  shared: SharedCounts | null;
}

/**
 * How many deliveries in each state there are beyond the elements that they are of, each of which counts once. Kept in
 * memory, and only for elements that did not change since: so a count reads those that did, and not a backlog of
 * millions.
 */
export interface SharedCounts {
  readonly beyond: StateCounts;
  /** As of this moment. */
  readonly countedAt: number;
  /** Up to this one they were read; Infinity: all were. Those behind it count once for each of their groups. */
  readonly readTo: number;
  /** Until this moment nothing that is counted becomes due. */
  readonly holdsUntil: number;
  /** Elements that changed, and are not counted since. */
  readonly changed: Set<number>;
  /** The last count could not read all that had changed, or all elements: sweeps read the rest. */
  readonly isPart: boolean;
}

/** Deliveries, or elements, by state. */
export type StateCounts = Record<DeliveryState, number>;

/** A bound that was not looked up since the queue was read from the tables. */
export const UNKNOWN = Number.NEGATIVE_INFINITY;

/** A use is written down if the last one is older: one write an hour for a busy queue. */
export const USE_NOTED_MS = 3_600_000;
/** Empty groups that one call evicts. */
const EVICTED_A_CALL = 1000;

/**
 * One consumer group of one queue, with its counts. These are kept in memory and, with each transaction that changes
 * them, in its row: reading them costs no scan of ten million elements, not even after a start, which took seconds.
 *
 * "Ready" means due at `countedAt`, which follows the clock. Moving it over a time in which nothing is scheduled
 * is free; else one count over the index range that it passes, so each delayed delivery is counted once in its life.
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
  /** No lease ends before this moment; Infinity if none runs; or {@link UNKNOWN}. */
  leaseEndsFrom: number;
  /** This transaction changed its counts. */
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
  addQueue: 'INSERT INTO queue (ns, name, used_at) VALUES (?, ?, 0) RETURNING id',
  addSubscription: 'INSERT INTO subscription (queue, grp) VALUES (?, ?) RETURNING id',
  removeQueue: 'DELETE FROM queue WHERE id = ?',
  removeSubscription: 'DELETE FROM subscription WHERE id = ?',
  removeKeys: 'DELETE FROM dedup WHERE queue = ?',
  removeStats: 'DELETE FROM stats WHERE queue = ?',
  hasDamaged: 'SELECT 1 FROM damaged WHERE queue = ? LIMIT 1',
  noteUse: 'UPDATE queue SET used_at = ? WHERE id = ?',
  setOptions: 'UPDATE queue SET options = ? WHERE id = ?',
  save: 'UPDATE subscription SET counted_at = ?, ready = ?, scheduled = ?, reserved = ? WHERE id = ?',
} as const;

/** All queues and subscriptions, in memory. A name reaches SQL only as a bound value. */
export class Queues {
  readonly #policies: NamespacePolicies;
  readonly #byName = new Map<QueueName, WorkerQueue>();
  readonly #subscriptions = new Map<number, Subscription>();
  /** Those whose counts this transaction changed. */
  readonly #changed: Subscription[] = [];
  readonly #sql: Statements<typeof SQL>;

  constructor(db: DatabaseSync, namespaces: readonly NamespacePolicy[]) {
    this.#sql = prepareAll(db, SQL);
    this.#policies = new NamespacePolicies(namespaces);
    this.reload();
  }

  /**
   * Reads all of it from the tables: at the start, and after a transaction that failed, so that nothing need be undone.
   */
  reload(): void {
    this.#byName.clear();
    this.#subscriptions.clear();
    this.#changed.length = 0;
    const byId = new Map<number, WorkerQueue>();
    for (const row of this.#sql.queues.all()) {
      const { id, ns, name, usedAt, options } = row as unknown as QueueKey & WorkerQueue;
      byId.set(id, this.#put(id, { ns, name }, { options, usedAt, oldestAt: UNKNOWN }));
    }
    for (const row of this.#sql.subscriptions.all()) {
      const subscription = row as unknown as SubscriptionRow;
      const queue = byId.get(subscription.queue);
      if (queue !== undefined) this.#putSubscription(queue, subscription);
    }
  }

  all(): Iterable<WorkerQueue> {
    return this.#byName.values();
  }

  /** Null if the queue was never written. */
  find(name: QueueName): WorkerQueue | null {
    return this.#byName.get(name) ?? null;
  }

  /** The queue of a name, created if it is new, and used now. */
  use(name: QueueName, now: number): WorkerQueue {
    const queue = this.find(name) ?? this.#create(keyOf(name));
    this.noteUse(queue, now);
    return queue;
  }

  /** The queue is used now: it is not forgotten for a day. */
  noteUse(queue: WorkerQueue, now: number): void {
    if (now - queue.usedAt < USE_NOTED_MS && now >= queue.usedAt) return;
    queue.usedAt = now;
    this.#sql.noteUse.run(now, queue.id);
  }

  /** @param options as JSON text, that of null if there are none any more; null: what is stored stays */
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
    const id = Number(this.#sql.addSubscription.get(queue.id, group)?.id);
    return this.#putSubscription(queue, { id, group, countedAt: 0, ready: 0, scheduled: 0, reserved: 0 });
  }

  subscriptions(): Iterable<Subscription> {
    return this.#subscriptions.values();
  }

  /** Null if there is no such subscription. */
  subscriptionById(id: number): Subscription | null {
    return this.#subscriptions.get(id) ?? null;
  }

  /** Removes a queue that holds nothing, whatever else is known of it. Returns false if it has to stay. */
  drop(queue: WorkerQueue | null): boolean {
    if (queue === null) return true;
    if (deliveriesIn(queue) > 0 || this.hasDamaged(queue)) return false;
    this.remove(queue);
    return true;
  }

  /** Whether elements of the queue were set aside as damaged. */
  hasDamaged(queue: WorkerQueue): boolean {
    return this.#sql.hasDamaged.get(queue.id) !== undefined;
  }

  /** Removes a queue that holds nothing, with its idempotency keys and counters. */
  remove(queue: WorkerQueue): void {
    this.#sql.removeKeys.run(queue.id);
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

  /** Those of a namespace. */
  in(ns: string): WorkerQueue[] {
    return [...this.#byName.values()].filter(({ key }) => key.ns === ns);
  }

  /**
   * Sees that a queue has no more groups than its namespace allows once deliveries to these are stored. If it would,
   * empty groups are evicted: names come from producers and must not pile up.
   * Called before anything of a call is stored; a queue that was never written stays unknown.
   * @param elements with their groups, joined by commas
   * @throws QuaysideError if even that makes no room
   */
  makeRoom(name: QueueName, elements: readonly { readonly groups: string }[]): void {
    const queue = this.find(name);
    const key = queue?.key ?? keyOf(name);
    const limit = this.#policies.groupLimit(key.ns);
    if (limit === null) return;
    const subscriptions: ReadonlyMap<GroupName, Subscription> = queue?.subscriptions ?? new Map();
    const groups = new Set<GroupName>();
    // Elements of one call are mostly for the same groups.
    const named = new Set(elements.map((element) => element.groups));
    for (const joined of named) for (const group of joined.split(',')) groups.add(group);
    let missing = 0;
    for (const group of groups) if (!subscriptions.has(group) && !limit.defaults.has(group)) missing++;
    if (missing === 0) return;
    const excess = limitedCount(limit, subscriptions) + missing - limit.most;
    if (excess <= 0) return;
    const empty: Subscription[] = [];
    for (const subscription of subscriptions.values()) {
      const { group } = subscription;
      if (deliveriesOf(subscription) > 0 || groups.has(group) || limit.defaults.has(group)) continue;
      if (empty.push(subscription) === EVICTED_A_CALL) break;
    }
    if (empty.length < excess) throw tooManyGroups(key.name, limit.most);
    for (const subscription of empty) this.#removeSubscription(subscription);
  }

  /** Those of what comes to a dead-letter queue, joined by commas. */
  defaultGroups({ key }: WorkerQueue): string {
    return this.#policies.defaultGroups(key.ns).join(',');
  }

  /** To be called when a subscription's counts change. */
  changed(subscription: Subscription): void {
    if (subscription.isChanged) return;
    subscription.isChanged = true;
    this.#changed.push(subscription);
  }

  /** Writes the counts that this transaction changed, one row per subscription; called before its commit. */
  save(): void {
    for (const subscription of this.#changed) {
      const { countedAt, ready, scheduled, reserved, id } = subscription;
      this.#sql.save.run(countedAt, ready, scheduled, reserved, id);
      subscription.isChanged = false;
    }
    this.#changed.length = 0;
  }

  #create(key: QueueKey): WorkerQueue {
    const id = Number(this.#sql.addQueue.get(key.ns, key.name)?.id);
    return this.#put(id, key, { options: null, usedAt: 0, oldestAt: Number.POSITIVE_INFINITY });
  }

  #put(id: number, key: QueueKey, facts: Pick<WorkerQueue, 'options' | 'usedAt' | 'oldestAt'>): WorkerQueue {
    const policy = this.#policyOf(key, facts.options);
    const queue: WorkerQueue = { id, key, subscriptions: new Map(), policy, shared: null, ...facts };
    this.#byName.set(nameOf(key), queue);
    return queue;
  }

  #putSubscription(queue: WorkerQueue, row: Omit<SubscriptionRow, 'queue'>): Subscription {
    const subscription: Subscription = {
      ...row,
      queue,
      // The first look finds out.
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

/** Deliveries of a group, in whatever state. */
function deliveriesOf({ ready, scheduled, reserved }: Subscription): number {
  return ready + scheduled + reserved;
}

/** Deliveries of all groups, in whatever state. */
export function deliveriesIn({ subscriptions }: WorkerQueue): number {
  let deliveries = 0;
  for (const subscription of subscriptions.values()) deliveries += deliveriesOf(subscription);
  return deliveries;
}

type Counts = { -readonly [K in keyof GroupCounts]: GroupCounts[K] };

/** Of one group, or of the queue with its groups. */
export function counts(store: Store, name: QueueName, group: string | null): QueueCounts {
  const queue = store.queues.find(name);
  const groups = new Map<GroupName, GroupCounts>();
  if (queue === null || group !== null) {
    const subscription = queue?.subscriptions.get(group ?? PLAIN_GROUP);
    return { ...(subscription === undefined ? NO_COUNTS : countsOf(store, subscription)), groups };
  }
  for (const subscription of queue.subscriptions.values()) {
    const of = countsOf(store, subscription);
    if (subscription.group === PLAIN_GROUP || deliveriesOf(subscription) > 0)
      groups.set(subscription.group, of);
  }
  const total = elementCounts(store, queue, [...groups.values()]);
  groups.delete(PLAIN_GROUP);
  return { ...total, groups };
}

function countsOf({ rows, now }: Store, subscription: Subscription): Counts {
  const { ready, scheduled, reserved } = rows.count(subscription, now);
  const nextMatureAt = ready + scheduled === 0 ? null : rows.firstDueAt(subscription);
  return { ready, scheduled, reserved, nextMatureAt };
}

/**
 * Elements, each once. The sum over the groups counts an element of several groups several times, which is put right; a
 * queue without them, such as every plain one, costs no scan.
 */
function elementCounts({ rows, now }: Store, queue: WorkerQueue, groups: readonly GroupCounts[]): Counts {
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
  const { ready, scheduled, reserved } = rows.countShared(queue, now);
  total.ready -= ready;
  total.scheduled -= scheduled;
  total.reserved -= reserved;
  return total;
}
