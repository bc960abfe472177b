import type { DatabaseSync, SQLInputValue, StatementSync } from 'node:sqlite';

/**
 * The tables. Files of schema 1 have them as well (see {@link markSchema}), so nothing is migrated.
 *
 * - `unsynced` is written by each transaction that is committed without an fsync, and by no other. It is the first
 *   table, so that its only page has the number {@link UNSYNCED_PAGE}, by which `log-check.ts` recognizes these
 *   transactions.
 * - `subscription` is one consumer group of one queue, so that a delivery refers to both by one small number. It has
 *   the counts that `rows.ts` maintains. `queue.options` is JSON, as given to `declare`.
 * - `delivery` is read in delivery order through `delivery_waiting`. Its number is the element's if that has one
 *   delivery, else a later one, issued with it. A delivery with a `lease_until` is reserved. `token` (see `tokens.ts`),
 *   `reserved_at` and `holder` belong to its last reservation; a waiting delivery that still has a `token` is one whose
 *   lease expired and that was not reserved since. `crc` covers the fields that a reservation does not change. Files of
 *   schema 1 may also have a column `owner`, which nothing uses.
 * - The content of a small element with one plain delivery is in the row of that delivery: 22 % less time for an
 *   insert, 17 % less for a pop (ADR 9). All other content is in `element`, to which `delivery.element` refers.
 * - `element.groups` is 0 on a plain queue. On a stream it is the number of groups that the element was inserted for;
 *   if an undone pop restored it, 1, or more if several groups have it.
 * - `damaged` has elements whose checksum did not match, for inspection by a person.
 */
const SCHEMA = `
   CREATE TABLE unsynced (id INTEGER PRIMARY KEY, transactions INTEGER NOT NULL) STRICT;
   INSERT INTO unsynced VALUES (1, 0);

   CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;

   CREATE TABLE queue (
     id INTEGER PRIMARY KEY,
     ns TEXT NOT NULL,
     name TEXT NOT NULL,
     used_at INTEGER NOT NULL,
     options TEXT,
     UNIQUE (ns, name)
   ) STRICT;
   CREATE TABLE subscription (
     id INTEGER PRIMARY KEY,
     queue INTEGER NOT NULL,
     grp TEXT NOT NULL,
     counted_at INTEGER NOT NULL DEFAULT 0,
     ready INTEGER NOT NULL DEFAULT 0,
     scheduled INTEGER NOT NULL DEFAULT 0,
     reserved INTEGER NOT NULL DEFAULT 0,
     UNIQUE (queue, grp)
   ) STRICT;

   CREATE TABLE element (
     seq INTEGER PRIMARY KEY,
     queue INTEGER NOT NULL,
     groups INTEGER NOT NULL,
     inserted_at INTEGER NOT NULL,
     type TEXT,
     more TEXT,
     crc INTEGER NOT NULL,
     body BLOB NOT NULL
   ) STRICT;
   CREATE INDEX element_age ON element (queue, inserted_at) WHERE groups > 0;
   CREATE INDEX element_shared ON element (queue) WHERE groups > 1;

   CREATE TABLE delivery (
     seq INTEGER PRIMARY KEY,
     subscription INTEGER NOT NULL,
     due_at INTEGER NOT NULL,
     tries INTEGER NOT NULL,
     crc INTEGER NOT NULL,
     token TEXT,
     lease_until INTEGER,
     reserved_at INTEGER,
     holder TEXT,
     expires_at INTEGER,
     reason TEXT,
     element INTEGER,
     inserted_at INTEGER,
     type TEXT,
     more TEXT,
     content_crc INTEGER,
     body BLOB
   ) STRICT;
   CREATE INDEX delivery_waiting ON delivery (subscription, due_at) WHERE lease_until IS NULL;
   CREATE INDEX delivery_reserved ON delivery (subscription, lease_until) WHERE lease_until IS NOT NULL;
   CREATE INDEX delivery_element ON delivery (element, subscription) WHERE element IS NOT NULL;
   CREATE INDEX delivery_expiry ON delivery (expires_at) WHERE expires_at IS NOT NULL AND lease_until IS NULL;

   CREATE TABLE dedup (
     queue INTEGER NOT NULL,
     key TEXT NOT NULL,
     seq INTEGER NOT NULL,
     seen_at INTEGER NOT NULL,
     fingerprint TEXT,
     PRIMARY KEY (queue, key)
   ) STRICT, WITHOUT ROWID;
   CREATE INDEX dedup_age ON dedup (seen_at);

   CREATE TABLE definition (
     kind TEXT NOT NULL,
     key TEXT NOT NULL,
     value TEXT NOT NULL,
     version INTEGER NOT NULL,
     PRIMARY KEY (kind, key)
   ) STRICT, WITHOUT ROWID;

   CREATE TABLE stats (
     queue INTEGER NOT NULL,
     grp TEXT NOT NULL,
     put INTEGER NOT NULL,
     get INTEGER NOT NULL,
     reserve INTEGER NOT NULL,
     "commit" INTEGER NOT NULL,
     "rollback" INTEGER NOT NULL,
     deadletter INTEGER NOT NULL,
     PRIMARY KEY (queue, grp)
   ) STRICT, WITHOUT ROWID;

   CREATE TABLE damaged (
     seq INTEGER PRIMARY KEY,
     queue INTEGER NOT NULL,
     found_at INTEGER NOT NULL,
     type TEXT,
     more TEXT,
     crc INTEGER NOT NULL,
     body BLOB NOT NULL
   ) STRICT;`;

/**
 * The schema version that this program writes; it reads older ones, too. Increase it with each change that older
 * programs would misread, so that they reject the file and name both versions. Those of schema 1 use the column `owner`
 * and know no token of a whole take (`tokens.ts`).
 */
export const SCHEMA_VERSION = 2;

/** Page 1 has the schema, page 2 the first pointer map of `auto_vacuum`. */
export const UNSYNCED_PAGE = 3;

/**
 * @returns whether the file has the engine's tables
 * @throws Error if a newer version wrote them, or the file has the tables of another program
 */
export function hasSchema(db: DatabaseSync): boolean {
  const version = versionOf(db);
  const tables = db.prepare(`SELECT name FROM sqlite_schema WHERE type = 'table'`).all();
  if (version === 0 && tables.length === 0) return false;
  if (version === 0 || !tables.some(({ name }) => name === 'delivery')) {
    throw new Error('it has tables of another program; use a file of its own');
  }
  if (version <= SCHEMA_VERSION) return true;
  throw new Error(
    `it has schema ${version}, and this version of Quayside needs schema ${SCHEMA_VERSION}; use the version that wrote it`,
  );
}

function versionOf(db: DatabaseSync): number {
  return Number(db.prepare('PRAGMA user_version').get()?.user_version ?? 0);
}

/** Creates the tables of a new file. */
export function createSchema(db: DatabaseSync): void {
  db.exec(`BEGIN IMMEDIATE; ${SCHEMA}; PRAGMA user_version = ${SCHEMA_VERSION}; COMMIT`);
}

/** Makes older programs reject a file that this one is going to write to. */
export function markSchema(db: DatabaseSync): void {
  if (versionOf(db) < SCHEMA_VERSION) db.exec(`PRAGMA user_version = ${SCHEMA_VERSION}`);
}

/**
 * A bound limit. With a bare `?`, SQLite plans by its value and compiles the statement again at each binding: 18 µs a
 * call, not 3 µs.
 */
export const BOUND = '? + 0';

/** Values by position, or one object of named values. */
type Values = readonly SQLInputValue[] | readonly [Readonly<Record<string, SQLInputValue>>];

/**
 * A prepared statement. It makes the objects of rows itself, from arrays: properties of Node's own objects are in
 * dictionaries. That saves 30 % of a scan's processor time, 18 % of a rollback's, and 11 % of a stream's reserve and
 * commit.
 */
export class Statement {
  readonly #statement: StatementSync;
  readonly #names: readonly string[];

  constructor(db: DatabaseSync, sql: string) {
    this.#statement = db.prepare(sql);
    this.#statement.setReturnArrays(true);
    this.#names = this.#statement.columns().map(({ name }) => name);
  }

  /** Returns the number of changed rows. */
  run(...values: Values): number {
    return Number(this.#statement.run(...(values as SQLInputValue[])).changes);
  }

  /** The first row; null if there is none. */
  get<Row>(...values: Values): Row | null {
    const row = this.#first(values);
    return row === undefined ? null : this.#objectOf(row);
  }

  /** The first column of the first row; null if there is no row. */
  value<T>(...values: Values): T | null {
    const row = this.#first(values);
    return row === undefined ? null : (row[0] as T);
  }

  all<Row>(...values: Values): Row[] {
    return this.arrays<unknown[]>(...values).map((row) => this.#objectOf<Row>(row));
  }

  /** All rows, as arrays of their columns. */
  arrays<Row>(...values: Values): Row[] {
    const all = () => this.#statement.all(...(values as SQLInputValue[])) as unknown as unknown[][];
    try {
      return all() as Row[];
    } catch (error) {
      return this.#readLimited(error, all) as Row[];
    }
  }

  #first(values: Values): unknown[] | undefined {
    const first = () => this.#statement.get(...(values as SQLInputValue[])) as unknown[] | undefined;
    try {
      return first();
    } catch (error) {
      return this.#readLimited(error, () => [first() ?? []])[0];
    }
  }

  /**
   * Reads again if the error is that of an integer of more than 53 bits, for which Node throws. The engine never stores
   * one: a fault of the disk did. It is limited, so that it can be read and does not match its checksum.
   */
  #readLimited(error: unknown, read: () => unknown[][]): unknown[][] {
    if (!(error instanceof Error && 'code' in error && error.code === 'ERR_OUT_OF_RANGE')) throw error;
    this.#statement.setReadBigInts(true);
    try {
      return read().map((row) => row.map((value) => (typeof value === 'bigint' ? limited(value) : value)));
    } finally {
      this.#statement.setReadBigInts(false);
    }
  }

  *iterate<Row>(...values: Values): Iterable<Row> {
    for (const row of this.#statement.iterate(...(values as SQLInputValue[]))) {
      yield this.#objectOf(row as unknown as unknown[]);
    }
  }

  #objectOf<Row>(row: readonly unknown[]): Row {
    const object: Record<string, unknown> = {};
    for (let at = 0; at < row.length; at++) object[this.#names[at] as string] = row[at];
    return object as Row;
  }
}

/** The largest moment of a `Date`. */
const MAX_INTEGER = 8.64e15;

function limited(value: bigint): number {
  return Math.max(-MAX_INTEGER, Math.min(Number(value), MAX_INTEGER));
}

export type Statements<T> = { readonly [K in keyof T]: Statement };

/** Prepares the statements of a table of SQL strings, by name. */
export function prepareAll<T extends Readonly<Record<string, string>>>(
  db: DatabaseSync,
  sql: T,
): Statements<T> {
  const prepared = Object.entries(sql).map(([name, text]) => [name, new Statement(db, text)]);
  return Object.fromEntries(prepared) as Statements<T>;
}
