import { hash } from 'node:crypto';
import type { NamespacePolicy } from '../../engine/engine.ts';
import { type GroupLimit, limitedCount, NamespacePolicies } from '../../engine/queue-policy.ts';
import { type GroupName, PLAIN_GROUP } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { likePattern } from '../../util/name-pattern.ts';
import { ownBytes } from '../../util/own-bytes.ts';
import type { Connection } from './connection.ts';
import type { DatabaseClock } from './operations.ts';
import { clampTries, retryArray } from './sql.ts';
import {
  Columns,
  idArray,
  int4Array,
  int8Array,
  number,
  type Parameter,
  type Statement,
  text,
  textArray,
  textArrayLiteral,
} from './statement.ts';
import { CounterWatermark, Watermark } from './watermark.ts';

/**
 * Computes the id by which deliveries refer to their subscription: 63 bits of a hash of its names, so that no node has
 * to look it up. Must match the function `subscription_id` of the schema. The keys of the registry, which holds the
 * names, reject a collision.
 */
function subscriptionId({ ns, name }: QueueKey, group: GroupName): Buffer {
  const names = `${Buffer.byteLength(ns)}:${Buffer.byteLength(name)}:${ns}${name}${group}`;
  const id = ownBytes(hash('sha256', names, 'buffer').subarray(0, 8));
  id[0] = (id[0] ?? 0) & 0x7f;
  return id;
}

/** One consumer group of one queue, and what this node remembers about it. */
export class Subscription {
  readonly id: Buffer;
  readonly queue: RegisteredQueue;
  readonly group: GroupName;
  readonly watermark = new Watermark();
  /** When a take was last noted in the registry, by the database's clock. */
  notedAt = Number.NEGATIVE_INFINITY;
  usedInEpoch = 0;
  #idText: string | null = null;

  constructor(queue: RegisteredQueue, group: GroupName) {
    this.id = subscriptionId(queue.key, group);
    this.queue = queue;
    this.group = group;
  }

  get idText(): string {
    this.#idText ??= this.id.readBigInt64BE().toString();
    return this.#idText;
  }
}

export class RegisteredQueue {
  readonly key: QueueKey;
  /** Whether elements may have several groups. */
  readonly isStream: boolean;
  readonly limit: GroupLimit | null;
  /** The subscription of a plain queue. In a stream it represents the queue itself, and has no deliveries. */
  readonly plainSubscription: Subscription;
  readonly subscriptions = new Map<GroupName, Subscription>();
  /** The groups in the registry, only read for a stream with a limit, and when, by the database's clock. */
  groups: ReadonlySet<GroupName> = new Set();
  groupsReadAt = Number.NEGATIVE_INFINITY;
  usedIn = 0;
  /**
   * Whether failed elements may become dead letters or wait for a retry delay, by the policy of the namespace or the
   * options of `declare`.
   */
  hasPolicy: boolean;

  constructor(key: QueueKey, namespaces: NamespacePolicies) {
    const { deadLetter, retryDelay } = namespaces.defaultsOf(key);
    this.key = key;
    this.isStream = namespaces.isStream(key.ns);
    this.limit = namespaces.groupLimit(key.ns);
    this.hasPolicy = deadLetter !== null || retryDelay !== null;
    this.plainSubscription = new Subscription(this, PLAIN_GROUP);
    this.subscriptions.set(PLAIN_GROUP, this.plainSubscription);
  }

  /** The id under which the registry has the queue itself. */
  get id(): Buffer {
    return this.plainSubscription.id;
  }

  get idText(): string {
    return this.plainSubscription.idText;
  }
}

/** The columns that a statement which stores elements writes to the registry, with `register` of `sql.ts`. */
export const REGISTERED = new Columns<Subscription>()
  .id('id', ({ id }) => id)
  .id('queue', ({ queue }) => queue.id)
  .text('ns', ({ queue }) => queue.key.ns)
  .text('name', ({ queue }) => queue.key.name)
  .text('grp', ({ group }) => group);

/** Objects that were not used while this many were created are evicted: their names come from requests. */
const EVICT_AFTER = 10_000;
/**
 * How long the groups of a queue are remembered. Must be shorter than the time after which an unused group is deleted
 * (`housekeeping.ts`).
 */
const GROUPS_CACHED_MS = 5 * 60_000;
/** How long a queue that has reached its limit is not read again, so that rejections cost no read. */
const FULL_CACHED_MS = 1000;

const GROUPS: Statement = {
  name: 'groups',
  text: `SELECT u.ord, s.grp FROM unnest($1::bigint[]) WITH ORDINALITY AS u(id, ord)
    JOIN subscription s ON s.queue = u.id WHERE s.grp <> ''`,
};

/** The groups of a queue for which a call is going to store something. */
export interface GroupUse {
  readonly queue: RegisteredQueue;
  readonly groups: readonly GroupName[];
}

/** The queues and subscriptions that this node has used recently, one object each. */
export class Registry {
  readonly #clock: DatabaseClock;
  readonly #namespaces: NamespacePolicies;
  readonly #queues = new Map<string, Map<string, RegisteredQueue>>();
  /** Where reads of `counter` begin; housekeeping raises it. */
  readonly counterWatermark = new CounterWatermark();
  /** The parameters of `policyOf` in `sql.ts`. */
  readonly policies: readonly Parameter[];
  #created = 0;
  #epoch = 0;

  constructor(policies: readonly NamespacePolicy[], clock: DatabaseClock) {
    this.#clock = clock;
    this.#namespaces = new NamespacePolicies(policies);
    const rules = policies.flatMap(({ name: ns }) =>
      this.#namespaces.rulesOf(ns).map((rule) => ({ ...rule, ns })),
    );
    this.policies = [
      textArray(rules.map(({ ns }) => ns)),
      textArray(rules.map(({ pattern }) => likePattern(pattern))),
      int4Array(rules.map(({ deadLetter }) => clampTries(deadLetter?.maxTries ?? 0))),
      textArray(rules.map(({ deadLetter }) => deadLetter?.queue ?? null)),
      textArray(rules.map(({ ns }) => textArrayLiteral(this.#namespaces.defaultGroups(ns)))),
      textArray(rules.map(({ retryDelay }) => retryArray(retryDelay))),
      int8Array(rules.map(({ retentionMs }) => retentionMs)),
    ];
  }

  queue({ ns, name }: QueueKey): RegisteredQueue {
    let inNamespace = this.#queues.get(ns);
    if (inNamespace === undefined) {
      inNamespace = new Map();
      this.#queues.set(ns, inNamespace);
    }
    let queue = inNamespace.get(name);
    if (queue === undefined) {
      queue = new RegisteredQueue({ ns, name }, this.#namespaces);
      inNamespace.set(name, queue);
      this.#noteCreated();
    }
    queue.usedIn = this.#epoch;
    return queue;
  }

  subscription(queue: RegisteredQueue, group: GroupName): Subscription {
    let subscription = queue.subscriptions.get(group);
    if (subscription === undefined) {
      subscription = new Subscription(queue, group);
      queue.subscriptions.set(group, subscription);
      this.#noteCreated();
    }
    subscription.usedInEpoch = this.#epoch;
    return subscription;
  }

  defaultGroups({ ns }: QueueKey): readonly GroupName[] {
    return this.#namespaces.defaultGroups(ns);
  }

  /** Lowers all watermarks, since deliveries of any subscription that mature at `dueAt` or later may begin to wait. */
  lowerWatermarks(dueAt: number): void {
    for (const { subscriptions } of this.#allQueues()) {
      for (const { watermark } of subscriptions.values()) watermark.lower(dueAt);
    }
  }

  /** The store may be another one: discards everything that refers to its rows. */
  reset(): void {
    this.counterWatermark.reset();
    for (const queue of this.#allQueues()) {
      queue.groupsReadAt = Number.NEGATIVE_INFINITY;
      for (const subscription of queue.subscriptions.values()) {
        subscription.notedAt = Number.NEGATIVE_INFINITY;
        subscription.watermark.reset();
      }
    }
  }

  /**
   * For each call, in order, the first queue in which it would create more groups than allowed, or null if it fits.
   * Queries the database only about groups that are not known.
   * @throws Refused, ConnectionLost
   */
  async overLimit(
    connection: Connection,
    calls: readonly (readonly GroupUse[])[],
  ): Promise<(RegisteredQueue | null)[]> {
    const unread = new Set<RegisteredQueue>();
    for (const uses of calls) for (const use of uses) if (this.#needsRead(use)) unread.add(use.queue);
    if (unread.size > 0) await this.#readGroups(connection, [...unread]);
    const accepted = new Map<RegisteredQueue, Set<GroupName>>();
    return calls.map((uses) => {
      const added = new Map<RegisteredQueue, Set<GroupName>>();
      for (const use of uses) {
        const { queue } = use;
        const missing = newGroups(use);
        if (queue.limit === null || missing.length === 0) continue;
        const all = added.get(queue) ?? new Set(accepted.get(queue));
        for (const group of missing) all.add(group);
        added.set(queue, all);
        if (limitedCount(queue.limit, queue.groups) + all.size > queue.limit.max) return queue;
      }
      for (const [queue, groups] of added) accepted.set(queue, groups);
      return null;
    });
  }

  *#allQueues(): Generator<RegisteredQueue> {
    for (const inNamespace of this.#queues.values()) yield* inNamespace.values();
  }

  #needsRead(use: GroupUse): boolean {
    const { queue } = use;
    if (queue.limit === null || use.groups.every((group) => queue.limit?.defaults.has(group))) return false;
    if (!this.#clock.isWithin(queue.groupsReadAt, GROUPS_CACHED_MS)) return true;
    const isFull = limitedCount(queue.limit, queue.groups) >= queue.limit.max;
    return newGroups(use).length > 0 && !(isFull && this.#clock.isWithin(queue.groupsReadAt, FULL_CACHED_MS));
  }

  async #readGroups(connection: Connection, queues: readonly RegisteredQueue[]): Promise<void> {
    const readAt = this.#clock.now;
    const found = queues.map(() => new Set<GroupName>());
    for (const row of await connection.query(GROUPS, [idArray(queues.map(({ id }) => id))])) {
      found[number(row, 0) - 1]?.add(text(row, 1));
    }
    for (const [place, queue] of queues.entries()) {
      queue.groups = found[place] ?? new Set();
      queue.groupsReadAt = readAt;
    }
  }

  /**
   * Evicts unused objects. If a call still holds an evicted queue, the queue gets a second object: until the next
   * probe, one may miss what the other knows.
   */
  #noteCreated(): void {
    this.#created += 1;
    if (this.#created < EVICT_AFTER) return;
    this.#created = 0;
    for (const inNamespace of this.#queues.values()) {
      for (const [name, queue] of inNamespace) {
        if (queue.usedIn < this.#epoch) inNamespace.delete(name);
        for (const [group, { usedInEpoch }] of queue.subscriptions) {
          if (usedInEpoch < this.#epoch && group !== PLAIN_GROUP) queue.subscriptions.delete(group);
        }
      }
    }
    this.#epoch += 1;
  }
}

function newGroups({ queue, groups }: GroupUse): GroupName[] {
  return groups.filter((group) => !queue.groups.has(group) && queue.limit?.defaults.has(group) === false);
}
