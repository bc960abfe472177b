import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { NamespacePolicy } from '../../../engine/engine.ts';
import type { Names, Queue } from './names.ts';
import type { Undo } from './undo.ts';

/**
 * Which queues of namespaces with a retention may hold an element that is too old. Kept as one moment per
 * queue: nothing that waits there was inserted before it. So looking costs nothing until something is due.
 */
export class Retention {
  readonly #undo: Undo;
  readonly #oldest = new Map<Queue, number>();
  readonly #overdue: StatementSync;
  readonly #firstAfter: StatementSync;

  constructor(db: DatabaseSync, names: Names, policies: readonly NamespacePolicy[], undo: Undo) {
    this.#undo = undo;
    this.#overdue = db.prepare(
      `SELECT DISTINCT e.seq, e.inserted_at
       FROM element e INDEXED BY element_age
       CROSS JOIN delivery d ON d.seq = e.seq AND d.lease_until IS NULL
       CROSS JOIN lane l ON l.id = d.lane AND l.queue = e.queue
       WHERE e.queue = ? AND e.groups > 0 AND e.inserted_at <= ? ORDER BY e.inserted_at LIMIT ?`,
    );
    this.#firstAfter = db.prepare(
      `SELECT inserted_at AS at FROM element INDEXED BY element_age
       WHERE queue = ? AND groups > 0 AND inserted_at > ? ORDER BY inserted_at LIMIT 1`,
    );
    for (const { name: ns, retentionMs } of policies) {
      if (retentionMs === null) continue;
      for (const name of names.list(ns)) {
        const queue = names.findByKey({ ns, name });
        if (queue !== null) this.#put(queue, this.#insertedAfter(queue, Number.MIN_SAFE_INTEGER));
      }
    }
  }

  /** A waiting element of that age is there now. */
  added(queue: Queue, insertedAt: number | null): void {
    if (insertedAt === null || (queue.policy?.retentionMs ?? null) === null) return;
    const oldest = this.#oldest.get(queue);
    if (oldest === undefined || insertedAt < oldest) this.#change(queue, insertedAt);
  }

  /** A delivery came back that may be older than all that waits. */
  releasedInto(queue: Queue): void {
    this.added(queue, Number.MIN_SAFE_INTEGER);
  }

  /** Waiting elements that are too old, at most `limit`. Called again after they went, it finds the next. */
  overdue(now: number, limit: number): number[] {
    const found: number[] = [];
    for (const [queue, oldest] of this.#oldest) {
      const last = now - (queue.policy?.retentionMs ?? Number.POSITIVE_INFINITY);
      if (oldest > last) continue;
      const rows = this.#overdue.all(queue.id, last, limit - found.length);
      for (const row of rows) found.push(Number(row.seq));
      if (found.length >= limit) break;
      this.#change(queue, this.#insertedAfter(queue, last));
    }
    return found;
  }

  /** The queue is gone. */
  forget(queue: Queue): void {
    if (this.#oldest.has(queue)) this.#change(queue, null);
  }

  /** When the next element is too old; null where none ever will be. */
  nextAt(): number | null {
    let next: number | null = null;
    for (const [queue, oldest] of this.#oldest) {
      const at = oldest + (queue.policy?.retentionMs ?? 0);
      if (next === null || at < next) next = at;
    }
    return next;
  }

  /** Takes itself back with its transaction: that may have made the queue, whose number is then another's. */
  #change(queue: Queue, to: number | null): void {
    const before = this.#oldest.get(queue) ?? null;
    this.#put(queue, to);
    this.#undo.add(() => this.#put(queue, before));
  }

  #put(queue: Queue, oldest: number | null): void {
    if (oldest === null) this.#oldest.delete(queue);
    else this.#oldest.set(queue, oldest);
  }

  #insertedAfter(queue: Queue, moment: number): number | null {
    const row = this.#firstAfter.get(queue.id, moment);
    return row === undefined ? null : Number(row.at);
  }
}
