import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { Lane } from './names.ts';
import type { Undo } from './undo.ts';

/**
 * How many deliveries of a lane are ready, scheduled and reserved, kept in memory so that a status read of
 * ten million elements costs no scan.
 *
 * "Ready" means due at `at`, a cursor that moves with the clock. Moving it over a time in which nothing was
 * scheduled is free; else one count over the index range that it passes, so each delayed delivery is
 * counted once in its life.
 */
export interface Counts {
  at: number;
  ready: number;
  scheduled: number;
  reserved: number;
  /** No scheduled delivery is due before this moment; Infinity where none is scheduled. */
  scheduledFrom: number;
  /** The transaction that last left an undo step. */
  savedIn: number;
}

export class LaneCounts {
  readonly #undo: Undo;
  readonly #countDue: StatementSync;
  readonly #countWaiting: StatementSync;
  readonly #countReserved: StatementSync;
  readonly #firstDue: StatementSync;
  readonly #firstDueAfter: StatementSync;

  constructor(db: DatabaseSync, undo: Undo) {
    this.#undo = undo;
    const waiting = 'FROM delivery WHERE lane = ? AND lease_until IS NULL';
    this.#countDue = db.prepare(`SELECT count(*) AS n ${waiting} AND due_at > ? AND due_at <= ?`);
    this.#countWaiting = db.prepare(`SELECT count(*) AS n ${waiting}`);
    this.#countReserved = db.prepare(
      'SELECT count(*) AS n FROM delivery WHERE lane = ? AND lease_until IS NOT NULL',
    );
    this.#firstDue = db.prepare(`SELECT due_at ${waiting} ORDER BY due_at LIMIT 1`);
    this.#firstDueAfter = db.prepare(`SELECT due_at ${waiting} AND due_at > ? ORDER BY due_at LIMIT 1`);
  }

  /** The lane's counts at `now`, counted from the table at first use and after the clock went back. */
  read(lane: Lane, now: number): Readonly<Counts> {
    const counts = lane.counts;
    if (counts === null || now < counts.at) return this.#build(lane, now);
    this.#save(lane, counts);
    this.#advance(lane, counts, now);
    return counts;
  }

  /** The earliest maturity of what waits, due or not. */
  firstDueAt(lane: Lane): number | null {
    const row = this.#firstDue.get(lane.id);
    return row === undefined ? null : Number(row.due_at);
  }

  /** `number` deliveries due at `dueAt` began to wait; `now` lets the cursor follow for free. */
  waitingAdded(lane: Lane, dueAt: number, now: number): void {
    const counts = this.#touch(lane);
    if (counts === null) return;
    if (counts.at < now && counts.scheduledFrom > now) counts.at = now;
    if (dueAt <= counts.at) {
      counts.ready++;
      return;
    }
    counts.scheduled++;
    if (dueAt < counts.scheduledFrom) counts.scheduledFrom = dueAt;
  }

  /** A waiting delivery went or was reserved. */
  waitingRemoved(lane: Lane, dueAt: number): void {
    const counts = this.#touch(lane);
    if (counts === null) return;
    if (dueAt <= counts.at) {
      counts.ready--;
      return;
    }
    counts.scheduled--;
    if (counts.scheduled === 0) counts.scheduledFrom = Number.POSITIVE_INFINITY;
  }

  reservedChanged(lane: Lane, difference: number): void {
    const counts = this.#touch(lane);
    if (counts !== null) counts.reserved += difference;
  }

  /** After a change that was not followed one by one: the next read counts anew. */
  forget(lane: Lane): void {
    if (this.#touch(lane) !== null) lane.counts = null;
  }

  #build(lane: Lane, now: number): Readonly<Counts> {
    const waiting = Number(this.#countWaiting.get(lane.id)?.n);
    const counts: Counts = {
      at: Number.NEGATIVE_INFINITY,
      ready: 0,
      scheduled: waiting,
      reserved: Number(this.#countReserved.get(lane.id)?.n),
      scheduledFrom: waiting === 0 ? Number.POSITIVE_INFINITY : Number.NEGATIVE_INFINITY,
      savedIn: this.#undo.transaction,
    };
    this.#advance(lane, counts, now);
    lane.counts = counts;
    this.#undo.add(() => {
      lane.counts = null;
    });
    return counts;
  }

  #advance(lane: Lane, counts: Counts, now: number): void {
    if (counts.scheduledFrom <= now) {
      const due = Number(this.#countDue.get(lane.id, Math.max(counts.at, Number.MIN_SAFE_INTEGER), now)?.n);
      counts.ready += due;
      counts.scheduled -= due;
      const row = counts.scheduled === 0 ? undefined : this.#firstDueAfter.get(lane.id, now);
      counts.scheduledFrom = row === undefined ? Number.POSITIVE_INFINITY : Number(row.due_at);
    }
    counts.at = now;
  }

  #touch(lane: Lane): Counts | null {
    const counts = lane.counts;
    if (counts !== null) this.#save(lane, counts);
    return counts;
  }

  /** Leaves, once per transaction, a step that restores the counts if it is rolled back. */
  #save(lane: Lane, counts: Counts): void {
    if (counts.savedIn === this.#undo.transaction) return;
    counts.savedIn = this.#undo.transaction;
    const before = { ...counts };
    this.#undo.add(() => {
      lane.counts = before;
    });
  }
}
