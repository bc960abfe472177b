import { randomInt } from 'node:crypto';
import type { Connection } from './connection.ts';
import { Refused } from './errors.ts';
import { INITIAL } from './migrations/0001-initial.ts';
import { IDLE_LANES } from './migrations/0002-idle-lanes.ts';
import { FINGERPRINTS } from './migrations/0003-fingerprints.ts';
import { OWNED_RESERVATIONS } from './migrations/0004-owned-reservations.ts';
import { ORIGIN_IDS } from './migrations/0005-origin-ids.ts';
import { UNUSED_QUEUES } from './migrations/0006-unused-queues.ts';
import { TALLY_BYTES } from './migrations/0007-tally-bytes.ts';
import type { Settings } from './settings.ts';
import { flag, number, type Statement, text } from './statement.ts';

/**
 * Entry n brings the schema from version n to n + 1. A released entry is never changed; a new need is a
 * new entry. Nodes of an older version must be stopped first (`docs/engines.md`, Upgrading).
 */
export const MIGRATIONS: readonly string[] = [
  INITIAL,
  IDLE_LANES,
  FINGERPRINTS,
  OWNED_RESERVATIONS,
  ORIGIN_IDS,
  UNUSED_QUEUES,
  TALLY_BYTES,
];

/** A migration may wait for another node's, and may build an index on a large table. */
const MIGRATION_TIMEOUT_MS = 600_000;
const TAG_LENGTH = 4;
/**
 * SQLSTATEs of a missing right. Without one on the schema itself its tables are not found, and none can be made in
 * it.
 */
const NOT_ALLOWED = new Set(['42501', '42P01', '3F000']);

const FIND_VERSION: Statement = {
  name: 'schema version',
  text: `SELECT (SELECT value FROM meta WHERE key = 'version'), (SELECT value FROM meta WHERE key = 'tag')`,
};

const EXISTS: Statement = {
  name: 'schema exists',
  text: `SELECT n.oid IS NOT NULL, c.oid IS NOT NULL FROM (VALUES ($1::name)) AS s(name)
    LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = s.name
    LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'meta'`,
};

/**
 * Creates the schema or brings it up to date, all steps in one transaction under an advisory lock: two nodes
 * that start at once do it once. Answers the tag that every element id of this schema begins with.
 * @throws Error if the schema is from a newer program, or the user may not make it
 */
export async function migrate(connection: Connection, { schema }: Settings): Promise<string> {
  await connection.run(`BEGIN; SET LOCAL statement_timeout = ${MIGRATION_TIMEOUT_MS};
    SET LOCAL lock_timeout = ${MIGRATION_TIMEOUT_MS}; SET LOCAL synchronous_commit = 'on';
    SELECT pg_advisory_xact_lock(hashtextextended('quayside ${schema}', 0))`);
  let [hasSchema, hasTables] = [false, false];
  try {
    const [exists] = await connection.query(EXISTS, [schema]);
    [hasSchema, hasTables] = [flag(exists ?? [], 0), flag(exists ?? [], 1)];
    const version = hasTables ? number((await connection.query(FIND_VERSION, []))[0] ?? [], 0) : 0;
    if (version > MIGRATIONS.length) {
      throw new Error(
        `schema "${schema}" was written by a newer version of Quayside (${version}, this one knows ${MIGRATIONS.length}); use that version`,
      );
    }
    // Only where it is missing: a user who may not create one may still be given one.
    if (!hasSchema) await connection.run(`CREATE SCHEMA ${schema}`);
    for (let step = version; step < MIGRATIONS.length; step++) {
      await connection.run(`${MIGRATIONS[step]}; ${recordVersion(step + 1)}`);
    }
    const [row] = await connection.query(FIND_VERSION, []);
    const tag = text(row ?? [], 1);
    await connection.run('COMMIT');
    return tag;
  } catch (error) {
    await connection.run('ROLLBACK').catch(() => {});
    if (!(error instanceof Refused) || !NOT_ALLOWED.has(error.code)) throw error;
    if (hasSchema) {
      const what = hasTables ? 'use the tables of' : 'make tables in';
      throw new Error(
        `the user may not ${what} the schema "${schema}"; make them the owner of it and of its tables, or name another schema`,
      );
    }
    throw new Error(
      `the user may not make the schema "${schema}"; grant CREATE on the database, or make it for them`,
    );
  }
}

function recordVersion(version: number): string {
  const tag = Array.from({ length: TAG_LENGTH }, () => randomInt(36).toString(36)).join('');
  return `INSERT INTO meta VALUES ('version', '${version}'), ('tag', '${tag}')
    ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE meta.key = 'version'`;
}
