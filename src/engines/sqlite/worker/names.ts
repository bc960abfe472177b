import type { DatabaseSync } from 'node:sqlite';
import { tooManyGroups } from '../../../engine/calls.ts';
import type { NamespacePolicy } from '../../../engine/engine.ts';
import {
  type DefaultsRule,
  defaultsRules,
  type GroupLimit,
  groupLimitOf,
  type QueueDefaults,
} from '../../../engine/queue-policy.ts';
import type { QueueOptions } from '../../../engine/storage.ts';
import type { GroupName } from '../../../model/element.ts';
import type { QueueKey } from '../../../model/names.ts';
import { ruleFor } from '../../../util/name-pattern.ts';
import { keyOf, nameOf, type QueueName } from '../protocol.ts';
import { Rejected } from './faults.ts';
import { prepareAll, type Statements } from './statements.ts';

/** What applies to a queue: its own options over those that its namespace has for its name. */
export interface QueuePolicy extends QueueDefaults {
  /** The default groups, joined by commas; '' on a plain queue. */
  readonly groups: string;
  /** How many groups it may have; null: any number. */
  readonly groupLimit: GroupLimit | null;
}

/** A queue, as kept in memory. */
export interface Queue {
  readonly id: number;
  readonly key: QueueKey;
  readonly subscriptions: Map<GroupName, Subscription>;
  /** JSON text of `QueueOptions`; null: none. */
  options: string | null;
  policy: QueuePolicy;
  /** When it was last used, to {@link USE_NOTED_MS}. */
  usedAt: number;
  /** With a retention: nothing that waits there was inserted before this moment. Infinity: nothing waits; or {@link UNKNOWN}. */
  oldestAt: number;
  /** False once it is removed; what was found before may still refer to it. */
  isStored: boolean;
}

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
  readonly queue: Queue;
  readonly group: GroupName;
  countedAt: number;
  ready: number;
  scheduled: number;
  reserved: number;
  /** No scheduled delivery is due before this moment; Infinity if none is scheduled. */
  scheduledFrom: number;
  /** No lease ends before this moment; Infinity if none runs; or {@link UNKNOWN}. */
  leaseEndsFrom: number;
  /** This transaction changed it. */
  isChanged: boolean;
}

const SUBSCRIPTION_COLUMNS = 'id, queue, grp, counted_at AS countedAt, ready, scheduled, reserved';
type SubscriptionRow = Pick<Subscription, 'countedAt' | 'ready' | 'scheduled' | 'reserved'> & {
  readonly id: number;
  readonly grp: string;
};

const SQL = {
  findQueue: 'SELECT id, ns, name, used_at, options FROM queue WHERE id = ?',
  findSubscriptions: `SELECT ${SUBSCRIPTION_COLUMNS} FROM subscription WHERE queue = ?`,
  addQueue: 'INSERT INTO queue (ns, name, used_at) VALUES (?, ?, 0) RETURNING id',
  addSubscription: 'INSERT INTO subscription (queue, grp) VALUES (?, ?) RETURNING id',
  removeQueue: 'DELETE FROM queue WHERE id = ?',
  removeSubscription: 'DELETE FROM subscription WHERE id = ?',
  noteUse: 'UPDATE queue SET used_at = ? WHERE id = ?',
  setOptions: 'UPDATE queue SET options = ? WHERE id = ?',
  save: 'UPDATE subscription SET counted_at = ?, ready = ?, scheduled = ?, reserved = ? WHERE id = ?',
} as const;

/**
 * All queues and subscriptions, in memory. A name reaches SQL only as a bound value.
 *
 * Every change of memory is noted by {@link changed} or {@link changedQueue}. What a failed transaction changed is read
 * from the tables again, instead of undoing each change.
 */
export class Names {
  /** Of each namespace, the most specific rule first. */
  readonly #policies: ReadonlyMap<string, readonly PolicyRule[]>;
  readonly #byName = new Map<QueueName, Queue>();
  readonly #byId = new Map<number, Queue>();
  readonly #subscriptionById = new Map<number, Subscription>();
  readonly #changedQueues = new Set<Queue>();
  readonly #changed: Subscription[] = [];

  readonly #sql: Statements<typeof SQL>;

  constructor(db: DatabaseSync, namespaces: readonly NamespacePolicy[]) {
    this.#sql = prepareAll(db, SQL);
    this.#policies = new Map(namespaces.map((policy) => [policy.name, policyRules(policy)]));
    for (const { id } of db.prepare('SELECT id FROM queue').all()) this.#load(Number(id));
  }

  all(): Iterable<Queue> {
    return this.#byId.values();
  }

  /** Null if the queue was never written. */
  find(name: QueueName): Queue | null {
    return this.#byName.get(name) ?? null;
  }

  /** The queue of a name, created if it is new, and used now. */
  use(name: QueueName, now: number): Queue {
    const queue = this.find(name) ?? this.#create(name);
    this.noteUse(queue, now);
    return queue;
  }

  /** The queue is used now: it is not forgotten for a day. */
  noteUse(queue: Queue, now: number): void {
    if (now - queue.usedAt < USE_NOTED_MS && now >= queue.usedAt) return;
    this.#changedQueues.add(queue);
    queue.usedAt = now;
    this.#sql.noteUse.run(now, queue.id);
  }

  setOptions(queue: Queue, options: string | null): void {
    this.#changedQueues.add(queue);
    queue.options = options;
    queue.policy = this.#policyOf(queue.key, options);
    queue.oldestAt = UNKNOWN;
    this.#sql.setOptions.run(options, queue.id);
  }

  subscription(queue: Queue, group: GroupName): Subscription {
    const known = queue.subscriptions.get(group);
    if (known !== undefined) return known;
    const id = Number(this.#sql.addSubscription.get(queue.id, group)?.id);
    this.#changedQueues.add(queue);
    return this.#remember(queue, { id, grp: group, countedAt: 0, ready: 0, scheduled: 0, reserved: 0 });
  }

  subscriptions(): Iterable<Subscription> {
    return this.#subscriptionById.values();
  }

  /** Null if there is no such subscription. */
  subscriptionById(id: number): Subscription | null {
    return this.#subscriptionById.get(id) ?? null;
  }

  /** Removes a subscription that holds nothing. */
  removeSubscription(subscription: Subscription): void {
    const { queue, group, id } = subscription;
    this.#changedQueues.add(queue);
    this.#sql.removeSubscription.run(id);
    queue.subscriptions.delete(group);
    this.#subscriptionById.delete(id);
  }

  /** Removes a queue that holds nothing. */
  remove(queue: Queue): void {
    for (const subscription of [...queue.subscriptions.values()]) this.removeSubscription(subscription);
    this.#changedQueues.add(queue);
    this.#sql.removeQueue.run(queue.id);
    this.#forget(queue);
  }

  /** Sorted by code unit, as the port's other engines do. */
  list(ns: string): string[] {
    return this.#in(ns)
      .map(({ key }) => key.name)
      .sort();
  }

  /** Deliveries of a namespace. */
  heldIn(ns: string): number {
    let held = 0;
    for (const { subscriptions } of this.#in(ns)) {
      for (const subscription of subscriptions.values()) held += heldBy(subscription);
    }
    return held;
  }

  #in(ns: string): Queue[] {
    return [...this.#byId.values()].filter(({ key }) => key.ns === ns);
  }

  /**
   * Sees that a queue has no more groups than its namespace allows once deliveries to these are stored. If it would,
   * empty groups are evicted: names come from producers and must not pile up.
   * Called before anything of a call is stored; a queue that was never written stays unknown.
   * @param named per element, its groups joined by commas
   * @throws Rejected if even that makes no room
   */
  makeRoom(name: QueueName, named: readonly string[]): void {
    const key = keyOf(name);
    const limit = this.#policyOf(key, null).groupLimit;
    if (limit === null) return;
    const queue = this.find(name);
    const groups = new Set<GroupName>();
    // Elements of one call are mostly for the same groups.
    for (const joined of new Set(named)) for (const group of joined.split(',')) groups.add(group);
    let missing = 0;
    for (const group of groups) if (!queue?.subscriptions.has(group) && !limit.defaults.has(group)) missing++;
    if (missing === 0) return;
    let counted = queue?.subscriptions.size ?? 0;
    for (const group of limit.defaults) if (queue?.subscriptions.has(group)) counted--;
    const excess = counted + missing - limit.most;
    if (excess <= 0) return;
    const empty: Subscription[] = [];
    for (const subscription of queue?.subscriptions.values() ?? []) {
      const { group } = subscription;
      if (heldBy(subscription) > 0 || groups.has(group) || limit.defaults.has(group)) continue;
      if (empty.push(subscription) === EVICTED_A_CALL) break;
    }
    if (empty.length < excess) throw new Rejected(tooManyGroups(key.name, limit.most));
    for (const subscription of empty) this.removeSubscription(subscription);
  }

  /** Whether the queues of the namespace have a bound on their groups. */
  isLimited(name: QueueName): boolean {
    return (this.find(name)?.policy ?? this.#policyOf(keyOf(name), null)).groupLimit !== null;
  }

  /** To be called before a subscription's counts are changed. */
  changed(subscription: Subscription): void {
    if (subscription.isChanged) return;
    subscription.isChanged = true;
    this.#changed.push(subscription);
  }

  /** To be called before anything else of a queue is changed in memory. */
  changedQueue(queue: Queue): void {
    this.#changedQueues.add(queue);
  }

  /** Whether this transaction changed anything that memory knows, as everything but definitions, statistics and dedup keys does. */
  get hasChanges(): boolean {
    return this.#changed.length > 0 || this.#changedQueues.size > 0;
  }

  /** Writes the counts that this transaction changed, one row per subscription; called before its commit. */
  save(): void {
    for (const { countedAt, ready, scheduled, reserved, id } of this.#changed) {
      this.#sql.save.run(countedAt, ready, scheduled, reserved, id);
    }
  }

  committed(): void {
    for (const subscription of this.#changed) subscription.isChanged = false;
    this.#changed.length = 0;
    this.#changedQueues.clear();
  }

  /** Reads again what the transaction that failed had changed. */
  reload(): void {
    for (const { queue } of this.#changed) this.#changedQueues.add(queue);
    // Those that it had removed come first: a new one may have been given the number, or the name, of one of them.
    const queues = [...this.#changedQueues].sort((a, b) => Number(a.isStored) - Number(b.isStored));
    this.committed();
    for (const queue of queues) {
      for (const { id } of queue.subscriptions.values()) this.#subscriptionById.delete(id);
      queue.subscriptions.clear();
      this.#forget(queue);
    }
    for (const queue of queues) this.#load(queue.id, queue);
  }

  /** @param known the queue that had this number, which is filled again if it still has it */
  #load(id: number, known?: Queue): void {
    const row = this.#sql.findQueue.get(id);
    const isOther = known !== undefined && (row?.name !== known.key.name || row?.ns !== known.key.ns);
    if (row === undefined || isOther || this.#byId.has(id)) return;
    const key = known?.key ?? { ns: String(row.ns), name: String(row.name) };
    const options = row.options === null ? null : String(row.options);
    const policy = this.#policyOf(key, options);
    const facts = { options, policy, usedAt: Number(row.used_at), oldestAt: UNKNOWN };
    const queue = known === undefined ? newQueue(id, key, facts) : Object.assign(known, facts);
    this.#put(queue);
    for (const one of this.#sql.findSubscriptions.all(id)) {
      this.#remember(queue, one as unknown as SubscriptionRow);
    }
  }

  #create(name: QueueName): Queue {
    const key = keyOf(name);
    const id = Number(this.#sql.addQueue.get(key.ns, key.name)?.id);
    const queue = newQueue(id, key, {
      options: null,
      policy: this.#policyOf(key, null),
      usedAt: 0,
      oldestAt: Number.POSITIVE_INFINITY,
    });
    this.#changedQueues.add(queue);
    this.#put(queue);
    return queue;
  }

  #put(queue: Queue): void {
    this.#byName.set(nameOf(queue.key), queue);
    this.#byId.set(queue.id, queue);
    queue.isStored = true;
  }

  #forget(queue: Queue): void {
    const name = nameOf(queue.key);
    if (this.find(name) === queue) this.#byName.delete(name);
    if (this.#byId.get(queue.id) === queue) this.#byId.delete(queue.id);
    queue.isStored = false;
  }

  #remember(queue: Queue, { id, grp, countedAt, ready, scheduled, reserved }: SubscriptionRow): Subscription {
    const subscription: Subscription = {
      id,
      queue,
      group: grp,
      countedAt,
      ready,
      scheduled,
      reserved,
      // The first look finds out.
      scheduledFrom: scheduled === 0 ? Number.POSITIVE_INFINITY : UNKNOWN,
      leaseEndsFrom: reserved === 0 ? Number.POSITIVE_INFINITY : UNKNOWN,
      isChanged: false,
    };
    queue.subscriptions.set(grp, subscription);
    this.#subscriptionById.set(id, subscription);
    return subscription;
  }

  #policyOf({ ns, name }: QueueKey, options: string | null): QueuePolicy {
    const policy = ruleFor(this.#policies.get(ns) ?? [], name)?.policy ?? NO_POLICY;
    return options === null ? policy : { ...policy, ...(JSON.parse(options) as QueueOptions) };
  }
}

/** Of namespaces that are not configured: their names come from callers. */
const NO_POLICY: QueuePolicy = {
  deadLetter: null,
  retentionMs: null,
  retryDelay: null,
  groups: '',
  groupLimit: null,
};

interface PolicyRule {
  readonly pattern: string;
  readonly policy: QueuePolicy;
}

function policyRules(given: NamespacePolicy): PolicyRule[] {
  const groups = given.groups?.join(',') ?? '';
  const groupLimit = groupLimitOf(given);
  return defaultsRules(given).map(({ pattern, ...defaults }: DefaultsRule) => ({
    pattern,
    policy: { ...defaults, groups, groupLimit },
  }));
}

/** Deliveries, in whatever state. */
export function heldBy({ ready, scheduled, reserved }: Subscription): number {
  return ready + scheduled + reserved;
}

type Facts = Pick<Queue, 'options' | 'policy' | 'usedAt' | 'oldestAt'>;

function newQueue(id: number, key: QueueKey, facts: Facts): Queue {
  return { id, key, subscriptions: new Map(), isStored: true, ...facts };
}
