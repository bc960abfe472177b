import { EXPIRED, LEASE_EXPIRED } from '../../engine/storage.ts';
import type { Operation } from './batcher.ts';
import type { Context } from './operations.ts';
import { CONTENT_BYTES, copyMoved, count, deadLine, NOW, policyOf, withList } from './sql.ts';
import { number, numberOrNull, type Row, type Statement, text } from './statement.ts';

/** How many leases, and as many elements, one statement expires. If there are more, it is worth calling again at once. */
const AT_ONCE = 1000;

/**
 * The earliest moment at which a lease or an element may expire, as far as this node knows; never too late for what it
 * stored itself. So a batch in which nothing expires pays one comparison, and another one begins with {@link expireOperation}.
 */
export class Expiries {
  /** Until the tables were read, something may have expired long ago. */
  #nextAt = Number.NEGATIVE_INFINITY;

  /** Something expires at that moment. */
  add(at: number): void {
    if (at < this.#nextAt) this.#nextAt = at;
  }

  get nextAt(): number {
    return this.#nextAt;
  }

  /** The tables were read: nothing expires before that moment; null: nothing at all. */
  set(nextAt: number | null): void {
    this.#nextAt = nextAt ?? Number.POSITIVE_INFINITY;
  }

  /** As at the start: nothing is known. */
  reset(): void {
    this.#nextAt = Number.NEGATIVE_INFINITY;
  }
}

/** What is found by one index, locked, with the policy of its subscription. */
function found(name: string, where: string, order: string, isLease: boolean): string {
  return `${name} AS MATERIALIZED (SELECT d.*, y.*, ${isLease} AS is_lease FROM (
      SELECT d.ctid AS tid, d.subscription, d.tries, d.expires_at FROM t CROSS JOIN delivery d
      WHERE ${where} ORDER BY ${order} FOR UPDATE OF d SKIP LOCKED) d
    CROSS JOIN ${policyOf('d.subscription', 2)} y LIMIT ${AT_ONCE})`;
}

/**
 * Expires leases of the namespaces of this engine: each a failed try, after which the element waits from the lease's end
 * on, or becomes a dead letter. The token stays, so that the late worker may still commit. And elements past their expiry
 * that wait, or have waited since their lease expired here: they become dead letters if their queue has any, else they go.
 */
const EXPIRE: Statement = {
  name: 'expire',
  text: `${withList(
    NOW,
    found('xl', 'd.lease_until >= $1::bigint AND d.lease_until <= t.now', 'd.lease_until, d.seq', true),
    found('xe', 'd.expires_at <= t.now AND d.lease_until IS NULL', 'd.expires_at, d.seq', false),
    `x AS MATERIALIZED (SELECT v.*, row_number() OVER () AS ord, v.dies OR v.expires_at <= t.now AS goes,
        to_json(CASE WHEN v.dies THEN '${LEASE_EXPIRED}' ELSE '${EXPIRED}' END)::text AS reason
      FROM t CROSS JOIN (SELECT *, is_lease AND target IS NOT NULL AND tries + 1 >= max_tries AS dies
        FROM (SELECT * FROM xl UNION ALL SELECT * FROM xe) w) v)`,
    `s AS (UPDATE delivery d SET lease_until = NULL, due_at = d.lease_until, tries = d.tries + 1,
        reason = to_json('${LEASE_EXPIRED}'::text)::text
      FROM x WHERE d.ctid = x.tid AND x.goes IS NOT TRUE RETURNING d.subscription, d.due_at, x.ns, x.name, x.grp)`,
    count('sc', 's', { waiting: 'count(*)', reserved: '-count(*)', bytes: '0' }),
    `moved AS (DELETE FROM delivery d USING x, t WHERE d.ctid = x.tid AND x.goes
      RETURNING x.ord, d.seq, d.subscription, d.due_at, d.lease_until, d.head, d.body, ${CONTENT_BYTES}, x.name, x.grp,
        x.ns AS to_ns, x.target AS to_name, CASE WHEN x.target IS NOT NULL THEN x.dead_groups END AS to_groups, t.now AS to_due,
        0 AS to_tries, NULL::bigint AS to_expires, x.reason AS to_reason,
        ${deadLine('x.name', 'd.tries + x.is_lease::int', 'd.seq', 'x.reason')} AS line)`,
    ...copyMoved(),
  )}
  SELECT 'stays', ns, name, grp, count(*), min(due_at), NULL FROM s GROUP BY ns, name, grp
  UNION ALL SELECT 'moved', to_ns, name, grp, count(*), NULL, to_name FROM moved WHERE to_name IS NOT NULL GROUP BY to_ns, name, grp, to_name
  UNION ALL SELECT 'next', NULL, NULL, NULL, t.now, least(
      CASE WHEN (SELECT count(*) FROM xl) >= ${AT_ONCE} OR (SELECT count(*) FROM xe) >= ${AT_ONCE} THEN t.now END,
      (SELECT d.lease_until FROM delivery d WHERE d.lease_until > t.now ORDER BY d.lease_until, d.seq LIMIT 1),
      (SELECT d.expires_at FROM delivery d WHERE d.expires_at > t.now AND d.lease_until IS NULL ORDER BY d.expires_at, d.seq LIMIT 1)),
    NULL FROM t`,
};

/** Leases that ended so long before the last look are gone or were expired; very old ones are looked for again. */
const LOOK_BACK_MS = 10_000;
const FULL_LOOK_EVERY_MS = 60_000;

/** Returns when something expires next, or now if this was not enough for all; null if nothing does. */
export function expireOperation({
  expiries,
  clock,
  registry,
  onAffected,
  onDied,
}: Context): Operation<null, number | null> {
  // Entries of leases that are gone stay at the front of their index until a vacuum. So the look begins near the last one.
  let [lastAt, fullAt] = [Number.NEGATIVE_INFINITY, Number.NEGATIVE_INFINITY];

  const read = (rows: readonly Row[], isFull: boolean): number | null => {
    let nextAt: number | null = null;
    for (const row of rows) {
      if (row[0] === 'next') {
        const now = number(row, 4);
        nextAt = numberOrNull(row, 5);
        clock.see(now);
        if (nextAt === now) continue;
        lastAt = now;
        if (isFull) fullAt = now;
        continue;
      }
      const key = { ns: text(row, 1), name: text(row, 2) };
      const group = text(row, 3);
      onAffected(key);
      if (row[0] === 'stays') {
        registry.queue(key).subscriptions.get(group)?.watermark.lower(number(row, 5));
        continue;
      }
      onDied(key, group, text(row, 6), number(row, 4));
      onAffected({ ns: key.ns, name: text(row, 6) });
    }
    expiries.set(nextAt);
    return nextAt;
  };

  return {
    name: EXPIRE.name,
    changes: true,
    prepare: (items) => {
      const isFull = !(lastAt - fullAt < FULL_LOOK_EVERY_MS);
      const from = isFull ? Number.MIN_SAFE_INTEGER : lastAt - LOOK_BACK_MS;
      // What follows in this batch must see what becomes eligible here, whenever it matures.
      registry.lowerWatermarks(expiries.nextAt);
      return {
        query: { statement: EXPIRE, values: [String(from), ...registry.policies] },
        read: (rows) => {
          const nextAt = read(rows, isFull);
          return items.map(() => nextAt);
        },
      };
    },
  };
}
