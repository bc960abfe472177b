import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { Lane, Names } from './names.ts';
import type { Undo } from './undo.ts';

/** A reservation whose time is over. */
export interface Lapsed {
  readonly lane: Lane;
  readonly seq: number;
  readonly tries: number;
  readonly token: string | null;
  readonly until: number;
}

/**
 * Knows, without asking the table, whether some lease may have ended. The bounds are never too late: a
 * reservation pulls them forward, a settled one leaves them, and looking at the table makes them exact.
 * So a batch in which no lease ends pays one comparison. What moves a bound takes itself back with its transaction:
 * that may have made the lane, whose number is then another's.
 */
export class Leases {
  readonly #running = new Set<Lane>();
  #endsFrom = Number.POSITIVE_INFINITY;
  readonly #undo: Undo;
  readonly #findLapsed: StatementSync;
  readonly #firstEnd: StatementSync;

  constructor(db: DatabaseSync, names: Names, undo: Undo) {
    this.#undo = undo;
    const reserved = 'FROM delivery WHERE lane = ? AND lease_until IS NOT NULL';
    this.#findLapsed = db.prepare(
      `SELECT seq, tries, token, lease_until ${reserved} AND lease_until <= ? ORDER BY lease_until, seq LIMIT ?`,
    );
    this.#findLapsed.setReturnArrays(true);
    this.#firstEnd = db.prepare(`SELECT lease_until ${reserved} ORDER BY lease_until LIMIT 1`);
    const rows = db
      .prepare(
        'SELECT lane, min(lease_until) AS until FROM delivery WHERE lease_until IS NOT NULL GROUP BY lane',
      )
      .all();
    for (const row of rows) {
      const lane = names.laneById(Number(row.lane));
      if (lane !== null) this.#put(lane, Number(row.until));
    }
  }

  started(lane: Lane, until: number): void {
    if (until < lane.leaseEndsFrom) this.#change(lane, until);
  }

  /** The lane is gone, and its leases with it. */
  forget(lane: Lane): void {
    if (this.#running.has(lane)) this.#change(lane, Number.POSITIVE_INFINITY);
  }

  /** Whether `lapsed` may find something. */
  mayHaveLapsed(now: number): boolean {
    return this.#endsFrom <= now;
  }

  /** Up to `limit` reservations that ended at `now` or before, in the order of their ends, over all lanes. */
  lapsed(now: number, limit: number): Lapsed[] {
    const found: Lapsed[] = [];
    for (const lane of this.#running) {
      if (lane.leaseEndsFrom > now) continue;
      if (found.length >= limit) break;
      for (const row of this.#findLapsed.all(lane.id, now, limit - found.length)) {
        const [seq, tries, token, until] = row as unknown as [number, number, string | null, number];
        found.push({ lane, seq, tries, token, until });
      }
    }
    return found.sort((a, b) => a.until - b.until || a.seq - b.seq);
  }

  /** Makes the bounds exact for the lanes whose bound has passed. Called after their lapsed leases ended. */
  refresh(now: number): void {
    let earliest = Number.POSITIVE_INFINITY;
    for (const lane of this.#running) {
      if (lane.leaseEndsFrom <= now) this.#refreshLane(lane);
      if (lane.leaseEndsFrom < earliest) earliest = lane.leaseEndsFrom;
    }
    this.#endsFrom = earliest;
  }

  #refreshLane(lane: Lane): void {
    const row = this.#firstEnd.get(lane.id);
    this.#change(lane, row === undefined ? Number.POSITIVE_INFINITY : Number(row.lease_until));
  }

  #change(lane: Lane, bound: number): void {
    const before = lane.leaseEndsFrom;
    this.#put(lane, bound);
    this.#undo.add(() => this.#put(lane, before));
  }

  /** @param bound Infinity: none runs there */
  #put(lane: Lane, bound: number): void {
    lane.leaseEndsFrom = bound;
    if (bound === Number.POSITIVE_INFINITY) this.#running.delete(lane);
    else this.#running.add(lane);
    if (bound < this.#endsFrom) this.#endsFrom = bound;
  }

  /** The end of the lease that ends next, exactly; null where none runs. */
  nextEnd(): number | null {
    for (;;) {
      const bound = this.#endsFrom;
      if (bound === Number.POSITIVE_INFINITY) return null;
      this.refresh(bound);
      if (this.#endsFrom === bound) return bound;
    }
  }
}
