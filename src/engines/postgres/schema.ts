import { randomInt } from 'node:crypto';
import { errorFinding, type Finding, finding, WrongStore } from '../../engine/engine.ts';
import { truncateUtf8 } from '../../util/truncate-utf8.ts';
import { type Connection, Refused } from './connection.ts';
import type { Settings } from './settings.ts';
import { flag, type Statement, textArray } from './statement.ts';

/**
 * For the purpose of each table see `docs/internals/postgres.md`.
 *
 * - `subscription` is the registry: one row per consumer group of a queue, and one with the group '' for the queue
 *   itself, which is the only group of a plain queue. Ids are computed from the names (`registry.ts`), so only people
 *   and housekeeping read this table. `max_tries`, `dead_queue`, `retention` and `retry` are stored by `declare`: 0, or
 *   for `retry` an empty array, means none; null means that the policy of the namespace applies. For the format of
 *   `retry` see `retryDelay` in `sql.ts`.
 * - In a plain queue a delivery holds the content itself: one row to write, move and delete. Measured against a
 *   separate table of elements: insert 10 %, pop 25 %, reserve and commit 25 % less work. In a stream, where groups
 *   share elements, `head` and `body` are null and the content is in `element`.
 * - A delivery with a `lease_until` is reserved. A waiting one that still has a `token` lost its lease by expiry and
 *   was not reserved since. `reserved_at` and `holder` describe its last reservation. `reason` is a JSON string.
 * - `counter` holds deltas of the number of waiting and reserved deliveries, by subscription and by due time in steps
 *   of 2^20 ms (17 minutes); and, under the negative id of a stream, of the number of its elements. Rows are only
 *   added; housekeeping sums them up into new rows with larger ids. A counter that every change updates in place would
 *   make all nodes wait for one row.
 * - `bytes` bounds results without reading bodies.
 * - Bodies are not compressed by PostgreSQL: they often are already, and it would cost more than the disk space.
 * - Index entries of deleted deliveries stay at the front of `delivery_waiting` until a vacuum; so vacuum often,
 *   without pauses, and never take the exclusive lock that truncating needs.
 */
const INITIAL = `
CREATE TABLE meta (key text PRIMARY KEY, value text NOT NULL);

CREATE TABLE subscription (
  id bigint PRIMARY KEY,
  queue bigint NOT NULL,
  idle_from bigint,
  ns text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  grp text COLLATE "C" NOT NULL,
  max_tries int,
  dead_queue text,
  retention bigint,
  retry float8[],
  has_options bool NOT NULL DEFAULT false,
  UNIQUE (ns, name, grp)
);
CREATE INDEX subscription_queue ON subscription (queue);

CREATE SEQUENCE element_seq;

CREATE TABLE delivery (
  seq bigint NOT NULL,
  due_at bigint NOT NULL,
  lease_until bigint,
  token bigint,
  owner bigint,
  inserted_at bigint NOT NULL,
  expires_at bigint,
  subscription bigint NOT NULL,
  tries int NOT NULL,
  bytes int NOT NULL,
  secret bytea,
  reserved_at bigint,
  holder text,
  reason text,
  head text,
  body bytea,
  PRIMARY KEY (seq, subscription)
) WITH (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.2,
  autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = off,
  toast.autovacuum_vacuum_scale_factor = 0.05,
  toast.autovacuum_vacuum_cost_delay = 0,
  toast.vacuum_truncate = off
);
ALTER TABLE delivery ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX delivery_waiting ON delivery (subscription, due_at, seq) WHERE lease_until IS NULL;
CREATE INDEX delivery_reserved ON delivery (lease_until, seq) WHERE lease_until IS NOT NULL;
CREATE INDEX delivery_expiring ON delivery (expires_at, seq) WHERE expires_at IS NOT NULL AND lease_until IS NULL;
CREATE INDEX delivery_age ON delivery (subscription, inserted_at) WHERE head IS NULL;
CREATE INDEX delivery_shared_reserved ON delivery (subscription, seq) WHERE head IS NULL AND lease_until IS NOT NULL;

CREATE TABLE element (
  seq bigint PRIMARY KEY,
  queue bigint NOT NULL,
  remaining int NOT NULL,
  head text NOT NULL,
  body bytea NOT NULL
) WITH (
  fillfactor = 85,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = off,
  toast.autovacuum_vacuum_scale_factor = 0.05,
  toast.autovacuum_vacuum_cost_delay = 0,
  toast.vacuum_truncate = off
);
ALTER TABLE element ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE counter (
  id bigint GENERATED ALWAYS AS IDENTITY,
  subscription bigint NOT NULL,
  step bigint NOT NULL,
  bytes bigint NOT NULL,
  waiting int NOT NULL,
  reserved int NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = off
);
CREATE INDEX counter_subscription ON counter (subscription, id);

CREATE TABLE dedup (
  queue bigint NOT NULL,
  seq bigint NOT NULL,
  seen_at bigint NOT NULL,
  key bytea NOT NULL,
  fingerprint text,
  PRIMARY KEY (queue, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE INDEX dedup_age ON dedup (seen_at);

CREATE SEQUENCE definition_version;
CREATE TABLE definition (
  kind text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  value text NOT NULL,
  version bigint NOT NULL,
  PRIMARY KEY (kind, key)
);

CREATE TABLE stats (
  ns text COLLATE "C" NOT NULL,
  queue text COLLATE "C" NOT NULL,
  grp text COLLATE "C" NOT NULL,
  put bigint NOT NULL,
  get bigint NOT NULL,
  reserve bigint NOT NULL,
  commit bigint NOT NULL,
  rollback bigint NOT NULL,
  deadletter bigint NOT NULL,
  PRIMARY KEY (ns, queue, grp)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- One clock for all nodes. A function of its own, so that a test can set it.
CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- As registry.ts computes it, for the queues that elements are moved to.
CREATE FUNCTION subscription_id(ns text, name text, grp text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT ('x' || encode(substr(sha256(convert_to(
  octet_length(ns) || ':' || octet_length(name) || ':' || ns || name || grp, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
  & 9223372036854775807 $$;
`;

/** Change it with the tables. Nodes of another version must be stopped first (`docs/engines/README.md`, Upgrading). */
const VERSION = '2';

/** Creating the schema may have to wait for another node that is creating it. */
const CREATE_TIMEOUT_MS = 600_000;
const TAG_LENGTH = 4;
/**
 * SQLSTATEs of a missing privilege. Without one on the schema itself, its tables are not found, and none can be created
 * in it.
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

/** The tables and sequences of {@link INITIAL} that the user may not use. Each right must be asked for on its own. */
const UNUSABLE: Statement = {
  name: 'unusable tables',
  text: `SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1::name AND c.relname = ANY ($2::text[]) AND NOT CASE c.relkind
      WHEN 'S' THEN has_sequence_privilege(c.oid, 'USAGE')
      ELSE has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
        AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE') END`,
};

const RELATIONS = Array.from(INITIAL.matchAll(/^CREATE (?:TABLE|SEQUENCE) (\w+)/gm), ([, name = '']) => name);

/**
 * Creates the schema if it does not exist, in one transaction under an advisory lock, so that two nodes that start
 * concurrently do not both create it.
 * @param end `ROLLBACK` only tries it, and creates nothing
 * @returns the tag that every element id of this schema begins with, and whether its tables existed
 * @throws WrongStore if another version wrote the schema; Error if the user may not create or use it
 */
export async function prepareSchema(
  connection: Connection,
  { schema }: Settings,
  end: 'COMMIT' | 'ROLLBACK' = 'COMMIT',
): Promise<{ tag: string; hasTables: boolean }> {
  await connection.run(`BEGIN; SET LOCAL statement_timeout = ${CREATE_TIMEOUT_MS};
    SET LOCAL lock_timeout = ${CREATE_TIMEOUT_MS}; SET LOCAL synchronous_commit = 'on';
    SELECT pg_advisory_xact_lock(hashtextextended('quayside ${schema}', 0))`);
  let [hasSchema, hasTables] = [false, false];
  try {
    const [exists] = await connection.query(EXISTS, [schema]);
    [hasSchema, hasTables] = [flag(exists ?? [], 0), flag(exists ?? [], 1)];
    // Not `IF NOT EXISTS`, which needs the privilege even if the schema exists: an administrator may have created it.
    if (!hasSchema) await connection.run(`CREATE SCHEMA "${schema}"`);
    if (!hasTables) await connection.run(`${INITIAL}; ${recordVersion()}`);
    const [row = []] = await connection.query(FIND_VERSION, []);
    const [version, tag] = row;
    if (version !== VERSION || tag == null) {
      const found =
        version == null ? 'tables without a version' : `tables of version "${truncateUtf8(version, 64)}"`;
      throw new WrongStore(
        `schema "${schema}" has ${found}; this Quayside needs version "${VERSION}". Start the Quayside that wrote them, or name another schema`,
      );
    }
    const [unusable = []] = await connection.query(UNUSABLE, [schema, textArray(RELATIONS)]);
    if (unusable[0] != null) {
      throw new Error(
        `the user may not use ${unusable[0]} of the schema "${schema}"; make them the owner of it and of its tables, or name another schema`,
      );
    }
    await connection.run(end);
    return { tag, hasTables };
  } catch (error) {
    await connection.run('ROLLBACK').catch(() => {});
    if (!(error instanceof Refused) || !NOT_ALLOWED.has(error.code)) throw error;
    if (hasSchema) {
      const what = hasTables ? 'use the tables of' : 'create tables in';
      throw new Error(
        `the user may not ${what} the schema "${schema}"; make them the owner of it and of its tables, or name another schema`,
      );
    }
    throw new Error(
      `the user may not create the schema "${schema}"; grant CREATE on the database, or create the schema for the user`,
    );
  }
}

/** Checks, without changing anything, that {@link prepareSchema} can succeed. */
export async function examineSchema(connection: Connection, settings: Settings): Promise<Finding> {
  const { schema, maskedUrl } = settings;
  try {
    const { hasTables } = await prepareSchema(connection, settings, 'ROLLBACK');
    const state = hasTables ? 'its version is the one of this program' : 'the first node creates its tables';
    return finding(maskedUrl, 'ok', `the user may use the schema "${schema}"; ${state}`);
  } catch (error) {
    return errorFinding(maskedUrl, error);
  }
}

function recordVersion(): string {
  const tag = Array.from({ length: TAG_LENGTH }, () => randomInt(36).toString(36)).join('');
  return `INSERT INTO meta VALUES ('version', '${VERSION}'), ('tag', '${tag}')`;
}
