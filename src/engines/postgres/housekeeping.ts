import type { EngineLog, NamespacePolicy } from '../../engine/engine.ts';
import { defaultsRules } from '../../engine/queue-policy.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Clock } from '../../util/clock.ts';
import { LogOnChange } from '../../util/log-on-change.ts';
import { likePattern } from '../../util/name-pattern.ts';
import { quote } from '../../util/quote.ts';
import { FullReads } from './full-reads.ts';
import type { AuxiliaryConnection } from './link.ts';
import type { DatabaseClock } from './operations.ts';
import type { Subscription } from './registry.ts';
import {
  addCounts,
  CONTENT_BYTES,
  DELETED_WAITING,
  finishStreamElements,
  limitBytes,
  lockStreamsOf,
  NOW,
  NOW_BOUND,
  STEP_BITS,
  withList,
} from './sql.ts';
import {
  flag,
  idArray,
  int8Array,
  number,
  type Parameter,
  type Query,
  type Statement,
  text,
  textArray,
} from './statement.ts';
import type { CounterWatermark } from './watermark.ts';

/** How many rows one statement deletes or examines. */
const MAX_ROWS = 1000;

/**
 * Deletes unreserved deliveries of streams that are past the retention of their queue. Returns {@link MAX_ROWS} if more
 * are left.
 */
const APPLY_RETENTION: Statement = {
  name: 'apply retention',
  text: `${withList(
    NOW,
    `l AS MATERIALIZED (SELECT d.tid, d.bytes, q.id AS queue FROM t CROSS JOIN subscription q CROSS JOIN LATERAL (
        SELECT n.retention FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS n(ns, pattern, retention, ord)
        WHERE n.ns = q.ns AND q.name LIKE n.pattern ORDER BY n.ord LIMIT 1) n
      JOIN subscription s ON s.queue = q.id CROSS JOIN LATERAL (
        SELECT ctid AS tid, bytes FROM delivery WHERE subscription = s.id AND head IS NULL
          AND inserted_at <= t.now - coalesce(q.retention, n.retention) AND lease_until IS NULL
        ORDER BY inserted_at LIMIT ${MAX_ROWS} FOR UPDATE SKIP LOCKED) d
      WHERE q.ns = ANY ($1::text[]) AND q.grp = '' AND coalesce(q.retention, n.retention) > 0
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

/** How many rows of `counter` one statement reads, and the statements of one run; the next run continues there. */
const MAX_SUMMED_ROWS = 20_000;
const MAX_SUMS_PER_RUN = 10;
/**
 * If the ids of rows are further apart, the next pass rewrites the older rows, even if there is nothing to sum up, so
 * that the rows of idle queues do not keep the watermark behind all dead rows. Stepping over this many takes a tenth of
 * a second.
 */
const MAX_ID_SPAN = 500_000;
/**
 * How many passes share the steps of due time if one pass over all is not enough. If deliveries mature at more steps
 * than half of the rows that one statement reads, about four months, no statement sees many rows of one step, and rows
 * would accumulate. With this many parts that begins at ten years.
 */
const PARTS = 32;

/**
 * Sums up the rows of subscriptions that have many more rows than steps of due time, starting after row ($1, $2). Only
 * counts of waiting deliveries need their step, and only if it is not past: everything else is summed up in step 0,
 * since otherwise a row would remain for each step in which something was reserved or finished. Only rows with ids from
 * $3 on are read; those with ids below $4 are rewritten in any case; $5 is the part of the steps, or null for all. The
 * last column is true if most rows belong to one subscription and cannot be summed up.
 */
const SUM_COUNTS: Statement = {
  name: 'sum counts',
  text: `${withList(
    NOW,
    `p AS MATERIALIZED (SELECT y.ctid AS tid, y.subscription, y.id, CASE WHEN y.step >= t.now >> ${STEP_BITS} THEN y.step ELSE 0 END AS step
      FROM t CROSS JOIN counter y WHERE (y.subscription, y.id) > ($1::bigint, $2::bigint) AND y.id >= $3::bigint
        AND ($5::int IS NULL OR y.step & ${PARTS - 1} = $5::int)
      ORDER BY y.subscription, y.id LIMIT ${MAX_SUMMED_ROWS})`,
    'f AS MATERIALIZED (SELECT subscription FROM p GROUP BY 1 HAVING count(*) > 64 + 2 * count(DISTINCT step) OR min(id) < $4::bigint)',
    `x AS MATERIALIZED (SELECT y.ctid AS tid, p.step AS due_step FROM p JOIN counter y ON y.ctid = p.tid
      WHERE (p.subscription IN (SELECT subscription FROM f)) IS TRUE FOR UPDATE OF y SKIP LOCKED)`,
    `g AS (DELETE FROM counter y USING x WHERE y.ctid = x.tid RETURNING y.subscription, x.due_step, y.waiting, y.reserved, y.bytes)`,
    `s AS (INSERT INTO counter (subscription, step, waiting, reserved, bytes)
      SELECT subscription, step, sum(waiting), sum(reserved), sum(bytes) FROM (
        SELECT subscription, due_step AS step, waiting, 0 AS reserved, 0 AS bytes FROM g
        UNION ALL SELECT subscription, 0, 0, reserved, bytes FROM g) v GROUP BY subscription, step
      HAVING sum(waiting) <> 0 OR sum(reserved) <> 0 OR sum(bytes) <> 0)`,
  )} SELECT (SELECT count(*) FROM p), p.subscription, p.id, (SELECT min(id) FROM p), (SELECT max(id) FROM p),
    EXISTS (SELECT FROM p WHERE (subscription IN (SELECT subscription FROM f)) IS NOT TRUE
      GROUP BY subscription HAVING count(*) > ${MAX_SUMMED_ROWS / 2})
  FROM p ORDER BY p.subscription DESC, p.id DESC LIMIT 1`,
};

/** One pass over the rows of `counter`, in several statements. */
interface Pass {
  /** By the monotonic clock, ms. */
  readonly startedAt: number;
  readonly isFull: boolean;
  readonly from: number;
  /** Which part of the steps it reads; null: all. */
  readonly part: number | null;
  /** Rows with smaller ids are rewritten. */
  readonly rewriteBelow: number;
  /** The row after which the next statement begins. */
  place: readonly [subscription: string, id: string];
  /** The smallest and the largest id of a row so far. */
  first: number | null;
  last: number;
  /** The number of rows so far, and whether many rows of one subscription had hardly a step in common. */
  rows: number;
  isScattered: boolean;
  costMs: number;
}

const SUM_FROM_START = [String(-(2n ** 63n)), '0'] as const;

/** After how many batches of this node the rows are summed up: in any case, or with the next sweep. */
const BATCHES_BETWEEN_SUMS = 2000;
const MIN_BATCHES_BEFORE_SUM = 200;

/**
 * A subscription that holds nothing gets a mark, `idle_from`. A transaction that stores something for it removes the
 * mark (`register` in `sql.ts`), and so does, within five minutes, a node that takes from it. If the mark stays for
 * this long, the subscription is unused, and its row is deleted; a queue's row with everything stored about the queue.
 * But a transaction that began before the mark may store something without removing it; without the row, its deliveries
 * would belong to no queue. Such transactions last seconds, and marks minutes, unless the clock is set forward. So the
 * row is kept while a transaction with a smaller number than that of the mark runs. One with a larger number may have
 * begun before the mark, too ({@link WRITING_TRANSACTIONS}), but could do harm only if the clock is set forward in
 * those seconds. A drop, which does not wait that long, checks locks instead.
 */
const GROUP_UNUSED_MS = 15 * 60_000;
const QUEUE_UNUSED_MS = 24 * 3_600_000;
/**
 * Marks of drops are negative, and their leading digits are the time: see {@link MARK_FOR_DROP}. An older one was left
 * by a node that failed, and becomes an ordinary mark.
 */
const MARKS_PER_MS = 1000;
const DROP_MARK_MS = 60_000;
/** Intervals between passes over all groups, and over all queues. */
const GROUPS_EVERY_MS = 60_000;
const QUEUES_EVERY_MS = 600_000;

/** Must match the definition that the broker writes (`broker/namespace.ts`). */
const IS_PAUSED = `value LIKE '%"paused":true%'`;
const definitionKey = (of: string): string => `array_to_json(ARRAY[${of}.ns, ${of}.name])::text`;

/** Whether a queue `q` holds deliveries, by its counter deltas. */
const HOLDS_DELIVERIES = `coalesce((SELECT sum(y.waiting + y.reserved) FROM subscription s JOIN counter y ON y.subscription = s.id
  WHERE s.queue = q.id), 0) <> 0`;

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
          WHEN q.idle_from < 0 THEN abs(t.now + q.idle_from / ${MARKS_PER_MS}) > ${DROP_MARK_MS}
          ELSE q.idle_from IS NULL OR (q.idle_from <= t.now - ${kind === 'groups' ? GROUP_UNUSED_MS : QUEUE_UNUSED_MS}
            AND age(q.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)) END
        ORDER BY q.id FOR UPDATE OF q SKIP LOCKED)`,
      `m AS (UPDATE subscription q SET idle_from = CASE WHEN NOT c.is_used THEN t.now END FROM c, t
        WHERE q.id = c.id AND (c.is_used OR c.idle_from IS NULL OR c.idle_from < 0))`,
      `g AS (DELETE FROM subscription q USING c
        WHERE q.${kind === 'groups' ? 'id' : 'queue'} = c.id AND NOT c.is_used AND c.idle_from >= 0 RETURNING q.id, q.ns, q.name)`,
      'gc AS (DELETE FROM counter y USING g WHERE y.subscription IN (g.id, -g.id))',
      kind === 'queues' &&
        `gs AS (DELETE FROM stats s USING g WHERE s.ns = g.ns AND s.queue = g.name),
        gd AS (DELETE FROM definition f USING g WHERE f.kind = 'queue' AND f.key = ${definitionKey('g')} AND NOT f.${IS_PAUSED})`,
    )} SELECT count(*), (SELECT id FROM x ORDER BY id DESC LIMIT 1) FROM x`,
  };
}

/**
 * Marks a queue and its groups for a drop, with a unique negative number: so the drop notices if its mark was removed,
 * even if another drop has set its own since. A drop that finds the mark of another one shares it. Returns the mark of
 * the queue.
 */
const MARK_FOR_DROP: Statement = {
  name: 'mark for drop',
  text: `WITH m AS MATERIALIZED (SELECT -(now_ms() * ${MARKS_PER_MS} + floor(random() * ${MARKS_PER_MS})::bigint) AS mark),
    x AS MATERIALIZED (SELECT id FROM subscription WHERE queue = $1::bigint ORDER BY ns, name, grp FOR UPDATE),
    u AS (UPDATE subscription q SET idle_from = CASE WHEN q.idle_from < 0 THEN q.idle_from ELSE m.mark END FROM x, m
      WHERE q.id = x.id RETURNING q.id, q.idle_from)
  SELECT idle_from FROM u WHERE id = $1::bigint`,
};

/** Removes the marks of a drop that failed. */
const UNMARK: Statement = {
  name: 'unmark',
  text: `WITH x AS MATERIALIZED (SELECT id FROM subscription WHERE queue = $1::bigint AND idle_from = $2::bigint
      ORDER BY ns, name, grp FOR UPDATE)
    UPDATE subscription q SET idle_from = NULL FROM x WHERE q.id = x.id`,
};

/**
 * Returns the transactions that may be storing something: of those in $1, or of all if $1 is null; null: none. Those
 * that began before the end of {@link MARK_FOR_DROP} may do so without removing the mark. Neither their numbers nor
 * their snapshots identify them: a statement may get its number after the mark's, and has no snapshot any more while it
 * is committed. But it locks the registry before it takes its snapshot, and keeps the lock until others see what it
 * stored.
 */
const WRITING_TRANSACTIONS: Statement = {
  name: 'storing',
  text: `SELECT array_agg(DISTINCT l.virtualtransaction)::text FROM pg_locks l
    WHERE l.locktype = 'relation' AND l.relation = 'subscription'::regclass AND l.mode = 'RowExclusiveLock'
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.pid <> pg_backend_pid() AND ($1::text[] IS NULL OR l.virtualtransaction = ANY ($1::text[]))`,
};

/**
 * Deletes a queue if it still has the mark $2 and holds nothing. Returns the number of deleted queues, and whether the
 * queue holds something.
 */
const DROP: Statement = {
  name: 'drop',
  text: `${withList(
    `c AS MATERIALIZED (SELECT q.id, q.ns, q.name FROM subscription q
      WHERE q.id = $1::bigint AND q.idle_from = $2::bigint AND NOT (${HOLDS_DELIVERIES}) FOR UPDATE OF q)`,
    'g AS (DELETE FROM subscription q USING c WHERE q.queue = c.id RETURNING q.id)',
    'gc AS (DELETE FROM counter y USING g WHERE y.subscription IN (g.id, -g.id))',
    'gk AS (DELETE FROM dedup d USING c WHERE d.queue = c.id)',
    'gs AS (DELETE FROM stats s USING c WHERE s.ns = c.ns AND s.queue = c.name)',
  )} SELECT (SELECT count(*) FROM c), EXISTS (SELECT FROM subscription q WHERE q.id = $1::bigint AND ${HOLDS_DELIVERIES})`,
};

/** How long a drop waits for older transactions, and how often it checks whether they still run. */
const DROP_WAIT_MS = 3_000;
const DROP_EVERY_MS = 20;

/** Removes the marks of used subscriptions and of their queues; adds none to the registry. */
const NOTE_USE: Statement = {
  name: 'note use',
  text: `WITH x AS MATERIALIZED (SELECT id FROM subscription WHERE id = ANY ($1::bigint[]) AND idle_from IS NOT NULL
      ORDER BY ns, name, grp FOR UPDATE)
    UPDATE subscription s SET idle_from = NULL FROM x WHERE s.id = x.id`,
};

/** Repeatedly visits all rows with a statement, {@link MAX_ROWS} at a time, with a pause after each full pass. */
class PagedPasses {
  readonly #statement: Statement;
  readonly #values: readonly Parameter[];
  readonly #everyMs: number;
  #after = '0';
  /** When the last full pass ended, by the database's clock. */
  #doneAt = Number.NEGATIVE_INFINITY;

  constructor(statement: Statement, values: readonly Parameter[], everyMs: number) {
    this.#statement = statement;
    this.#values = values;
    this.#everyMs = everyMs;
  }

  /** Runs one step if it is due. @throws QuaysideError as the Storage port says */
  async run(auxiliary: AuxiliaryConnection, clock: DatabaseClock): Promise<void> {
    if (clock.isWithin(this.#doneAt, this.#everyMs)) return;
    const { now } = clock;
    const [row = []] = await auxiliary.change({
      statement: this.#statement,
      values: [this.#after, ...this.#values],
    });
    const hasMore = number(row, 0) >= MAX_ROWS;
    this.#after = hasMore ? text(row, 1) : '0';
    if (!hasMore) this.#doneAt = now;
  }
}

/**
 * Periodic work that belongs to no call: in small statements on the auxiliary connection, each row locked by at most
 * one node (`SKIP LOCKED`).
 */
export class Housekeeping {
  readonly #auxiliary: AuxiliaryConnection;
  readonly #clock: Clock;
  readonly #databaseClock: DatabaseClock;
  readonly #counterWatermark: CounterWatermark;
  readonly #retention: Query | null;
  readonly #deleteOldKeys: Query;
  readonly #pagedPasses: readonly PagedPasses[];
  readonly #used = new Set<Subscription>();
  readonly #failures: LogOnChange;
  #batches = 0;
  #summing: Promise<void> | null = null;
  /** Functions that each end one wait. */
  readonly #waits = new Set<() => void>();
  #isStopped = false;
  /** The pass in progress. */
  #pass: Pass | null = null;
  /** The values for the next pass. */
  #rewriteBelow = 0;
  #part: number | null = null;
  /** The smallest number of rows of a pass over all steps since the last passes over parts. */
  #fewestRows = 0;
  /** Schedules passes over all rows; the others begin at the watermark. */
  readonly #fullPasses = new FullReads();

  constructor(
    auxiliary: AuxiliaryConnection,
    policies: readonly NamespacePolicy[],
    {
      dedupWindowMs,
      clock,
      databaseClock,
      counterWatermark,
      log,
    }: {
      readonly dedupWindowMs: number;
      readonly clock: Clock;
      readonly databaseClock: DatabaseClock;
      readonly counterWatermark: CounterWatermark;
      readonly log: EngineLog;
    },
  ) {
    this.#auxiliary = auxiliary;
    this.#clock = clock;
    this.#databaseClock = databaseClock;
    this.#counterWatermark = counterWatermark;
    this.#failures = new LogOnChange({
      failed: (err) =>
        log.warn({ err }, 'A step of housekeeping failed. It is repeated with the next sweep.'),
      worksAgain: () => log.info({}, 'Housekeeping works again.'),
    });
    const names = (of: readonly { readonly name: string }[]) =>
      textArray(of.map(({ name }) => Buffer.from(name)));
    const streams = policies.filter(({ groups }) => groups !== null);
    const rules = streams.flatMap((policy) =>
      defaultsRules(policy).map((rule) => ({ ...rule, name: policy.name })),
    );
    const defaults = streams.flatMap(({ name, groups }) => (groups ?? []).map((group) => ({ name, group })));
    this.#retention =
      streams.length === 0
        ? null
        : {
            statement: APPLY_RETENTION,
            values: [
              names(rules),
              textArray(rules.map(({ pattern }) => Buffer.from(likePattern(pattern)))),
              int8Array(rules.map(({ retentionMs }) => retentionMs)),
            ],
          };
    this.#deleteOldKeys = { statement: DELETE_OLD_KEYS, values: [String(dedupWindowMs)] };
    const groups = [
      names(streams),
      names(defaults),
      textArray(defaults.map(({ group }) => Buffer.from(group))),
    ];
    this.#pagedPasses = [
      ...(streams.length === 0 ? [] : [new PagedPasses(deleteUnused('groups'), groups, GROUPS_EVERY_MS)]),
      new PagedPasses(deleteUnused('queues'), [names(policies)], QUEUES_EVERY_MS),
    ];
  }

  /**
   * Runs each step. A failure is logged, and the step is retried by the next call. Returns whether work is left for
   * another call.
   */
  async run(): Promise<boolean> {
    const steps = await Promise.allSettled([
      this.#retention === null ? 0 : this.#runCounting(this.#retention),
      this.#runCounting(this.#deleteOldKeys),
      this.#batches < MIN_BATCHES_BEFORE_SUM ? 0 : this.#sum(),
      ...this.#pagedPasses.map((rounds) => rounds.run(this.#auxiliary, this.#databaseClock)),
    ]);
    const failed = steps.find((step) => step.status === 'rejected');
    if (failed === undefined) this.#failures.worked();
    else this.#failures.failed(failed.reason);
    return steps.some((step) => step.status === 'fulfilled' && Number(step.value) >= MAX_ROWS);
  }

  /**
   * Notes that a subscription is used, so that it is not deleted. A failure does no harm: the next note comes long
   * before the deletion.
   */
  noteUse(subscription: Subscription): void {
    if (this.#used.size === 0) {
      setImmediate(() => {
        const ids = idArray([...this.#used].flatMap(({ id, queue }) => [id, queue.id]));
        this.#used.clear();
        this.#auxiliary.change({ statement: NOTE_USE, values: [ids] }).catch(() => {});
      });
    }
    this.#used.add(subscription);
  }

  /**
   * Deletes an empty queue; see `Storage.drop`. @returns false if it holds something
   * @throws QuaysideError `storage-unavailable` if older transactions keep running
   */
  async drop(key: QueueKey, queue: string): Promise<boolean> {
    const deadlineAt = this.#databaseClock.now + DROP_WAIT_MS;
    for (;;) {
      const [marked] = await this.#auxiliary.change({ statement: MARK_FOR_DROP, values: [queue] });
      if (marked === undefined) return true;
      const values = [queue, text(marked, 0)];
      let isDropped = false;
      try {
        await this.#waitForOlder(key, deadlineAt);
        // A separate statement: its snapshot includes what those transactions stored.
        const [row = []] = await this.#auxiliary.change({ statement: DROP, values });
        isDropped = number(row, 0) === 1;
        if (isDropped) return true;
        if (flag(row, 1)) return false;
        // It was used in the meantime, but is empty: it is marked again.
        this.#checkTime(
          deadlineAt,
          `Queue ${quote(key.name)} cannot be dropped while it is used. Try again.`,
        );
      } finally {
        // If that fails as well, the next pass over unused queues finds the old mark.
        if (!isDropped) await this.#auxiliary.change({ statement: UNMARK, values }).catch(() => {});
      }
    }
  }

  /** Resolves when all transactions have ended that may store something without seeing the mark that was just set. */
  async #waitForOlder({ name }: QueueKey, deadlineAt: number): Promise<void> {
    for (let older: string | null = null; ; ) {
      const [row = []] = await this.#auxiliary.change({ statement: WRITING_TRANSACTIONS, values: [older] });
      older = row[0] ?? null;
      if (older === null) return;
      const message = `Queue ${quote(name)} cannot be dropped while long transactions run in its database. Try again.`;
      this.#checkTime(deadlineAt, message);
      await this.#waitBeforeCheck();
    }
  }

  /** @throws QuaysideError `storage-unavailable` with this message if no time is left */
  #checkTime(deadlineAt: number, message: string): void {
    if (this.#isStopped || this.#databaseClock.now >= deadlineAt)
      throw new QuaysideError('storage-unavailable', message);
  }

  /** Aborts pending drops. */
  stop(): void {
    this.#isStopped = true;
    for (const end of [...this.#waits]) end();
  }

  #waitBeforeCheck(): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => {
        cancel();
        this.#waits.delete(end);
        resolve();
      };
      const cancel = this.#clock.after(DROP_EVERY_MS, end);
      this.#waits.add(end);
    });
  }

  /** Called after each batch. Sums up the counter deltas after many of them; never throws. */
  noteBatch(): void {
    this.#batches += 1;
    if (this.#batches < BATCHES_BETWEEN_SUMS) return;
    // A failure does no harm: sums stay correct, and the next batches lead to another attempt.
    this.#sum().catch(() => {});
  }

  #sum(): Promise<void> {
    this.#batches = 0;
    this.#summing ??= this.#sumAll().finally(() => {
      this.#summing = null;
    });
    return this.#summing;
  }

  async #sumAll(): Promise<void> {
    for (let sums = 0; sums < MAX_SUMS_PER_RUN; sums++) {
      this.#pass ??= this.#startPass();
      const pass = this.#pass;
      const sentAt = this.#clock.monotonic();
      try {
        const part = pass.part === null ? null : String(pass.part);
        const values = [...pass.place, String(pass.from), String(pass.rewriteBelow), part];
        const [row] = await this.#auxiliary.change({ statement: SUM_COUNTS, values });
        pass.costMs += this.#clock.monotonic() - sentAt;
        if (row !== undefined) {
          pass.place = [text(row, 1), text(row, 2)];
          pass.first = Math.min(pass.first ?? Number.POSITIVE_INFINITY, number(row, 3));
          pass.last = Math.max(pass.last, number(row, 4));
          pass.isScattered ||= flag(row, 5);
          pass.rows += number(row, 0);
          if (number(row, 0) >= MAX_SUMMED_ROWS) continue;
        }
      } catch (error) {
        // The statement may have timed out: the next pass is a short one.
        this.#pass = null;
        this.#part = null;
        const now = this.#clock.monotonic();
        if (pass.isFull) this.#fullPasses.onFailed(now, now - sentAt);
        throw error;
      }
      this.#endPass(pass);
      if (this.#part === null) return;
    }
  }

  #startPass(): Pass {
    const startedAt = this.#clock.monotonic();
    const isFull = this.#fullPasses.isDue(startedAt);
    return {
      startedAt,
      isFull,
      from: isFull ? 0 : this.#counterWatermark.from,
      part: this.#part,
      rewriteBelow: this.#part === null ? this.#rewriteBelow : 0,
      place: SUM_FROM_START,
      first: null,
      last: 0,
      rows: 0,
      isScattered: false,
      costMs: 0,
    };
  }

  #endPass(pass: Pass): void {
    this.#pass = null;
    if (pass.isFull) this.#fullPasses.onEnded(this.#clock.monotonic(), pass.costMs);
    if (pass.part !== null) {
      this.#part = pass.part + 1 < PARTS ? pass.part + 1 : null;
      return;
    }
    const { startedAt, first, last, rows, isScattered } = pass;
    this.#counterWatermark.onRead(first, this.#clock.monotonic(), startedAt);
    this.#rewriteBelow = first !== null && last - first > MAX_ID_SPAN ? last : 0;
    // Rows left after passes over all parts cannot be summed up further. Other such passes are worth it when there are
    // twice as many.
    this.#fewestRows = Math.min(this.#fewestRows, rows);
    if (!isScattered || rows <= 2 * this.#fewestRows) return;
    this.#part = 0;
    this.#fewestRows = Number.POSITIVE_INFINITY;
  }

  async #runCounting(query: Query): Promise<number> {
    const [row] = await this.#auxiliary.change(query);
    return number(row ?? [], 0);
  }
}
