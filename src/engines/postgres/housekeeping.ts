import type { NamespacePolicy } from '../../engine/engine.ts';
import type { EventLog } from '../../util/log.ts';
import { LogOnChange } from '../../util/log-on-change.ts';
import type { AuxiliaryConnection } from './link.ts';
import type { DatabaseClock } from './operations.ts';
import type { Registry, Subscription } from './registry.ts';
import {
  addCounts,
  CONTENT_BYTES,
  DELETED_WAITING,
  finishStreamElements,
  HOLDS_DELIVERIES,
  limitBytes,
  lockStreamsOf,
  NOW,
  NOW_BOUND,
  policyOf,
  STEP_BITS,
  withList,
} from './sql.ts';
import { idArray, number, type Parameter, type Query, type Statement, text, textArray } from './statement.ts';
import type { CounterWatermark } from './watermark.ts';

/** How many rows one statement examines. */
const MAX_ROWS = 1000;

/**
 * Deletes unreserved deliveries of streams that are past the retention of their queue. Returns {@link MAX_ROWS} if more
 * are left.
 */
const APPLY_RETENTION: Statement = {
  name: 'apply retention',
  text: `${withList(
    NOW,
    `l AS MATERIALIZED (SELECT d.tid, d.bytes, o.id AS queue FROM t CROSS JOIN subscription o CROSS JOIN ${policyOf('o.id', 2)} y
      CROSS JOIN LATERAL (SELECT id FROM subscription WHERE queue = o.id OFFSET 0) s CROSS JOIN LATERAL (
        SELECT ctid AS tid, bytes FROM delivery WHERE subscription = s.id AND head IS NULL
          AND inserted_at <= t.now - y.retention AND lease_until IS NULL
        ORDER BY inserted_at LIMIT ${MAX_ROWS} FOR UPDATE SKIP LOCKED) d
      WHERE o.ns = ANY ($1::text[]) AND o.grp = '' AND y.retention > 0
      LIMIT ${MAX_ROWS})`,
    limitBytes('x', 'l'),
    lockStreamsOf('x'),
    `g AS (DELETE FROM delivery d USING x
      WHERE d.ctid = x.tid AND d.lease_until IS NULL AND (x.queue IN (SELECT queue FROM locked WHERE is_locked)) IS TRUE
      RETURNING d.seq, d.subscription, d.due_at, d.head, ${CONTENT_BYTES})`,
    finishStreamElements('g'),
    addCounts('gc', 'g', DELETED_WAITING),
  )} SELECT CASE WHEN (SELECT count(*) FROM x) < count(*) THEN ${MAX_ROWS} ELSE count(*) END FROM l`,
};

const DELETE_OLD_KEYS: Statement = {
  name: 'forget keys',
  text: `${withList(
    NOW,
    `x AS MATERIALIZED (SELECT d.ctid AS tid FROM dedup d WHERE d.seen_at <= ${NOW_BOUND} - $1::bigint
      ORDER BY d.seen_at LIMIT ${MAX_ROWS} FOR UPDATE OF d SKIP LOCKED)`,
    'g AS (DELETE FROM dedup d USING x WHERE d.ctid = x.tid)',
  )} SELECT count(*) FROM x`,
};

/**
 * A subscription that holds nothing gets a mark, `idle_from`. A transaction that stores something for it removes the
 * mark (`register` in `sql.ts`), and so does, within five minutes, a node that takes from it. If the mark stays for
 * this long, the subscription is unused, and its row is deleted; a queue's row with everything stored about the queue.
 * But a transaction that began before the mark may store something without removing it; without the row, its deliveries
 * would belong to no queue. Such transactions last seconds, and marks minutes, unless the clock is set forward. So the
 * row is kept while a transaction with a smaller number than that of the mark runs. One with a larger number may have
 * begun before the mark, too, since it gets its number with its first change; it could do harm only if the clock is set
 * forward in those seconds. A drop, which does not wait that long, locks the registry instead (`queues.ts`).
 */
const GROUP_UNUSED_MS = 15 * 60_000;
const QUEUE_UNUSED_MS = 24 * 3_600_000;
/** How often takes from a subscription are noted. */
const NOTE_EVERY_MS = GROUP_UNUSED_MS / 3;
/** Intervals between passes over all groups, and over all queues. */
const GROUPS_EVERY_MS = 60_000;
const QUEUES_EVERY_MS = 600_000;

/** Must match the definition that the broker writes (`broker/namespace.ts`). */
const IS_PAUSED = `value LIKE '%"paused":true%'`;
const definitionKey = (of: string): string => `array_to_json(ARRAY[${of}.ns, ${of}.name])::text`;

/**
 * Counters that a node stored after another one had dropped their queue. The first page of a pass deletes them: with
 * 100,000 queues, this takes 0.15 s. Those of a namespace without any queue here are kept, as its elements may be in
 * another engine (`stats: {url: …}`).
 */
const DELETE_ORPHANED_STATS = `o AS MATERIALIZED (SELECT s.ctid AS tid FROM stats s
    WHERE $1::bigint = 0 AND s.ns = ANY ($2::text[]) AND s.ns IN (SELECT ns FROM subscription)
      AND NOT EXISTS (SELECT FROM subscription q WHERE q.ns = s.ns AND q.name = s.queue)
    LIMIT ${MAX_ROWS} FOR UPDATE OF s SKIP LOCKED),
  go AS (DELETE FROM stats s USING o WHERE s.ctid = o.tid)`;

/**
 * Marks idle rows, and deletes those whose mark is old. `c` locks the rows to change and reads their latest version, so
 * that it sees uses that were committed after the snapshot. A row that another node has locked is left for the next
 * pass.
 */
function deleteUnused(kind: 'groups' | 'queues'): Statement {
  const isUsed =
    kind === 'groups'
      ? `EXISTS (SELECT FROM delivery d WHERE d.subscription = q.id AND d.lease_until IS NULL)
        OR EXISTS (SELECT FROM delivery d WHERE d.subscription = q.id AND d.head IS NULL AND d.lease_until IS NOT NULL)`
      : `q.has_options
        OR ${HOLDS_DELIVERIES}
        OR EXISTS (SELECT FROM dedup d WHERE d.queue = q.id)
        OR EXISTS (SELECT FROM definition f WHERE f.kind = 'queue' AND f.key = ${definitionKey('q')} AND f.${IS_PAUSED})`;
  const scope =
    kind === 'groups'
      ? `q.grp <> '' AND NOT EXISTS (SELECT FROM unnest($3::text[], $4::text[]) AS g(ns, grp) WHERE g.ns = q.ns AND g.grp = q.grp)`
      : "q.grp = ''";
  return {
    name: `forget unused ${kind}`,
    text: `${withList(
      NOW,
      `x AS MATERIALIZED (SELECT q.id, ${isUsed} AS is_used FROM subscription q
        WHERE q.id > $1::bigint AND q.ns = ANY ($2::text[]) AND ${scope} ORDER BY q.id LIMIT ${MAX_ROWS})`,
      `c AS MATERIALIZED (SELECT q.id, q.ns, q.name, x.is_used, q.idle_from FROM t CROSS JOIN x JOIN subscription q ON q.id = x.id
        WHERE CASE WHEN x.is_used THEN q.idle_from IS NOT NULL
          ELSE q.idle_from IS NULL OR (q.idle_from <= t.now - ${kind === 'groups' ? GROUP_UNUSED_MS : QUEUE_UNUSED_MS}
            AND age(q.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)) END
        ORDER BY q.id FOR UPDATE OF q SKIP LOCKED)`,
      `m AS (UPDATE subscription q SET idle_from = CASE WHEN NOT c.is_used THEN t.now END FROM c, t
        WHERE q.id = c.id AND (c.is_used OR c.idle_from IS NULL))`,
      `g AS (DELETE FROM subscription q USING c
        WHERE q.${kind === 'groups' ? 'id' : 'queue'} = c.id AND NOT c.is_used AND c.idle_from IS NOT NULL RETURNING q.id, q.ns, q.name)`,
      'gc AS (DELETE FROM counter y USING g WHERE y.subscription = ANY (ARRAY[g.id, -g.id]))',
      kind === 'queues' &&
        `gs AS (DELETE FROM stats s USING g WHERE s.ns = g.ns AND s.queue = g.name),
        gd AS (DELETE FROM definition f USING g WHERE f.kind = 'queue' AND f.key = ${definitionKey('g')} AND NOT f.${IS_PAUSED}),
        ${DELETE_ORPHANED_STATS}`,
    )} SELECT count(*), (SELECT id FROM x ORDER BY id DESC LIMIT 1) FROM x`,
  };
}

/** Removes the marks of used subscriptions and of their queues; adds none to the registry. */
const NOTE_USE: Statement = {
  name: 'note use',
  text: `WITH x AS MATERIALIZED (SELECT id FROM subscription WHERE id = ANY ($1::bigint[]) AND idle_from IS NOT NULL
      ORDER BY ns, name, grp FOR UPDATE)
    UPDATE subscription s SET idle_from = NULL FROM x WHERE s.id = x.id`,
};

/**
 * How many rows of `counter` one statement reads, and the statements of one run; the next run continues there. If the
 * deliveries of a queue mature at more steps than four fifths of these rows, more than a year, a statement sees too few
 * rows of one step: over two years a row remains for every second change, until its step is past.
 */
const MAX_SUMMED_ROWS = 40_000;
const MAX_SUMS_PER_RUN = 10;
/**
 * If the ids of rows are further apart, the next pass rewrites the older rows, even if there is nothing to sum up, so
 * that the rows of idle queues do not keep the watermark behind all dead rows. Stepping over this many takes a tenth of
 * a second.
 */
const MAX_ID_SPAN = 500_000;
/**
 * Sums up the rows of subscriptions that have more rows than steps of due time, starting after row ($1, $2). Only
 * counts of waiting deliveries need their step, and only if it is not past: everything else is summed up in step 0,
 * since otherwise a row would remain for each step in which something was reserved or finished. Only rows with ids from
 * $3 on are read; those with ids below $4 are rewritten in any case.
 */
const SUM_COUNTS: Statement = {
  name: 'sum counts',
  text: `${withList(
    NOW,
    `p AS MATERIALIZED (SELECT y.ctid AS tid, y.subscription, y.id, CASE WHEN y.step >= t.now >> ${STEP_BITS} THEN y.step ELSE 0 END AS step
      FROM t CROSS JOIN counter y WHERE (y.subscription, y.id) > ($1::bigint, $2::bigint) AND y.id >= $3::bigint
      ORDER BY y.subscription, y.id LIMIT ${MAX_SUMMED_ROWS})`,
    'f AS MATERIALIZED (SELECT subscription FROM p GROUP BY 1 HAVING count(*) > 64 + 1.25 * count(DISTINCT step) OR min(id) < $4::bigint)',
    `x AS MATERIALIZED (SELECT y.ctid AS tid, p.step AS due_step FROM p JOIN counter y ON y.ctid = p.tid
      WHERE (p.subscription IN (SELECT subscription FROM f)) IS TRUE FOR UPDATE OF y SKIP LOCKED)`,
    `g AS (DELETE FROM counter y USING x WHERE y.ctid = x.tid RETURNING y.subscription, x.due_step, y.waiting, y.reserved, y.bytes)`,
    `s AS (INSERT INTO counter (subscription, step, waiting, reserved, bytes)
      SELECT subscription, step, sum(waiting), sum(reserved), sum(bytes) FROM (
        SELECT subscription, due_step AS step, waiting, 0 AS reserved, 0 AS bytes FROM g
        UNION ALL SELECT subscription, 0, 0, reserved, bytes FROM g) v GROUP BY subscription, step
      HAVING sum(waiting) <> 0 OR sum(reserved) <> 0 OR sum(bytes) <> 0)`,
  )} SELECT (SELECT count(*) FROM p), p.subscription, p.id, (SELECT min(id) FROM p), (SELECT max(id) FROM p)
  FROM p ORDER BY p.subscription DESC, p.id DESC LIMIT 1`,
};

/** One pass over the rows of `counter`, in several statements. */
interface Pass {
  /** By the monotonic clock, ms. */
  readonly startedAt: number;
  /** The row after which the next statement begins. */
  place: readonly [subscription: string, id: string];
  /** The smallest and the largest id of a row so far. */
  first: number | null;
  last: number;
}

const SUM_FROM_START = [String(-(2n ** 63n)), '0'] as const;

/** After how many batches of this node the rows are summed up: in any case, or with the next sweep. */
const BATCHES_BETWEEN_SUMS = 2000;
const MIN_BATCHES_BEFORE_SUM = 200;
/**
 * After how long the next sweep sums up without many batches, ms: reads of a node that does hardly anything else would
 * step over all rows that other nodes have summed up, as long as these cannot be vacuumed.
 */
const MAX_BETWEEN_SUMS_MS = 60_000;

/** Repeatedly visits rows of the registry with a statement, {@link MAX_ROWS} at a time. */
interface RegistryVisit extends Query {
  /** The pause after a pass over all rows. */
  readonly everyMs: number;
  /** The row after which the next statement begins. */
  after: string;
  /** When the last pass ended, by the database's clock. */
  doneAt: number;
}

function visitOf(statement: Statement, values: readonly Parameter[], everyMs: number): RegistryVisit {
  return { statement, values, everyMs, after: '0', doneAt: Number.NEGATIVE_INFINITY };
}

interface HousekeepingOptions {
  readonly namespaces: readonly NamespacePolicy[];
  readonly registry: Registry;
  readonly clock: DatabaseClock;
  readonly dedupWindow: string;
  readonly log: EventLog;
}

/**
 * The steps of a sweep that belong to no call: applies retention, deletes old dedup keys and unused groups and queues,
 * and sums up counters. All use small statements on the auxiliary connection, each row locked by at most one node
 * (`SKIP LOCKED`).
 */
export class Housekeeping {
  readonly #auxiliary: AuxiliaryConnection;
  readonly #clock: DatabaseClock;
  readonly #counterWatermark: CounterWatermark;
  readonly #deletions: Query[];
  readonly #visits: RegistryVisit[];
  readonly #used = new Set<Subscription>();
  readonly #failures: LogOnChange;
  /** Batches since the counters were summed up, and when that was, by the monotonic clock, ms. */
  #batches = 0;
  #summedAt: number;
  #summing: Promise<void> | null = null;
  /** The pass in progress, which the next run continues. */
  #pass: Pass | null = null;
  /** Rows of `counter` with smaller ids are rewritten by the next pass. */
  #rewriteBelow = 0;

  constructor(
    auxiliary: AuxiliaryConnection,
    { namespaces, registry, clock, dedupWindow, log }: HousekeepingOptions,
  ) {
    this.#auxiliary = auxiliary;
    this.#clock = clock;
    this.#counterWatermark = registry.counterWatermark;
    this.#summedAt = clock.monotonic();
    this.#deletions = [{ statement: DELETE_OLD_KEYS, values: [dedupWindow] }];
    this.#visits = [
      visitOf(deleteUnused('queues'), [textArray(namespaces.map(({ name }) => name))], QUEUES_EVERY_MS),
    ];
    const streams = namespaces.filter(({ groups }) => groups !== null);
    if (streams.length > 0) {
      const names = textArray(streams.map(({ name }) => name));
      this.#deletions.push({ statement: APPLY_RETENTION, values: [names, ...registry.policies] });
      const defaults = streams.flatMap(({ name, groups }) => (groups ?? []).map((group) => [name, group]));
      const columns = [0, 1].map((column) => textArray(defaults.map((of) => of[column] ?? '')));
      this.#visits.push(visitOf(deleteUnused('groups'), [names, ...columns], GROUPS_EVERY_MS));
    }
    this.#failures = new LogOnChange({
      failed: (err) =>
        log.warn({ err }, 'A step of housekeeping failed. It is repeated with the next sweep.'),
      worksAgain: () => log.info({}, 'Housekeeping works again.'),
    });
  }

  /**
   * Runs each step. A failure is logged, and the step is retried by the next call. Returns whether deletions are left
   * for another call.
   */
  async run(): Promise<boolean> {
    const steps = await Promise.allSettled([
      ...this.#deletions.map((query) => this.#delete(query)),
      ...this.#visits.map((visit) => this.#visit(visit)),
      this.#sumIfDue(),
    ]);
    const failed = steps.find((step) => step.status === 'rejected');
    if (failed === undefined) this.#failures.worked();
    else this.#failures.failed(failed.reason);
    return steps.some((step) => step.status === 'fulfilled' && step.value === true);
  }

  /**
   * Notes that a node takes from a subscription, so that it is not deleted, unless that was noted not long ago. A
   * failure does no harm: the next note comes long before the deletion.
   */
  noteTake(subscription: Subscription): void {
    if (this.#clock.isWithin(subscription.notedAt, NOTE_EVERY_MS)) return;
    subscription.notedAt = this.#clock.now;
    if (this.#used.size === 0) {
      setImmediate(() => {
        const ids = idArray([...this.#used].flatMap(({ id, queue }) => [id, queue.id]));
        this.#used.clear();
        this.#auxiliary.change({ statement: NOTE_USE, values: [ids] }).catch(() => {});
      });
    }
    this.#used.add(subscription);
  }

  /** Called after each batch. Sums up the counter deltas after many of them; never throws. */
  noteBatch(): void {
    this.#batches += 1;
    if (this.#batches < BATCHES_BETWEEN_SUMS) return;
    // A failure does no harm: sums stay correct, and the next batches lead to another attempt.
    this.#sum().catch(() => {});
  }

  /** Returns whether more is left. */
  async #delete(query: Query): Promise<boolean> {
    const [row = []] = await this.#auxiliary.change(query);
    return number(row, 0) >= MAX_ROWS;
  }

  /** Visits the next rows if they are due. */
  async #visit(visit: RegistryVisit): Promise<void> {
    if (this.#clock.isWithin(visit.doneAt, visit.everyMs)) return;
    const { now } = this.#clock;
    const { statement, values, after } = visit;
    const [row = []] = await this.#auxiliary.change({ statement, values: [after, ...values] });
    const hasMore = number(row, 0) >= MAX_ROWS;
    visit.after = hasMore ? text(row, 1) : '0';
    if (!hasMore) visit.doneAt = now;
  }

  /** Sums up the counter deltas if there were enough batches, or enough time, since the last time. */
  async #sumIfDue(): Promise<void> {
    const isLongAgo = this.#clock.monotonic() - this.#summedAt >= MAX_BETWEEN_SUMS_MS;
    if (isLongAgo || this.#batches >= MIN_BATCHES_BEFORE_SUM) await this.#sum();
  }

  #sum(): Promise<void> {
    this.#batches = 0;
    this.#summing ??= this.#sumAll().finally(() => {
      this.#summedAt = this.#clock.monotonic();
      this.#summing = null;
    });
    return this.#summing;
  }

  async #sumAll(): Promise<void> {
    for (let sums = 0; sums < MAX_SUMS_PER_RUN; sums++) {
      const pass = this.#pass ?? this.#startPass();
      // If the statement fails, another pass starts.
      this.#pass = null;
      const values = [...pass.place, String(this.#counterWatermark.from), String(this.#rewriteBelow)];
      const [row] = await this.#auxiliary.change({ statement: SUM_COUNTS, values });
      if (row !== undefined) {
        pass.place = [text(row, 1), text(row, 2)];
        pass.first = Math.min(pass.first ?? Number.POSITIVE_INFINITY, number(row, 3));
        pass.last = Math.max(pass.last, number(row, 4));
      }
      if (row === undefined || number(row, 0) < MAX_SUMMED_ROWS) {
        const { first, last, startedAt } = pass;
        this.#counterWatermark.onRead(first, this.#clock.monotonic(), startedAt);
        this.#rewriteBelow = first !== null && last - first > MAX_ID_SPAN ? last : 0;
        return;
      }
      this.#pass = pass;
    }
  }

  #startPass(): Pass {
    return { startedAt: this.#clock.monotonic(), place: SUM_FROM_START, first: null, last: 0 };
  }
}
