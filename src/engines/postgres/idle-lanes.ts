import type { NamespacePolicy } from '../../engine/engine.ts';
import { textArray } from './arrays.ts';
import type { DatabaseClock } from './database-clock.ts';
import { FORGOTTEN_MS } from './lane-life.ts';
import type { Side } from './side.ts';
import { number, type Statement } from './statement.ts';
import { NOW, withList } from './verbs/fragments.ts';

/** Lanes looked at in one statement: two looks at an index for each, 10 to 20 ms in all. */
const AT_ONCE = 2000;
/** Between two rounds through all lanes. */
const REST_MS = 60_000;

/** A lane that another node asks for at this moment is locked by it, and read anew: it is not idle then. */
const TEND_LANES: Statement = {
  name: 'tend lanes',
  text: `${withList(
    NOW,
    `x AS MATERIALIZED (SELECT l.id,
        EXISTS (SELECT FROM delivery d WHERE d.lane = l.id AND d.lease_until IS NULL)
        OR EXISTS (SELECT FROM delivery d WHERE d.lane = l.id AND d.head IS NULL AND d.lease_until IS NOT NULL) AS is_used
      FROM lane l JOIN queue q ON q.id = l.queue
      WHERE l.id > $1::int AND q.ns = ANY ($2::text[])
        AND NOT EXISTS (SELECT FROM unnest($3::text[], $4::text[]) AS g(ns, grp) WHERE g.ns = q.ns AND g.grp = l.grp)
      ORDER BY l.id LIMIT ${AT_ONCE})`,
    `m AS (UPDATE lane l SET idle_from = CASE WHEN x.is_used THEN NULL ELSE t.now END FROM x, t
      WHERE l.id = x.id AND x.is_used = (l.idle_from IS NOT NULL))`,
    `g AS (DELETE FROM lane l USING x, t
      WHERE l.id = x.id AND NOT x.is_used AND l.idle_from <= t.now - ${FORGOTTEN_MS} RETURNING l.id)`,
    'y AS (DELETE FROM tally y USING g WHERE y.lane = g.id)',
  )} SELECT count(*), coalesce(max(id), 0) FROM x`,
};

/** Marks lanes that hold nothing and deletes those that nobody has asked for since: see `lane-life.ts`. */
export class IdleLanes {
  readonly #side: Side;
  readonly #clock: DatabaseClock;
  readonly #streams: readonly NamespacePolicy[];
  #upTo = 0;
  #nextAt = Number.NEGATIVE_INFINITY;

  constructor(side: Side, policies: readonly NamespacePolicy[], clock: DatabaseClock) {
    this.#side = side;
    this.#clock = clock;
    this.#streams = policies.filter(({ groups }) => groups !== null);
  }

  /** One step, if it is time for one. @throws QuaysideError as the Storage port says */
  async tend(): Promise<void> {
    const { now } = this.#clock;
    if (this.#streams.length === 0 || now < this.#nextAt) return;
    const defaults = this.#streams.flatMap(({ name, groups }) =>
      (groups ?? []).map((group) => ({ name, group })),
    );
    const [row = []] = await this.#side.change({
      statement: TEND_LANES,
      values: [
        String(this.#upTo),
        textArray(this.#streams.map(({ name }) => Buffer.from(name))),
        textArray(defaults.map(({ name }) => Buffer.from(name))),
        textArray(defaults.map(({ group }) => Buffer.from(group))),
      ],
    });
    const hasMore = number(row, 0) >= AT_ONCE;
    this.#upTo = hasMore ? number(row, 1) : 0;
    if (!hasMore) this.#nextAt = now + REST_MS;
  }
}
