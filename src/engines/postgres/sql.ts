import type { RetryDelay } from '../../engine/storage.ts';

/**
 * Parts that several statements have in common. Each is a `WITH` entry or an expression, and names the entries it
 * reads.
 */

/**
 * The entry `locked`: streams whose elements a statement is going to finish, and whether it has their locks (see
 * `lockStreams` in `batcher.ts`). It does not wait for one: it holds rows already, so it leaves the elements of a
 * locked stream.
 * @param from has a column queue
 */
export function lockStreamsOf(from: string): string {
  return `locked AS MATERIALIZED (SELECT queue,
      pg_try_advisory_xact_lock_shared('element'::regclass::oid::int, (queue << 32 >> 32)::int) AS is_locked
    FROM (SELECT DISTINCT queue FROM ${from}) q)`;
}

/** The one moment that all of a statement agrees on. */
export const NOW = 't AS MATERIALIZED (SELECT now_ms() AS now)';

/**
 * The same where a scan of an index has to end there: in a join with `t`, PostgreSQL may compare it with each row up to
 * the end of the index.
 */
export const NOW_ONCE = '(SELECT now FROM t)';

/** Due times are counted in steps of 2^20 ms. */
export const STEP_BITS = 20;

/** What a row of `delivery` adds to its subscription's bytes: in a stream, the element has the content. */
export const CONTENT_BYTES = 'CASE WHEN d.head IS NULL THEN 0 ELSE d.bytes END AS content_bytes';

/** The sum over the column {@link CONTENT_BYTES} of deliveries that came or went. */
const CAME = 'sum(content_bytes)';
const WENT = '-sum(content_bytes)';

interface Deltas {
  readonly waiting: string;
  readonly reserved: string;
  readonly bytes: string;
}

export const CAME_WAITING: Deltas = { waiting: 'count(*)', reserved: '0', bytes: CAME };
export const WENT_WAITING: Deltas = { waiting: '-count(*)', reserved: '0', bytes: WENT };
/** For deliveries that were waiting or reserved, with a column lease_until. */
export const WENT_EITHER: Deltas = {
  waiting: '-count(*) FILTER (WHERE lease_until IS NULL)',
  reserved: '-count(*) FILTER (WHERE lease_until IS NOT NULL)',
  bytes: WENT,
};

/** Bytes that a statement deletes, or copies, at once: a fraction of a second of its 3 s, for which others wait. */
export const BYTES_AT_ONCE = 8 * 1024 * 1024;

/**
 * The entry `name`: rows of `from` (with a column bytes) until they have so many bytes, and at least the first.
 * PostgreSQL deletes a large body in as many pieces as it stores it in, about 10 ms for each MiB, so rows alone do not
 * bound what a statement takes.
 */
export function firstBytes(name: string, from: string, maxBytes = String(BYTES_AT_ONCE)): string {
  return `${name} AS MATERIALIZED (SELECT * FROM (SELECT f.*, sum(f.bytes) OVER (ROWS UNBOUNDED PRECEDING) - f.bytes AS before
    FROM ${from} f) f WHERE f.before < ${maxBytes})`;
}

/** Records changes of counts. `from` has columns subscription and due_at; the deltas are aggregates over it. */
export function count(name: string, from: string, { waiting, reserved, bytes }: Deltas): string {
  return `${name} AS (INSERT INTO counter (subscription, step, waiting, reserved, bytes)
    SELECT subscription, due_at >> ${STEP_BITS}, ${waiting}, ${reserved}, ${bytes} FROM ${from} GROUP BY 1, 2)`;
}

/** What {@link countElements} needs of a row of `element`. */
export function elementColumns(alias: string): string {
  return `${alias}.queue, octet_length(${alias}.head) + octet_length(${alias}.body) AS content_bytes`;
}

/** Records that elements of streams came or went. `from` has {@link elementColumns}. */
export function countElements(name: string, from: string, sign: '' | '-'): string {
  return `${name} AS (INSERT INTO counter (subscription, step, waiting, reserved, bytes)
    SELECT -queue, 0, ${sign}count(*), 0, ${sign}sum(content_bytes) FROM ${from} GROUP BY queue)`;
}

/**
 * Finishes elements of streams: deliveries of them that have just gone are in `from`, with columns seq and head. The
 * element goes with its last delivery. Its row is locked first, in the order of numbers, so that of two groups that
 * finish it at once the second one sees what the first has left. No entry joins `element` by its number, see
 * {@link contentOf}.
 */
export function finishShared(from: string): string {
  return `sg AS MATERIALIZED (SELECT seq, count(*)::int AS gone FROM ${from} WHERE head IS NULL GROUP BY seq),
  sl AS MATERIALIZED (SELECT e.seq, e.remaining - o.gone AS remaining, o.gone FROM (SELECT * FROM sg ORDER BY seq) o
    CROSS JOIN LATERAL (SELECT seq, remaining FROM element WHERE seq = o.seq LIMIT 1 FOR UPDATE) e),
  sd AS (DELETE FROM element e WHERE e.seq = ANY (ARRAY(SELECT seq FROM sl WHERE remaining <= 0)) RETURNING ${elementColumns('e')}),
  su AS (UPDATE element e SET remaining = e.remaining - CASE WHEN e.seq = ANY (ARRAY(SELECT seq FROM sl WHERE gone > 1))
      THEN (SELECT gone FROM sl WHERE sl.seq = e.seq) ELSE 1 END
    WHERE e.seq = ANY (ARRAY(SELECT seq FROM sl WHERE remaining > 0))),
  ${countElements('sec', 'sd', '-')}`;
}

/**
 * The content of the elements of deliveries `from` (columns seq, head) that have none, as an item of `FROM`. One
 * look-up each: in a join, a plan that was made while the table was empty may read all of it for each delivery.
 */
export function contentOf(from: string): string {
  return `LEFT JOIN LATERAL (SELECT head, body FROM element WHERE ${from}.head IS NULL AND seq = ${from}.seq LIMIT 1) e ON true`;
}

/**
 * Makes sure that subscriptions are in the registry and not marked as idle, in the transaction that stores something
 * for them. `from` has columns id, queue, ns, name, grp. Sorted, so that two nodes that store for the same
 * subscriptions do not wait for each other in a circle. Another subscription with the same id violates the primary
 * key, so that its elements are never mixed with these.
 */
export function register(name: string, from: string, where = 'true'): string {
  return `${name} AS (INSERT INTO subscription AS s (id, queue, ns, name, grp)
    SELECT u.id, u.queue, u.ns, u.name, u.grp FROM ${from}
    WHERE ${where} AND NOT EXISTS (SELECT FROM subscription o
      WHERE o.id = u.id AND o.ns = u.ns AND o.name = u.name AND o.grp = u.grp AND o.idle_from IS NULL)
    ORDER BY u.ns, u.name, u.grp ON CONFLICT (ns, name, grp) DO UPDATE SET idle_from = NULL)`;
}

/**
 * The policy that holds for a subscription, as a lateral item of `FROM`: names, and if its elements may become dead
 * letters, `target` (the name of the queue they go to) and `max_tries`; and `retry`, empty or null if there is no retry
 * delay. What `declare` stored comes before what the namespace has for the name.
 * @param first the number of the first of the six parameters of `Registry.policies`
 */
export function policyOf(subscription: string, first: number): string {
  const types = ['text', 'text', 'int', 'text', 'text', 'text'];
  const parameters = types.map((type, i) => `$${first + i}::${type}[]`).join(', ');
  return `LATERAL (SELECT q.id AS queue, q.ns, q.name, s.grp, coalesce(q.max_tries, n.max_tries) AS max_tries, n.groups AS dead_groups,
      CASE WHEN coalesce(q.max_tries, n.max_tries) > 0 THEN nullif(coalesce(q.dead_queue, n.dead_queue), q.name) END AS target,
      coalesce(q.retry, n.retry::float8[]) AS retry
    FROM subscription s JOIN subscription q ON q.id = s.queue
    JOIN unnest(${parameters}) WITH ORDINALITY AS n(ns, pattern, max_tries, dead_queue, groups, retry, ord)
      ON n.ns = q.ns AND q.name LIKE n.pattern
    WHERE s.id = ${subscription} ORDER BY n.ord LIMIT 1)`;
}

/**
 * How long a delivery waits after a failed try that named no delay; null if there is no retry delay. As `retryDelayMs`
 * in `engine/queue-policy.ts`.
 * @param retry first, factor, max, jitter, and the number of tries after which a larger power of the factor changes
 *   nothing and may overflow
 */
export function retryDelay(retry: string, tries: string, seq: string): string {
  const delay = `least(${retry}[3], ${retry}[1] * power(${retry}[2], least(${tries} - 1, ${retry}[5])))`;
  const part = `((${seq} % 65536 * 40503 + (${tries})::bigint * 30011) % 65536)::float8 / 65536`;
  return `floor(${delay} * (1 - ${retry}[4] * (${part})) + 0.5)::bigint`;
}

/** PostgreSQL's largest `int`: no tries reach more. */
const MAX_TRIES = 2 ** 31 - 1;

export function clampTries(tries: number): number {
  return Math.min(tries, MAX_TRIES);
}

/** A retry delay as {@link retryDelay} reads it; empty: none. */
export function retryArray(retry: RetryDelay | null): Buffer {
  if (retry === null) return Buffer.from('{}');
  const { firstMs, factor, maxMs, jitter } = retry;
  return Buffer.from(`{${[firstMs, factor, maxMs, jitter, stepsToMax(retry)].join(',')}}`);
}

/**
 * After so many tries more the delay has reached its maximum; for arithmetic that overflows instead of becoming
 * infinite.
 */
function stepsToMax({ firstMs, factor, maxMs }: RetryDelay): number {
  if (factor === 1 || firstMs >= maxMs) return 0;
  return Math.ceil(Math.log(maxMs / firstMs) / Math.log(factor)) + 1;
}

/** The line that makes a head that of a dead letter, see `content.ts`. */
export function deadLine(queue: string, tries: string, seq: string, reason: string): string {
  return `E'\\n' || concat('["d",', to_json(${queue}), ',', t.now, ',', ${tries}, ',', ${seq}, ',', coalesce(${reason}, 'null'), ']')`;
}

/**
 * The `WITH` entries that store copies of elements whose deliveries have just gone. These are in `moved`, with columns
 * ord, seq, subscription, due_at, lease_until, head, body and {@link CONTENT_BYTES}; and of the copy to_ns, to_name,
 * to_groups (an array as text; null: no copy), to_due, to_tries, to_expires, to_reason, and line, which is added to the
 * head. In a stream the other groups keep the element.
 */
export function copyMoved(): string[] {
  return [
    `c AS MATERIALIZED (SELECT nextval('element_seq') AS seq, m.to_ns, m.to_name, m.to_groups::text[] AS groups, m.to_due,
        m.to_tries, m.to_expires, m.to_reason, coalesce(m.head, e.head) || m.line AS head, coalesce(m.body, e.body) AS body,
        m.to_groups::text[] <> '{""}' AS in_stream, subscription_id(m.to_ns, m.to_name, '') AS queue
      FROM (SELECT * FROM moved WHERE to_groups IS NOT NULL ORDER BY ord) m
      ${contentOf('m')})`,
    `cd AS (INSERT INTO delivery AS d (seq, due_at, inserted_at, expires_at, subscription, tries, bytes, reason, head, body)
      SELECT c.seq, c.to_due, t.now, c.to_expires, subscription_id(c.to_ns, c.to_name, g.grp), c.to_tries,
        octet_length(c.head) + octet_length(c.body), c.to_reason,
        CASE WHEN NOT c.in_stream THEN c.head END, CASE WHEN NOT c.in_stream THEN c.body END
      FROM c CROSS JOIN t CROSS JOIN LATERAL unnest(c.groups) AS g(grp)
      RETURNING d.subscription, d.due_at, ${CONTENT_BYTES})`,
    count('cc', 'cd', CAME_WAITING),
    `ce AS (INSERT INTO element AS e (seq, queue, remaining, head, body)
      SELECT c.seq, c.queue, cardinality(c.groups), c.head, c.body FROM c WHERE c.in_stream RETURNING ${elementColumns('e')})`,
    countElements('cec', 'ce', ''),
    register(
      'cr',
      `(SELECT DISTINCT subscription_id(c.to_ns, c.to_name, g.grp) AS id, c.queue, c.to_ns AS ns, c.to_name AS name, g.grp
        FROM c CROSS JOIN LATERAL unnest(c.groups || ''::text) AS g(grp)) u`,
    ),
    finishShared('moved'),
    count('mc', 'moved', WENT_EITHER),
  ];
}

/** Non-empty parts of a `WITH` list. */
export function withList(...parts: readonly (string | false)[]): string {
  return `WITH ${parts.filter((part) => part !== false).join(',\n')}`;
}
