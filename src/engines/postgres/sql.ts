import type { RetryDelay } from '../../engine/storage.ts';

/**
 * SQL that several statements share. Each function returns a `WITH` entry or an expression, and documents the entries
 * that it reads.
 */

/**
 * The entry `locked`: the streams whose elements a statement is going to finish, and whether it got their locks (see
 * `lockStreams` in `batcher.ts`). It does not wait for a lock, since it already holds row locks: it skips the elements
 * of streams that others have locked.
 * @param from has a column queue
 */
export function lockStreamsOf(from: string): string {
  return `locked AS MATERIALIZED (SELECT queue,
      pg_try_advisory_xact_lock_shared('element'::regclass::oid::int, (queue << 32 >> 32)::int) AS is_locked
    FROM (SELECT DISTINCT queue FROM ${from}) q)`;
}

/** The current time, the same for all parts of a statement. */
export const NOW = 't AS MATERIALIZED (SELECT now_ms() AS now)';

/**
 * The same as a bound of an index scan: with a join with `t`, PostgreSQL may compare the time with each row up to the
 * end of the index.
 */
export const NOW_BOUND = '(SELECT now FROM t)';

/** Due times are counted in steps of 2^20 ms. */
export const STEP_BITS = 20;

/** The bytes of a row of `delivery` for its subscription: 0 in a stream, where `element` has the content. */
export const CONTENT_BYTES = 'CASE WHEN d.head IS NULL THEN 0 ELSE d.bytes END AS content_bytes';

/** Deltas of bytes for deliveries that were stored or deleted: sums over {@link CONTENT_BYTES}. */
const BYTES_STORED = 'sum(content_bytes)';
const BYTES_DELETED = '-sum(content_bytes)';

interface Deltas {
  readonly waiting: string;
  readonly reserved: string;
  readonly bytes: string;
}

export const STORED_WAITING: Deltas = { waiting: 'count(*)', reserved: '0', bytes: BYTES_STORED };
export const DELETED_WAITING: Deltas = { waiting: '-count(*)', reserved: '0', bytes: BYTES_DELETED };
/** For deleted deliveries that were waiting or reserved, with a column lease_until. */
export const DELETED_ANY: Deltas = {
  waiting: '-count(*) FILTER (WHERE lease_until IS NULL)',
  reserved: '-count(*) FILTER (WHERE lease_until IS NOT NULL)',
  bytes: BYTES_DELETED,
};

/** How many bytes a statement deletes or copies at most: a fraction of a second of its 3 s, while others wait. */
export const MAX_STATEMENT_BYTES = 8 * 1024 * 1024;

/**
 * The entry `name`: the first rows of `from` (with a column bytes) up to a total of `maxBytes`, at least one.
 * PostgreSQL stores and deletes a large body in many pieces, about 10 ms per MiB, so limiting rows alone does not bound
 * the time of a statement.
 */
export function limitBytes(name: string, from: string, maxBytes = String(MAX_STATEMENT_BYTES)): string {
  return `${name} AS MATERIALIZED (SELECT * FROM (SELECT f.*, sum(f.bytes) OVER (ROWS UNBOUNDED PRECEDING) - f.bytes AS before
    FROM ${from} f) f WHERE f.before < ${maxBytes})`;
}

/** Inserts counter deltas. `from` has columns subscription and due_at; the deltas are aggregates over it. */
export function addCounts(name: string, from: string, { waiting, reserved, bytes }: Deltas): string {
  return `${name} AS (INSERT INTO counter (subscription, step, waiting, reserved, bytes)
    SELECT subscription, due_at >> ${STEP_BITS}, ${waiting}, ${reserved}, ${bytes} FROM ${from} GROUP BY 1, 2)`;
}

/** The columns of `element` that {@link addElementCounts} needs. */
export function elementColumns(alias: string): string {
  return `${alias}.queue, octet_length(${alias}.head) + octet_length(${alias}.body) AS content_bytes`;
}

/** Inserts counter deltas for elements of streams that were stored or deleted. `from` has {@link elementColumns}. */
export function addElementCounts(name: string, from: string, sign: '' | '-'): string {
  return `${name} AS (INSERT INTO counter (subscription, step, waiting, reserved, bytes)
    SELECT -queue, 0, ${sign}count(*), 0, ${sign}sum(content_bytes) FROM ${from} GROUP BY queue)`;
}

/**
 * Finishes elements of streams. `from` has their deleted deliveries, with columns seq and head. An element is deleted
 * with its last delivery. Its row is locked first, in the order of sequence numbers, so that of two groups that finish
 * an element concurrently, the second one sees the remaining count of the first. No entry joins `element` by its
 * number, see {@link contentOf}.
 */
export function finishStreamElements(from: string): string {
  return `sg AS MATERIALIZED (SELECT seq, count(*)::int AS gone FROM ${from} WHERE head IS NULL GROUP BY seq),
  sl AS MATERIALIZED (SELECT e.seq, e.remaining - o.gone AS remaining, o.gone FROM (SELECT * FROM sg ORDER BY seq) o
    CROSS JOIN LATERAL (SELECT seq, remaining FROM element WHERE seq = o.seq LIMIT 1 FOR UPDATE) e),
  sd AS (DELETE FROM element e WHERE e.seq = ANY (ARRAY(SELECT seq FROM sl WHERE remaining <= 0)) RETURNING ${elementColumns('e')}),
  su AS (UPDATE element e SET remaining = e.remaining - CASE WHEN e.seq = ANY (ARRAY(SELECT seq FROM sl WHERE gone > 1))
      THEN (SELECT gone FROM sl WHERE sl.seq = e.seq) ELSE 1 END
    WHERE e.seq = ANY (ARRAY(SELECT seq FROM sl WHERE remaining > 0))),
  ${addElementCounts('sec', 'sd', '-')}`;
}

/**
 * The content of the elements of those deliveries in `from` (columns seq, head) that have none themselves, as an item
 * of `FROM`. A lookup per delivery: a join whose plan was made while the table was empty may read the whole table for
 * each delivery.
 */
export function contentOf(from: string): string {
  return `LEFT JOIN LATERAL (SELECT head, body FROM element WHERE ${from}.head IS NULL AND seq = ${from}.seq LIMIT 1) e ON true`;
}

/**
 * Ensures that subscriptions are in the registry and not marked as idle, in the transaction that stores something for
 * them. `from` has columns id, queue, ns, name, grp. Rows are sorted, so that two nodes that store for the same
 * subscriptions cannot deadlock. If another subscription has the same id, the primary key is violated, so that their
 * elements are never mixed.
 */
export function register(name: string, from: string, where = 'true'): string {
  return `${name} AS (INSERT INTO subscription AS s (id, queue, ns, name, grp)
    SELECT u.id, u.queue, u.ns, u.name, u.grp FROM ${from}
    WHERE ${where} AND (SELECT o.ns = u.ns AND o.name = u.name AND o.grp = u.grp AND o.idle_from IS NULL
      FROM subscription o WHERE o.id = u.id) IS NOT TRUE
    ORDER BY u.ns, u.name, u.grp ON CONFLICT (ns, name, grp) DO UPDATE SET idle_from = NULL)`;
}

/**
 * The policy of a subscription, as a lateral item of `FROM`: its names; `target` (the dead-letter queue) and
 * `max_tries` if its elements may become dead letters; `retry`, empty or null if there is no retry delay; and
 * `retention`, 0 or null if there is none. Options stored by `declare` take precedence over the rules of the namespace.
 * Both rows are looked up: a join whose plan was made with few queues may read the whole registry.
 * @param first the number of the first of the seven parameters of `Registry.policies`
 */
export function policyOf(subscription: string, first: number): string {
  const types = ['text', 'text', 'int', 'text', 'text', 'text', 'bigint'];
  const parameters = types.map((type, i) => `$${first + i}::${type}[]`).join(', ');
  return `LATERAL (SELECT q.id AS queue, q.ns, q.name, s.grp, coalesce(q.max_tries, n.max_tries) AS max_tries, n.groups AS dead_groups,
      CASE WHEN coalesce(q.max_tries, n.max_tries) > 0 THEN nullif(coalesce(q.dead_queue, n.dead_queue), q.name) END AS target,
      coalesce(q.retry, n.retry::float8[]) AS retry, coalesce(q.retention, n.retention) AS retention
    FROM (SELECT grp, queue FROM subscription WHERE id = ${subscription} OFFSET 0) s
    CROSS JOIN LATERAL (SELECT * FROM subscription WHERE id = s.queue LIMIT 1) q
    JOIN unnest(${parameters}) WITH ORDINALITY AS n(ns, pattern, max_tries, dead_queue, groups, retry, retention, ord)
      ON n.ns = q.ns AND q.name LIKE n.pattern
    ORDER BY n.ord LIMIT 1)`;
}

/**
 * How long a delivery waits after a failed try without a requested delay; null if there is no retry delay. Must match
 * `retryDelayMs` in `engine/queue-policy.ts`.
 * @param retry first, factor, max, jitter, and the number of tries after which a higher power of the factor changes
 *   nothing and may overflow
 */
export function retryDelay(retry: string, tries: string, seq: string): string {
  const delay = `least(${retry}[3], ${retry}[1] * power(${retry}[2], least(${tries} - 1, ${retry}[5])))`;
  const part = `((${seq} % 65536 * 40503 + (${tries})::bigint * 30011) % 65536)::float8 / 65536`;
  return `floor(${delay} * (1 - ${retry}[4] * (${part})) + 0.5)::bigint`;
}

/** PostgreSQL's largest `int`. */
const MAX_TRIES = 2 ** 31 - 1;

export function clampTries(tries: number): number {
  return Math.min(tries, MAX_TRIES);
}

/** The parameter of {@link retryDelay}; empty: no retry delay. */
export function retryArray(retry: RetryDelay | null): string {
  if (retry === null) return '{}';
  const { firstMs, factor, maxMs, jitter } = retry;
  return `{${[firstMs, factor, maxMs, jitter, stepsToMax(retry)].join(',')}}`;
}

/**
 * How many tries after the first the delay has reached its maximum: PostgreSQL's arithmetic overflows instead of
 * becoming infinite.
 */
function stepsToMax({ firstMs, factor, maxMs }: RetryDelay): number {
  if (factor === 1 || firstMs >= maxMs) return 0;
  return Math.ceil(Math.log(maxMs / firstMs) / Math.log(factor)) + 1;
}

/** The line that a dead letter adds to the head of its element, see `content.ts`. `from` has columns name and grp. */
export function deadLetterLine(from: string, tries: string, seq: string, reason: string): string {
  return `E'\\n' || concat('["d",', to_json(${from}.name), ',', t.now, ',', ${tries}, ',', ${seq}, ',', coalesce(${reason}, 'null'), ',', to_json(${from}.grp), ']')`;
}

/**
 * The head of the copy of a moved element. The line of a dead letter replaces the last line if that and the one before
 * it are those of dead letters, see `engine/stored-metadata.ts`.
 */
const HEAD_OF_COPY = String.raw`CASE WHEN m.line IS NULL THEN coalesce(m.new_head, m.head, e.head)
    ELSE regexp_replace(coalesce(m.head, e.head), E'(\n\\["d",[^\n]*)\n\\["d",[^\n]*$', E'\\1') || m.line END`;

/**
 * The `WITH` entries that store copies of elements whose deliveries were deleted. `moved` has these deliveries, with
 * columns ord, seq, subscription, due_at, lease_until, head, body and {@link CONTENT_BYTES}; and for the copy to_ns,
 * to_name, to_groups (an array as text; null: no copy), to_due, to_tries, to_expires, to_reason, new_head (null: that
 * of the element), and line, which is appended to the head (null: none). In a stream, the other groups keep the
 * element.
 */
export function copyMoved(): string[] {
  return [
    `c AS MATERIALIZED (SELECT nextval('element_seq') AS seq, m.to_ns, m.to_name, m.to_groups::text[] AS groups, m.to_due,
        m.to_tries, m.to_expires, m.to_reason, ${HEAD_OF_COPY} AS head, coalesce(m.body, e.body) AS body,
        m.to_groups::text[] <> '{""}' AS in_stream, subscription_id(m.to_ns, m.to_name, '') AS queue
      FROM (SELECT * FROM moved WHERE to_groups IS NOT NULL ORDER BY ord) m
      ${contentOf('m')})`,
    `cd AS (INSERT INTO delivery AS d (seq, due_at, inserted_at, expires_at, subscription, tries, bytes, reason, head, body)
      SELECT c.seq, c.to_due, t.now, c.to_expires, subscription_id(c.to_ns, c.to_name, g.grp), c.to_tries,
        octet_length(c.head) + octet_length(c.body), c.to_reason,
        CASE WHEN NOT c.in_stream THEN c.head END, CASE WHEN NOT c.in_stream THEN c.body END
      FROM c CROSS JOIN t CROSS JOIN LATERAL unnest(c.groups) AS g(grp)
      RETURNING d.subscription, d.due_at, ${CONTENT_BYTES})`,
    addCounts('cc', 'cd', STORED_WAITING),
    `ce AS (INSERT INTO element AS e (seq, queue, remaining, head, body)
      SELECT c.seq, c.queue, cardinality(c.groups), c.head, c.body FROM c WHERE c.in_stream RETURNING ${elementColumns('e')})`,
    addElementCounts('cec', 'ce', ''),
    register(
      'cr',
      `(SELECT DISTINCT subscription_id(c.to_ns, c.to_name, g.grp) AS id, c.queue, c.to_ns AS ns, c.to_name AS name, g.grp
        FROM c CROSS JOIN LATERAL unnest(c.groups || ''::text) AS g(grp)) u`,
    ),
    finishStreamElements('moved'),
    addCounts('mc', 'moved', DELETED_ANY),
  ];
}

/** Whether a queue `q` holds deliveries, by its counter deltas. */
export const HOLDS_DELIVERIES = `coalesce((SELECT sum(y.waiting + y.reserved) FROM (SELECT id FROM subscription WHERE queue = q.id OFFSET 0) s
  CROSS JOIN LATERAL (SELECT waiting, reserved FROM counter WHERE subscription = s.id OFFSET 0) y), 0) <> 0`;

/** A `WITH` list of the parts that are not false. */
export function withList(...parts: readonly (string | false)[]): string {
  return `WITH ${parts.filter((part) => part !== false).join(',\n')}`;
}
