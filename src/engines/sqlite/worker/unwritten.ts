import type { DeliveryRow } from './rows.ts';

/** A place in the order of delivery. */
export interface Place {
  readonly dueAt: number;
  readonly seq: number;
}

type TakenRow = Pick<DeliveryRow, 'seq' | 'dueAt'>;

/** Reservations that one call made. `token` is the stored form, see `tokens.ts`. */
export interface SharedReservation {
  readonly until: number;
  readonly at: number;
  readonly token: string;
  readonly holders: string;
}

/** Reservations in memory, at most: writing them takes 25 ms of processor time, in one step. */
export const MAX_UNWRITTEN = 8192;

/** The unwritten reservations of one take: the maturity of each delivery, by its number, in the order of delivery. */
interface UnwrittenTake extends SharedReservation {
  readonly rows: Map<number, number>;
}

/** Those of a subscription. */
interface OfSubscription {
  /** By their tokens. */
  readonly takes: Map<string, UnwrittenTake>;
  /** The place of the last one. All waiting rows before it are reserved here. */
  lastPlace: Place;
}

/**
 * Reservations of exchanges that are only in memory. In the tables, and in the counts, their deliveries are waiting. An
 * exchange usually finishes them within milliseconds, and then they were never written: that saves a sixth of the
 * thread's time (ADR 9). After a crash, the elements are ready again at once.
 *
 * Takes pass over them, and commits by their tokens finish them. Whatever else may read or change deliveries of their
 * subscription first has them written into the table (`Rows.writeReservations`).
 */
export class UnwrittenReservations {
  readonly #bySubscription = new Map<number, OfSubscription>();
  /** Undoes the changes of the running transaction, the latest first. */
  readonly #undo: (() => void)[] = [];

  #size = 0;

  /** The number of all reservations. */
  get size(): number {
    return this.#size;
  }

  subscriptions(): number[] {
    return [...this.#bySubscription.keys()];
  }

  /** The place after which a take finds deliveries that are not reserved here; null: none is. */
  lastPlace(subscription: number): Place | null {
    return this.#bySubscription.get(subscription)?.lastPlace ?? null;
  }

  /** When the first of their leases ends; Infinity if there is none. */
  firstEnd(): number {
    let first = Number.POSITIVE_INFINITY;
    for (const { takes } of this.#bySubscription.values()) {
      for (const { until } of takes.values()) first = Math.min(first, until);
    }
    return first;
  }

  /** @param rows in the order of delivery, after all that are reserved here */
  add(subscription: number, rows: readonly TakenRow[], reservation: SharedReservation): void {
    const last = rows.at(-1);
    if (last === undefined) return;
    const { dueAt, seq } = last;
    const place = { dueAt, seq };
    const own = this.#bySubscription.get(subscription) ?? { takes: new Map(), lastPlace: place };
    const take = own.takes.get(reservation.token) ?? { ...reservation, rows: new Map<number, number>() };
    const { lastPlace } = own;
    own.lastPlace = place;
    own.takes.set(reservation.token, take);
    this.#bySubscription.set(subscription, own);
    for (const row of rows) take.rows.set(row.seq, row.dueAt);
    this.#size += rows.length;
    this.#undo.push(() => {
      this.#size -= rows.length;
      own.lastPlace = lastPlace;
      for (const row of rows) take.rows.delete(row.seq);
      this.#dropEmpty(subscription, own, take);
    });
  }

  /** The reservations of a take, by the stored form of its tokens; undefined: there are none. */
  take(subscription: number, token: string): UnwrittenTake | undefined {
    return this.#bySubscription.get(subscription)?.takes.get(token);
  }

  /** Removes reservations of a take, whose deliveries are finished. */
  remove(subscription: number, take: UnwrittenTake, rows: readonly TakenRow[]): void {
    const own = this.#bySubscription.get(subscription);
    if (own === undefined) return;
    for (const { seq } of rows) take.rows.delete(seq);
    this.#size -= rows.length;
    this.#dropEmpty(subscription, own, take);
    this.#undo.push(() => {
      this.#size += rows.length;
      this.#bySubscription.set(subscription, own);
      own.takes.set(take.token, take);
      for (const { seq, dueAt } of rows) take.rows.set(seq, dueAt);
    });
  }

  /** Removes and returns all reservations of a subscription. */
  removeAll(subscription: number): UnwrittenTake[] {
    const own = this.#bySubscription.get(subscription);
    if (own === undefined) return [];
    const takes = [...own.takes.values()];
    const count = takes.reduce((sum, { rows }) => sum + rows.size, 0);
    this.#bySubscription.delete(subscription);
    this.#size -= count;
    this.#undo.push(() => {
      this.#bySubscription.set(subscription, own);
      this.#size += count;
    });
    return takes;
  }

  /** A transaction begins. */
  begin(): void {
    this.#undo.length = 0;
  }

  /** The running transaction was rolled back. */
  rollback(): void {
    for (const undo of this.#undo.splice(0).reverse()) undo();
  }

  #dropEmpty(subscription: number, own: OfSubscription, take: UnwrittenTake): void {
    if (take.rows.size === 0) own.takes.delete(take.token);
    if (own.takes.size === 0) this.#bySubscription.delete(subscription);
  }
}
