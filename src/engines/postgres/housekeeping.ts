import type { EngineLog, NamespacePolicy } from '../../engine/engine.ts';
import { LogOnChange } from '../../util/log-on-change.ts';
import type { CounterSums } from './counter-sums.ts';
import type { AuxiliaryConnection } from './link.ts';
import {
  addCounts,
  CONTENT_BYTES,
  DELETED_WAITING,
  finishStreamElements,
  limitBytes,
  lockStreamsOf,
  NOW,
  NOW_BOUND,
  policyOf,
  withList,
} from './sql.ts';
import { number, type Parameter, type Query, type Statement, textArray } from './statement.ts';
import type { UnusedQueues } from './unused-queues.ts';

/** How many rows one statement deletes. */
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
 * The steps of a sweep that belong to no call: applies retention, deletes old dedup keys, and runs the steps of
 * {@link CounterSums} and {@link UnusedQueues}. All use small statements on the auxiliary connection, each row locked
 * by at most one node (`SKIP LOCKED`).
 */
export class Housekeeping {
  readonly #auxiliary: AuxiliaryConnection;
  readonly #counterSums: CounterSums;
  readonly #unusedQueues: UnusedQueues;
  readonly #retention: Query | null;
  readonly #deleteOldKeys: Query;
  readonly #failures: LogOnChange;

  constructor(
    auxiliary: AuxiliaryConnection,
    namespaces: readonly NamespacePolicy[],
    {
      policies,
      dedupWindowMs,
      counterSums,
      unusedQueues,
      log,
    }: {
      /** `Registry.policies`. */
      readonly policies: readonly Parameter[];
      readonly dedupWindowMs: number;
      readonly counterSums: CounterSums;
      readonly unusedQueues: UnusedQueues;
      readonly log: EngineLog;
    },
  ) {
    this.#auxiliary = auxiliary;
    this.#counterSums = counterSums;
    this.#unusedQueues = unusedQueues;
    this.#failures = new LogOnChange({
      failed: (err) =>
        log.warn({ err }, 'A step of housekeeping failed. It is repeated with the next sweep.'),
      worksAgain: () => log.info({}, 'Housekeeping works again.'),
    });
    const streams = namespaces.filter(({ groups }) => groups !== null).map(({ name }) => Buffer.from(name));
    this.#retention =
      streams.length === 0 ? null : { statement: APPLY_RETENTION, values: [textArray(streams), ...policies] };
    this.#deleteOldKeys = { statement: DELETE_OLD_KEYS, values: [String(dedupWindowMs)] };
  }

  /**
   * Runs each step. A failure is logged, and the step is retried by the next call. Returns whether work is left for
   * another call.
   */
  async run(): Promise<boolean> {
    const steps = await Promise.allSettled([
      this.#retention === null ? 0 : this.#runCounting(this.#retention),
      this.#runCounting(this.#deleteOldKeys),
      this.#counterSums.run(),
      ...this.#unusedQueues.run(),
    ]);
    const failed = steps.find((step) => step.status === 'rejected');
    if (failed === undefined) this.#failures.worked();
    else this.#failures.failed(failed.reason);
    return steps.some((step) => step.status === 'fulfilled' && Number(step.value) >= MAX_ROWS);
  }

  async #runCounting(query: Query): Promise<number> {
    const [row] = await this.#auxiliary.change(query);
    return number(row ?? [], 0);
  }
}
