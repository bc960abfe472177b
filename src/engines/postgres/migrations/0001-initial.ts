/**
 * The first schema. What each table is for stands in `docs/engines/postgres.md`.
 *
 * - `lane` is one consumer group of one queue, so that a delivery names both by one small number.
 * - In a plain queue a delivery holds the content itself: one row to write, move and delete. Measured against a
 *   table of elements beside it: insert 10 %, pop 25 %, reserve and commit 25 % less work. In a stream, where groups
 *   share elements, `head` and `body` are null and the content is in `element`.
 * - A delivery with a `lease_until` is reserved. A waiting one that still has a `token` is one whose lease
 *   ran out and that nobody has reserved since.
 * - `tally` holds changes of the number of waiting and reserved deliveries, by lane and by due time in steps
 *   of 2^20 ms (17 minutes); and under the negative number of a stream's queue, of the number of its elements.
 *   Rows are only added; housekeeping adds them up into new ones, with larger numbers. A counter that every change updates in place would make
 *   all nodes wait for one row.
 * - `inserted_at` is set in streams only, for `retention`; `bytes` bounds answers without reading bodies.
 * - Bodies are not compressed by PostgreSQL: they often are already, and it would cost more than the disk.
 * - Index entries of deliveries that are gone lie at the front of `delivery_waiting` until a vacuum; so
 *   vacuum often, without pauses, and never take the exclusive lock that truncating needs.
 */
export const INITIAL = `
CREATE TABLE meta (key text PRIMARY KEY, value text NOT NULL);

CREATE TABLE queue (
  id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ns text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  known boolean NOT NULL,
  UNIQUE (ns, name)
);

CREATE TABLE lane (
  id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue int NOT NULL REFERENCES queue,
  grp text COLLATE "C" NOT NULL,
  UNIQUE (queue, grp)
);

CREATE SEQUENCE element_seq;

CREATE TABLE delivery (
  seq bigint NOT NULL,
  due_at bigint NOT NULL,
  lease_until bigint,
  token bigint,
  inserted_at bigint,
  lane int NOT NULL,
  tries int NOT NULL,
  bytes int NOT NULL,
  head text,
  body bytea,
  PRIMARY KEY (seq, lane)
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
CREATE INDEX delivery_waiting ON delivery (lane, due_at, seq) WHERE lease_until IS NULL;
CREATE INDEX delivery_reserved ON delivery (lease_until, seq) WHERE lease_until IS NOT NULL;
CREATE INDEX delivery_age ON delivery (lane, inserted_at) WHERE inserted_at IS NOT NULL;
CREATE INDEX delivery_shared_reserved ON delivery (lane, seq) WHERE head IS NULL AND lease_until IS NOT NULL;

CREATE TABLE element (
  seq bigint PRIMARY KEY,
  queue int NOT NULL,
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

CREATE TABLE tally (
  id bigint GENERATED ALWAYS AS IDENTITY,
  lane int NOT NULL,
  step bigint NOT NULL,
  waiting int NOT NULL,
  reserved int NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = off
);
CREATE INDEX tally_lane ON tally (lane, id);

CREATE TABLE dedup (
  queue int NOT NULL,
  key bytea NOT NULL,
  seq bigint NOT NULL,
  seen_at bigint NOT NULL,
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

-- The JSON text [type, encoding, name, value, ...] of an element on its way to the dead-letter queue. Headers of
-- an earlier move give way to the new ones.
CREATE FUNCTION dead_head(head text, from_queue text, at bigint, tries int) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
  SELECT json_agg(x.v ORDER BY x.i)::text FROM (
    SELECT e.v, e.i FROM (
      SELECT v, i, CASE WHEN i < 3 THEN '' WHEN i % 2 = 1 THEN v::text ELSE lag(v::text) OVER (ORDER BY i) END AS name
      FROM json_array_elements(head::json) WITH ORDINALITY AS a(v, i)
    ) e WHERE e.name NOT IN ('"x-dl-from-queue"', '"x-dl-at"', '"x-dl-tries"')
    UNION ALL
    SELECT to_json(n.v), 1000000 + n.i FROM unnest(ARRAY[
      'x-dl-from-queue', convert_from(convert_to(from_queue, 'UTF8'), 'LATIN1'),
      'x-dl-at', to_char(to_timestamp(at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
      'x-dl-tries', tries::text
    ]) WITH ORDINALITY AS n(v, i)
  ) x
$$;
`;
