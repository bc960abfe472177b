import { type GroupCounts, NO_COUNTS, type QueueCounts } from '../../engine/storage.ts';
import type { GroupName } from '../../model/element.ts';
import type { Operation } from './batcher.ts';
import type { Context } from './operations.ts';
import type { Queue, Subscription } from './registry.ts';
import { NOW, STEP_BITS, withList } from './sql.ts';
import { Columns, number, numberOrNull, placeOf, type Row, type Statement, text } from './statement.ts';

/** Where reads of a subscription begin. */
const PLACES = new Columns<Subscription>()
  .id('id', ({ id }) => id)
  .bigint('from_due', ({ watermark }) => watermark.place.dueAt)
  .bigint('from_seq', ({ watermark }) => watermark.place.seq)
  .bigint('from_id', ({ counted }) => counted.from);

/**
 * Deliveries that one statement counts row by row, at most: about a quarter of a second. What is beyond that counts as ready.
 */
const MAX_COUNTED = 250_000;

/**
 * Counts come from the deltas in `counter`: steps of due time that are past are ready, those to come are scheduled, and of
 * the present one the scheduled are counted in the index.
 */
function countsOf(subscriptions: string): string {
  return `SELECT l.ord, c.waiting - c.later - x.soon, c.later + x.soon, c.reserved, c.first,
      (SELECT d.due_at FROM delivery d WHERE d.subscription = l.id AND d.lease_until IS NULL
        AND (d.due_at, d.seq) >= (l.from_due, l.from_seq) ORDER BY d.due_at, d.seq LIMIT 1), l.grp
    FROM t CROSS JOIN ${subscriptions} CROSS JOIN LATERAL (
      SELECT coalesce(sum(waiting), 0) AS waiting, coalesce(sum(reserved), 0) AS reserved,
        coalesce(sum(waiting) FILTER (WHERE step > t.now >> ${STEP_BITS}), 0) AS later, min(y.id) AS first
      FROM counter y WHERE y.subscription = l.id AND y.id >= l.from_id) c
    CROSS JOIN LATERAL (
      SELECT count(*) AS soon FROM (SELECT FROM delivery d WHERE d.subscription = l.id AND d.lease_until IS NULL
        AND d.due_at > t.now AND d.due_at < ((t.now >> ${STEP_BITS}) + 1) << ${STEP_BITS} LIMIT ${MAX_COUNTED}) y) x`;
}

const COUNTS: Statement = {
  name: 'counts',
  text: `${withList(NOW)} ${countsOf(`(SELECT p.*, NULL AS grp FROM ${PLACES.from('p')}) l`)}`,
};

/**
 * The same for all groups of a stream, and in a row 0 the elements, each in its most advanced state. How many there are is
 * counted. Those with nothing but reserved deliveries are looked for among the reserved, those with nothing ready among
 * the scheduled; all others are ready. So a deep stream costs no more than a shallow one, unless it is
 * deep in scheduled elements.
 */
const QUEUE = `$${PLACES.count + 1}::bigint`;
const STREAM_COUNTS: Statement = {
  name: 'counts of a stream',
  text: `${withList(
    NOW,
    `l AS MATERIALIZED (SELECT s.id, s.grp, coalesce(p.from_due, ${Number.MIN_SAFE_INTEGER}) AS from_due, coalesce(p.from_seq, 0) AS from_seq,
        coalesce(p.from_id, 0) AS from_id, coalesce(p.ord, -1) AS ord
      FROM subscription s LEFT JOIN ${PLACES.from('p')} ON p.id = s.id WHERE s.queue = ${QUEUE} AND s.grp <> '')`,
    `a AS MATERIALIZED (SELECT coalesce(sum(waiting), 0) AS elements, min(id) AS first FROM counter
      WHERE subscription = -${QUEUE} AND id >= $${PLACES.count + 2}::bigint)`,
    `r AS MATERIALIZED (SELECT count(*) AS elements FROM (
        SELECT DISTINCT d.seq FROM (SELECT d.seq FROM l
          JOIN delivery d ON d.subscription = l.id AND d.head IS NULL AND d.lease_until IS NOT NULL LIMIT ${MAX_COUNTED}) d) x
      WHERE NOT EXISTS (SELECT FROM delivery w WHERE w.seq = x.seq AND w.lease_until IS NULL))`,
    `s AS MATERIALIZED (SELECT count(*) AS elements FROM (
        SELECT DISTINCT d.seq FROM (SELECT d.seq FROM t CROSS JOIN l
          JOIN delivery d ON d.subscription = l.id AND d.lease_until IS NULL AND d.due_at > t.now AND d.head IS NULL
          LIMIT ${MAX_COUNTED}) d) x
      CROSS JOIN t
      WHERE NOT EXISTS (SELECT FROM delivery w WHERE w.seq = x.seq AND w.lease_until IS NULL AND w.due_at <= t.now))`,
  )}
  ${countsOf('l')}
  UNION ALL
  SELECT 0, a.elements - r.elements - s.elements, s.elements, r.elements, a.first, NULL, NULL FROM a, r, s`,
};

/** A read that takes longer may have stepped over much that is dead; a probe on the auxiliary connection finds out. */
const SLOW_MS = 20;

function readCounts(row: Row): GroupCounts {
  const [ready, scheduled, reserved] = [number(row, 1), number(row, 2), number(row, 3)];
  return { ready, scheduled, reserved, nextMatureAt: ready + scheduled === 0 ? null : numberOrNull(row, 5) };
}

/** What a read shows about where the next one may begin. */
function noteRead(
  { prober, monotonic }: Context,
  subscription: Subscription,
  row: Row,
  sentAt: number,
): void {
  const now = monotonic();
  subscription.counted.read(numberOrNull(row, 4), now);
  if (now - sentAt > SLOW_MS) prober.asked(subscription);
}

/** Counts of one group. */
export function countsOperation(context: Context): Operation<Subscription, GroupCounts> {
  return {
    name: COUNTS.name,
    changes: false,
    prepare: (items) => {
      const sentAt = context.monotonic();
      return {
        query: { statement: COUNTS, values: PLACES.values(items) },
        read: (rows) => {
          const results: GroupCounts[] = items.map(() => NO_COUNTS);
          for (const row of rows) {
            const subscription = items[placeOf(row)];
            if (subscription === undefined) continue;
            results[placeOf(row)] = readCounts(row);
            noteRead(context, subscription, row, sentAt);
          }
          return results;
        },
      };
    },
  };
}

/** Counts of a stream's elements, and of each of its groups. One stream a statement. */
export function streamCountsOperation(context: Context): Operation<Queue, QueueCounts> {
  return {
    name: STREAM_COUNTS.name,
    changes: false,
    isSingle: true,
    prepare: ([queue]) => {
      if (queue === undefined) throw new Error('a count has a queue');
      const sentAt = context.monotonic();
      const known = [...queue.subscriptions.values()];
      const values = [...PLACES.values(known), queue.whole.idText, String(queue.countedElements.from)];
      return {
        query: { statement: STREAM_COUNTS, values },
        read: (rows) => {
          const groups = new Map<GroupName, GroupCounts>();
          let [elements, nextMatureAt]: [GroupCounts, number | null] = [NO_COUNTS, null];
          for (const row of rows) {
            const counts = readCounts(row);
            if (row[6] == null) {
              elements = counts;
              queue.countedElements.read(numberOrNull(row, 4), context.monotonic());
              continue;
            }
            const subscription = known[placeOf(row)];
            if (subscription !== undefined) noteRead(context, subscription, row, sentAt);
            if (counts.ready + counts.scheduled + counts.reserved === 0) continue;
            groups.set(text(row, 6), counts);
            nextMatureAt = earliest(nextMatureAt, counts.nextMatureAt);
          }
          return [{ ...elements, nextMatureAt, groups }];
        },
      };
    },
  };
}

function earliest(a: number | null, b: number | null): number | null {
  return a === null || (b !== null && b < a) ? b : a;
}
