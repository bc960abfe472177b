import type { NamespacePolicy } from '../../engine/engine.ts';
import { type GroupLimit, groupLimitOf } from '../../engine/group-limit.ts';
import type { GroupName } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { boolArray, textArray } from './arrays.ts';
import type { Connection } from './connection.ts';
import type { DatabaseClock } from './database-clock.ts';
import { HIDDEN_MS, REMEMBERED_MS } from './lane-life.ts';
import { Mark } from './mark.ts';
import { number, type Parameter, type Statement, text } from './statement.ts';
import { TallyMark } from './tally-mark.ts';

/** One consumer group of one queue, under the number that deliveries know it by. */
export class Lane {
  readonly id: number;
  readonly queue: Queue;
  readonly group: GroupName;
  readonly mark = new Mark();
  readonly tally = new TallyMark();

  constructor(id: number, queue: Queue, group: GroupName) {
    this.id = id;
    this.queue = queue;
    this.group = group;
  }
}

/** A queue as this engine object knows it. `id` is null until the database was asked, or while it has none. */
export class Queue {
  readonly key: QueueKey;
  readonly policy: NamespacePolicy | null;
  id: number | null = null;
  /** Whether others may list it. A dead-letter queue has a number before it is known. */
  known = false;
  readonly lanes = new Map<GroupName, Lane>();
  /** Of the number of its elements, in a stream. */
  tally = new TallyMark();
  /** What bounds its groups. */
  readonly limit: GroupLimit | null;
  /** When its numbers were last read, by the database's clock. */
  readAt = Number.NEGATIVE_INFINITY;
  /** When a use of it was last noted in the database. */
  usedAt = Number.NEGATIVE_INFINITY;

  constructor(key: QueueKey, policy: NamespacePolicy | null) {
    this.key = key;
    this.policy = policy;
    this.limit = groupLimitOf(policy);
  }

  /** The database has no number for it, or another one than before. */
  reset(): void {
    this.id = null;
    this.known = false;
    this.lanes.clear();
    this.tally = new TallyMark();
    this.readAt = Number.NEGATIVE_INFINITY;
    this.usedAt = Number.NEGATIVE_INFINITY;
  }

  /** Whether elements may have several groups. */
  get isStream(): boolean {
    return this.policy !== null && this.policy.groups !== null;
  }
}

/** What a call needs to have a number before it can be sent. */
export interface Need {
  readonly queue: Queue;
  readonly groups: readonly GroupName[];
  /** Whether to make what is missing; else it may stay without a number. */
  readonly make: boolean;
  /** Whether the call uses the queue, which is not forgotten for a day then; reading is no use. */
  readonly uses: boolean;
  /** Whether the call is about all groups of the queue, those that other nodes made included. */
  readonly all?: boolean;
}

const PRUNE_FROM = 10_000;

/**
 * Sorted, so that two nodes that make the same names do not wait for each other in a circle. What needs no change is
 * left out: an insert that conflicts takes a number all the same, and queues that are used come here every few minutes.
 */
const MAKE_QUEUES: Statement = {
  name: 'make queues',
  text: `INSERT INTO queue AS q (ns, name, known)
    SELECT ns, name, bool_or(known) FROM unnest($1::text[], $2::text[], $3::bool[]) AS u(ns, name, known)
    WHERE NOT EXISTS (SELECT FROM queue o WHERE o.ns = u.ns AND o.name = u.name
      AND (o.known OR NOT u.known) AND o.idle_from IS NULL)
    GROUP BY ns, name ORDER BY ns, name
    ON CONFLICT (ns, name) DO UPDATE SET known = q.known OR excluded.known, idle_from = NULL`,
};

const MAKE_LANES: Statement = {
  name: 'make lanes',
  text: `INSERT INTO lane (queue, grp)
    SELECT q.id, u.grp FROM unnest($1::text[], $2::text[], $3::text[]) AS u(ns, name, grp)
    JOIN queue q ON q.ns = u.ns AND q.name = u.name
    WHERE NOT EXISTS (SELECT FROM lane o WHERE o.queue = q.id AND o.grp = u.grp)
    GROUP BY q.id, u.grp ORDER BY q.id, u.grp
    ON CONFLICT (queue, grp) DO NOTHING`,
};

/** Somebody asks for these groups, so they are not idle. Sent before they are made or found. */
const WAKE_LANES: Statement = {
  name: 'wake lanes',
  text: `UPDATE lane l SET idle_from = NULL FROM unnest($1::text[], $2::text[], $3::text[]) AS u(ns, name, grp)
    JOIN queue q ON q.ns = u.ns AND q.name = u.name
    WHERE l.queue = q.id AND l.grp = u.grp AND l.idle_from IS NOT NULL`,
};

/** A queue that is used but not made is not idle, if it is known. Sorted as in {@link MAKE_QUEUES}. */
const WAKE_QUEUES: Statement = {
  name: 'wake queues',
  text: `WITH w AS MATERIALIZED (SELECT q.id FROM unnest($1::text[], $2::text[]) AS u(ns, name)
      JOIN queue q ON q.ns = u.ns AND q.name = u.name WHERE q.known AND q.idle_from IS NOT NULL
      ORDER BY q.ns, q.name FOR UPDATE OF q)
    UPDATE queue q SET idle_from = NULL FROM w WHERE q.id = w.id`,
};

/**
 * A group that was marked idle and got elements by a number that a node remembered keeps its mark until the next round
 * of housekeeping, and `FIND` would pass over it. Sent before a call about all groups of a queue, so that none is missed.
 */
const WAKE_USED_LANES: Statement = {
  name: 'wake used lanes',
  text: `UPDATE lane l SET idle_from = NULL FROM unnest($1::text[], $2::text[]) AS u(ns, name)
    JOIN queue q ON q.ns = u.ns AND q.name = u.name
    WHERE l.queue = q.id AND l.idle_from IS NOT NULL AND EXISTS (SELECT FROM delivery d WHERE d.lane = l.id)`,
};

const FIND: Statement = {
  name: 'find lanes',
  text: `SELECT u.ord, q.id, q.known, l.grp, l.id FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(ns, name, ord)
    JOIN queue q ON q.ns = u.ns AND q.name = u.name
      AND (q.known OR q.idle_from IS NULL OR q.idle_from > now_ms() - ${HIDDEN_MS})
    LEFT JOIN lane l ON l.queue = q.id AND (l.idle_from IS NULL OR l.idle_from > now_ms() - ${HIDDEN_MS})`,
};

/** Where a queue has all the groups that it may have, it is not asked again for so long: a refusal costs nothing. */
const FULL_MS = 1000;

/**
 * Queue and lane numbers, remembered for some minutes: see `lane-life.ts`. They never change and are never given twice,
 * so that a batch can name queues by number. They are also read again after a reconnect, as the store may have been
 * restored.
 */
export class Names {
  readonly #clock: DatabaseClock;
  readonly #policies: ReadonlyMap<string, NamespacePolicy>;
  readonly #queues = new Map<string, Map<string, Queue>>();
  /** Objects since the last look for those that are of no use. */
  #made = 0;

  constructor(policies: readonly NamespacePolicy[], clock: DatabaseClock) {
    this.#clock = clock;
    this.#policies = new Map(policies.map((policy) => [policy.name, policy]));
  }

  /** The one object for a queue, whether the database knows it or not. */
  queue({ ns, name }: QueueKey): Queue {
    let inNamespace = this.#queues.get(ns);
    if (inNamespace === undefined) {
      inNamespace = new Map();
      this.#queues.set(ns, inNamespace);
    }
    let queue = inNamespace.get(name);
    if (queue === undefined) {
      queue = new Queue({ ns, name }, this.#policies.get(ns) ?? null);
      inNamespace.set(name, queue);
      this.#made += 1;
    }
    return queue;
  }

  /**
   * Forgets queues that do not exist or were not used for a while, once there are many: their names come from
   * requests.
   * @param used those that pending calls hold; a queue must not become two objects
   */
  prune(used: () => ReadonlySet<Queue>): void {
    if (this.#made < PRUNE_FROM) return;
    const kept = used();
    this.#made = 0;
    for (const inNamespace of this.#queues.values()) {
      for (const [name, queue] of inNamespace) {
        const isRemembered = queue.id !== null && this.#isSince(queue.readAt, REMEMBERED_MS);
        if (!isRemembered && !kept.has(queue)) inNamespace.delete(name);
      }
    }
  }

  /** All numbers are asked for anew; the objects stay, since calls that wait hold them. */
  reset(): void {
    for (const inNamespace of this.#queues.values()) {
      for (const queue of inNamespace.values()) {
        queue.reset();
      }
    }
  }

  /** Something that matures at `dueAt` or later may begin to wait, in a lane that is not known. */
  lowerMarks(dueAt: number): void {
    for (const inNamespace of this.#queues.values()) {
      for (const { lanes } of inNamespace.values()) for (const { mark } of lanes.values()) mark.lower(dueAt);
    }
  }

  /** Whether a call can be sent without asking the database for numbers. */
  isMet({ queue, groups, make, uses, all = false }: Need): boolean {
    if (queue.id === null || (make && !queue.known)) return false;
    if (!this.#isSince(uses ? queue.usedAt : queue.readAt, REMEMBERED_MS)) return false;
    if (queue.isStream && all) return false;
    return groups.every((group) => queue.lanes.has(group));
  }

  /**
   * The needs that would make more groups of a queue than it may have, counted in the order in which they are given.
   * @throws Refused, ConnectionLost
   */
  async beyondLimits(connection: Connection, needs: readonly Need[]): Promise<Set<Need>> {
    const refused = new Set<Need>();
    const growing = needs.filter((need) => need.make && newGroups(need).length > 0);
    if (growing.length === 0) return refused;
    const unread = growing.filter(({ queue, queue: { limit } }) => {
      const isFull = limit !== null && limitedLanes(queue, limit) >= limit.most;
      return !(isFull && this.#isSince(queue.readAt, FULL_MS));
    });
    if (unread.length > 0) await this.#find(connection, [...new Set(unread.map(({ queue }) => queue))]);
    const coming = new Map<Queue, Set<GroupName>>();
    for (const need of growing) {
      const { queue } = need;
      const before = coming.get(queue) ?? new Set();
      const after = new Set([...before, ...newGroups(need)]);
      if (after.size === 0) continue;
      if (queue.limit !== null && limitedLanes(queue, queue.limit) + after.size > queue.limit.most)
        refused.add(need);
      else coming.set(queue, after);
    }
    return refused;
  }

  /** Finds, and makes where asked, the numbers of what is needed. @throws Refused, ConnectionLost */
  async resolve(connection: Connection, needs: readonly Need[]): Promise<void> {
    const making = needs.filter(({ make }) => make);
    const usedAt = this.#clock.now;
    // Few statements, one round trip: each is sent before the first is answered.
    await Promise.all([
      this.#wake(connection, needs),
      this.#make(connection, making, true),
      this.#find(connection, [...new Set(needs.map(({ queue }) => queue))]),
    ]);
    for (const { queue, uses } of needs) if (uses) queue.usedAt = usedAt;
  }

  /** As `resolve`, for queues that are to have a number although nobody has used them yet. */
  async reserve(connection: Connection, needs: readonly Need[]): Promise<void> {
    await Promise.all([
      this.#make(connection, needs, false),
      this.#find(
        connection,
        needs.map(({ queue }) => queue),
      ),
    ]);
  }

  /** Whether a moment is less than that long ago. A clock that was set back says nothing. */
  #isSince(moment: number, withinMs: number): boolean {
    const age = this.#clock.now - moment;
    return age >= 0 && age < withinMs;
  }

  async #wake(connection: Connection, needs: readonly Need[]): Promise<void> {
    const ofStreams = needs.filter(({ queue }) => queue.isStream);
    const lanes = lanesOf(ofStreams);
    const whole = [...new Set(ofStreams.filter(({ all }) => all).map(({ queue }) => queue))];
    const used = needs.filter(({ uses, make }) => uses && !make);
    await Promise.all([
      lanes.length === 0 ? null : connection.query(WAKE_LANES, laneValues(lanes)),
      whole.length === 0 ? null : connection.query(WAKE_USED_LANES, queueValues(whole)),
      used.length === 0 ? null : connection.query(WAKE_QUEUES, queueValues(used.map(({ queue }) => queue))),
    ]);
  }

  async #make(connection: Connection, needs: readonly Need[], known: boolean): Promise<void> {
    if (needs.length === 0) return;
    await Promise.all([
      connection.query(MAKE_QUEUES, [
        ...queueValues(needs.map(({ queue }) => queue)),
        boolArray(needs.map(() => known)),
      ]),
      connection.query(MAKE_LANES, laneValues(lanesOf(needs))),
    ]);
  }

  async #find(connection: Connection, queues: readonly Queue[]): Promise<void> {
    const readAt = this.#clock.now;
    const rows = await connection.query(FIND, queueValues(queues));
    const found = new Map<Queue, Set<GroupName>>();
    for (const row of rows) {
      const queue = queues[number(row, 0) - 1];
      if (queue === undefined) continue;
      const numbered = number(row, 1);
      if (queue.id !== null && queue.id !== numbered) queue.reset();
      queue.id = numbered;
      queue.known = row[2] === 't';
      const groups = found.get(queue) ?? new Set();
      found.set(queue, groups);
      const group = row[3];
      if (group === null || group === undefined) continue;
      groups.add(group);
      const id = Number(text(row, 4));
      if (queue.lanes.get(group)?.id !== id) queue.lanes.set(group, new Lane(id, queue, group));
    }
    for (const [queue, groups] of found) {
      queue.readAt = readAt;
      for (const group of queue.lanes.keys()) if (!groups.has(group)) queue.lanes.delete(group);
    }
    for (const queue of queues) if (!found.has(queue)) queue.reset();
  }
}

/** How many groups a queue has beside the default ones. */
function limitedLanes({ lanes }: Queue, { defaults }: GroupLimit): number {
  let limited = lanes.size;
  for (const group of defaults) if (lanes.has(group)) limited -= 1;
  return limited;
}

/** The groups of a need that are new to its queue, and for which there must be room. */
function newGroups({ queue, groups }: Need): GroupName[] {
  const { limit } = queue;
  if (limit === null) return [];
  return groups.filter((group) => !queue.lanes.has(group) && !limit.defaults.has(group));
}

type NamedLane = QueueKey & { readonly group: GroupName };

function lanesOf(needs: readonly Need[]): NamedLane[] {
  return needs.flatMap(({ queue: { key }, groups }) => groups.map((group) => ({ ...key, group })));
}

function queueValues(queues: readonly Queue[]): Parameter[] {
  return [
    textArray(queues.map(({ key }) => Buffer.from(key.ns))),
    textArray(queues.map(({ key }) => Buffer.from(key.name))),
  ];
}

function laneValues(lanes: readonly NamedLane[]): Parameter[] {
  return [
    textArray(lanes.map(({ ns }) => Buffer.from(ns))),
    textArray(lanes.map(({ name }) => Buffer.from(name))),
    textArray(lanes.map(({ group }) => Buffer.from(group))),
  ];
}
