import {
  type GroupCounts,
  NO_COUNTS,
  type PurgeStep,
  type QueueCounts,
  type QueueOptions,
  type Usage,
} from '../../engine/storage.ts';
import type { DeliveryState, GroupName } from '../../model/element.ts';
import { earlier } from '../../util/clock.ts';
import type { Context, Operation } from './operations.ts';
import type { RegisteredQueue, Subscription } from './registry.ts';
import {
  addCounts,
  CONTENT_BYTES,
  clampTries,
  DELETED_ANY,
  finishStreamElements,
  HOLDS_DELIVERIES,
  limitBytes,
  MAX_STATEMENT_BYTES,
  NOW,
  retryArray,
  STEP_BITS,
  withList,
} from './sql.ts';
import {
  Columns,
  flag,
  number,
  numberOrNull,
  type Query,
  type Row,
  rowIndex,
  type Statement,
  text,
} from './statement.ts';

// Operations on whole queues: declarations, names, usage, drops, purges, counts.

export function queueOperations(context: Context) {
  return {
    declare: declareOperation(false),
    declareOptions: declareOperation(true),
    ping: PING_OPERATION,
    drop: DROP_OPERATION,
    purge: {
      waiting: purgeOperation('waiting'),
      ready: purgeOperation('ready'),
      scheduled: purgeOperation('scheduled'),
      reserved: purgeOperation('reserved'),
    },
    counts: countsOperation(context),
  };
}

/** A read on the auxiliary connection. */
export interface Read<R> extends Query {
  readonly read: (rows: readonly Row[]) => R;
}

interface DeclareItem {
  readonly queue: RegisteredQueue;
  /** Undefined: leaves the stored options; null: deletes them. */
  readonly options: QueueOptions | null | undefined;
}

/** Of the options, 0 means none; null means that the policy of the namespace applies. */
const DECLARED = new Columns<DeclareItem>()
  .id('id', ({ queue }) => queue.id)
  .text('ns', ({ queue }) => queue.key.ns)
  .text('name', ({ queue }) => queue.key.name)
  .bool('has_options', ({ options }) => options != null)
  .int('max_tries', ({ options }) => {
    const deadLetter = options?.deadLetter;
    return deadLetter === undefined ? null : clampTries(deadLetter?.maxTries ?? 0);
  })
  .text('dead_queue', ({ options }) => options?.deadLetter?.queue)
  .bigint('retention', ({ options }) =>
    options?.retentionMs === undefined ? null : (options.retentionMs ?? 0),
  )
  .text('retry', ({ options }) =>
    options?.retryDelay === undefined ? null : retryArray(options.retryDelay),
  );

const DECLARE: Statement = {
  name: 'declare',
  text: `INSERT INTO subscription AS s (id, queue, ns, name, grp, max_tries, dead_queue, retention, retry, has_options)
    SELECT id, id, ns, name, '', max_tries, dead_queue, retention, retry::float8[], has_options
    FROM ${DECLARED.from('u')} ORDER BY ns, name
    ON CONFLICT (ns, name, grp) DO UPDATE SET idle_from = NULL`,
};

const DECLARE_OPTIONS: Statement = {
  name: 'declare with options',
  text: `${DECLARE.text}, max_tries = excluded.max_tries, dead_queue = excluded.dead_queue,
    retention = excluded.retention, retry = excluded.retry, has_options = excluded.has_options`,
};

function declareOperation(setsOptions: boolean): Operation<DeclareItem, void> {
  const statement = setsOptions ? DECLARE_OPTIONS : DECLARE;
  return {
    statement,
    changes: true,
    keysOf: ({ queue }) => [queue.idText],
    prepare: (items) => ({
      values: DECLARED.values(items),
      read: () => {
        for (const { queue, options } of items) {
          queue.hasPolicy ||= options?.deadLetter != null || options?.retryDelay != null;
        }
        return items.map(() => undefined);
      },
    }),
  };
}

const QUEUES: Statement = {
  name: 'queues',
  text: "SELECT name FROM subscription WHERE ns = $1 AND grp = ''",
};

/** Reads the names of a namespace's queues, sorted. */
export function readQueues(ns: string): Read<string[]> {
  return { statement: QUEUES, values: [ns], read: (rows) => rows.map((row) => text(row, 0)).sort() };
}

/** Approximate size of a delivery without its content, including index entries, in bytes. */
const ROW_BYTES = 100;

/** The second parameter is the watermark of all counts: without it, the read may have to step over many dead rows. */
const USAGE: Statement = {
  name: 'usage',
  text: `WITH d AS (SELECT coalesce(sum(y.elements), 0) AS elements, coalesce(sum(y.bytes), 0) AS bytes
      FROM (SELECT id FROM subscription WHERE ns = $1 UNION ALL SELECT -id FROM subscription WHERE ns = $1 AND grp = '') s
      CROSS JOIN LATERAL (SELECT CASE WHEN s.id > 0 THEN waiting + reserved ELSE 0 END AS elements, bytes
        FROM counter WHERE subscription = s.id AND id >= $2::bigint OFFSET 0) y)
    SELECT elements, bytes + elements * ${ROW_BYTES} FROM d`,
};

/** Reads the number of deliveries of a namespace, and their bytes, from the counter deltas. */
export function readUsage({ registry }: Context, ns: string): Read<Usage> {
  return {
    statement: USAGE,
    values: [ns, String(registry.counterWatermark.from)],
    read: ([row = []]) => ({ elements: number(row, 0), bytes: number(row, 1) }),
  };
}

export const PING: Statement = { name: 'ping', text: 'SELECT now_ms()' };

/** Reads the database's clock. */
const PING_OPERATION: Operation<null, number> = {
  statement: PING,
  changes: false,
  prepare: (items) => ({
    values: [],
    read: ([row = []]) => items.map(() => number(row, 0)),
  }),
};

/**
 * Each statement that stores something has locked the registry for writing before it takes its snapshot, and keeps the
 * lock until its transaction ends. So with this lock, a drop sees everything that was stored, and what is stored later
 * creates the queue again. Other transactions that store something wait for it as well. Drops exclude each other: with
 * a lock that they share, two would deadlock when they delete.
 */
const LOCK_REGISTRY: Statement = {
  name: 'lock registry',
  text: 'LOCK TABLE subscription IN SHARE ROW EXCLUSIVE MODE',
};

/** Whether the registry is locked. It is not if BEGIN was rejected: then each statement is a transaction of its own. */
const HAS_LOCK = `EXISTS (SELECT FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.relation = 'subscription'::regclass
  AND l.mode = 'ShareRowExclusiveLock')`;

/** Deletes a queue that holds nothing. Returns whether the queue does not exist any more. */
const DROP: Statement = {
  name: 'drop',
  text: `${withList(
    `c AS MATERIALIZED (SELECT q.id, q.ns, q.name FROM subscription q WHERE q.id = $1::bigint AND NOT (${HOLDS_DELIVERIES}) AND ${HAS_LOCK})`,
    'g AS (DELETE FROM subscription q WHERE q.queue = ANY (ARRAY(SELECT c.id FROM c)) RETURNING q.id)',
    'gc AS (DELETE FROM counter y USING g WHERE y.subscription = ANY (ARRAY[g.id, -g.id]))',
    'gk AS (DELETE FROM dedup d USING c WHERE d.queue = c.id)',
    'gs AS (DELETE FROM stats s USING c WHERE s.ns = c.ns AND s.queue = c.name)',
  )} SELECT EXISTS (SELECT FROM c) OR NOT EXISTS (SELECT FROM subscription WHERE id = $1::bigint)`,
};

const DROP_OPERATION: Operation<RegisteredQueue, boolean> = {
  statement: DROP,
  lock: LOCK_REGISTRY,
  changes: true,
  isSingle: true,
  prepare: ([queue]) => ({
    values: [queue?.idText ?? null],
    read: ([row = []]) => [flag(row, 0)],
  }),
};

/** How many deliveries one step of a purge removes at most: about a tenth of a second, for which other calls wait. */
const MAX_PURGED = 10_000;

interface PurgeItem {
  readonly queue: RegisteredQueue;
  /** How many statements share the limits of the step. */
  readonly statements: number;
}

interface PurgedState {
  /** Condition for the deliveries of a subscription `s`. */
  readonly where: string;
  /** Condition for the subscriptions. */
  readonly of?: string;
}

/**
 * Reserved deliveries to groups have an index of their own. Those of the queue itself, also if it has become a stream
 * since, are found among those of all queues, which are read only if there are some.
 */
const PURGED: Record<DeliveryState | 'waiting', readonly PurgedState[]> = {
  waiting: [{ where: 'd.lease_until IS NULL' }],
  ready: [{ where: 'd.lease_until IS NULL AND d.due_at <= t.now' }],
  scheduled: [{ where: 'd.lease_until IS NULL AND d.due_at > t.now' }],
  reserved: [
    {
      where: 'd.lease_until IS NOT NULL',
      of: "s.grp = '' AND (SELECT coalesce(sum(y.reserved), 0) FROM counter y WHERE y.subscription = s.id) <> 0",
    },
    { where: 'd.head IS NULL AND d.lease_until IS NOT NULL', of: "s.grp <> ''" },
  ],
};

function purgeStatement(state: keyof typeof PURGED): Statement {
  const found = PURGED[state].map(
    ({ where, of = 'true' }) => `(SELECT x.tid, x.bytes FROM t CROSS JOIN subscription s CROSS JOIN LATERAL (
        SELECT d.ctid AS tid, d.bytes FROM delivery d WHERE d.subscription = s.id AND ${where}
        LIMIT $2::int FOR UPDATE SKIP LOCKED) x WHERE s.queue = $1::bigint AND ${of} LIMIT $2::int)`,
  );
  return {
    name: `purge ${state}`,
    text: `${withList(
      NOW,
      `l AS MATERIALIZED (SELECT x.tid, x.bytes FROM (${found.join(' UNION ALL ')}) x LIMIT $2::int)`,
      limitBytes('f', 'l', '$3::bigint'),
      `g AS (DELETE FROM delivery d USING f WHERE d.ctid = f.tid
        RETURNING d.seq, d.subscription, d.due_at, d.lease_until, d.head, ${CONTENT_BYTES})`,
      finishStreamElements('g'),
      addCounts('gc', 'g', DELETED_ANY),
    )} SELECT (SELECT count(*) FROM l), (SELECT count(*) FROM g)`,
  };
}

function purgeOperation(state: keyof typeof PURGED): Operation<PurgeItem, PurgeStep> {
  return {
    statement: purgeStatement(state),
    changes: true,
    locksElements: true,
    isSingle: true,
    prepare: ([item]) => {
      if (item === undefined) throw new Error('a purge has a queue');
      const { queue, statements } = item;
      const rows = Math.floor(MAX_PURGED / statements);
      const bytes = Math.floor(MAX_STATEMENT_BYTES / statements);
      return {
        values: [queue.idText, String(rows), String(bytes)],
        read: ([row = []]) => {
          const [found, removed] = [number(row, 0), number(row, 1)];
          return [{ removed, isDone: found < rows && removed === found }];
        },
      };
    },
  };
}

/** The watermarks from which reads of a subscription begin. */
const READ_PLACES = new Columns<Subscription>()
  .id('id', ({ id }) => id)
  .bigint('from_due', ({ watermark }) => watermark.place.dueAt)
  .bigint('from_seq', ({ watermark }) => watermark.place.seq);
/** The parameter after these: the watermark of counter rows. */
const FROM_ID = `$${READ_PLACES.count + 1}::bigint`;

/**
 * How many deliveries one statement counts row by row at most: about a quarter of a second on an idle machine. Those
 * beyond count as ready. In a stream each element also costs a lookup of its deliveries to other groups: with 200,000
 * deliveries a count took 0.8 s, and on a busy machine more than the statement timeout.
 */
const MAX_COUNTED = 250_000;
const MAX_COUNTED_IN_STREAM = 50_000;

/**
 * Counts are sums of the deltas in `counter`. Waiting deliveries in past steps of due time are ready, those in future
 * steps are scheduled; the scheduled ones of the current step are counted in the index. Without their order, a plan
 * that was made while the table was empty reads the whole primary key for each group.
 */
function countsOf(subscriptions: string): string {
  return `SELECT l.ord, c.waiting - c.later - x.soon, c.later + x.soon, c.reserved,
      (SELECT d.due_at FROM delivery d WHERE d.subscription = l.id AND d.lease_until IS NULL
        AND (d.due_at, d.seq) >= (l.from_due, l.from_seq) ORDER BY d.due_at, d.seq LIMIT 1), l.grp
    FROM t CROSS JOIN ${subscriptions} CROSS JOIN LATERAL (
      SELECT coalesce(sum(waiting), 0) AS waiting, coalesce(sum(reserved), 0) AS reserved,
        coalesce(sum(waiting) FILTER (WHERE step > t.now >> ${STEP_BITS}), 0) AS later
      FROM counter y WHERE y.subscription = l.id AND y.id >= ${FROM_ID}) c
    CROSS JOIN LATERAL (
      SELECT count(*) AS soon FROM (SELECT FROM delivery d WHERE d.subscription = l.id AND d.lease_until IS NULL
        AND d.due_at > t.now AND d.due_at < ((t.now >> ${STEP_BITS}) + 1) << ${STEP_BITS}
        ORDER BY d.due_at, d.seq LIMIT ${MAX_COUNTED}) y) x`;
}

const COUNTS: Statement = {
  name: 'counts',
  text: `${withList(NOW)} ${countsOf(`(SELECT p.*, NULL AS grp FROM ${READ_PLACES.from('p')}) l`)}`,
};

/**
 * Whether no delivery `w` of the element `x` fulfils a condition. Only its number selects the index that is read
 * (`OFFSET 0`): the index of waiting deliveries would be read to its end.
 */
function noDelivery(where: string): string {
  return `NOT EXISTS (SELECT FROM (SELECT w.lease_until, w.due_at FROM delivery w WHERE w.seq = x.seq OFFSET 0) w WHERE ${where})`;
}

/**
 * The same for all groups of a stream, and in a row 0 the counts of its elements, each in its most advanced state. The
 * total comes from the deltas. Elements with only reserved deliveries are found among the reserved ones, elements with
 * nothing ready among the scheduled ones; all others are ready. So a deep stream costs no more than a shallow one,
 * unless many of its elements are scheduled. Each group is looked up, in the order of its index: statistics that were
 * made before there was a stream expect one row where `head` is null, and a join then read all elements of all streams.
 * The groups that this node knows are not joined with all others, either, since there may be thousands.
 */
const QUEUE = `$${READ_PLACES.count + 2}::bigint`;
const STREAM_COUNTS: Statement = {
  name: 'counts of a stream',
  text: `${withList(
    NOW,
    `p AS MATERIALIZED (SELECT * FROM ${READ_PLACES.from('p')})`,
    `l AS MATERIALIZED (SELECT s.id, s.grp, p.from_due, p.from_seq, p.ord FROM p
        CROSS JOIN LATERAL (SELECT id, grp FROM subscription WHERE id = p.id AND grp <> '' LIMIT 1) s
      UNION ALL SELECT s.id, s.grp, ${Number.MIN_SAFE_INTEGER}, 0, -1 FROM subscription s
        WHERE s.queue = ${QUEUE} AND s.grp <> '' AND (s.id IN (SELECT p.id FROM p)) IS NOT TRUE)`,
    `a AS MATERIALIZED (SELECT coalesce(sum(waiting), 0) AS elements FROM counter
      WHERE subscription = -${QUEUE} AND id >= ${FROM_ID})`,
    `r AS MATERIALIZED (SELECT count(*) AS elements FROM (
        SELECT DISTINCT d.seq FROM (SELECT d.seq FROM l CROSS JOIN LATERAL (SELECT d.seq FROM delivery d
            WHERE d.subscription = l.id AND d.head IS NULL AND d.lease_until IS NOT NULL
            ORDER BY d.seq LIMIT ${MAX_COUNTED_IN_STREAM}) d LIMIT ${MAX_COUNTED_IN_STREAM}) d) x
      WHERE ${noDelivery('w.lease_until IS NULL')})`,
    `s AS MATERIALIZED (SELECT count(*) AS elements FROM (
        SELECT DISTINCT d.seq FROM (SELECT d.seq FROM t CROSS JOIN l CROSS JOIN LATERAL (SELECT d.seq FROM delivery d
            WHERE d.subscription = l.id AND d.lease_until IS NULL AND d.due_at > t.now
            ORDER BY d.due_at, d.seq LIMIT ${MAX_COUNTED_IN_STREAM}) d LIMIT ${MAX_COUNTED_IN_STREAM}) d) x
      CROSS JOIN t WHERE ${noDelivery('w.lease_until IS NULL AND w.due_at <= t.now')})`,
  )}
  ${countsOf('l')}
  UNION ALL
  SELECT 0, a.elements - r.elements - s.elements, s.elements, r.elements, NULL, NULL FROM a, r, s`,
};

function readCounts(row: Row): GroupCounts {
  const [ready, scheduled, reserved] = [number(row, 1), number(row, 2), number(row, 3)];
  return { ready, scheduled, reserved, nextMatureAt: ready + scheduled === 0 ? null : numberOrNull(row, 4) };
}

/** A read that takes longer may have stepped over many dead entries; a probe on the auxiliary connection finds out. */
const SLOW_MS = 20;

/** Returns the function to call when these subscriptions have been read. */
function startRead({ prober, clock }: Context, subscriptions: Iterable<Subscription>): () => void {
  const sentAt = clock.monotonic();
  return () => {
    if (clock.monotonic() - sentAt > SLOW_MS) for (const one of subscriptions) prober.requestProbe(one);
  };
}

/** Returns the counts of one group. */
function countsOperation(context: Context): Operation<Subscription, GroupCounts> {
  return {
    statement: COUNTS,
    changes: false,
    prepare: (items) => {
      const endRead = startRead(context, items);
      return {
        values: [...READ_PLACES.values(items), String(context.registry.counterWatermark.from)],
        read: (rows) => {
          endRead();
          const results: GroupCounts[] = items.map(() => NO_COUNTS);
          for (const row of rows) results[rowIndex(row)] = readCounts(row);
          return results;
        },
      };
    },
  };
}

/** Reads the counts of a stream's elements and of each of its groups. */
export function readStreamCounts(context: Context, queue: RegisteredQueue): Read<QueueCounts> {
  const known = [...queue.subscriptions.values()];
  const endRead = startRead(context, known);
  const from = String(context.registry.counterWatermark.from);
  return {
    statement: STREAM_COUNTS,
    values: [...READ_PLACES.values(known), from, queue.idText],
    read: (rows) => {
      endRead();
      const groups = new Map<GroupName, GroupCounts>();
      let [elements, nextMatureAt]: [GroupCounts, number | null] = [NO_COUNTS, null];
      for (const row of rows) {
        const counts = readCounts(row);
        const group = row[5] ?? null;
        if (group === null) elements = counts;
        else if (counts.ready + counts.scheduled + counts.reserved > 0) {
          groups.set(group, counts);
          nextMatureAt = earlier(nextMatureAt, counts.nextMatureAt);
        }
      }
      return { ...elements, nextMatureAt, groups };
    },
  };
}
