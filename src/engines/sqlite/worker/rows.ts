import type { DatabaseSync } from 'node:sqlite';
import { crc32 } from 'node:zlib';
import type { ScanPlace } from '../../../engine/scan-cursor.ts';
import type { PurgeStep } from '../../../engine/storage.ts';
import { DELIVERY_STATES, type DeliveryState, PLAIN_GROUP } from '../../../model/element.ts';
import type { QueueName } from '../protocol.ts';
import type { Queues, StateCounts, Subscription, WorkerQueue } from './queues.ts';
import { prepareAll, type Statements } from './schema.ts';

/** An element's content as it is stored: the content type, and all rarer fields as one JSON text or null. */
interface StoredContent {
  readonly type: string | null;
  readonly more: string | null;
  readonly body: Uint8Array;
}

/** The facts of a new delivery. */
interface NewDelivery {
  readonly dueAt: number;
  readonly tries: number;
  readonly expiresAt: number | null;
  readonly reason: string | null;
}

/** A new element, with the facts of its delivery. */
export interface NewRow extends StoredContent, NewDelivery {}

/** A delivery's own fields. */
export interface DeliveryRow extends NewDelivery {
  readonly seq: number;
  /** Where its content is; null: in its own row. */
  readonly element: number | null;
  readonly subscription: number;
  readonly crc: number;
  /** What is stored for the last reservation's token; null once that reservation was released, or if there was none. */
  readonly token: string | null;
  /** Null: waiting. */
  readonly leaseUntil: number | null;
  /** Of the last reservation; 0 or null: nobody. */
  readonly owner: number | null;
}

/** An element's content, where it came from. */
export interface ElementRow extends StoredContent {
  readonly contentCrc: number;
  readonly insertedAt: number;
}

/** A delivery with its content, which a fault of the disk may have taken. */
type WholeRow = DeliveryRow & {
  readonly [K in keyof ElementRow]: ElementRow[K] | null;
};

/** Those of a page that is scanned. */
export type ScannedRow = WholeRow & {
  /** Of the body, which was read or not. */
  readonly bytes: number | null;
  /** Of the last reservation; null if there was none. */
  readonly reservedAt: number | null;
  readonly holder: string | null;
};

/** What a take needs of a delivery. */
export type ReadyRow = Omit<WholeRow, 'token' | 'owner' | 'insertedAt'>;

/** New reservations, made by one call. */
interface Reservations {
  readonly until: number;
  readonly owner: number;
  /** When they are made. */
  readonly at: number;
  /** What is stored for it, see `tokens.ts`. */
  readonly token: string;
  /** One for all, or one by place (see `holderTexts`). */
  readonly holders: string | readonly string[];
}

const OWN =
  'd.seq, d.element, d.subscription, d.due_at AS dueAt, d.tries, d.crc, d.expires_at AS expiresAt, d.reason, d.token, d.lease_until AS leaseUntil, d.owner';
const CONTENT =
  'ifnull(d.type, e.type) AS type, ifnull(d.more, e.more) AS more, ifnull(d.content_crc, e.crc) AS contentCrc, ifnull(d.inserted_at, e.inserted_at) AS insertedAt';
const BODY = 'ifnull(d.body, e.body) AS body';
const HELD = 'd.reserved_at AS reservedAt, d.holder';
const WHOLE = `${OWN}, ${CONTENT}, ${BODY}`;
const SCANNED = `${WHOLE}, ${HELD}, length(ifnull(d.body, e.body)) AS bytes`;
// The length of a body is found without reading it if it is asked for by its column.
const SCANNED_WITHOUT_BODY = `${OWN}, ${CONTENT}, NULL AS body, ${HELD}, ifnull(length(d.body), length(e.body)) AS bytes`;
// The number of no element is null, so an element is looked up only if the content is not in the row.
const FROM = 'FROM delivery d LEFT JOIN element e ON e.seq = d.element';

/**
 * A bound limit. A bare `?` would let SQLite look at its value for the plan and compile the statement again at
 * each binding: 18 µs a call instead of 3, measured.
 */
const BOUND = '? + 0';

const WAITING = 'FROM delivery d WHERE d.subscription = ? AND d.lease_until IS NULL';
const RESERVED = 'FROM delivery d WHERE d.subscription = ? AND d.lease_until IS NOT NULL';
// One that a fault of the disk took from its subscription stays: it must not be found again and again.
const EXPIRING =
  'FROM delivery d WHERE d.expires_at IS NOT NULL AND d.lease_until IS NULL AND EXISTS (SELECT 1 FROM subscription s WHERE s.id = d.subscription)';

/**
 * Elements of several groups that one count reads, at most: 70 ms. After a start there may be millions, and as many may
 * become due at one moment.
 */
const READ_A_COUNT = 20_000;
/** Of so many groups, or fewer: one of more groups counts as several. */
const GROUPS_OF_READ = 3;

const STATES = `SELECT sum(d.lease_until IS NULL AND d.due_at <= :now) AS ready,
       sum(d.lease_until IS NULL AND d.due_at > :now) AS scheduled, sum(d.lease_until IS NOT NULL) AS reserved`;

const ADD =
  'INSERT INTO delivery (seq, subscription, due_at, tries, crc, expires_at, reason, element, inserted_at, type, more, content_crc, body) VALUES ';
const ADDED_ROW = '(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)';
const ADDED_COLUMNS = 13;
/**
 * Rows that one statement changes. Of an insert they cost 0.86 µs a row, one statement for each 1.4, and 32 rows save
 * another 5 %; of a pop 2.7 µs and 3.1, of a reservation 4.7 and 5.5, each with its selection.
 */
const ROWS_AT_ONCE = 16;
/**
 * Deliveries whose numbers follow each other are changed by their range: 64 that are removed by one statement take 1.6
 * µs each with their selection, by statements of 16 numbers 2.1. Nothing but they can be in the range.
 */
export const SHORTEST_RANGE = 4;

const SQL = {
  add: `${ADD}${ADDED_ROW}`,
  addMany: `${ADD}${manyOf(ADDED_ROW)}`,
  addElement:
    'INSERT INTO element (seq, queue, groups, inserted_at, type, more, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
  // A delivery of a named group has another number than its element: see `schema.ts`.
  findPlain: `SELECT ${OWN} FROM delivery d WHERE d.seq = ? AND d.subscription = ?`,
  findShared: `SELECT ${OWN} FROM delivery d WHERE d.element = ? AND d.subscription = ?`,
  wholePlain: `SELECT ${SCANNED} ${FROM} WHERE d.seq = ? AND d.subscription = ?`,
  wholeShared: `SELECT ${SCANNED} ${FROM} WHERE d.element = ? AND d.subscription = ?`,
  namedPlain: `SELECT ${SCANNED_WITHOUT_BODY} ${FROM} WHERE d.seq = ? AND d.subscription = ?`,
  namedShared: `SELECT ${SCANNED_WITHOUT_BODY} ${FROM} WHERE d.element = ? AND d.subscription = ?`,
  ofElement: `SELECT ${OWN} FROM delivery d WHERE d.seq = :element AND (d.element IS NULL OR d.element = :element)
       UNION ALL SELECT ${OWN} FROM delivery d WHERE d.element = :element AND d.seq <> :element`,
  remove: 'DELETE FROM delivery WHERE seq = ?',
  removeRange: 'DELETE FROM delivery WHERE seq BETWEEN ? AND ?',
  removeMany: `DELETE FROM delivery WHERE seq IN (${manyOf('?')})`,
  removeHeld:
    'DELETE FROM delivery WHERE seq = ? AND subscription = ? AND token = ? AND lease_until IS NOT NULL AND element IS NULL',
  // Without its hint the number of rows would be counted by the index of all reservations.
  countHeld: `SELECT count(*) AS n FROM delivery NOT INDEXED WHERE seq BETWEEN ? AND ? AND subscription = ? AND token = ?
       AND lease_until IS NOT NULL AND element IS NULL`,
  reserve:
    'UPDATE delivery SET lease_until = ?, owner = ?, reserved_at = ?, token = ?, holder = ? WHERE seq = ?',
  reserveRange:
    'UPDATE delivery SET lease_until = ?, owner = ?, reserved_at = ?, token = ?, holder = ? WHERE seq BETWEEN ? AND ?',
  reserveMany: `UPDATE delivery SET lease_until = ?, owner = ?, reserved_at = ?, token = ?, holder = v.column1
       FROM (VALUES ${manyOf('(?, ?)')}) v WHERE seq = v.column2`,
  wait: 'UPDATE delivery SET due_at = ?, tries = ?, crc = ?, token = ?, reason = ?, lease_until = NULL WHERE seq = ?',
  extend: 'UPDATE delivery SET lease_until = ? WHERE seq = ?',
  content:
    'SELECT type, more, content_crc AS contentCrc, body, inserted_at AS insertedAt FROM delivery WHERE seq = ?',
  sharedContent:
    'SELECT type, more, crc AS contentCrc, body, inserted_at AS insertedAt FROM element WHERE seq = ?',
  removeElement: 'DELETE FROM element WHERE seq = ?',
  anyOfElement: 'SELECT 1 FROM delivery WHERE element = ? LIMIT 1',
  bySeq: `SELECT ${OWN} FROM delivery d WHERE d.seq = ?`,
  markShared: 'UPDATE element SET groups = 2 WHERE seq = ? AND groups < 2',
  setAside:
    'INSERT OR REPLACE INTO damaged (seq, queue, found_at, type, more, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?)',
  expired: `SELECT ${OWN} ${EXPIRING} AND d.expires_at <= ? ORDER BY d.expires_at LIMIT ${BOUND}`,
  firstExpiry: `SELECT d.expires_at AS at ${EXPIRING} ORDER BY d.expires_at LIMIT 1`,
  countDue: `SELECT count(*) AS n ${WAITING} AND d.due_at > ? AND d.due_at <= ?`,
  countReserved: `SELECT count(*) AS n ${RESERVED}`,
  firstDue: `SELECT d.due_at AS at ${WAITING} ORDER BY d.due_at LIMIT 1`,
  firstDueAfter: `SELECT d.due_at AS at ${WAITING} AND d.due_at > ? ORDER BY d.due_at LIMIT 1`,
  endedLeases: `SELECT ${OWN} ${RESERVED} AND d.lease_until <= ? ORDER BY d.lease_until, d.seq LIMIT ${BOUND}`,
  firstLeaseEnd: `SELECT d.lease_until AS at ${RESERVED} ORDER BY d.lease_until LIMIT 1`,
  sharedStates: `${STATES}, e.seq FROM element e INDEXED BY element_shared CROSS JOIN delivery d ON d.element = e.seq
       WHERE e.queue = :queue AND e.groups > 1 AND e.seq > :after GROUP BY e.seq ORDER BY e.seq`,
  statesOf: `${STATES} FROM element e CROSS JOIN delivery d ON d.element = e.seq
       WHERE e.seq = :element AND e.groups > 1 GROUP BY e.seq`,
  becameDue: `SELECT d.element ${WAITING} AND d.due_at > ? AND d.due_at <= ? LIMIT ${BOUND}`,
  // The body of what expired is not read: a thousand of them may be a gigabyte.
  ready: `SELECT d.seq, d.element, d.due_at, d.tries, d.crc, d.expires_at, d.reason,
            ifnull(d.type, e.type), ifnull(d.more, e.more), ifnull(d.content_crc, e.crc),
            iif(d.expires_at <= ?, NULL, ifnull(d.body, e.body)) ${FROM}
       WHERE d.subscription = ? AND d.lease_until IS NULL AND d.due_at <= ? ORDER BY d.due_at, d.seq LIMIT ${BOUND}`,
} as const;

function manyOf(row: string): string {
  return Array(ROWS_AT_ONCE).fill(row).join(', ');
}

const BY_STATE: Readonly<Record<DeliveryState, string>> = {
  ready: 'd.lease_until IS NULL AND d.due_at <= :now',
  scheduled: 'd.lease_until IS NULL AND d.due_at > :now',
  reserved: 'd.lease_until IS NOT NULL AND :now IS NOT NULL',
};

const IN_STATE = ofStates(
  (state) =>
    `SELECT ${OWN} FROM delivery d WHERE d.subscription = :subscription AND ${BY_STATE[state]} LIMIT :limit`,
);

/** Pages of deliveries behind a moment and a number. */
function pagesOf(columns: string): Record<DeliveryState, string> {
  return ofStates((state) => {
    const key = state === 'reserved' ? 'd.lease_until' : 'd.due_at';
    return `SELECT ${columns} ${FROM} WHERE d.subscription = :subscription AND ${BY_STATE[state]}
            AND (${key}, d.seq) > (:moment, :seq) ORDER BY ${key}, d.seq LIMIT :limit`;
  });
}

function ofStates(sql: (state: DeliveryState) => string): Record<DeliveryState, string> {
  return { ready: sql('ready'), scheduled: sql('scheduled'), reserved: sql('reserved') };
}

const REPAIRS = [
  repairOf(
    'delivery',
    'due_at tries lease_until owner reserved_at expires_at element inserted_at content_crc crc',
  ),
  repairOf('element', 'queue groups inserted_at crc'),
];

/** Replaces numbers that cannot be read; no checksum is -1. */
function repairOf(table: string, names: string): string {
  const columns = names.split(' ');
  const isTooLarge = (column: string): string =>
    `${column} NOT BETWEEN ${Number.MIN_SAFE_INTEGER} AND ${Number.MAX_SAFE_INTEGER}`;
  const repaired = columns.map((column) =>
    column === 'crc' ? 'crc = -1' : `${column} = iif(${isTooLarge(column)}, 0, ${column})`,
  );
  return `UPDATE ${table} SET ${repaired.join(', ')} WHERE ${columns.map(isTooLarge).join(' OR ')}`;
}

/** Bodies up to this size stay in the row of their delivery, which a reservation rewrites. */
const MAX_INLINE_BYTES = 1024;

/** Deliveries that one step of a purge removes at most: 10 ms. */
const PURGED_A_STEP = 2000;
/** And pages, about: 128 MiB, for which SQLite takes as long. */
const PURGED_PAGES = 32_768;
/** Deliveries that a purge removes between two looks at how many pages it has freed: one costs 16 µs. */
const PURGED_A_LOOK = 128;

/** Elements of several groups that change between two counts of their queue, before all are read again. */
const MAX_CHANGED = 250_000;

/** How many leases one call ends. More wait for the next call, which follows at once. */
const LEASES_A_CALL = 1000;

/**
 * Deliveries and elements. Each method that changes deliveries is one change of state (`docs/concepts.md`), and keeps
 * the counts and lease bounds of their subscription in step with the table.
 */
export class Rows {
  readonly #db: DatabaseSync;
  readonly #queues: Queues;
  /** No lease of any queue ends before this moment. */
  #leasesEndFrom = Number.POSITIVE_INFINITY;

  readonly #sql: Statements<typeof SQL>;
  readonly #pages: Statements<Record<DeliveryState, string>>;
  readonly #pagesWithoutBodies: Statements<Record<DeliveryState, string>>;
  readonly #inState: Statements<Record<DeliveryState, string>>;

  constructor(db: DatabaseSync, queues: Queues) {
    this.#db = db;
    this.#queues = queues;
    this.#sql = prepareAll(db, SQL);
    this.#sql.ready.setReturnArrays(true);
    this.#pages = prepareAll(db, pagesOf(SCANNED));
    this.#pagesWithoutBodies = prepareAll(db, pagesOf(SCANNED_WITHOUT_BODY));
    this.#inState = prepareAll(db, IN_STATE);
    this.findNextLeaseEnd();
  }

  // Elements.

  /**
   * Plain elements of one subscription, whose numbers follow each other from `first`, each with its delivery. Content
   * that is small is in the delivery's row.
   */
  addPlain(subscription: Subscription, first: number, elements: readonly NewRow[], now: number): void {
    let values: (string | number | null | Uint8Array)[] = [];
    let seq = first;
    for (const { type, more, body, dueAt, tries, expiresAt, reason } of elements) {
      const contentCrc = elementChecksum(seq, type, more, body);
      const element = body.byteLength <= MAX_INLINE_BYTES ? null : seq;
      const crc = deliveryChecksum(seq, element, subscription.id, dueAt, tries, expiresAt);
      values.push(seq, subscription.id, dueAt, tries, crc, expiresAt, reason, element);
      if (element === null) values.push(now, type, more, contentCrc, body);
      else {
        this.#sql.addElement.run(seq, subscription.queue.id, 0, now, type, more, contentCrc, body);
        values.push(null, null, null, null, null);
      }
      if (values.length === ROWS_AT_ONCE * ADDED_COLUMNS) {
        this.#sql.addMany.run(...values);
        values = [];
      }
      this.#waitingAdded(subscription, dueAt, now);
      seq++;
    }
    while (values.length > ADDED_COLUMNS) this.#sql.add.run(...values.splice(0, ADDED_COLUMNS));
    if (values.length > 0) this.#sql.add.run(...values);
  }

  /** @param groups how many groups the element is for */
  addElement(queue: WorkerQueue, seq: number, groups: number, content: StoredContent, now: number): void {
    const { type, more, body } = content;
    const crc = elementChecksum(seq, type, more, body);
    this.#sql.addElement.run(seq, queue.id, groups, now, type, more, crc, body);
  }

  /** (none) -> waiting, for a group of an element that `addElement` stored */
  addShared(subscription: Subscription, seq: number, element: number, facts: NewDelivery, now: number): void {
    const { dueAt, tries, expiresAt, reason } = facts;
    const { id } = subscription;
    this.#sharedChanges(subscription, element);
    const crc = deliveryChecksum(seq, element, id, dueAt, tries, expiresAt);
    const own = [seq, id, dueAt, tries, crc, expiresAt, reason, element];
    this.#sql.add.run(...own, null, null, null, null, null);
    this.#waitingAdded(subscription, dueAt, now);
  }

  /** Content of a delivery, which may have been read with it; null if a fault of the disk took it. */
  contentOf(row: DeliveryRow | WholeRow): ElementRow | null {
    const { seq, element } = row;
    const statement = element === null ? this.#sql.content : this.#sql.sharedContent;
    const found = 'body' in row ? row : statement.get(element ?? seq);
    const isThere = found !== undefined && found.contentCrc !== null && found.body !== null;
    return isThere ? (found as unknown as ElementRow) : null;
  }

  hasElement(seq: number): boolean {
    return this.#sql.sharedContent.get(seq) !== undefined;
  }

  /** A second group has a delivery of this element again. */
  markShared(seq: number): void {
    this.#sql.markShared.run(seq);
  }

  /**
   * Makes rows readable again in which a fault of the disk left a number of more than 53 bits, so that they can be set
   * aside. Reads both tables, once for each such fault.
   */
  makeReadable(): void {
    for (const sql of REPAIRS) this.#db.exec(sql);
    for (const queue of this.#queues.all()) queue.shared = null;
  }

  /** Copies an element whose checksum does not fit to the table `damaged`. */
  setAside(element: number, queue: number, { type, more, contentCrc, body }: ElementRow, now: number): void {
    this.#sql.setAside.run(element, queue, now, type, more, contentCrc, body);
  }

  // Deliveries.

  bySeq(seq: number): DeliveryRow | null {
    return (this.#sql.bySeq.get(seq) as unknown as DeliveryRow | undefined) ?? null;
  }

  /** @param element the number of its element */
  find({ id, group }: Subscription, element: number): DeliveryRow | null {
    const statement = group === PLAIN_GROUP ? this.#sql.findPlain : this.#sql.findShared;
    return (statement.get(element, id) as unknown as DeliveryRow | undefined) ?? null;
  }

  /**
   * The same with its content, `hasBody`: and its body, in one statement: two take a bulk move a fifth more processor
   * time.
   */
  findWhole({ id, group }: Subscription, element: number, hasBody = true): ScannedRow | null {
    const { wholePlain, wholeShared, namedPlain, namedShared } = this.#sql;
    const [plain, shared] = hasBody ? [wholePlain, wholeShared] : [namedPlain, namedShared];
    const statement = group === PLAIN_GROUP ? plain : shared;
    return (statement.get(element, id) as unknown as ScannedRow | undefined) ?? null;
  }

  /**
   * Deliveries of these elements in some states, in the order of pages: by state, then in delivery order. Null is no
   * element.
   */
  named(
    subscription: Subscription,
    elements: readonly (number | null)[],
    now: number,
    states: readonly string[],
    bodies: boolean,
  ): (ScannedRow & { readonly state: DeliveryState })[] {
    const found = new Map<number, ScannedRow & { readonly state: DeliveryState }>();
    for (const element of elements) {
      const row = element === null ? null : this.findWhole(subscription, element, bodies);
      if (row === null) continue;
      const state = row.leaseUntil !== null ? 'reserved' : row.dueAt <= now ? 'ready' : 'scheduled';
      if (states.includes(state)) found.set(row.seq, { ...row, state });
    }
    const order = DELIVERY_STATES;
    return [...found.values()].sort(
      (a, b) => order.indexOf(a.state) - order.indexOf(b.state) || placeOf(a) - placeOf(b) || a.seq - b.seq,
    );
  }

  /** All deliveries of an element, whatever their state. */
  ofElement(element: number): DeliveryRow[] {
    return this.#sql.ofElement.all({ element }) as unknown as DeliveryRow[];
  }

  /**
   * The first `limit` eligible deliveries, by maturity, then by insertion; those that expired without their bodies.
   * They are read as arrays, which is faster.
   */
  ready({ id: subscription }: Subscription, now: number, limit: number): ReadyRow[] {
    const rows = this.#sql.ready.all(now, subscription, now, limit) as unknown as [
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
    ][];
    return rows.map(
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

  /**
   * Deliveries in a state behind a place, by their moment (maturity, or lease end) and number. Bodies are read one by
   * one, 0.8 µs a row more, as a page may end at a few large ones: reading a hundred of 1 MiB for sixteen would hold up
   * the thread.
   */
  page(
    { id: subscription }: Subscription,
    { state, moment, seq }: ScanPlace,
    now: number,
    limit: number,
    bodies: boolean,
  ): Iterable<ScannedRow> {
    const range = { subscription, now, moment, seq, limit };
    const rows = bodies ? this.#pages[state].iterate(range) : this.#pagesWithoutBodies[state].all(range);
    return rows as unknown as Iterable<ScannedRow>;
  }

  /**
   * A step may be of several groups, and is done once it found less than it may remove.
   * @param freePages how many pages are free
   */
  purge(name: QueueName, given: readonly string[] | null, now: number, freePages: () => number): PurgeStep {
    const states = DELIVERY_STATES.filter((state) => given === null || given.includes(state));
    const most = freePages() + PURGED_PAGES;
    let removed = 0;
    for (const subscription of this.#queues.find(name)?.subscriptions.values() ?? []) {
      for (const state of states) {
        const limit = PURGED_A_STEP - removed;
        const page = { subscription: subscription.id, now, limit };
        const found = this.#inState[state].all(page) as unknown as DeliveryRow[];
        for (let from = 0; from < found.length; from += PURGED_A_LOOK) {
          const some = found.slice(from, from + PURGED_A_LOOK);
          this.remove(subscription, some);
          removed += some.length;
          const areSmall = some.every(({ element }) => element === null);
          if (!areSmall && freePages() >= most) return { removed, isDone: false };
        }
        if (removed === PURGED_A_STEP) return { removed, isDone: false };
      }
    }
    return { removed, isDone: true };
  }

  /** reserved or waiting -> finished; an element goes with its last delivery */
  remove(
    subscription: Subscription,
    rows: readonly Pick<DeliveryRow, 'seq' | 'element' | 'dueAt' | 'leaseUntil'>[],
  ): void {
    for (const { element } of rows) this.#sharedChanges(subscription, element);
    const numbers: number[] = [];
    for (let from = 0; from < rows.length; ) {
      const { first, last } = runFrom(rows, from);
      if (last - first + 1 >= SHORTEST_RANGE) this.#sql.removeRange.run(first, last);
      else for (let seq = first; seq <= last; seq++) numbers.push(seq);
      from += last - first + 1;
    }
    while (numbers.length >= ROWS_AT_ONCE) this.#sql.removeMany.run(...numbers.splice(-ROWS_AT_ONCE));
    for (const seq of numbers) this.#sql.remove.run(seq);
    for (const { seq, element, dueAt, leaseUntil } of rows) {
      if (element !== null && (seq === element || this.#sql.anyOfElement.get(element) === undefined)) {
        this.#sql.removeElement.run(element);
      }
      if (leaseUntil === null) this.#waitingRemoved(subscription, dueAt);
      else this.#reservedChanged(subscription, -1);
    }
  }

  /** reserved -> finished, if it is plain and small and the reservation has this token. Returns whether it was. */
  removeHeld(subscription: Subscription, seq: number, token: string): boolean {
    if (this.#sql.removeHeld.run(seq, subscription.id, token).changes === 0) return false;
    this.#reservedChanged(subscription, -1);
    return true;
  }

  /**
   * reserved -> finished, for deliveries whose numbers follow each other, if each is plain and small and all
   * reservations have this token. Returns whether they were; else nothing is changed.
   */
  removeHeldRange(subscription: Subscription, first: number, count: number, token: string): boolean {
    const last = first + count - 1;
    if (this.#sql.countHeld.get(first, last, subscription.id, token)?.n !== count) return false;
    this.#sql.removeRange.run(first, last);
    this.#reservedChanged(subscription, -count);
    return true;
  }

  /** waiting -> reserved */
  reserve(
    subscription: Subscription,
    rows: readonly Pick<DeliveryRow, 'seq' | 'element' | 'dueAt'>[],
    { until, owner, at, token, holders }: Reservations,
  ): void {
    for (const { element } of rows) this.#sharedChanges(subscription, element);
    let values: (string | number)[] = [];
    for (let from = 0; from < rows.length; ) {
      const { first, last } = runFrom(rows, from);
      const isRange = typeof holders === 'string' && last - first + 1 >= SHORTEST_RANGE;
      if (isRange) this.#sql.reserveRange.run(until, owner, at, token, holders, first, last);
      for (let seq = first; seq <= last && !isRange; seq++) {
        values.push(typeof holders === 'string' ? holders : (holders[from + seq - first] ?? ''), seq);
        if (values.length === ROWS_AT_ONCE * 2) {
          this.#sql.reserveMany.run(until, owner, at, token, ...values);
          values = [];
        }
      }
      from += last - first + 1;
    }
    while (values.length > 0) this.#sql.reserve.run(until, owner, at, token, ...values.splice(0, 2));
    for (const { dueAt } of rows) this.#waitingRemoved(subscription, dueAt);
    this.#reservedChanged(subscription, rows.length);
    this.#leaseStarted(subscription, until);
  }

  /**
   * reserved or waiting -> waiting
   * @param token the reservation's token if it may still be committed, as after its lease ended; else null
   */
  wait(
    subscription: Subscription,
    row: DeliveryRow,
    { dueAt, tries, token, reason }: Pick<DeliveryRow, 'dueAt' | 'tries' | 'token' | 'reason'>,
    now: number,
  ): void {
    const { seq, element, expiresAt, leaseUntil } = row;
    this.#sharedChanges(subscription, element);
    const crc = deliveryChecksum(seq, element, subscription.id, dueAt, tries, expiresAt);
    this.#sql.wait.run(dueAt, tries, crc, token, reason, seq);
    if (leaseUntil === null) this.#waitingRemoved(subscription, row.dueAt);
    else this.#reservedChanged(subscription, -1);
    this.#waitingAdded(subscription, dueAt, now);
  }

  /** reserved -> reserved, until another moment */
  extend(subscription: Subscription, seq: number, until: number): void {
    this.#sql.extend.run(until, seq);
    this.#leaseStarted(subscription, until);
  }

  /** Waiting deliveries that expired, over all queues. */
  expired(now: number, limit: number): DeliveryRow[] {
    return this.#sql.expired.all(now, limit) as unknown as DeliveryRow[];
  }

  /** When the next waiting delivery expires; null if none does. */
  nextExpiry(): number | null {
    return momentOf(this.#sql.firstExpiry.get());
  }

  // Counts: see `Subscription`.

  /** Brings a subscription's counts to `now`, which changes no fact. */
  count(subscription: Subscription, now: number): Subscription {
    const { id, countedAt, scheduledFrom } = subscription;
    // After a restart the clock may show an earlier time: what was ready only by the later one is scheduled again.
    const isBack = now < countedAt;
    if (isBack || scheduledFrom <= now) {
      const [from, to] = isBack ? [now, countedAt] : [countedAt, now];
      const due = Number(this.#sql.countDue.get(id, from, to)?.n);
      subscription.ready += isBack ? -due : due;
      subscription.scheduled -= isBack ? -due : due;
      this.#lookAhead(subscription, now);
    }
    subscription.countedAt = now;
    return subscription;
  }

  /** The earliest maturity of what waits, due or not. */
  firstDueAt({ id }: Subscription): number | null {
    return momentOf(this.#sql.firstDue.get(id));
  }

  /** See {@link SharedCounts}. To be called when all subscriptions of the queue were counted at `now`. */
  countShared(queue: WorkerQueue, now: number): StateCounts {
    this.#noteDue(queue, now);
    const beyond: StateCounts = queue.shared?.beyond ?? { ready: 0, scheduled: 0, reserved: 0 };
    const changed = queue.shared?.changed ?? new Set();
    let left = READ_A_COUNT;
    for (const element of changed) {
      if (left <= 0) break;
      changed.delete(element);
      left -= addBeyond(beyond, this.#statesOf(element, now), 1);
    }
    const readTo = this.#readShared(queue, now, beyond, left);
    let holdsUntil = Number.POSITIVE_INFINITY;
    for (const { scheduledFrom } of queue.subscriptions.values()) {
      holdsUntil = Math.min(holdsUntil, scheduledFrom);
    }
    const isPart = changed.size > 0 || readTo < Number.POSITIVE_INFINITY;
    queue.shared = { beyond, readTo, countedAt: now, holdsUntil, changed, isPart };
    return beyond;
  }

  /** Reads elements that were not read yet, as many as are left of a count. Returns up to which they are read. */
  #readShared({ id, shared }: WorkerQueue, now: number, beyond: StateCounts, most: number): number {
    const after = shared?.readTo ?? Number.MIN_SAFE_INTEGER;
    let left = most;
    if (after === Number.POSITIVE_INFINITY || left <= 0) return after;
    for (const row of this.#sql.sharedStates.iterate({ now, queue: id, after })) {
      left -= addBeyond(beyond, row as unknown as StateCounts, 1);
      if (left <= 0) return Number(row.seq);
    }
    return Number.POSITIVE_INFINITY;
  }

  /**
   * Deliveries that became due since the last count change the states of their elements. If they are more than one
   * count may read, or the clock was set back, all elements are read again, a part at a time.
   */
  #noteDue(queue: WorkerQueue, now: number): void {
    const { shared } = queue;
    if (shared === null || (now >= shared.countedAt && now < shared.holdsUntil)) return;
    let left = now < shared.countedAt ? 0 : READ_A_COUNT;
    for (const subscription of queue.subscriptions.values()) {
      if (left <= 0) break;
      const most = Math.ceil(left * GROUPS_OF_READ);
      const due = this.#sql.becameDue.all(subscription.id, shared.countedAt, now, most);
      left -= due.length / GROUPS_OF_READ;
      for (const { element } of due) {
        if (left <= 0) break;
        left -= this.#sharedChanges(subscription, element as number | null);
      }
    }
    if (left <= 0) queue.shared = null;
  }

  /**
   * A delivery of an element is about to change, be made or go. Null: that of a plain queue. Returns what of
   * {@link READ_A_COUNT} it read.
   */
  #sharedChanges({ queue }: Subscription, element: number | null): number {
    const { shared } = queue;
    if (shared === null || element === null || element > shared.readTo || shared.changed.has(element))
      return 0;
    const read = addBeyond(shared.beyond, this.#statesOf(element, shared.countedAt), -1);
    shared.changed.add(element);
    // Reading so many one by one costs as much as reading all.
    if (shared.changed.size >= MAX_CHANGED) queue.shared = null;
    return read;
  }

  #statesOf(element: number, now: number): StateCounts | undefined {
    return this.#sql.statesOf.get({ now, element }) as unknown as StateCounts | undefined;
  }

  /** Counts the table's rows: slow, for when it can no longer be trusted to agree with what was counted. */
  recount(subscription: Subscription, now: number): void {
    this.#queues.changed(subscription);
    const { id, queue } = subscription;
    queue.shared = null;
    subscription.countedAt = now;
    subscription.ready = Number(this.#sql.countDue.get(id, Number.MIN_SAFE_INTEGER, now)?.n);
    subscription.scheduled = Number(this.#sql.countDue.get(id, now, Number.MAX_SAFE_INTEGER)?.n);
    subscription.reserved = Number(this.#sql.countReserved.get(id)?.n);
    this.#lookAhead(subscription, now);
  }

  /** `now` lets the counts follow the clock if that is free. */
  #waitingAdded(subscription: Subscription, dueAt: number, now: number): void {
    this.#queues.changed(subscription);
    if (subscription.countedAt < now && subscription.scheduledFrom > now) subscription.countedAt = now;
    if (dueAt <= subscription.countedAt) subscription.ready++;
    else {
      subscription.scheduled++;
      if (dueAt < subscription.scheduledFrom) subscription.scheduledFrom = dueAt;
    }
  }

  #waitingRemoved(subscription: Subscription, dueAt: number): void {
    this.#queues.changed(subscription);
    if (dueAt <= subscription.countedAt) subscription.ready--;
    else if (--subscription.scheduled === 0) subscription.scheduledFrom = Number.POSITIVE_INFINITY;
  }

  #reservedChanged(subscription: Subscription, difference: number): void {
    this.#queues.changed(subscription);
    subscription.reserved += difference;
  }

  #lookAhead(subscription: Subscription, now: number): void {
    const next =
      subscription.scheduled === 0 ? null : momentOf(this.#sql.firstDueAfter.get(subscription.id, now));
    subscription.scheduledFrom = next ?? Number.POSITIVE_INFINITY;
  }

  // Leases. Their bounds are never too late: a reservation pulls them forward, a settled one leaves them, and reading
  // the table makes them exact. So a batch in which no lease ends pays one comparison.

  /** Whether `endedLeases` may find something. */
  mayLeaseHaveEnded(now: number): boolean {
    return this.#leasesEndFrom <= now;
  }

  /** Some reservations that ended at `now` or before, in the order of their ends, over all queues. */
  endedLeases(now: number): DeliveryRow[] {
    const found: DeliveryRow[] = [];
    for (const { id, leaseEndsFrom } of this.#queues.subscriptions()) {
      if (leaseEndsFrom > now) continue;
      if (found.length >= LEASES_A_CALL) break;
      const rows = this.#sql.endedLeases.all(id, now, LEASES_A_CALL - found.length);
      found.push(...(rows as unknown as DeliveryRow[]));
    }
    return found.sort((a, b) => placeOf(a) - placeOf(b) || a.seq - b.seq);
  }

  /**
   * Finds the end of the lease that ends next, exactly; null if none runs. One pass, which asks the table only about
   * subscriptions that may have it: with thousands of queues, a pass for each bound of a lease that was settled would
   * stop the thread.
   */
  findNextLeaseEnd(): number | null {
    let next = Number.POSITIVE_INFINITY;
    for (const subscription of this.#queues.subscriptions()) {
      const { id, leaseEndsFrom, reserved } = subscription;
      if (leaseEndsFrom >= next) continue;
      const end = reserved === 0 ? null : momentOf(this.#sql.firstLeaseEnd.get(id));
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

/** The rows from one index on whose numbers follow each other, by their numbers. */
function runFrom(rows: readonly { readonly seq: number }[], from: number): { first: number; last: number } {
  const first = rows[from]?.seq ?? 0;
  let length = 1;
  while (rows[from + length]?.seq === first + length) length++;
  return { first, last: first + length - 1 };
}

/**
 * Adds, or takes away, what the deliveries of an element are beyond the element itself. Returns what of
 * {@link READ_A_COUNT} it took to read them.
 */
function addBeyond(beyond: StateCounts, states: StateCounts | undefined, sign: 1 | -1): number {
  if (states === undefined) return 1;
  for (const state of DELIVERY_STATES) beyond[state] += sign * states[state];
  beyond[states.ready > 0 ? 'ready' : states.scheduled > 0 ? 'scheduled' : 'reserved'] -= sign;
  return Math.max(1, (states.ready + states.scheduled + states.reserved) / GROUPS_OF_READ);
}

/** The number of a delivery's element. */
export function elementOf({ seq, element }: Pick<DeliveryRow, 'seq' | 'element'>): number {
  return element ?? seq;
}

/** The moment by which deliveries of a state are in order. */
function placeOf({ leaseUntil, dueAt }: Pick<DeliveryRow, 'leaseUntil' | 'dueAt'>): number {
  return leaseUntil ?? dueAt;
}

/** The moment of a row, null if there is none. */
function momentOf(row: Record<string, unknown> | undefined): number | null {
  return row === undefined ? null : Number(row.at);
}

/** Whether the checksum of a delivery fits. What fails is never handed out. */
export function isWholeDelivery(
  row: Omit<DeliveryRow, 'reason' | 'token' | 'owner' | 'leaseUntil'>,
): boolean {
  const { seq, element, subscription, dueAt, tries, expiresAt, crc } = row;
  return deliveryChecksum(seq, element, subscription, dueAt, tries, expiresAt) === crc;
}

/** Whether the checksum of a delivery's content fits. */
export function isWholeContent(
  row: Pick<DeliveryRow, 'seq' | 'element'>,
  content: Omit<WholeRow, keyof DeliveryRow | 'insertedAt'>,
): boolean {
  const { type, more, contentCrc, body } = content;
  return body !== null && elementChecksum(elementOf(row), type, more, body) === contentCrc;
}

/**
 * CRC-32 of an element's content type, further fields and body, started with the element's number: a body that a
 * fault moved to another row fails the check as well.
 */
function elementChecksum(seq: number, type: string | null, more: string | null, body: Uint8Array): number {
  let crc = seq >>> 0;
  if (type !== null) crc = crc32(type, crc);
  if (more !== null) crc = crc32(more, crc);
  return crc32(body, crc);
}

/**
 * Of a delivery's number, element, subscription, maturity, tries and expiry: a change of any one of them changes it for
 * certain, of several with a probability of all but 2^-32. Mixed by multiplication, which takes 20 ns; a CRC would need
 * the numbers as bytes. A reservation changes none of them, so it need not be computed then.
 */
function deliveryChecksum(
  seq: number,
  element: number | null,
  subscription: number,
  dueAt: number,
  tries: number,
  expiresAt: number | null,
): number {
  let sum = mixLong(0, seq);
  sum = mix(sum, subscription);
  sum = mixLong(sum, dueAt);
  sum = mix(sum, tries);
  if (element !== null) sum = mixLong(sum, element);
  if (expiresAt !== null) sum = mixLong(~sum, expiresAt);
  return sum >>> 0;
}

const WORD = 2 ** 32;
/** Odd, so that each step maps different sums, and different words, to different sums. */
const FACTOR = 0x9e3779b1;

function mixLong(sum: number, value: number): number {
  return mix(mix(sum, value), value / WORD);
}

function mix(sum: number, word: number): number {
  const product = Math.imul(sum ^ (word | 0), FACTOR);
  return product ^ (product >>> 15);
}
