import type { DatabaseSync } from 'node:sqlite';
import { deliveryChecksum } from './checksums.ts';

/**
 * The tables, as numbered migrations: entry n brings a file from version n to n + 1 in one transaction.
 * A released entry is never changed; a new need is a new entry. `docs/engines.md` shows the result.
 *
 * - `lane` is one consumer group of one queue, so that a delivery names both by one small number. It
 *   holds the counts that `counts.ts` keeps. A lane without a queue was purged and is being cleared away.
 * - `delivery` is clustered by element, and found by hand-out order through `delivery_waiting`. Both grow at
 *   their end. A delivery with a `lease_until` is reserved; a waiting one that still has a `token` is one
 *   whose lease ran out and that nobody has reserved since. Its `crc` is of what a reservation leaves alone.
 * - `element.groups` is 0 on a plain queue, else the number of groups it was inserted for.
 * - `damaged` holds elements whose checksum did not fit, for a person to look at.
 */
const MIGRATIONS: readonly string[] = [
  `CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;

   CREATE TABLE queue (id INTEGER PRIMARY KEY, ns TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (ns, name)) STRICT;
   CREATE TABLE lane (
     id INTEGER PRIMARY KEY,
     queue INTEGER,
     grp TEXT NOT NULL,
     counted_at INTEGER NOT NULL,
     ready INTEGER NOT NULL,
     scheduled INTEGER NOT NULL,
     reserved INTEGER NOT NULL,
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
     seq INTEGER NOT NULL,
     lane INTEGER NOT NULL,
     due_at INTEGER NOT NULL,
     tries INTEGER NOT NULL,
     token INTEGER,
     lease_until INTEGER,
     PRIMARY KEY (seq, lane)
   ) STRICT, WITHOUT ROWID;
   CREATE INDEX delivery_waiting ON delivery (lane, due_at, seq) WHERE lease_until IS NULL;
   CREATE INDEX delivery_reserved ON delivery (lane, lease_until, seq) WHERE lease_until IS NOT NULL;

   CREATE TABLE dedup (
     queue INTEGER NOT NULL,
     key TEXT NOT NULL,
     seq INTEGER NOT NULL,
     seen_at INTEGER NOT NULL,
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
   ) STRICT;`,

  // The fingerprint of the content that came with the key; null for keys of the first version.
  'ALTER TABLE dedup ADD COLUMN fingerprint TEXT',

  `ALTER TABLE delivery ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;
   UPDATE delivery SET crc = delivery_checksum(seq, lane, due_at, tries)`,

  // Tokens are random texts now, and reservations belong to users (`model/owner.ts`). Those that stand are committed
  // without a token, or end with their leases.
  `ALTER TABLE delivery DROP COLUMN token;
   ALTER TABLE delivery ADD COLUMN token TEXT;
   ALTER TABLE delivery ADD COLUMN owner INTEGER;`,

  // When a queue was last used, to the hour; 0: before this column was there.
  'ALTER TABLE queue ADD COLUMN used_at INTEGER NOT NULL DEFAULT 0',
];

/** The version that this program writes. */
export const SCHEMA_VERSION = MIGRATIONS.length;

/** The statements that make a new file one of an earlier version; for tests. */
export function schemaOf(version: number): string {
  return `${MIGRATIONS.slice(0, version).join(';')}; PRAGMA user_version = ${version}`;
}

/**
 * Brings the file to {@link SCHEMA_VERSION}, each step in its own transaction.
 * @throws Error if the file is from a newer program
 */
export function migrate(db: DatabaseSync): void {
  const row = db.prepare('PRAGMA user_version').get();
  const version = Number(row?.user_version ?? 0);
  if (version > SCHEMA_VERSION) {
    throw new Error(
      `it was written by a newer version of Quayside (schema ${version}, this one knows ${SCHEMA_VERSION}); use that version`,
    );
  }
  // The checksum is computed in JavaScript, for rows of an older version too.
  db.function('delivery_checksum', { deterministic: true }, (seq, lane, dueAt, tries) =>
    deliveryChecksum(Number(seq), Number(lane), Number(dueAt), Number(tries)),
  );
  for (let step = version; step < SCHEMA_VERSION; step++) {
    db.exec(`BEGIN IMMEDIATE; ${MIGRATIONS[step]}; PRAGMA user_version = ${step + 1}; COMMIT`);
  }
}
