import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { DeliveryState } from '../../../model/element.ts';
import { deliveryChecksum, elementChecksum } from './checksums.ts';
import type { LaneCounts } from './counts.ts';
import type { Leases } from './leases.ts';
import type { Lane } from './names.ts';

/** A delivery's own fields. */
export interface DeliveryRow {
  readonly dueAt: number;
  readonly tries: number;
  /** The last reservation's token; null once that reservation was rolled back, or if there was none. */
  readonly token: string | null;
  /** Null: waiting. */
  readonly leaseUntil: number | null;
  readonly crc: number;
  /** Of the last reservation; 0 or null: nobody. */
  readonly owner: number | null;
}

/** A new reservation. */
export interface Reservation {
  readonly token: string;
  readonly until: number;
  readonly owner: number;
}

/** A delivery with its element, as the join answers it: positions, not names, for speed. */
export type Joined = [
  seq: number,
  dueAt: number,
  tries: number,
  leaseUntil: number | null,
  groups: number,
  type: string | null,
  more: string | null,
  crc: number,
  body: Uint8Array,
  deliveryCrc: number,
];

export const JOINED =
  'd.seq, d.due_at, d.tries, d.lease_until, e.groups, e.type, e.more, e.crc, e.body, d.crc';
// CROSS JOIN fixes the order of the loops: deliveries by their index, each with one look at its element.
export const JOINED_FROM = 'FROM delivery d CROSS JOIN element e ON e.seq = d.seq';

/** Whether the checksums of an element and its delivery to this lane fit. What fails is never handed out. */
export function isWhole(lane: Lane, row: Joined): boolean {
  const [seq, dueAt, tries, , , type, more, crc, body, deliveryCrc] = row;
  return (
    deliveryChecksum(seq, lane.id, dueAt, tries) === deliveryCrc &&
    elementChecksum(seq, type, more, body) === crc
  );
}

/** Whether the checksum of a delivery fits. */
export function isWholeDelivery(lane: Lane, seq: number, { dueAt, tries, crc }: DeliveryRow): boolean {
  return deliveryChecksum(seq, lane.id, dueAt, tries) === crc;
}

/**
 * A bound limit. A bare `?` would let SQLite look at its value for the plan and compile the statement anew at
 * each binding: 18 µs a call instead of 3, measured.
 */
const BOUND = '? + 0';

/**
 * Delivery rows. Each method is one change of state (`docs/lifecycle.md`), and keeps the lane's counts and
 * lease bounds in step with the table.
 */
export class Deliveries {
  readonly #counts: LaneCounts;
  readonly #leases: Leases;
  readonly #add: StatementSync;
  readonly #find: StatementSync;
  readonly #ready: StatementSync;
  readonly #remove: StatementSync;
  readonly #removeHeld: StatementSync;
  readonly #reserve: StatementSync;
  readonly #release: StatementSync;
  readonly #extend: StatementSync;
  readonly #lanesOf: StatementSync;
  readonly #inState: Record<DeliveryState, StatementSync>;

  constructor(db: DatabaseSync, counts: LaneCounts, leases: Leases) {
    this.#counts = counts;
    this.#leases = leases;
    this.#add = db.prepare('INSERT INTO delivery (seq, lane, due_at, tries, crc) VALUES (?, ?, ?, ?, ?)');
    this.#find = db.prepare(
      'SELECT due_at AS dueAt, tries, token, lease_until AS leaseUntil, owner, crc FROM delivery WHERE seq = ? AND lane = ?',
    );
    this.#ready = db.prepare(
      `SELECT ${JOINED} ${JOINED_FROM}
       WHERE d.lane = ? AND d.lease_until IS NULL AND d.due_at <= ? ORDER BY d.due_at, d.seq LIMIT ${BOUND}`,
    );
    this.#ready.setReturnArrays(true);
    this.#remove = db.prepare('DELETE FROM delivery WHERE seq = ? AND lane = ?');
    this.#removeHeld = db.prepare(
      'DELETE FROM delivery WHERE seq = ? AND lane = ? AND token = ? AND lease_until IS NOT NULL',
    );
    this.#reserve = db.prepare(
      'UPDATE delivery SET token = ?, lease_until = ?, owner = ? WHERE seq = ? AND lane = ?',
    );
    this.#release = db.prepare(
      'UPDATE delivery SET due_at = ?, tries = ?, crc = ?, token = ?, lease_until = NULL WHERE seq = ? AND lane = ?',
    );
    this.#extend = db.prepare('UPDATE delivery SET lease_until = ? WHERE seq = ? AND lane = ?');
    this.#lanesOf = db.prepare(
      'SELECT lane, due_at AS dueAt, lease_until AS leaseUntil FROM delivery WHERE seq = ?',
    );
    const inState = (where: string): StatementSync =>
      db.prepare(`SELECT seq, due_at AS dueAt FROM delivery WHERE lane = :lane AND ${where} LIMIT :limit`);
    this.#inState = {
      ready: inState('lease_until IS NULL AND due_at <= :now'),
      scheduled: inState('lease_until IS NULL AND due_at > :now'),
      reserved: inState('lease_until IS NOT NULL AND :now IS NOT NULL'),
    };
  }

  /** (none) -> waiting */
  add(lane: Lane, seq: number, dueAt: number, tries: number, now: number): void {
    this.#add.run(seq, lane.id, dueAt, tries, deliveryChecksum(seq, lane.id, dueAt, tries));
    this.#counts.waitingAdded(lane, dueAt, now);
  }

  find(lane: Lane, seq: number): DeliveryRow | null {
    return (this.#find.get(seq, lane.id) as unknown as DeliveryRow | undefined) ?? null;
  }

  /** The first `limit` eligible deliveries, by maturity, then by insertion. */
  ready(lane: Lane, now: number, limit: number): Joined[] {
    return this.#ready.all(lane.id, now, limit) as unknown as Joined[];
  }

  /** waiting -> finished */
  removeWaiting(lane: Lane, seq: number, dueAt: number): void {
    this.#remove.run(seq, lane.id);
    this.#counts.waitingRemoved(lane, dueAt);
  }

  /** waiting -> reserved */
  reserve(lane: Lane, seq: number, dueAt: number, { token, until, owner }: Reservation): void {
    this.#reserve.run(token, until, owner, seq, lane.id);
    this.#counts.waitingRemoved(lane, dueAt);
    this.#counts.reservedChanged(lane, 1);
    this.#leases.started(lane, until);
  }

  /** reserved -> finished, where the reservation has this token. Answers whether it had. */
  removeHeld(lane: Lane, seq: number, token: string): boolean {
    if (this.#removeHeld.run(seq, lane.id, token).changes === 0) return false;
    this.#counts.reservedChanged(lane, -1);
    return true;
  }

  /** reserved -> finished */
  removeReserved(lane: Lane, seq: number): void {
    this.#remove.run(seq, lane.id);
    this.#counts.reservedChanged(lane, -1);
  }

  /**
   * reserved -> waiting
   * @param token the reservation's token where its lease ran out, so that it may still be committed; else null
   */
  release(lane: Lane, seq: number, dueAt: number, tries: number, token: string | null, now: number): void {
    this.#release.run(dueAt, tries, deliveryChecksum(seq, lane.id, dueAt, tries), token, seq, lane.id);
    this.#counts.reservedChanged(lane, -1);
    this.#counts.waitingAdded(lane, dueAt, now);
  }

  /** reserved -> reserved, until another moment */
  extend(lane: Lane, seq: number, until: number): void {
    this.#extend.run(until, seq, lane.id);
    this.#leases.started(lane, until);
  }

  /** Some deliveries of a lane in a state, in no promised order. */
  inState(lane: Lane, state: DeliveryState, now: number, limit: number): { seq: number; dueAt: number }[] {
    const rows = this.#inState[state].all({ lane: lane.id, now, limit });
    return rows as unknown as { seq: number; dueAt: number }[];
  }

  /** All deliveries of an element, whatever their state. */
  ofElement(seq: number): { lane: number; dueAt: number; leaseUntil: number | null }[] {
    return this.#lanesOf.all(seq) as unknown as { lane: number; dueAt: number; leaseUntil: number | null }[];
  }
}
