import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { NamespacePolicy } from '../../../engine/engine.ts';
import { type GroupLimit, groupLimitOf } from '../../../engine/group-limit.ts';
import type { GroupName } from '../../../model/element.ts';
import type { QueueKey } from '../../../model/names.ts';
import { COUNT_COLUMNS, type Counts, type CountsRow, countsOf, NO_COUNTS } from './counts.ts';
import type { Undo } from './undo.ts';

/** A known queue, as kept in memory. */
export interface Queue {
  readonly id: number;
  readonly key: QueueKey;
  readonly policy: NamespacePolicy | null;
  readonly lanes: Map<GroupName, Lane>;
  /** When it was last used, to {@link USE_NOTED_MS}. */
  usedAt: number;
}

/** A use is written down if the last one is older: one write an hour for a busy queue. */
export const USE_NOTED_MS = 3_600_000;

/** One consumer group of one queue. Deliveries name their queue and group by the lane's id. */
export interface Lane {
  readonly id: number;
  readonly queue: Queue;
  readonly group: GroupName;
  readonly counts: Counts;
  /** No lease of this lane ends before this moment; Infinity where none runs. */
  leaseEndsFrom: number;
}

/**
 * Queues and lanes by name and by number. A name reaches SQL only as a bound value. What the main side
 * calls a queue is a handle: a number that names the queue until the main side says that it is used no more.
 */
export class Names {
  readonly #policies: ReadonlyMap<string, NamespacePolicy>;
  readonly #limits: ReadonlyMap<string, GroupLimit | null>;
  readonly #undo: Undo;
  /** The next three are by handle, from the first one that may still be named. */
  readonly #handles: QueueKey[] = [];
  readonly #byHandle: (Queue | null)[] = [];
  readonly #limitByHandle: (GroupLimit | null)[] = [];
  #firstHandle = 0;
  readonly #byKey = new Map<string, Queue>();
  readonly #byId = new Map<number, Queue>();
  readonly #laneById = new Map<number, Lane>();
  readonly #findQueue: StatementSync;
  readonly #findQueueById: StatementSync;
  readonly #addQueue: StatementSync;
  readonly #listLanes: StatementSync;
  readonly #findLaneById: StatementSync;
  readonly #addLane: StatementSync;
  readonly #removeLane: StatementSync;
  readonly #listQueues: StatementSync;
  readonly #heldIn: StatementSync;
  readonly #noteUse: StatementSync;
  readonly #removeQueue: StatementSync;
  readonly #unused: StatementSync;

  constructor(db: DatabaseSync, policies: readonly NamespacePolicy[], undo: Undo) {
    this.#policies = new Map(policies.map((policy) => [policy.name, policy]));
    this.#limits = new Map(policies.map((policy) => [policy.name, groupLimitOf(policy)]));
    this.#undo = undo;
    this.#findQueue = db.prepare('SELECT id, used_at FROM queue WHERE ns = ? AND name = ?');
    this.#findQueueById = db.prepare('SELECT ns, name, used_at FROM queue WHERE id = ?');
    this.#noteUse = db.prepare('UPDATE queue SET used_at = ? WHERE id = ?');
    this.#removeQueue = db.prepare('DELETE FROM queue WHERE id = ?');
    this.#unused = db.prepare('SELECT id FROM queue WHERE used_at < ? AND id > ? ORDER BY id LIMIT ?');
    this.#addQueue = db.prepare('INSERT INTO queue (ns, name) VALUES (?, ?) RETURNING id');
    this.#listLanes = db.prepare(`SELECT id, grp, ${COUNT_COLUMNS} FROM lane WHERE queue = ?`);
    this.#findLaneById = db.prepare('SELECT queue FROM lane WHERE id = ?');
    this.#addLane = db.prepare(
      `INSERT INTO lane (queue, grp, counted_at, ready, scheduled, reserved) VALUES (?, ?, 0, 0, 0, 0) RETURNING id`,
    );
    this.#removeLane = db.prepare('DELETE FROM lane WHERE id = ?');
    this.#listQueues = db.prepare('SELECT name FROM queue WHERE ns = ? ORDER BY name');
    this.#heldIn = db.prepare(
      'SELECT coalesce(sum(l.ready + l.scheduled + l.reserved), 0) AS n FROM queue q JOIN lane l ON l.queue = q.id WHERE q.ns = ?',
    );
  }

  /** Takes the next handle's name. Handles are numbered by both sides in the order of sending. */
  addHandle(key: QueueKey): void {
    this.#handles.push(key);
    this.#byHandle.push(null);
    this.#limitByHandle.push(this.#limits.get(key.ns) ?? null);
  }

  /** Handles below this one are named no more. */
  forgetHandlesBelow(handle: number): void {
    const count = handle - this.#firstHandle;
    if (count === 0) return;
    this.#handles.splice(0, count);
    this.#byHandle.splice(0, count);
    this.#limitByHandle.splice(0, count);
    this.#firstHandle = handle;
  }

  keyOf(handle: number): QueueKey {
    const key = this.#handles[handle - this.#firstHandle];
    if (key === undefined) throw new Error(`unknown queue handle ${handle}`);
    return key;
  }

  /** What bounds the groups of the queue of a handle, known or not; null: nothing. */
  limitOf(handle: number): GroupLimit | null {
    return this.#limitByHandle[handle - this.#firstHandle] ?? null;
  }

  /** The queue of a handle, or null where it was never written. */
  find(handle: number): Queue | null {
    const known = this.#byHandle[handle - this.#firstHandle];
    if (known !== null && known !== undefined) return known;
    const queue = this.findByKey(this.keyOf(handle));
    this.#byHandle[handle - this.#firstHandle] = queue;
    return queue;
  }

  /** The queue of a handle, made known if it is new. */
  make(handle: number): Queue {
    const known = this.find(handle);
    if (known !== null) return known;
    const queue = this.makeByKey(this.keyOf(handle));
    this.#byHandle[handle - this.#firstHandle] = queue;
    return queue;
  }

  findByKey(key: QueueKey): Queue | null {
    const known = this.#byKey.get(keyText(key));
    if (known !== undefined) return known;
    const row = this.#findQueue.get(key.ns, key.name);
    return row === undefined ? null : this.#remember(Number(row.id), key, Number(row.used_at));
  }

  makeByKey(key: QueueKey): Queue {
    const known = this.findByKey(key);
    if (known !== null) return known;
    const row = this.#addQueue.get(key.ns, key.name);
    const queue = this.#remember(Number(row?.id), key, 0);
    this.#undo.add(() => this.#forget(queue));
    return queue;
  }

  queueById(id: number): Queue | null {
    const known = this.#byId.get(id);
    if (known !== undefined) return known;
    const row = this.#findQueueById.get(id);
    if (row === undefined) return null;
    return this.#remember(id, { ns: String(row.ns), name: String(row.name) }, Number(row.used_at));
  }

  makeLane(queue: Queue, group: GroupName): Lane {
    const known = queue.lanes.get(group);
    if (known !== undefined) return known;
    const row = this.#addLane.get(queue.id, group);
    const lane = this.#rememberLane(queue, Number(row?.id), group, NO_COUNTS);
    this.#undo.add(() => {
      queue.lanes.delete(group);
      this.#laneById.delete(lane.id);
    });
    return lane;
  }

  /** Forgets a lane that is purged; the queue makes a new one when it needs it. */
  detachLane(lane: Lane): void {
    const { queue, group, id } = lane;
    queue.lanes.delete(group);
    this.#laneById.delete(id);
    this.#undo.add(() => {
      queue.lanes.set(group, lane);
      this.#laneById.set(id, lane);
    });
  }

  /** Forgets a lane that holds nothing. */
  removeLane(lane: Lane): void {
    this.#removeLane.run(lane.id);
    this.detachLane(lane);
  }

  /** Null where there is no such lane, or it was purged. */
  laneById(id: number): Lane | null {
    const known = this.#laneById.get(id);
    if (known !== undefined) return known;
    const row = this.#findLaneById.get(id);
    // A lane without a queue was purged.
    if (row === undefined || row.queue === null) return null;
    this.queueById(Number(row.queue));
    return this.#laneById.get(id) ?? null;
  }

  /** Sorted by code unit, as the port's other engines do. */
  list(ns: string): string[] {
    return this.#listQueues
      .all(ns)
      .map((row) => String(row.name))
      .sort();
  }

  /** The queue is used now: it is not forgotten for a day. */
  use(queue: Queue, now: number): void {
    const { usedAt } = queue;
    if (now - usedAt < USE_NOTED_MS && now >= usedAt) return;
    queue.usedAt = now;
    this.#noteUse.run(now, queue.id);
    this.#undo.add(() => {
      queue.usedAt = usedAt;
    });
  }

  /** Queues that were last used before a moment, by their numbers behind `after`. */
  unusedSince(moment: number, after: number, limit: number): Queue[] {
    return this.#unused.all(moment, after, limit).flatMap(({ id }) => this.queueById(Number(id)) ?? []);
  }

  /** Forgets a queue that holds nothing. */
  remove(queue: Queue): void {
    const lanes = [...queue.lanes.values()];
    for (const lane of lanes) this.#removeLane.run(lane.id);
    this.#removeQueue.run(queue.id);
    this.#forget(queue);
    this.#undo.add(() => {
      this.#byKey.set(keyText(queue.key), queue);
      this.#byId.set(queue.id, queue);
      for (const lane of lanes) this.#laneById.set(lane.id, lane);
    });
  }

  /** Deliveries of a namespace, as the last transaction saved their counts. */
  heldIn(ns: string): number {
    return Number(this.#heldIn.get(ns)?.n);
  }

  #remember(id: number, key: QueueKey, usedAt: number): Queue {
    const queue: Queue = { id, key, policy: this.#policies.get(key.ns) ?? null, lanes: new Map(), usedAt };
    this.#byKey.set(keyText(key), queue);
    this.#byId.set(id, queue);
    for (const row of this.#listLanes.all(id)) {
      this.#rememberLane(queue, Number(row.id), String(row.grp), row as unknown as CountsRow);
    }
    return queue;
  }

  #rememberLane(queue: Queue, id: number, group: GroupName, row: CountsRow): Lane {
    const counts = countsOf(row);
    const lane: Lane = { id, queue, group, counts, leaseEndsFrom: Number.POSITIVE_INFINITY };
    queue.lanes.set(group, lane);
    this.#laneById.set(id, lane);
    return lane;
  }

  #forget(queue: Queue): void {
    this.#byKey.delete(keyText(queue.key));
    this.#byId.delete(queue.id);
    for (const lane of queue.lanes.values()) this.#laneById.delete(lane.id);
    for (const [index, known] of this.#byHandle.entries()) if (known === queue) this.#byHandle[index] = null;
  }
}

/** A NUL cannot be part of a name. */
function keyText(key: QueueKey): string {
  return `${key.ns}\0${key.name}`;
}
