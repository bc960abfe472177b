import type { NamespacePolicy } from '../../engine/engine.ts';
import { int8Array, textArray } from './arrays.ts';
import type { DatabaseClock } from './database-clock.ts';
import type { DeadLetters } from './dead-letters.ts';
import { IdleLanes } from './idle-lanes.ts';
import type { Side } from './side.ts';
import { number, type Query, type Statement } from './statement.ts';
import { UnusedQueues } from './unused-queues.ts';
import { CONTENT_BYTES, finishShared, NOW, tally, WENT, withList } from './verbs/fragments.ts';

/** Deliveries or keys that go in one statement. */
const AT_ONCE = 1000;

/** Deliveries past the retention of their namespace that nobody holds. */
const DROP_OLD: Statement = {
  name: 'drop old',
  text: `${withList(
    NOW,
    `x AS MATERIALIZED (SELECT d.tid FROM t CROSS JOIN unnest($1::text[], $2::bigint[]) AS n(ns, keep)
      JOIN queue q ON q.ns = n.ns JOIN lane l ON l.queue = q.id CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM delivery
        WHERE lane = l.id AND inserted_at <= t.now - n.keep AND lease_until IS NULL
        ORDER BY inserted_at LIMIT ${AT_ONCE} FOR UPDATE SKIP LOCKED) d
      LIMIT ${AT_ONCE})`,
    `g AS (DELETE FROM delivery d USING x WHERE d.ctid = x.tid AND d.lease_until IS NULL
      RETURNING d.seq, d.lane, d.due_at, d.head, ${CONTENT_BYTES})`,
    finishShared('g'),
    tally('gt', 'g', { waiting: '-count(*)', reserved: '0', bytes: WENT }),
  )} SELECT count(*) FROM x`,
};

const FORGET_KEYS: Statement = {
  name: 'forget keys',
  text: `${withList(
    NOW,
    `x AS MATERIALIZED (SELECT d.ctid AS tid FROM t CROSS JOIN dedup d WHERE d.seen_at <= t.now - $1::bigint
      ORDER BY d.seen_at LIMIT ${AT_ONCE} FOR UPDATE OF d SKIP LOCKED)`,
    'g AS (DELETE FROM dedup d USING x WHERE d.ctid = x.tid)',
  )} SELECT count(*) FROM x`,
};

const SUMMED_AT_ONCE = 20_000;

/** Adds up the tally of lanes that have many more rows than steps of due time. */
const SUM_TALLY: Statement = {
  name: 'sum tally',
  text: `WITH f AS MATERIALIZED (SELECT lane FROM tally GROUP BY lane HAVING count(*) > 64 + 2 * count(DISTINCT step) LIMIT 100),
    x AS MATERIALIZED (SELECT y.ctid AS tid FROM f JOIN tally y ON y.lane = f.lane LIMIT ${SUMMED_AT_ONCE}
      FOR UPDATE OF y SKIP LOCKED),
    g AS (DELETE FROM tally y USING x WHERE y.ctid = x.tid RETURNING y.lane, y.step, y.waiting, y.reserved, y.bytes),
    s AS (INSERT INTO tally (lane, step, waiting, reserved, bytes)
      SELECT lane, step, sum(waiting), sum(reserved), sum(bytes) FROM g GROUP BY lane, step
      HAVING sum(waiting) <> 0 OR sum(reserved) <> 0 OR sum(bytes) <> 0)
    SELECT count(*) FROM x`,
};

/** Rounds of this node after which the tally is worth adding up: at once, or with what else there is to do. */
const ROUNDS_BETWEEN_SUMS = 2000;
const ROUNDS_WORTH_A_SUM = 200;

/**
 * What has to be done from time to time and belongs to no call: on the second connection, in small
 * statements, each row locked by at most one node (`SKIP LOCKED`).
 */
export class Housekeeping {
  readonly #side: Side;
  readonly #dropOld: Query | null;
  readonly #forgetKeys: Query;
  readonly #idleLanes: IdleLanes;
  readonly #unusedQueues: UnusedQueues;
  #rounds = 0;
  #summing: Promise<void> | null = null;

  constructor(
    side: Side,
    policies: readonly NamespacePolicy[],
    {
      dedupWindowMs,
      clock,
      deadLetters,
    }: {
      readonly dedupWindowMs: number;
      readonly clock: DatabaseClock;
      readonly deadLetters: DeadLetters;
    },
  ) {
    this.#side = side;
    this.#idleLanes = new IdleLanes(side, policies, clock);
    this.#unusedQueues = new UnusedQueues(side, policies, { clock, deadLetters });
    const kept = policies.flatMap(({ name, retentionMs }) =>
      retentionMs === null ? [] : [{ name, retentionMs }],
    );
    this.#dropOld =
      kept.length === 0
        ? null
        : {
            statement: DROP_OLD,
            values: [
              textArray(kept.map(({ name }) => Buffer.from(name))),
              int8Array(kept.map((of) => of.retentionMs)),
            ],
          };
    this.#forgetKeys = { statement: FORGET_KEYS, values: [String(dedupWindowMs)] };
  }

  /** Answers whether something was left for another call. @throws QuaysideError as the Storage port says */
  async run(): Promise<boolean> {
    const [dropped, forgotten] = await Promise.all([
      this.#dropOld === null ? 0 : this.#count(this.#dropOld),
      this.#count(this.#forgetKeys),
      this.#rounds < ROUNDS_WORTH_A_SUM ? null : this.#sum(),
      this.#idleLanes.tend(),
      this.#unusedQueues.tend(),
    ]);
    return Math.max(dropped, forgotten) >= AT_ONCE;
  }

  /** A round changed something. Adds the tally up after many of them; never throws. */
  noteRound(): void {
    this.#rounds += 1;
    if (this.#rounds < ROUNDS_BETWEEN_SUMS) return;
    // A failure is no loss: the sums are the same, and the next attempt comes as surely as more rounds.
    this.#sum().catch(() => {});
  }

  #sum(): Promise<void> {
    this.#rounds = 0;
    this.#summing ??= this.#sumAll().finally(() => {
      this.#summing = null;
    });
    return this.#summing;
  }

  async #sumAll(): Promise<void> {
    while ((await this.#count({ statement: SUM_TALLY, values: [] })) >= SUMMED_AT_ONCE);
  }

  async #count(query: Query): Promise<number> {
    const [row] = await this.#side.change(query);
    return number(row ?? [], 0);
  }
}
