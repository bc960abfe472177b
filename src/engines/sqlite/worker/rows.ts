import type { DatabaseSync } from 'node:sqlite';
import type { ScanPlace } from '../../../engine/scan-cursor.ts';
import { DELIVERY_STATES, type DeliveryState, PLAIN_GROUP } from '../../../model/element.ts';
import { deliveryChecksum, elementChecksum } from './checksums.ts';
import type { QueueCounter } from './counts.ts';
import type { Queues, Subscription, WorkerQueue } from './queues.ts';
import { BOUND, prepareAll, Statement, type Statements } from './schema.ts';
import { MAX_UNWRITTEN, type Place, type SharedReservation, UnwrittenReservations } from './unwritten.ts';

/** An element's content as stored: the content type, the rarer fields as JSON (see `encodeMetadata`), and the body. */
interface StoredContent {
  readonly type: string | null;
  readonly more: string | null;
  readonly body: Uint8Array;
}

/** The fields of a new delivery. */
interface NewDelivery {
  readonly dueAt: number;
  readonly tries: number;
  readonly expiresAt: number | null;
  readonly reason: string | null;
}

/** A new element with its delivery. */
export interface NewRow extends StoredContent, NewDelivery {}

/** A delivery's own fields. */
export interface DeliveryRow extends NewDelivery {
  readonly seq: number;
  /** The element that has its content; null: the content is in the delivery's own row. */
  readonly element: number | null;
  readonly subscription: number;
  readonly crc: number;
  /** The stored form of the last reservation's token (`tokens.ts`); null if there was none, or if it was released. */
  readonly token: string | null;
  /** When its lease ends; null if it is waiting. */
  readonly leaseUntil: number | null;
  /** Of the last reservation (see `holderStrings`). */
  readonly holder: string | null;
}

/** The fields of a delivery that its removal needs. */
type RemovedRow = Pick<DeliveryRow, 'seq' | 'element' | 'dueAt' | 'leaseUntil'>;

/** An element's content, as read from a table. */
export interface ElementRow extends StoredContent {
  readonly contentCrc: number;
  readonly insertedAt: number;
}

/** A delivery with its content, whose fields are null if a fault of the disk destroyed it. */
type WholeRow = DeliveryRow & {
  readonly [K in keyof ElementRow]: ElementRow[K] | null;
};

/** A delivery for a scan. Its body is not read: see {@link Rows.contentOf}. */
export type ScannedRow = Omit<WholeRow, 'body'> & {
  readonly bytes: number | null;
  /** When the last reservation was made; null if there was none. */
  readonly reservedAt: number | null;
};

/** The fields of a delivery that a take needs. `body` is null if it is large. */
export type ReadyRow = Omit<WholeRow, 'token' | 'holder' | 'insertedAt'>;

/** Reservations made by one call. */
interface Reservations {
  readonly until: number;
  /** When they are made. */
  readonly at: number;
  /** The stored form of the tokens, see `tokens.ts`. */
  readonly token: string;
  /** One string for all, or one for each (see `holderStrings`). */
  readonly holders: string | readonly string[];
}

const DELIVERY_COLUMNS =
  'd.seq, d.element, d.subscription, d.due_at AS dueAt, d.tries, d.crc, d.expires_at AS expiresAt, d.reason, d.token, d.lease_until AS leaseUntil, d.holder';
const CONTENT_COLUMNS =
  'ifnull(d.type, e.type) AS type, ifnull(d.more, e.more) AS more, ifnull(d.content_crc, e.crc) AS contentCrc, ifnull(d.inserted_at, e.inserted_at) AS insertedAt';
const WHOLE_COLUMNS = `${DELIVERY_COLUMNS}, ${CONTENT_COLUMNS}, ifnull(d.body, e.body) AS body`;
// SQLite computes the length of a body without reading it only if `length` is applied to the column itself.
const SCANNED_COLUMNS = `${DELIVERY_COLUMNS}, ${CONTENT_COLUMNS}, d.reserved_at AS reservedAt, ifnull(length(d.body), length(e.body)) AS bytes`;
// `d.element` is null if the content is in the row, and then no element is looked up.
const FROM_DELIVERIES = 'FROM delivery d LEFT JOIN element e ON e.seq = d.element';

const RESERVED = 'FROM delivery d WHERE d.subscription = ? AND d.lease_until IS NOT NULL';
const WAITING = 'FROM delivery d WHERE d.subscription = ?1 AND d.lease_until IS NULL';
// A delivery whose subscription a fault of the disk destroyed is skipped: it would be found again by each sweep.
const EXPIRING =
  'FROM delivery d WHERE d.expires_at IS NOT NULL AND d.lease_until IS NULL AND EXISTS (SELECT 1 FROM subscription s WHERE s.id = d.subscription)';

/**
 * A take reads the bodies of up to 64 rows with one statement, but larger ones each by itself, once it is certain that
 * its reply has space for them: 64 may be a gigabyte.
 */
const MAX_READ_WITH_ROW = 64 * 1024;

/** Rows that one statement adds, at most. */
const ADDED_AT_ONCE = 32;
/**
 * Rows that one statement changes. A pop costs 2.7 or 3.1 µs, a reservation 4.7 or 5.5 µs, each including its
 * selection.
 */
const ROWS_AT_ONCE = 16;
/**
 * At least this many deliveries with consecutive numbers are changed by their range, which cannot contain any other
 * delivery. Removing 64 takes 1.6 µs each including their selection, and by statements of 16 numbers 2.1 µs.
 */
export const SHORTEST_RANGE = 4;

/**
 * Waiting deliveries with their content, for takes: `?1` is the time, and `?2` the subscription. Bodies of expired ones
 * are not read: a thousand of them may be a gigabyte.
 */
const READY = `SELECT d.seq, d.element, d.due_at, d.tries, d.crc, d.expires_at, d.reason,
            ifnull(d.type, e.type), ifnull(d.more, e.more), ifnull(d.content_crc, e.crc),
            iif(d.expires_at <= ?1, NULL, ifnull(d.body, iif(length(e.body) > ${MAX_READ_WITH_ROW}, NULL, e.body))) ${FROM_DELIVERIES}
       WHERE d.subscription = ?2 AND d.lease_until IS NULL AND d.due_at <= ?1`;

const SQL = {
  // The content is in `element`.
  add: `INSERT INTO delivery (seq, subscription, due_at, tries, crc, expires_at, reason, element)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
  addElement:
    'INSERT INTO element (seq, queue, groups, inserted_at, type, more, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
  remove: 'DELETE FROM delivery WHERE seq = ?',
  removeRange: 'DELETE FROM delivery WHERE seq BETWEEN ? AND ?',
  removeMany: `DELETE FROM delivery WHERE seq IN (${manyOf('?')})`,
  removeReserved:
    'DELETE FROM delivery WHERE seq = ? AND subscription = ? AND token = ? AND lease_until IS NOT NULL AND element IS NULL',
  // Without the hint SQLite would use the index of all reservations.
  countReservedRange: `SELECT count(*) FROM delivery NOT INDEXED WHERE seq BETWEEN ? AND ? AND subscription = ? AND token = ?
       AND lease_until IS NOT NULL AND element IS NULL`,
  reserve: 'UPDATE delivery SET lease_until = ?, reserved_at = ?, token = ?, holder = ? WHERE seq = ?',
  reserveRange:
    'UPDATE delivery SET lease_until = ?, reserved_at = ?, token = ?, holder = ? WHERE seq BETWEEN ? AND ?',
  reserveMany: `UPDATE delivery SET lease_until = ?, reserved_at = ?, token = ?, holder = v.column1
       FROM (VALUES ${manyOf('(?, ?)')}) v WHERE seq = v.column2`,
  setWaiting:
    'UPDATE delivery SET due_at = ?, tries = ?, crc = ?, token = ?, reason = ?, lease_until = NULL WHERE seq = ?',
  extend: 'UPDATE delivery SET lease_until = ? WHERE seq = ?',
  removeElement: 'DELETE FROM element WHERE seq = ?',
  anyOfElement: 'SELECT 1 FROM delivery WHERE element = ? LIMIT 1',
  markShared: 'UPDATE element SET groups = max(groups, 2) WHERE seq = ?',
  setAside:
    'INSERT OR REPLACE INTO damaged (seq, queue, found_at, type, more, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?)',
  waitingUntil: `SELECT DISTINCT e.seq, e.inserted_at
       FROM element e INDEXED BY element_age
       CROSS JOIN delivery d ON d.element = e.seq AND d.lease_until IS NULL
       WHERE e.queue = ? AND e.groups > 0 AND e.inserted_at <= ? ORDER BY e.inserted_at LIMIT ?`,
  firstInsertedAfter: `SELECT inserted_at FROM element INDEXED BY element_age
       WHERE queue = ? AND groups > 0 AND inserted_at > ? ORDER BY inserted_at LIMIT 1`,
  firstDueAfter: `SELECT d.due_at ${WAITING} AND d.due_at = ?2 AND d.seq > ?3
       UNION ALL SELECT d.due_at ${WAITING} AND d.due_at > ?2 ORDER BY 1 LIMIT 1`,
  firstExpiry: `SELECT d.expires_at ${EXPIRING} ORDER BY d.expires_at LIMIT 1`,
  firstLeaseEnd: `SELECT d.lease_until ${RESERVED} ORDER BY d.lease_until LIMIT 1`,
  ready: `${READY} ORDER BY d.due_at, d.seq LIMIT ${BOUND}`,
  // Not with `(d.due_at, d.seq) > (?, ?)`, which reads every delivery of the same maturity: there may be 100,000.
  readyAfter: `${READY} AND d.due_at = ?3 AND d.seq > ?4
       UNION ALL ${READY} AND d.due_at > ?3 ORDER BY 3, 1 LIMIT ${BOUND}`,
  // The number of a named group's delivery differs from its element's: see `schema.ts`.
  findPlain: `SELECT ${DELIVERY_COLUMNS} FROM delivery d WHERE d.seq = ? AND d.subscription = ?`,
  findShared: `SELECT ${DELIVERY_COLUMNS} FROM delivery d WHERE d.element = ? AND d.subscription = ?`,
  wholePlain: `SELECT ${WHOLE_COLUMNS} ${FROM_DELIVERIES} WHERE d.seq = ? AND d.subscription = ?`,
  wholeShared: `SELECT ${WHOLE_COLUMNS} ${FROM_DELIVERIES} WHERE d.element = ? AND d.subscription = ?`,
  scannedPlain: `SELECT ${SCANNED_COLUMNS} ${FROM_DELIVERIES} WHERE d.seq = ? AND d.subscription = ?`,
  scannedShared: `SELECT ${SCANNED_COLUMNS} ${FROM_DELIVERIES} WHERE d.element = ? AND d.subscription = ?`,
  ofElement: `SELECT ${DELIVERY_COLUMNS} FROM delivery d WHERE d.seq = :element AND (d.element IS NULL OR d.element = :element)
       UNION ALL SELECT ${DELIVERY_COLUMNS} FROM delivery d WHERE d.element = :element AND d.seq <> :element`,
  content:
    'SELECT type, more, content_crc AS contentCrc, body, inserted_at AS insertedAt FROM delivery WHERE seq = ?',
  sharedContent:
    'SELECT type, more, crc AS contentCrc, body, inserted_at AS insertedAt FROM element WHERE seq = ?',
  bySeq: `SELECT ${DELIVERY_COLUMNS} FROM delivery d WHERE d.seq = ?`,
  expired: `SELECT ${DELIVERY_COLUMNS} ${EXPIRING} AND d.expires_at <= ? ORDER BY d.expires_at LIMIT ${BOUND}`,
  endedLeases: `SELECT ${DELIVERY_COLUMNS} ${RESERVED} AND d.lease_until <= ? ORDER BY d.lease_until, d.seq LIMIT ${BOUND}`,
} as const;

function manyOf(row: string, count = ROWS_AT_ONCE): string {
  return Array(count).fill(row).join(', ');
}

const BY_STATE: Readonly<Record<DeliveryState, string>> = {
  ready: 'd.lease_until IS NULL AND d.due_at <= :now',
  scheduled: 'd.lease_until IS NULL AND d.due_at > :now',
  reserved: 'd.lease_until IS NOT NULL AND :now IS NOT NULL',
};

/** The deliveries in a state after a moment and a number; in two searches for the same reason as `readyAfter`. */
const PAGES = {
  ready: pageOf('ready', 'due_at', 'dueAt'),
  scheduled: pageOf('scheduled', 'due_at', 'dueAt'),
  reserved: pageOf('reserved', 'lease_until', 'leaseUntil'),
};

function pageOf(state: DeliveryState, key: string, column: string): string {
  const all = `SELECT ${SCANNED_COLUMNS} ${FROM_DELIVERIES} WHERE d.subscription = :subscription AND ${BY_STATE[state]}`;
  return `${all} AND d.${key} = :moment AND d.seq > :seq
       UNION ALL ${all} AND d.${key} > :moment ORDER BY ${column}, 1 LIMIT :limit`;
}

/** Deliveries in a state, in any order: without content, a step of a purge takes a third of the time of a page. */
const IN_STATE = { ready: inState('ready'), scheduled: inState('scheduled'), reserved: inState('reserved') };

function inState(state: DeliveryState): string {
  return `SELECT d.seq, d.element, d.due_at AS dueAt, d.lease_until AS leaseUntil FROM delivery d
          WHERE d.subscription = :subscription AND ${BY_STATE[state]} LIMIT :limit`;
}

/** Bodies up to this size are stored in the row of their delivery, which a reservation rewrites. */
const MAX_INLINE_BYTES = 1024;

/** Expired leases that one call ends, at most. The next call, which follows immediately, ends the others. */
const MAX_LEASES_PER_CALL = 1000;

type Value = string | number | null | Uint8Array;

/** Adds deliveries with their content, several by each statement. */
class Additions {
  readonly #db: DatabaseSync;
  readonly #shared: readonly string[];
  readonly #own: readonly string[];
  /** By their number of rows, each prepared when it is first needed. */
  readonly #statements: Statement[] = [];

  /**
   * @param shared columns that have the same value in all rows of a statement, which is bound once
   * @param own columns of which each row has a value
   */
  constructor(db: DatabaseSync, shared: readonly string[], own: readonly string[]) {
    this.#db = db;
    this.#shared = shared;
    this.#own = own;
  }

  /** The number of rows whose values follow the shared ones. */
  rowsOf(values: readonly Value[]): number {
    return (values.length - this.#shared.length) / this.#own.length;
  }

  /** @param values the shared ones, then those of each row */
  run(values: readonly Value[]): void {
    const rows = this.rowsOf(values);
    this.#statements[rows] ??= new Statement(this.#db, this.#sql(rows));
    this.#statements[rows].run(...values);
  }

  #sql(rows: number): string {
    const places = [...this.#shared.map((_, index) => `?${index + 1}`), ...this.#own.map(() => '?')];
    const columns = [...this.#shared, ...this.#own].join(', ');
    return `INSERT INTO delivery (${columns}) VALUES ${manyOf(`(${places.join(', ')})`, rows)}`;
  }
}

/**
 * Deliveries and elements. Each method that changes deliveries is one transition of their state (`docs/concepts.md`),
 * and updates the counts and lease bounds of their subscription.
 */
export class Rows {
  readonly #queues: Queues;
  readonly #counter: QueueCounter;
  readonly #unwritten = new UnwrittenReservations();
  /** Lower bound of the lease ends of all queues. */
  #leasesEndFrom = Number.POSITIVE_INFINITY;

  readonly #sql: Statements<typeof SQL>;
  /** For elements that differ only in what each of them has of its own, like those of most calls. */
  readonly #additionsOfAlike: Additions;
  readonly #additions: Additions;
  readonly #pages: Statements<typeof PAGES>;
  readonly #inState: Statements<typeof IN_STATE>;

  constructor(db: DatabaseSync, queues: Queues, counter: QueueCounter) {
    this.#queues = queues;
    this.#counter = counter;
    this.#sql = prepareAll(db, SQL);
    const own = ['seq', 'due_at', 'crc', 'content_crc', 'body'];
    const common = ['tries', 'type', 'more'];
    this.#additionsOfAlike = new Additions(db, ['subscription', 'inserted_at', ...common], own);
    const rest = [...common, 'expires_at', 'reason'];
    this.#additions = new Additions(db, ['subscription', 'inserted_at'], [...own, ...rest]);
    this.#pages = prepareAll(db, PAGES);
    this.#inState = prepareAll(db, IN_STATE);
    this.findNextLeaseEnd();
  }

  // Elements.

  /**
   * Stores plain elements of one subscription with consecutive numbers from `first`, each with its delivery. Small
   * content is stored in the row of the delivery.
   */
  addPlain(subscription: Subscription, first: number, elements: readonly NewRow[], now: number): void {
    const { id } = subscription;
    if (this.areUnwritten) {
      for (const { dueAt } of elements) this.#beforeWaiting(subscription, { dueAt, seq: first });
    }
    const [example] = elements;
    const areAlike = elements.every(
      ({ type, more, tries, expiresAt, reason }) =>
        type === example?.type &&
        more === example.more &&
        tries === example.tries &&
        (expiresAt ?? reason) === null,
    );
    const additions = areAlike ? this.#additionsOfAlike : this.#additions;
    const { tries: allTries = 0, type: allType = null, more: allMore = null } = example ?? {};
    const shared = areAlike ? [id, now, allTries, allType, allMore] : [id, now];
    let values: Value[] = [...shared];
    let seq = first;
    for (const { type, more, body, dueAt, tries, expiresAt, reason } of elements) {
      const contentCrc = elementChecksum(seq, type, more, body);
      const element = body.byteLength <= MAX_INLINE_BYTES ? null : seq;
      const crc = deliveryChecksum(seq, element, id, dueAt, tries, expiresAt);
      if (element !== null) {
        this.#sql.addElement.run(seq, subscription.queue.id, 0, now, type, more, contentCrc, body);
        this.#sql.add.run(seq, id, dueAt, tries, crc, expiresAt, reason, seq);
      } else {
        values.push(seq, dueAt, crc, contentCrc, body);
        if (!areAlike) values.push(tries, type, more, expiresAt, reason);
        if (additions.rowsOf(values) === ADDED_AT_ONCE) {
          additions.run(values);
          values = [...shared];
        }
      }
      this.#counter.waitingAdded(subscription, dueAt, now);
      seq++;
    }
    if (additions.rowsOf(values) > 0) additions.run(values);
  }

  /** @param groups number of groups that the element is for */
  addElement(queue: WorkerQueue, seq: number, groups: number, content: StoredContent, now: number): void {
    const { type, more, body } = content;
    const crc = elementChecksum(seq, type, more, body);
    this.#sql.addElement.run(seq, queue.id, groups, now, type, more, crc, body);
  }

  /** (none) -> waiting, for one group of an element that `addElement` stored */
  addShared(subscription: Subscription, seq: number, element: number, facts: NewDelivery, now: number): void {
    const { dueAt, tries, expiresAt, reason } = facts;
    const { id } = subscription;
    this.#counter.beforeChange(subscription, element);
    const crc = deliveryChecksum(seq, element, id, dueAt, tries, expiresAt);
    this.#sql.add.run(seq, id, dueAt, tries, crc, expiresAt, reason, element);
    this.#counter.waitingAdded(subscription, dueAt, now);
  }

  /** The content of a delivery, from `row` if it was read with it; null if a fault of the disk destroyed it. */
  contentOf(row: Pick<WholeRow, 'seq' | 'element'> & Partial<WholeRow>): ElementRow | null {
    const { seq, element, body = null } = row;
    const query = element === null ? this.#sql.content : this.#sql.sharedContent;
    const found = body !== null ? row : query.get<WholeRow>(element ?? seq);
    const isThere = found !== null && found.contentCrc !== null && found.body !== null;
    return isThere ? (found as unknown as ElementRow) : null;
  }

  /** Marks an element that has deliveries of several groups again. Returns false if there is no such element. */
  markShared(seq: number): boolean {
    return this.#sql.markShared.run(seq) === 1;
  }

  /** Copies an element whose checksum does not match to the table `damaged`. */
  setAside(element: number, queue: number, { type, more, contentCrc, body }: ElementRow, now: number): void {
    this.#sql.setAside.run(element, queue, now, type, more, contentCrc, body);
  }

  // Deliveries.

  bySeq(seq: number): DeliveryRow | null {
    return this.#sql.bySeq.get(seq);
  }

  /** Finds the delivery of an element to a subscription; null if there is none. */
  find({ id, group }: Subscription, element: number): DeliveryRow | null {
    const query = group === PLAIN_GROUP ? this.#sql.findPlain : this.#sql.findShared;
    return query.get(element, id);
  }

  /** Like `find`, including the content, in one statement: two take a fifth more processor time of a bulk move. */
  findWhole({ id, group }: Subscription, element: number): WholeRow | null {
    const query = group === PLAIN_GROUP ? this.#sql.wholePlain : this.#sql.wholeShared;
    return query.get(element, id);
  }

  /**
   * The deliveries of these elements that are in these states, in the order of pages: by state, then in delivery order.
   * Null stands for an unknown element.
   */
  named(
    { id, group }: Subscription,
    elements: readonly (number | null)[],
    now: number,
    states: readonly string[],
  ): ScannedRow[] {
    const query = group === PLAIN_GROUP ? this.#sql.scannedPlain : this.#sql.scannedShared;
    const found = new Map<number, ScannedRow>();
    for (const element of elements) {
      const row = element === null ? null : query.get<ScannedRow>(element, id);
      if (row !== null && states.includes(stateOf(row, now))) found.set(row.seq, row);
    }
    const place = (row: ScannedRow): number => DELIVERY_STATES.indexOf(stateOf(row, now));
    return [...found.values()].sort(
      (a, b) => place(a) - place(b) || momentInOrder(a) - momentInOrder(b) || a.seq - b.seq,
    );
  }

  /** All deliveries of an element, in all states. */
  ofElement(element: number): DeliveryRow[] {
    return this.#sql.ofElement.all({ element });
  }

  /** The first `limit` ready deliveries, by maturity, then by insertion; expired ones without their bodies. */
  ready({ id: subscription }: Subscription, now: number, limit: number): ReadyRow[] {
    type Columns = [
      seq: number,
      element: number | null,
      dueAt: number,
      tries: number,
      crc: number,
      expiresAt: number | null,
      reason: string | null,
      type: string | null,
      more: string | null,
      contentCrc: number | null,
      body: Uint8Array | null,
    ];
    const place = this.#unwritten.lastPlace(subscription);
    const found =
      place === null
        ? this.#sql.ready.arrays<Columns>(now, subscription, limit)
        : this.#sql.readyAfter.arrays<Columns>(now, subscription, place.dueAt, place.seq, limit);
    // The objects are written out, as literals are faster than the loop of `Statement`.
    return found.map(
      ([seq, element, dueAt, tries, crc, expiresAt, reason, type, more, contentCrc, body]): ReadyRow => ({
        seq,
        element,
        subscription,
        dueAt,
        tries,
        crc,
        expiresAt,
        reason,
        leaseUntil: null,
        type,
        more,
        contentCrc,
        body,
      }),
    );
  }

  /** Deliveries in a state after a place, by their moment (maturity, or lease end) and number. */
  page(
    { id: subscription }: Subscription,
    { state, moment, seq }: ScanPlace,
    now: number,
    limit: number,
  ): ScannedRow[] {
    return this.#pages[state].all({ subscription, now, moment, seq, limit });
  }

  /** Deliveries in a state, in any order, with what {@link remove} needs. */
  inState(
    { id: subscription }: Subscription,
    state: DeliveryState,
    now: number,
    limit: number,
  ): RemovedRow[] {
    return this.#inState[state].all({ subscription, now, limit });
  }

  /** reserved or waiting -> finished; the element is deleted with its last delivery */
  remove(subscription: Subscription, rows: readonly RemovedRow[]): void {
    for (const { element } of rows) this.#counter.beforeChange(subscription, element);
    const numbers: number[] = [];
    for (let from = 0; from < rows.length; ) {
      const { first, last } = consecutiveFrom(rows, from);
      if (last - first + 1 >= SHORTEST_RANGE) this.#sql.removeRange.run(first, last);
      else for (let seq = first; seq <= last; seq++) numbers.push(seq);
      from += last - first + 1;
    }
    while (numbers.length >= ROWS_AT_ONCE) this.#sql.removeMany.run(...numbers.splice(-ROWS_AT_ONCE));
    for (const seq of numbers) this.#sql.remove.run(seq);
    for (const { seq, element, dueAt, leaseUntil } of rows) {
      if (element !== null && (seq === element || this.#sql.anyOfElement.value(element) === null)) {
        this.#sql.removeElement.run(element);
      }
      if (leaseUntil === null) this.#counter.waitingRemoved(subscription, dueAt);
      else this.#counter.reservedChanged(subscription, -1);
    }
  }

  /**
   * reserved -> finished if the element is plain and small and the reservation has this token. Returns whether it was.
   */
  removeReserved(subscription: Subscription, seq: number, token: string): boolean {
    if (this.#sql.removeReserved.run(seq, subscription.id, token) === 0) return false;
    this.#counter.reservedChanged(subscription, -1);
    return true;
  }

  /**
   * reserved -> finished, for deliveries with consecutive numbers, if each is plain and small and all reservations have
   * this token. Returns whether they were finished; if not, nothing is changed.
   */
  removeReservedRange(subscription: Subscription, first: number, count: number, token: string): boolean {
    const last = first + count - 1;
    if (this.#sql.countReservedRange.value(first, last, subscription.id, token) !== count) return false;
    this.#sql.removeRange.run(first, last);
    this.#counter.reservedChanged(subscription, -count);
    return true;
  }

  /** waiting -> reserved */
  reserve(
    subscription: Subscription,
    rows: readonly Pick<DeliveryRow, 'seq' | 'element' | 'dueAt'>[],
    { until, at, token, holders }: Reservations,
  ): void {
    for (const { element } of rows) this.#counter.beforeChange(subscription, element);
    let values: (string | number)[] = [];
    for (let from = 0; from < rows.length; ) {
      const { first, last } = consecutiveFrom(rows, from);
      const isRange = typeof holders === 'string' && last - first + 1 >= SHORTEST_RANGE;
      if (isRange) this.#sql.reserveRange.run(until, at, token, holders, first, last);
      for (let seq = first; seq <= last && !isRange; seq++) {
        values.push(typeof holders === 'string' ? holders : (holders[from + seq - first] ?? ''), seq);
        if (values.length === ROWS_AT_ONCE * 2) {
          this.#sql.reserveMany.run(until, at, token, ...values);
          values = [];
        }
      }
      from += last - first + 1;
    }
    while (values.length > 0) this.#sql.reserve.run(until, at, token, ...values.splice(0, 2));
    for (const { dueAt } of rows) this.#counter.waitingRemoved(subscription, dueAt);
    this.#counter.reservedChanged(subscription, rows.length);
    this.#leaseStarted(subscription, until);
  }

  /**
   * The same for small plain elements without expiry, only in memory if there are not too many: see
   * {@link UnwrittenReservations}.
   */
  reserveUnwritten(
    subscription: Subscription,
    rows: readonly Pick<DeliveryRow, 'seq' | 'element' | 'dueAt'>[],
    reservation: SharedReservation,
  ): void {
    if (this.#unwritten.size + rows.length > MAX_UNWRITTEN) {
      this.reserve(subscription, rows, reservation);
      return;
    }
    this.#unwritten.add(subscription.id, rows, reservation);
    this.#leasesEndFrom = Math.min(this.#leasesEndFrom, reservation.until);
  }

  /** Whether any reservations are only in memory. */
  get areUnwritten(): boolean {
    return this.#unwritten.size > 0;
  }

  /** Writes the unwritten reservations of a subscription, or of all. */
  writeReservations(ids: readonly number[] = this.#unwritten.subscriptions()): void {
    for (const id of ids) {
      const subscription = this.#queues.subscriptionById(id);
      if (subscription === null) continue;
      for (const { rows, ...reservations } of this.#unwritten.removeAll(id)) {
        const reserved = [...rows].map(([seq, dueAt]) => ({ seq, dueAt, element: null }));
        this.reserve(subscription, reserved, reservations);
      }
    }
  }

  /** The deliveries that have unwritten reservations with a token, with their maturities; null if none has. */
  unwritten({ id }: Subscription, token: string): ReadonlyMap<number, number> | null {
    return this.#unwritten.take(id, token)?.rows ?? null;
  }

  /** reserved -> finished, for deliveries that have unwritten reservations with this token */
  removeUnwritten(subscription: Subscription, seqs: Iterable<number>, token: string): void {
    const take = this.#unwritten.take(subscription.id, token);
    if (take === undefined) return;
    const finished = Array.from(seqs, (seq) => {
      return { seq, element: null, dueAt: take.rows.get(seq) ?? 0, leaseUntil: null };
    });
    this.#unwritten.remove(subscription.id, take, finished);
    this.remove(subscription, finished);
  }

  /** A transaction begins. */
  begin(): void {
    this.#unwritten.begin();
  }

  /** The running transaction was rolled back, and the queues were read again. */
  rollback(): void {
    this.#unwritten.rollback();
    this.findNextLeaseEnd();
  }

  /** Must be called before a delivery becomes waiting: takes would pass over one before the last unwritten one. */
  #beforeWaiting({ id }: Subscription, { dueAt, seq }: Place): void {
    const last = this.#unwritten.lastPlace(id);
    if (last === null || dueAt > last.dueAt || (dueAt === last.dueAt && seq > last.seq)) return;
    this.writeReservations([id]);
  }

  /**
   * reserved or waiting -> waiting
   * @param token the reservation's token if it may still be committed, as after its lease expired; else null
   */
  setWaiting(
    subscription: Subscription,
    row: DeliveryRow,
    { dueAt, tries, token, reason }: Pick<DeliveryRow, 'dueAt' | 'tries' | 'token' | 'reason'>,
    now: number,
  ): void {
    const { seq, element, expiresAt, leaseUntil } = row;
    this.#beforeWaiting(subscription, { dueAt, seq });
    this.#counter.beforeChange(subscription, element);
    const crc = deliveryChecksum(seq, element, subscription.id, dueAt, tries, expiresAt);
    this.#sql.setWaiting.run(dueAt, tries, crc, token, reason, seq);
    if (leaseUntil === null) this.#counter.waitingRemoved(subscription, row.dueAt);
    else this.#counter.reservedChanged(subscription, -1);
    this.#counter.waitingAdded(subscription, dueAt, now);
  }

  /** reserved -> reserved, with another lease end */
  extend(subscription: Subscription, seq: number, until: number): void {
    this.#sql.extend.run(until, seq);
    this.#leaseStarted(subscription, until);
  }

  /** Expired waiting deliveries of all queues, the earliest first. */
  expired(now: number, limit: number): DeliveryRow[] {
    return this.#sql.expired.all(now, limit);
  }

  /** When the next waiting delivery expires; null if none will. */
  nextExpiry(): number | null {
    return this.#sql.firstExpiry.value();
  }

  /** Elements of a stream that were inserted until a moment and have waiting deliveries, the oldest first. */
  waitingUntil({ id }: WorkerQueue, moment: number, limit: number): number[] {
    return this.#sql.waitingUntil.arrays<[number]>(id, moment, limit).map(([element]) => element);
  }

  /** When the first element of a stream after a moment was inserted; Infinity if there is none. */
  firstInsertedAfter({ id }: WorkerQueue, moment: number): number {
    return this.#sql.firstInsertedAfter.value(id, moment) ?? Number.POSITIVE_INFINITY;
  }

  /** The earliest maturity of waiting deliveries, due or not; null if there are none. */
  firstDueAt(subscription: Subscription): number | null {
    const place = this.#unwritten.lastPlace(subscription.id);
    if (place === null) return this.#counter.firstDueAt(subscription);
    return this.#sql.firstDueAfter.value(subscription.id, place.dueAt, place.seq);
  }

  // Leases. Their bounds are never too late: a reservation lowers them, a settlement leaves them unchanged, and a query
  // of the table makes them exact. So a batch in which no lease ends costs one comparison.

  /** Whether `endedLeases` may find leases. */
  mayLeaseHaveEnded(now: number): boolean {
    return this.#leasesEndFrom <= now;
  }

  /** Reservations of all queues that ended at `now` or before, by their ends, up to {@link MAX_LEASES_PER_CALL}. */
  endedLeases(now: number): DeliveryRow[] {
    const found: DeliveryRow[] = [];
    for (const { id, leaseEndsFrom } of this.#queues.subscriptions()) {
      if (leaseEndsFrom > now) continue;
      if (found.length >= MAX_LEASES_PER_CALL) break;
      found.push(...this.#sql.endedLeases.all<DeliveryRow>(id, now, MAX_LEASES_PER_CALL - found.length));
    }
    return found.sort((a, b) => momentInOrder(a) - momentInOrder(b) || a.seq - b.seq);
  }

  /**
   * Finds the exact end of the lease that ends next; null if there is none. One pass, which queries the table only for
   * subscriptions that may have it: with thousands of queues, a pass for each bound of a settled lease would block the
   * thread.
   */
  findNextLeaseEnd(): number | null {
    let next = this.#unwritten.firstEnd();
    for (const subscription of this.#queues.subscriptions()) {
      const { id, leaseEndsFrom, reserved } = subscription;
      if (leaseEndsFrom >= next) continue;
      const end = reserved === 0 ? null : this.#sql.firstLeaseEnd.value<number>(id);
      subscription.leaseEndsFrom = end ?? Number.POSITIVE_INFINITY;
      next = Math.min(next, subscription.leaseEndsFrom);
    }
    this.#leasesEndFrom = next;
    return next === Number.POSITIVE_INFINITY ? null : next;
  }

  #leaseStarted(subscription: Subscription, until: number): void {
    subscription.leaseEndsFrom = Math.min(subscription.leaseEndsFrom, until);
    this.#leasesEndFrom = Math.min(this.#leasesEndFrom, until);
  }
}

/** The run of rows with consecutive numbers that starts at an index. Returns its first and last number. */
function consecutiveFrom(
  rows: readonly { readonly seq: number }[],
  from: number,
): { first: number; last: number } {
  const first = rows[from]?.seq ?? 0;
  let length = 1;
  while (rows[from + length]?.seq === first + length) length++;
  return { first, last: first + length - 1 };
}

/** The number of a delivery's element. */
export function elementOf({ seq, element }: Pick<DeliveryRow, 'seq' | 'element'>): number {
  return element ?? seq;
}

export function stateOf(
  { leaseUntil, dueAt }: Pick<DeliveryRow, 'leaseUntil' | 'dueAt'>,
  now: number,
): DeliveryState {
  if (leaseUntil !== null) return 'reserved';
  return dueAt <= now ? 'ready' : 'scheduled';
}

/** The moment that orders deliveries of a state. */
function momentInOrder({ leaseUntil, dueAt }: Pick<DeliveryRow, 'leaseUntil' | 'dueAt'>): number {
  return leaseUntil ?? dueAt;
}

/** Whether the checksum of a delivery matches. A delivery that fails is never handed to a consumer. */
export function isIntactDelivery(
  row: Omit<DeliveryRow, 'reason' | 'token' | 'holder' | 'leaseUntil'>,
): boolean {
  const { seq, element, subscription, dueAt, tries, expiresAt, crc } = row;
  return deliveryChecksum(seq, element, subscription, dueAt, tries, expiresAt) === crc;
}

/** Whether the checksum of a delivery's content matches. */
export function isIntactContent(
  row: Pick<DeliveryRow, 'seq' | 'element'>,
  { type, more, contentCrc, body }: Omit<ElementRow, 'insertedAt'>,
): boolean {
  return elementChecksum(elementOf(row), type, more, body) === contentCrc;
}
