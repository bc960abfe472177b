import type { NamespacePolicy } from '../../../engine/engine.ts';
import { int4Array, textArray } from '../arrays.ts';
import type { Batch, Verb } from '../call.ts';
import type { DatabaseClock } from '../database-clock.ts';
import type { DeadLetters } from '../dead-letters.ts';
import type { Leases } from '../leases.ts';
import type { Names, Queue } from '../names.ts';
import {
  number,
  numberOrNull,
  type Parameter,
  type Query,
  type Row,
  type Statement,
  text,
} from '../statement.ts';
import { CONTENT_BYTES, NOW, tally, withList } from './fragments.ts';
import { moving } from './moving.ts';

/** How many leases one statement ends. Where there are more, calling again is worth while at once. */
const AT_ONCE = 1000;

/**
 * Ends leases that ran out, of the namespaces of this engine: each a failed try, after which the element
 * waits from the lease's end on. The token stays, so that the late worker may still commit.
 */
const LAPSE: Statement = {
  name: 'lapse',
  text: `${withList(
    NOW,
    `x AS MATERIALIZED (SELECT d.ctid AS tid, y.*, row_number() OVER () AS ord FROM (
        SELECT d.ctid, d.lane FROM t CROSS JOIN delivery d
        WHERE d.lease_until >= $1::bigint AND d.lease_until <= t.now
        ORDER BY d.lease_until, d.seq FOR UPDATE OF d SKIP LOCKED) d
      CROSS JOIN LATERAL (
        SELECT q.ns, q.name, l.grp, n.max_tries, CASE WHEN q.name IS DISTINCT FROM n.dead THEN n.target END AS target
        FROM lane l JOIN queue q ON q.id = l.queue
        JOIN unnest($2::text[], $3::int[], $4::int[], $5::text[]) AS n(ns, max_tries, target, dead) ON n.ns = q.ns
        WHERE l.id = d.lane LIMIT 1) y
      LIMIT ${AT_ONCE})`,
    `kept AS (UPDATE delivery d SET lease_until = NULL, due_at = d.lease_until, tries = d.tries + 1 FROM x
      WHERE d.ctid = x.tid AND (x.target IS NULL OR d.tries + 1 < x.max_tries)
      RETURNING d.lane, d.due_at, x.ns, x.name, x.grp)`,
    tally('kt', 'kept', { waiting: 'count(*)', reserved: '-count(*)', bytes: '0' }),
    `moved AS (DELETE FROM delivery d USING x WHERE d.ctid = x.tid AND x.target IS NOT NULL AND d.tries + 1 >= x.max_tries
      RETURNING x.ord, x.target, x.ns, x.name, x.grp, d.seq, d.lane, d.due_at, d.tries, d.head, d.body, ${CONTENT_BYTES})`,
    ...moving(6),
  )}
  SELECT 'kept', ns, name, grp, count(*), min(due_at) FROM kept GROUP BY ns, name, grp
  UNION ALL SELECT 'moved', ns, name, grp, count(*), NULL FROM moved GROUP BY ns, name, grp
  UNION ALL SELECT 'next', NULL, NULL, NULL, t.now, CASE WHEN (SELECT count(*) FROM x) >= ${AT_ONCE} THEN t.now ELSE
    (SELECT d.lease_until FROM delivery d WHERE d.lease_until > t.now ORDER BY d.lease_until, d.seq LIMIT 1) END FROM t`,
};

/** Leases that ended so long before the last look are gone or were swept; the very old are looked for again. */
const LOOK_BACK_MS = 10_000;
const FULL_LOOK_EVERY_MS = 60_000;

export interface LapseHost {
  readonly names: Names;
  readonly policies: readonly NamespacePolicy[];
  readonly deadLetters: DeadLetters;
  readonly leases: Leases;
  readonly clock: DatabaseClock;
  /** A queue gained eligible elements. */
  touched(queue: Queue): void;
  /** Elements of a group moved to the dead-letter queue. */
  died(queue: Queue, group: string, count: number): void;
}

/** Answers when the next lease ends, or now where this one was too short for all; null where none runs. */
export function lapseVerb(host: LapseHost): Verb<null, number | null> {
  const look = new Look();
  return { name: LAPSE.name, batch: () => new LapseBatch(host, look) };
}

/**
 * Where to begin in the index of leases. Entries of those that are gone stay in front of it until a vacuum,
 * so looking from the start each time would step over them again and again.
 */
class Look {
  #lastAt = Number.NEGATIVE_INFINITY;
  #fullAt = Number.NEGATIVE_INFINITY;

  from(): number {
    const isFull = this.#lastAt - this.#fullAt >= FULL_LOOK_EVERY_MS || !Number.isFinite(this.#fullAt);
    return isFull ? Number.MIN_SAFE_INTEGER : this.#lastAt - LOOK_BACK_MS;
  }

  /** A look at `now` ended all leases that it found from `from` on. */
  done(from: number, now: number): void {
    this.#lastAt = now;
    if (from === Number.MIN_SAFE_INTEGER) this.#fullAt = now;
  }
}

class LapseBatch implements Batch<null, number | null> {
  readonly #host: LapseHost;
  readonly #look: Look;
  #from = 0;
  #steps = 0;

  constructor(host: LapseHost, look: Look) {
    this.#host = host;
    this.#look = look;
  }

  add(): boolean {
    this.#steps += 1;
    return true;
  }

  query(): Query {
    const { policies, deadLetters, leases, names } = this.#host;
    this.#from = this.#look.from();
    // What follows in this round must see what becomes eligible here, wherever it matures.
    names.lowerMarks(leases.endsFrom);
    return {
      statement: LAPSE,
      values: [String(this.#from), ...policyValues(policies, deadLetters), ...deadLetters.values()],
    };
  }

  read(rows: readonly Row[]): (number | null)[] {
    const { leases, clock } = this.#host;
    let nextAt: number | null = null;
    for (const row of rows) {
      if (row[0] !== 'next') {
        this.#readQueue(row);
        continue;
      }
      const now = number(row, 4);
      nextAt = numberOrNull(row, 5);
      clock.see(now);
      if (nextAt !== now) this.#look.done(this.#from, now);
    }
    leases.looked(nextAt);
    return Array.from({ length: this.#steps }, () => nextAt);
  }

  #readQueue(row: Row): void {
    const { names, touched, died, deadLetters } = this.#host;
    const [ns, group] = [text(row, 1), text(row, 3)];
    const queue = names.queue({ ns, name: text(row, 2) });
    touched(queue);
    if (row[0] === 'kept') {
      queue.lanes.get(group)?.mark.lower(number(row, 5));
      return;
    }
    died(queue, group, number(row, 4));
    const target = deadLetters.targetOf(queue);
    if (target !== null) touched(names.queue({ ns, name: target.queue }));
  }
}

/** Four arrays: per namespace its name, the tries that are too many, the number of the target, its queue's name. */
function policyValues(policies: readonly NamespacePolicy[], deadLetters: DeadLetters): Parameter[] {
  const targets = new Map(deadLetters.all.map((target) => [target.ns, target]));
  const all = policies.map(({ name }) => targets.get(name) ?? null);
  return [
    textArray(policies.map(({ name }) => Buffer.from(name))),
    int4Array(all.map((target) => target?.maxTries ?? null)),
    int4Array(all.map((target) => target?.number ?? null)),
    textArray(all.map((target) => (target === null ? null : Buffer.from(target.queue)))),
  ];
}
