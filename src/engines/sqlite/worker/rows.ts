import type { DatabaseSync } from 'node:sqlite';
import { DELIVERY_STATES, type DeliveryState, PLAIN_GROUP } from '../../../model/element.ts';
import { deliveryChecksum, elementChecksum } from './checksums.ts';
import { type Names, type Queue, type Subscription, UNKNOWN } from './names.ts';
import { prepareAll, prepareArrays, type Statements } from './statements.ts';

/** An element's content as it is stored: the content type, and all rarer fields as one JSON text or null. */
export interface StoredContent {
  readonly type: string | null;
  readonly more: string | null;
  readonly body: Uint8Array;
}

/** The facts of a new delivery. */
export interface NewDelivery {
  readonly dueAt: number;
  readonly tries: number;
  readonly expiresAt: number | null;
  readonly reason: string | null;
}

/** A delivery's own fields. */
export interface DeliveryRow extends NewDelivery {
  readonly seq: number;
  /** Where its content is; null: in its own row. */
  readonly element: number | null;
  readonly subscription: number;
  readonly crc: number;
  /** The last reservation's token; null once that reservation was released, or if there was none. */
  readonly token: string | null;
  /** Null: waiting. */
  readonly leaseUntil: number | null;
  /** Of the last reservation; 0 or null: nobody. */
  readonly owner: number | null;
  /** If it was read with the delivery, as `contentOf` returns it. */
  readonly content?: ElementRow | null;
}

/** A new reservation. */
export interface Reservation {
  readonly token: string;
  readonly until: number;
  readonly owner: number;
  /** When it is made. */
  readonly at: number;
  /** See `holderTexts`. */
  readonly holder: string;
}

/** An element's content, where it came from. */
export interface ElementRow extends StoredContent {
  readonly crc: number;
  readonly insertedAt: number;
}

/** A delivery with its content: positions, not names, for speed. Those after the body are read by scans only. */
export type Joined = [
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
  /** Null if it was not asked for, or is missing. */
  body: Uint8Array | null,
  leaseUntil: number | null,
  insertedAt: number,
  bytes: number | null,
  /** Of the last reservation; null if there was none. */
  reservedAt: number | null,
  holder: string | null,
];

const LEASE_UNTIL = 11;

/** A delivery's own fields, then its content. */
type Whole = [
  seq: number,
  element: number | null,
  subscription: number,
  dueAt: number,
  tries: number,
  crc: number,
  expiresAt: number | null,
  reason: string | null,
  token: string | null,
  leaseUntil: number | null,
  owner: number | null,
  type: string | null,
  more: string | null,
  contentCrc: number | null,
  body: Uint8Array | null,
  insertedAt: number,
];

const DELIVERY =
  'seq, element, subscription, due_at AS dueAt, tries, crc, expires_at AS expiresAt, reason, token, lease_until AS leaseUntil, owner';
const WHOLE =
  'd.seq, d.element, d.subscription, d.due_at, d.tries, d.crc, d.expires_at, d.reason, d.token, d.lease_until, d.owner, ifnull(d.type, e.type), ifnull(d.more, e.more), ifnull(d.content_crc, e.crc), ifnull(d.body, e.body), ifnull(d.inserted_at, e.inserted_at)';
const TAKEN =
  'd.seq, d.element, d.due_at, d.tries, d.crc, d.expires_at, d.reason, ifnull(d.type, e.type), ifnull(d.more, e.more), ifnull(d.content_crc, e.crc)';
// The number of no element is null, so an element is looked up only if the content is not in the row.
const FROM = 'FROM delivery d LEFT JOIN element e ON e.seq = d.element';

/**
 * A bound limit. A bare `?` would let SQLite look at its value for the plan and compile the statement again at
 * each binding: 18 µs a call instead of 3, measured.
 */
const BOUND = '? + 0';

const SCANNED = `${TAKEN}, ifnull(d.body, e.body), d.lease_until, ifnull(d.inserted_at, e.inserted_at), length(ifnull(d.body, e.body)), d.reserved_at, d.holder`;
const SCANNED_WITHOUT_BODY = `${TAKEN}, NULL, d.lease_until, ifnull(d.inserted_at, e.inserted_at), ifnull(length(d.body), length(e.body)), d.reserved_at, d.holder`;

const WAITING = 'FROM delivery WHERE subscription = ? AND lease_until IS NULL';
const RESERVED = 'FROM delivery WHERE subscription = ? AND lease_until IS NOT NULL';
const EXPIRING = 'FROM delivery WHERE expires_at IS NOT NULL AND lease_until IS NULL';

const ADD =
  'INSERT INTO delivery (seq, subscription, due_at, tries, crc, expires_at, reason, element, inserted_at, type, more, content_crc, body) VALUES ';
const ADDED_ROW = '(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)';
const ADDED_COLUMNS = 13;
/** One statement for so many rows costs 0.86 µs a row, one for each 1.4; 32 rows save another 5 %. */
const ROWS_AT_ONCE = 16;

const SQL = {
  add: `${ADD}${ADDED_ROW}`,
  addMany: `${ADD}${Array(ROWS_AT_ONCE).fill(ADDED_ROW).join(', ')}`,
  addElement:
    'INSERT INTO element (seq, queue, groups, inserted_at, type, more, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
  // A delivery of a named group has another number than its element: see `schema.ts`.
  findPlain: `SELECT ${DELIVERY} FROM delivery WHERE seq = ? AND subscription = ?`,
  findShared: `SELECT ${DELIVERY} FROM delivery WHERE element = ? AND subscription = ?`,
  ofElement: `SELECT ${DELIVERY} FROM delivery WHERE seq = :element AND (element IS NULL OR element = :element)
       UNION ALL SELECT ${DELIVERY} FROM delivery WHERE element = :element AND seq <> :element`,
  remove: 'DELETE FROM delivery WHERE seq = ?',
  removeHeld:
    'DELETE FROM delivery WHERE seq = ? AND subscription = ? AND token = ? AND lease_until IS NOT NULL AND element IS NULL',
  reserve:
    'UPDATE delivery SET token = ?, lease_until = ?, owner = ?, reserved_at = ?, holder = ? WHERE seq = ?',
  wait: 'UPDATE delivery SET due_at = ?, tries = ?, crc = ?, token = ?, reason = ?, lease_until = NULL WHERE seq = ?',
  extend: 'UPDATE delivery SET lease_until = ? WHERE seq = ?',
  content:
    'SELECT type, more, content_crc AS crc, body, inserted_at AS insertedAt FROM delivery WHERE seq = ?',
  sharedContent: 'SELECT type, more, crc, body, inserted_at AS insertedAt FROM element WHERE seq = ?',
  removeElement: 'DELETE FROM element WHERE seq = ?',
  anyOfElement: 'SELECT 1 FROM delivery WHERE element = ? LIMIT 1',
  bySeq: `SELECT ${DELIVERY} FROM delivery WHERE seq = ?`,
  markShared: 'UPDATE element SET groups = 2 WHERE seq = ? AND groups < 2',
  setAside:
    'INSERT OR REPLACE INTO damaged (seq, queue, found_at, type, more, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?)',
  expired: `SELECT ${DELIVERY} ${EXPIRING} AND expires_at <= ? ORDER BY expires_at LIMIT ${BOUND}`,
  firstExpiry: `SELECT expires_at AS at ${EXPIRING} ORDER BY expires_at LIMIT 1`,
  countDue: `SELECT count(*) AS n ${WAITING} AND due_at > ? AND due_at <= ?`,
  countReserved: `SELECT count(*) AS n ${RESERVED}`,
  firstDue: `SELECT due_at AS at ${WAITING} ORDER BY due_at LIMIT 1`,
  firstDueAfter: `SELECT due_at AS at ${WAITING} AND due_at > ? ORDER BY due_at LIMIT 1`,
  endedLeases: `SELECT ${DELIVERY} ${RESERVED} AND lease_until <= ? ORDER BY lease_until, seq LIMIT ${BOUND}`,
  firstLeaseEnd: `SELECT lease_until AS at ${RESERVED} ORDER BY lease_until LIMIT 1`,
  sharedStates: `SELECT sum(d.lease_until IS NULL AND d.due_at <= ?) AS ready,
              sum(d.lease_until IS NULL AND d.due_at > ?) AS scheduled,
              sum(d.lease_until IS NOT NULL) AS reserved
       FROM element e INDEXED BY element_shared CROSS JOIN delivery d ON d.element = e.seq
       WHERE e.queue = ? AND e.groups > 1 GROUP BY e.seq`,
} as const;

const JOINED_SQL = {
  joinedPlain: `SELECT ${SCANNED} ${FROM} WHERE d.seq = ? AND d.subscription = ?`,
  joinedShared: `SELECT ${SCANNED} ${FROM} WHERE d.element = ? AND d.subscription = ?`,
  wholePlain: `SELECT ${WHOLE} ${FROM} WHERE d.seq = ? AND d.subscription = ?`,
  wholeShared: `SELECT ${WHOLE} ${FROM} WHERE d.element = ? AND d.subscription = ?`,
  ready: `SELECT ${TAKEN}, ifnull(d.body, e.body) ${FROM}
       WHERE d.subscription = ? AND d.lease_until IS NULL AND d.due_at <= ? ORDER BY d.due_at, d.seq LIMIT ${BOUND}`,
} as const;

const BY_STATE: Readonly<Record<DeliveryState, string>> = {
  ready: 'lease_until IS NULL AND due_at <= :now',
  scheduled: 'lease_until IS NULL AND due_at > :now',
  reserved: 'lease_until IS NOT NULL AND :now IS NOT NULL',
};

const IN_STATE = ofStates(
  (state) =>
    `SELECT ${DELIVERY} FROM delivery WHERE subscription = :subscription AND ${BY_STATE[state]} LIMIT :limit`,
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

/** How many leases one call ends. More wait for the next call, which follows at once. */
const LEASES_A_CALL = 1000;

/**
 * Deliveries and elements. Each method that changes a delivery is one change of state (`docs/concepts.md`), and keeps
 * the counts and lease bounds of its subscription in step with the table.
 */
export class Rows {
  readonly #db: DatabaseSync;
  readonly #names: Names;
  /** No lease of any queue ends before this moment. */
  #leasesEndFrom = Number.POSITIVE_INFINITY;

  readonly #sql: Statements<typeof SQL>;
  readonly #joined: Statements<typeof JOINED_SQL>;
  readonly #pages: Statements<Record<DeliveryState, string>>;
  readonly #pagesWithoutBodies: Statements<Record<DeliveryState, string>>;
  readonly #inState: Statements<Record<DeliveryState, string>>;

  constructor(db: DatabaseSync, names: Names) {
    this.#db = db;
    this.#names = names;
    this.#sql = prepareAll(db, SQL);
    this.#joined = prepareArrays(db, JOINED_SQL);
    this.#pages = prepareArrays(db, pagesOf(SCANNED));
    this.#pagesWithoutBodies = prepareArrays(db, pagesOf(SCANNED_WITHOUT_BODY));
    this.#inState = prepareAll(db, IN_STATE);
    this.refreshLeases(UNKNOWN);
  }

  // Elements.

  /** Stores the content of an element: of one that is plain and small with its delivery, which is added here. */
  addPlain(
    subscription: Subscription,
    seq: number,
    content: StoredContent,
    facts: NewDelivery,
    now: number,
  ): void {
    const { type, more, body } = content;
    const crc = elementChecksum(seq, type, more, body);
    const isInline = body.byteLength <= MAX_INLINE_BYTES;
    if (!isInline) this.#sql.addElement.run(seq, subscription.queue.id, 0, now, type, more, crc, body);
    this.#addDelivery(subscription, seq, isInline ? null : seq, facts, now, isInline ? content : null, crc);
  }

  /** The same for many elements of one subscription, whose numbers follow each other from `first`. */
  addManyPlain(
    subscription: Subscription,
    first: number,
    elements: readonly (StoredContent & NewDelivery)[],
    now: number,
  ): void {
    const values: (string | number | null | Uint8Array)[] = [];
    for (const [index, element] of elements.entries()) {
      const seq = first + index;
      const { type, more, body, dueAt, tries, expiresAt, reason } = element;
      if (body.byteLength > MAX_INLINE_BYTES) {
        this.addPlain(subscription, seq, element, element, now);
        continue;
      }
      const crc = deliveryChecksum(seq, null, subscription.id, dueAt, tries, expiresAt);
      const contentCrc = elementChecksum(seq, type, more, body);
      values.push(
        seq,
        subscription.id,
        dueAt,
        tries,
        crc,
        expiresAt,
        reason,
        null,
        now,
        type,
        more,
        contentCrc,
        body,
      );
      if (values.length === ROWS_AT_ONCE * ADDED_COLUMNS) this.#sql.addMany.run(...values.splice(0));
      this.#waitingAdded(subscription, dueAt, now);
    }
    while (values.length > 0) this.#sql.add.run(...values.splice(0, ADDED_COLUMNS));
  }

  /** @param groups how many groups the element is for */
  addElement(queue: Queue, seq: number, groups: number, content: StoredContent, now: number): void {
    const { type, more, body } = content;
    this.#sql.addElement.run(
      seq,
      queue.id,
      groups,
      now,
      type,
      more,
      elementChecksum(seq, type, more, body),
      body,
    );
  }

  /** (none) -> waiting, for a group of an element that `addElement` stored */
  addShared(subscription: Subscription, seq: number, element: number, facts: NewDelivery, now: number): void {
    this.#addDelivery(subscription, seq, element, facts, now, null, null);
  }

  #addDelivery(
    subscription: Subscription,
    seq: number,
    element: number | null,
    { dueAt, tries, expiresAt, reason }: NewDelivery,
    now: number,
    content: StoredContent | null,
    contentCrc: number | null,
  ): void {
    const crc = deliveryChecksum(seq, element, subscription.id, dueAt, tries, expiresAt);
    this.#sql.add.run(
      seq,
      subscription.id,
      dueAt,
      tries,
      crc,
      expiresAt,
      reason,
      element,
      content === null ? null : now,
      content?.type ?? null,
      content?.more ?? null,
      content === null ? null : contentCrc,
      content?.body ?? null,
    );
    this.#waitingAdded(subscription, dueAt, now);
  }

  /** Content of a delivery; null if a fault of the disk took it. */
  contentOf({ seq, element, content }: DeliveryRow): ElementRow | null {
    if (content !== undefined) return content;
    const row = element === null ? this.#sql.content.get(seq) : this.#sql.sharedContent.get(element);
    return row === undefined || row.crc === null || row.body === null ? null : (row as unknown as ElementRow);
  }

  hasElement(seq: number): boolean {
    return this.#sql.sharedContent.get(seq) !== undefined;
  }

  /** A second group has a delivery of this element again. */
  markShared(seq: number): void {
    this.#sql.markShared.run(seq);
  }

  bySeq(seq: number): DeliveryRow | null {
    return (this.#sql.bySeq.get(seq) as unknown as DeliveryRow | undefined) ?? null;
  }

  /**
   * Makes rows readable again in which a fault of the disk left a number of more than 53 bits, so that they can be set aside.
   * Reads both tables, once for each such fault.
   */
  makeReadable(): void {
    for (const sql of REPAIRS) this.#db.exec(sql);
  }

  /** Copies an element whose checksum does not fit to the table `damaged`. */
  setAside(element: number, queue: number, { type, more, crc, body }: ElementRow, now: number): void {
    this.#sql.setAside.run(element, queue, now, type, more, crc, body);
  }

  // Deliveries.

  /** @param element the number of its element */
  find(subscription: Subscription, element: number): DeliveryRow | null {
    const statement = subscription.group === PLAIN_GROUP ? this.#sql.findPlain : this.#sql.findShared;
    return (statement.get(element, subscription.id) as unknown as DeliveryRow | undefined) ?? null;
  }

  /** The same with its content, in one statement: two take a bulk move a fifth more processor time. */
  findWhole({ id, group }: Subscription, element: number): DeliveryRow | null {
    const statement = group === PLAIN_GROUP ? this.#joined.wholePlain : this.#joined.wholeShared;
    const row = statement.get(element, id) as unknown as Whole | undefined;
    if (row === undefined) return null;
    const [seq, of, subscription, dueAt, tries, crc, expiresAt, reason, token, leaseUntil, owner, ...rest] =
      row;
    const [type, more, contentCrc, body, insertedAt] = rest;
    const content =
      contentCrc === null || body === null ? null : { type, more, crc: contentCrc, body, insertedAt };
    const facts = { dueAt, tries, expiresAt, reason };
    return { seq, element: of, subscription, ...facts, crc, token, leaseUntil, owner, content };
  }

  /** Deliveries of these elements, in the order of pages: by state, then in delivery order. Null is no element. */
  named(
    { id, group }: Subscription,
    elements: readonly (number | null)[],
    now: number,
  ): [Joined, DeliveryState][] {
    const statement = group === PLAIN_GROUP ? this.#joined.joinedPlain : this.#joined.joinedShared;
    const found = new Map<number, [Joined, DeliveryState]>();
    for (const element of elements) {
      const row =
        element === null ? undefined : (statement.get(element, id) as unknown as Joined | undefined);
      if (row === undefined) continue;
      const [seq, , dueAt] = row;
      const isReserved = row[LEASE_UNTIL] !== null;
      found.set(seq, [row, isReserved ? 'reserved' : dueAt <= now ? 'ready' : 'scheduled']);
    }
    return [...found.values()].sort(
      ([a, ofA], [b, ofB]) =>
        DELIVERY_STATES.indexOf(ofA) - DELIVERY_STATES.indexOf(ofB) ||
        placeOf(a, ofA) - placeOf(b, ofB) ||
        a[0] - b[0],
    );
  }

  /** All deliveries of an element, whatever their state. */
  ofElement(element: number): DeliveryRow[] {
    return this.#sql.ofElement.all({ element }) as unknown as DeliveryRow[];
  }

  /** The first `limit` eligible deliveries, by maturity, then by insertion. */
  ready(subscription: Subscription, now: number, limit: number): Joined[] {
    return this.#joined.ready.all(subscription.id, now, limit) as unknown as Joined[];
  }

  /** Deliveries in a state behind a moment (maturity, or lease end) and number, in the order of both. */
  page(
    { id: subscription }: Subscription,
    state: DeliveryState,
    now: number,
    after: { readonly moment: number; readonly seq: number },
    limit: number,
    bodies: boolean,
  ): Joined[] {
    const statement = (bodies ? this.#pages : this.#pagesWithoutBodies)[state];
    return statement.all({ subscription, now, ...after, limit }) as unknown as Joined[];
  }

  /** Some deliveries of a subscription in a state, in no promised order. */
  inState(
    { id: subscription }: Subscription,
    state: DeliveryState,
    now: number,
    limit: number,
  ): DeliveryRow[] {
    return this.#inState[state].all({ subscription, now, limit }) as unknown as DeliveryRow[];
  }

  /** waiting -> finished */
  removeWaiting(subscription: Subscription, seq: number, element: number | null, dueAt: number): void {
    this.#sql.remove.run(seq);
    if (element !== null) this.#removeIfFinished(seq, element);
    this.#waitingRemoved(subscription, dueAt);
  }

  /** reserved -> finished */
  removeReserved(subscription: Subscription, { seq, element }: DeliveryRow): void {
    this.#sql.remove.run(seq);
    if (element !== null) this.#removeIfFinished(seq, element);
    this.#reservedChanged(subscription, -1);
  }

  /** reserved or waiting -> finished */
  remove(subscription: Subscription, row: DeliveryRow): void {
    if (row.leaseUntil === null) this.removeWaiting(subscription, row.seq, row.element, row.dueAt);
    else this.removeReserved(subscription, row);
  }

  /** reserved -> finished, if it is plain and small and the reservation has this token. Returns whether it was. */
  removeHeld(subscription: Subscription, seq: number, token: string): boolean {
    if (this.#sql.removeHeld.run(seq, subscription.id, token).changes === 0) return false;
    this.#reservedChanged(subscription, -1);
    return true;
  }

  /** An element goes with its last delivery. */
  #removeIfFinished(seq: number, element: number): void {
    if (seq === element || this.#sql.anyOfElement.get(element) === undefined)
      this.#sql.removeElement.run(element);
  }

  /** waiting -> reserved */
  reserve(
    subscription: Subscription,
    seq: number,
    dueAt: number,
    { token, until, owner, at, holder }: Reservation,
  ): void {
    this.#sql.reserve.run(token, until, owner, at, holder, seq);
    this.#waitingRemoved(subscription, dueAt);
    this.#reservedChanged(subscription, 1);
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
    const crc = deliveryChecksum(seq, element, subscription.id, dueAt, tries, expiresAt);
    this.#sql.wait.run(dueAt, tries, crc, token, reason, seq);
    if (leaseUntil === null) this.#waitingRemoved(subscription, row.dueAt);
    else this.#reservedChanged(subscription, -1);
    this.#waitingAdded(subscription, dueAt, now);
  }

  /** reserved -> reserved, until another moment */
  extend(subscription: Subscription, seq: number, until: number): void {
    this.#names.changedQueue(subscription.queue);
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

  /** Per element that several groups have: its deliveries by state. */
  sharedStates(queue: Queue, now: number): Iterable<{ ready: number; scheduled: number; reserved: number }> {
    const rows = this.#sql.sharedStates.iterate(now, now, queue.id);
    return rows as unknown as Iterable<{ ready: number; scheduled: number; reserved: number }>;
  }

  /** Counts the table's rows: slow, for when it can no longer be trusted to agree with what was counted. */
  recount(subscription: Subscription, now: number): void {
    this.#names.changed(subscription);
    const { id } = subscription;
    subscription.countedAt = now;
    subscription.ready = Number(this.#sql.countDue.get(id, Number.MIN_SAFE_INTEGER, now)?.n);
    subscription.scheduled = Number(this.#sql.countDue.get(id, now, Number.MAX_SAFE_INTEGER)?.n);
    subscription.reserved = Number(this.#sql.countReserved.get(id)?.n);
    this.#lookAhead(subscription, now);
  }

  /** `now` lets the counts follow the clock if that is free. */
  #waitingAdded(subscription: Subscription, dueAt: number, now: number): void {
    this.#names.changed(subscription);
    if (subscription.countedAt < now && subscription.scheduledFrom > now) subscription.countedAt = now;
    if (dueAt <= subscription.countedAt) subscription.ready++;
    else {
      subscription.scheduled++;
      if (dueAt < subscription.scheduledFrom) subscription.scheduledFrom = dueAt;
    }
  }

  #waitingRemoved(subscription: Subscription, dueAt: number): void {
    this.#names.changed(subscription);
    if (dueAt <= subscription.countedAt) subscription.ready--;
    else if (--subscription.scheduled === 0) subscription.scheduledFrom = Number.POSITIVE_INFINITY;
  }

  #reservedChanged(subscription: Subscription, difference: number): void {
    this.#names.changed(subscription);
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
    for (const { id, leaseEndsFrom } of this.#names.subscriptions()) {
      if (leaseEndsFrom > now) continue;
      if (found.length >= LEASES_A_CALL) break;
      const rows = this.#sql.endedLeases.all(id, now, LEASES_A_CALL - found.length);
      found.push(...(rows as unknown as DeliveryRow[]));
    }
    return found.sort((a, b) => (a.leaseUntil ?? 0) - (b.leaseUntil ?? 0) || a.seq - b.seq);
  }

  /** Makes the bounds exact that have passed, after the leases that ended were settled, and those that are not known yet. */
  refreshLeases(now: number): void {
    this.#leasesEndFrom = Number.POSITIVE_INFINITY;
    for (const subscription of this.#names.subscriptions()) {
      const { id, queue, leaseEndsFrom, reserved } = subscription;
      if (leaseEndsFrom <= now) {
        if (leaseEndsFrom !== UNKNOWN) this.#names.changedQueue(queue);
        const end = reserved === 0 ? null : momentOf(this.#sql.firstLeaseEnd.get(id));
        subscription.leaseEndsFrom = end ?? Number.POSITIVE_INFINITY;
      }
      this.#leasesEndFrom = Math.min(this.#leasesEndFrom, subscription.leaseEndsFrom);
    }
  }

  /** The end of the lease that ends next, exactly; null if none runs. */
  nextLeaseEnd(): number | null {
    for (;;) {
      const bound = this.#leasesEndFrom;
      if (bound === Number.POSITIVE_INFINITY) return null;
      this.refreshLeases(bound);
      if (this.#leasesEndFrom === bound) return bound;
    }
  }

  #leaseStarted(subscription: Subscription, until: number): void {
    subscription.leaseEndsFrom = Math.min(subscription.leaseEndsFrom, until);
    this.#leasesEndFrom = Math.min(this.#leasesEndFrom, until);
  }
}

/**
 * Whether the checksums of a delivery and its content fit. What fails is never handed out.
 * @param hasBody whether the body was asked for
 */
export function isWhole({ id }: Subscription, row: Joined, hasBody = true): boolean {
  const [seq, element, dueAt, tries, crc, expiresAt, , type, more, contentCrc, body] = row;
  if (deliveryChecksum(seq, element, id, dueAt, tries, expiresAt) !== crc || contentCrc === null)
    return false;
  return !hasBody || (body !== null && elementChecksum(element ?? seq, type, more, body) === contentCrc);
}

/** The moment by which deliveries of a state are in order. */
export function placeOf(row: Joined, state: DeliveryState): number {
  return state === 'reserved' ? (row[LEASE_UNTIL] ?? 0) : row[2];
}

/** Whether the checksum of a delivery fits. */
export function isWholeDelivery({
  seq,
  element,
  subscription,
  dueAt,
  tries,
  expiresAt,
  crc,
}: DeliveryRow): boolean {
  return deliveryChecksum(seq, element, subscription, dueAt, tries, expiresAt) === crc;
}

/** The moment of a row, null if there is none. */
export function momentOf(row: Record<string, unknown> | undefined): number | null {
  return row === undefined ? null : Number(row.at);
}
