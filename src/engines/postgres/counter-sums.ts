import type { Clock } from '../../util/clock.ts';
import type { AuxiliaryConnection } from './link.ts';
import { NOW, STEP_BITS, withList } from './sql.ts';
import { number, type Statement, text } from './statement.ts';
import type { CounterWatermark } from './watermark.ts';

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

/**
 * Sums up the rows of `counter`, to which every change adds some: in small statements on the auxiliary connection, each
 * row locked by at most one node (`SKIP LOCKED`).
 */
export class CounterSums {
  readonly #auxiliary: AuxiliaryConnection;
  readonly #clock: Clock;
  readonly #counterWatermark: CounterWatermark;
  #batches = 0;
  /** When it last summed up, by the monotonic clock, ms. */
  #summedAt: number;
  #summing: Promise<void> | null = null;
  /** The pass in progress, which the next run continues. */
  #pass: Pass | null = null;
  /** Rows with smaller ids are rewritten by the next pass. */
  #rewriteBelow = 0;

  constructor(auxiliary: AuxiliaryConnection, clock: Clock, counterWatermark: CounterWatermark) {
    this.#auxiliary = auxiliary;
    this.#clock = clock;
    this.#counterWatermark = counterWatermark;
    this.#summedAt = clock.monotonic();
  }

  /**
   * Sums up if there were enough batches, or enough time, since the last time.
   * @throws QuaysideError as the Storage port says
   */
  async run(): Promise<void> {
    const isLongAgo = this.#clock.monotonic() - this.#summedAt >= MAX_BETWEEN_SUMS_MS;
    if (isLongAgo || this.#batches >= MIN_BATCHES_BEFORE_SUM) await this.#sum();
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
