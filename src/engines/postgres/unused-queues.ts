import type { NamespacePolicy } from '../../engine/engine.ts';
import { textArray } from './arrays.ts';
import type { DatabaseClock } from './database-clock.ts';
import type { DeadLetters } from './dead-letters.ts';
import { UNUSED_MS } from './lane-life.ts';
import type { Side } from './side.ts';
import { number, type Parameter, type Statement } from './statement.ts';
import { NOW, withList } from './verbs/fragments.ts';

/** Queues looked at in one statement: some look-ups in indexes for each, 10 to 20 ms in all. */
const AT_ONCE = 1000;
/** Between two looks through all queues. */
const REST_MS = 600_000;

/** As the broker writes it (`broker/namespace.ts`). */
const IS_PAUSED = `value LIKE '%"paused":true%'`;
const definitionKey = (of: string): string => `array_to_json(ARRAY[${of}.ns, ${of}.name])::text`;

/**
 * `c` has the rows to change, as they are when they are locked: a use that was committed since the snapshot is seen. A
 * row that another node locks is left for the next look.
 */
const TEND_QUEUES: Statement = {
  name: 'tend queues',
  text: `${withList(
    NOW,
    `x AS MATERIALIZED (SELECT q.id,
        EXISTS (SELECT FROM unnest($3::text[], $4::text[]) AS p(ns, name) WHERE p.ns = q.ns AND p.name = q.name) AS is_target,
        coalesce((SELECT sum(y.waiting + y.reserved) FROM lane l JOIN tally y ON y.lane = l.id WHERE l.queue = q.id), 0) <> 0
        OR EXISTS (SELECT FROM dedup d WHERE d.queue = q.id)
        OR EXISTS (SELECT FROM definition f WHERE f.kind = 'queue' AND f.key = ${definitionKey('q')} AND f.${IS_PAUSED}) AS is_needed
      FROM queue q WHERE q.id > $1::int AND q.ns = ANY ($2::text[]) ORDER BY q.id LIMIT ${AT_ONCE})`,
    `c AS MATERIALIZED (SELECT q.id, q.known, q.idle_from, x.is_needed, x.is_target AND NOT q.known AS is_kept
      FROM t CROSS JOIN x JOIN queue q ON q.id = x.id
      WHERE CASE WHEN x.is_needed THEN q.idle_from IS NOT NULL OR NOT q.known
        WHEN x.is_target AND NOT q.known THEN q.idle_from IS NOT NULL
        ELSE q.idle_from IS NULL OR q.idle_from <= t.now - ${UNUSED_MS} END
      ORDER BY q.id FOR UPDATE OF q SKIP LOCKED)`,
    'n AS (UPDATE queue q SET idle_from = NULL, known = q.known OR c.is_needed FROM c WHERE q.id = c.id AND (c.is_needed OR c.is_kept))',
    `m AS (UPDATE queue q SET idle_from = t.now FROM c, t
      WHERE q.id = c.id AND NOT c.is_needed AND NOT c.is_kept AND c.idle_from IS NULL)`,
    `h AS (UPDATE queue q SET idle_from = t.now, known = false FROM c, t
      WHERE q.id = c.id AND NOT c.is_needed AND c.idle_from IS NOT NULL AND c.known RETURNING q.ns, q.name)`,
    `hs AS (DELETE FROM stats s USING h WHERE s.ns = h.ns AND s.queue = h.name)`,
    `hd AS (DELETE FROM definition f USING h WHERE f.kind = 'queue' AND f.key = ${definitionKey('h')} AND NOT f.${IS_PAUSED})`,
    `g AS (DELETE FROM queue q USING c
      WHERE q.id = c.id AND NOT c.is_needed AND NOT c.is_kept AND c.idle_from IS NOT NULL AND NOT c.known RETURNING q.id)`,
    'gl AS (DELETE FROM lane l USING g WHERE l.queue = g.id RETURNING l.id)',
    'gt AS (DELETE FROM tally y USING gl WHERE y.lane = gl.id)',
    'ge AS (DELETE FROM tally y USING g WHERE y.lane = -g.id)',
  )} SELECT count(*), coalesce(max(id), 0) FROM x`,
};

/** Forgets queues that are empty, not paused, remember no key and are unused for a day: see `lane-life.ts`. */
export class UnusedQueues {
  readonly #side: Side;
  readonly #clock: DatabaseClock;
  readonly #values: readonly Parameter[];
  #upTo = 0;
  #nextAt = Number.NEGATIVE_INFINITY;

  constructor(
    side: Side,
    policies: readonly NamespacePolicy[],
    { clock, deadLetters }: { readonly clock: DatabaseClock; readonly deadLetters: DeadLetters },
  ) {
    this.#side = side;
    this.#clock = clock;
    const targets = deadLetters.all;
    this.#values = [
      textArray(policies.map(({ name }) => Buffer.from(name))),
      textArray(targets.map(({ ns }) => Buffer.from(ns))),
      textArray(targets.map(({ queue }) => Buffer.from(queue))),
    ];
  }

  /** One step, if it is time for one. @throws QuaysideError as the Storage port says */
  async tend(): Promise<void> {
    const { now } = this.#clock;
    if (now < this.#nextAt) return;
    const [row = []] = await this.#side.change({
      statement: TEND_QUEUES,
      values: [String(this.#upTo), ...this.#values],
    });
    const hasMore = number(row, 0) >= AT_ONCE;
    this.#upTo = hasMore ? number(row, 1) : 0;
    if (!hasMore) this.#nextAt = now + REST_MS;
  }
}
