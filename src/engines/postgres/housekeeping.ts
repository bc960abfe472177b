import type { EngineLog, NamespacePolicy } from '../../engine/engine.ts';
import { LogOnChange } from '../../util/log-on-change.ts';
import type { CounterSums } from './counter-sums.ts';
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
  withList,
} from './sql.ts';
import { idArray, number, type Parameter, type Query, type Statement, text, textArray } from './statement.ts';

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
  readonly counterSums: CounterSums;
  readonly log: EngineLog;
}

/**
 * The steps of a sweep that belong to no call: applies retention, deletes old dedup keys and unused groups and queues,
 * and sums up counters. All use small statements on the auxiliary connection, each row locked by at most one node
 * (`SKIP LOCKED`).
 */
export class Housekeeping {
  readonly #auxiliary: AuxiliaryConnection;
  readonly #clock: DatabaseClock;
  readonly #counterSums: CounterSums;
  readonly #deletions: Query[];
  readonly #visits: RegistryVisit[];
  readonly #used = new Set<Subscription>();
  readonly #failures: LogOnChange;

  constructor(
    auxiliary: AuxiliaryConnection,
    { namespaces, registry, clock, dedupWindow, counterSums, log }: HousekeepingOptions,
  ) {
    this.#auxiliary = auxiliary;
    this.#clock = clock;
    this.#counterSums = counterSums;
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
      this.#counterSums.run(),
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
}
