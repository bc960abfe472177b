import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { Lane } from './names.ts';
import type { Undo } from './undo.ts';

/**
 * How many deliveries of a lane are ready, scheduled and reserved. Kept in memory and, with each transaction
 * that changes a lane, in its row: a status read of ten million elements costs no scan, not even the first
 * one after a start, which took seconds when it counted.
 *
 * "Ready" means due at `at`, a cursor that follows the clock. Moving it over a time in which nothing was
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
  /** The last transaction that changed them. */
  changedIn: number;
}

/** The columns of a lane's row, as its statements name them. */
export interface CountsRow {
  readonly countedAt: number;
  readonly ready: number;
  readonly scheduled: number;
  readonly reserved: number;
}

export const COUNT_COLUMNS = 'counted_at AS countedAt, ready, scheduled, reserved';

export const NO_COUNTS: CountsRow = { countedAt: 0, ready: 0, scheduled: 0, reserved: 0 };

export function countsOf({ countedAt, ready, scheduled, reserved }: CountsRow): Counts {
  // Where something is scheduled the first look finds out from when.
  const scheduledFrom = scheduled === 0 ? Number.POSITIVE_INFINITY : Number.NEGATIVE_INFINITY;
  return { at: countedAt, ready, scheduled, reserved, scheduledFrom, changedIn: -1 };
}

export class LaneCounts {
  readonly #undo: Undo;
  readonly #changed: Lane[] = [];
  readonly #countDue: StatementSync;
  readonly #countReserved: StatementSync;
  readonly #firstDue: StatementSync;
  readonly #firstDueAfter: StatementSync;
  readonly #lastMoment: StatementSync;
  readonly #save: StatementSync;

  constructor(db: DatabaseSync, undo: Undo) {
    this.#undo = undo;
    const waiting = 'FROM delivery WHERE lane = ? AND lease_until IS NULL';
    this.#countDue = db.prepare(`SELECT count(*) AS n ${waiting} AND due_at > ? AND due_at <= ?`);
    this.#countReserved = db.prepare(
      'SELECT count(*) AS n FROM delivery WHERE lane = ? AND lease_until IS NOT NULL',
    );
    this.#firstDue = db.prepare(`SELECT due_at ${waiting} ORDER BY due_at LIMIT 1`);
    this.#firstDueAfter = db.prepare(`SELECT due_at ${waiting} AND due_at > ? ORDER BY due_at LIMIT 1`);
    this.#lastMoment = db.prepare('SELECT ifnull(max(counted_at), 0) AS at FROM lane');
    this.#save = db.prepare(
      'UPDATE lane SET counted_at = ?, ready = ?, scheduled = ?, reserved = ? WHERE id = ?',
    );
  }

  /** The lane's counts at `now`. Moves the cursor, which changes no fact and so needs no undo. */
  read(lane: Lane, now: number): Readonly<Counts> {
    const { counts } = lane;
    if (now < counts.at) this.#goBack(lane, counts, now);
    else if (counts.scheduledFrom <= now) this.#advance(lane, counts, now);
    counts.at = now;
    return counts;
  }

  /** The earliest maturity of what waits, due or not. */
  firstDueAt(lane: Lane): number | null {
    const row = this.#firstDue.get(lane.id);
    return row === undefined ? null : Number(row.due_at);
  }

  /** A delivery due at `dueAt` began to wait; `now` lets the cursor follow where that is free. */
  waitingAdded(lane: Lane, dueAt: number, now: number): void {
    const counts = this.#change(lane);
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
    const counts = this.#change(lane);
    if (dueAt <= counts.at) {
      counts.ready--;
      return;
    }
    counts.scheduled--;
    if (counts.scheduled === 0) counts.scheduledFrom = Number.POSITIVE_INFINITY;
  }

  reservedChanged(lane: Lane, difference: number): void {
    this.#change(lane).reserved += difference;
  }

  /** The latest moment at which counts were changed and stored; 0 if none were. */
  lastMoment(): number {
    return Number(this.#lastMoment.get()?.at);
  }

  /** Counts the table's rows: slow, for when it can no longer be trusted to agree with what was counted. */
  recount(lane: Lane, now: number): void {
    const counts = this.#change(lane);
    counts.at = now;
    counts.ready = Number(this.#countDue.get(lane.id, Number.MIN_SAFE_INTEGER, now)?.n);
    counts.scheduled = Number(this.#countDue.get(lane.id, now, Number.MAX_SAFE_INTEGER)?.n);
    counts.reserved = Number(this.#countReserved.get(lane.id)?.n);
    this.#lookAhead(lane, counts, now);
  }

  /** Writes what this transaction changed, one row per lane; called before its commit. */
  save(): void {
    for (const { id, counts } of this.#changed) {
      this.#save.run(counts.at, counts.ready, counts.scheduled, counts.reserved, id);
    }
    this.#changed.length = 0;
  }

  /** The transaction is over without having been saved. */
  discard(): void {
    this.#changed.length = 0;
  }

  #advance(lane: Lane, counts: Counts, now: number): void {
    const due = Number(this.#countDue.get(lane.id, counts.at, now)?.n);
    counts.ready += due;
    counts.scheduled -= due;
    this.#lookAhead(lane, counts, now);
  }

  /** The clock was set back: what was ready only by the later time is scheduled again. */
  #goBack(lane: Lane, counts: Counts, now: number): void {
    const due = Number(this.#countDue.get(lane.id, now, counts.at)?.n);
    counts.ready -= due;
    counts.scheduled += due;
    this.#lookAhead(lane, counts, now);
  }

  #lookAhead(lane: Lane, counts: Counts, now: number): void {
    const row = counts.scheduled === 0 ? undefined : this.#firstDueAfter.get(lane.id, now);
    counts.scheduledFrom = row === undefined ? Number.POSITIVE_INFINITY : Number(row.due_at);
  }

  /** The counts, to be changed. At the first time in a transaction, leaves a step that takes it back. */
  #change(lane: Lane): Counts {
    const { counts } = lane;
    if (counts.changedIn === this.#undo.transaction) return counts;
    const before = { ...counts };
    counts.changedIn = this.#undo.transaction;
    this.#changed.push(lane);
    this.#undo.add(() => Object.assign(counts, before));
    return counts;
  }
}
