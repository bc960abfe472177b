/** Parts that several statements have in common. Each is a `WITH` entry, and names the entries it reads. */

/** The one moment that all of a statement agrees on. */
export const NOW = 't AS MATERIALIZED (SELECT now_ms() AS now)';

/** Due times are counted in steps of 2^20 ms. */
export const STEP_BITS = 20;

/** What a row of `delivery` that comes or goes adds to its lane's bytes: in a stream, the element has the content. */
export const CONTENT_BYTES = 'CASE WHEN d.head IS NULL THEN 0 ELSE d.bytes END AS content_bytes';

/** Bytes of deliveries that came or went: `from` of {@link tally} has a column {@link CONTENT_BYTES} then. */
export const CAME = 'sum(content_bytes)';
export const WENT = '-sum(content_bytes)';

/** Records changes of a lane's counts. `from` has columns lane and due_at; the others are aggregates over it. */
export function tally(
  name: string,
  from: string,
  { waiting, reserved, bytes }: { waiting: string; reserved: string; bytes: string },
): string {
  return `${name} AS (INSERT INTO tally (lane, step, waiting, reserved, bytes)
    SELECT lane, due_at >> ${STEP_BITS}, ${waiting}, ${reserved}, ${bytes} FROM ${from} GROUP BY 1, 2)`;
}

/** For a delivery that was waiting or reserved: see the columns of `from`. */
export const ONE_LESS_OF_EITHER = {
  waiting: '-count(*) FILTER (WHERE lease_until IS NULL)',
  reserved: '-count(*) FILTER (WHERE lease_until IS NOT NULL)',
  bytes: WENT,
};

/** The queue that a lane belongs to. */
export function queueOf(lane: string): string {
  return `(SELECT l.queue FROM lane l WHERE l.id = ${lane})`;
}

/** What of a row of `element` {@link tallyElements} needs. */
export function elementColumns(alias: string): string {
  return `${alias}.queue, octet_length(${alias}.head) + octet_length(${alias}.body) AS content_bytes`;
}

/** Records that elements of streams came or went. `from` has {@link elementColumns}. */
export function tallyElements(name: string, from: string, sign: '' | '-'): string {
  return `${name} AS (INSERT INTO tally (lane, step, waiting, reserved, bytes)
    SELECT -queue, 0, ${sign}count(*), 0, ${sign}sum(content_bytes) FROM ${from} GROUP BY queue)`;
}

/**
 * Finishes elements of streams: deliveries of them that have just gone stand in `from`, with columns seq and
 * head. The element goes with its last delivery. Its row is locked first, in the order of numbers, so that
 * of two groups that finish it at once the second one sees what the first has left.
 */
export function finishShared(from: string): string {
  return `sg AS MATERIALIZED (SELECT seq, count(*)::int AS gone FROM ${from} WHERE head IS NULL GROUP BY seq),
  sl AS MATERIALIZED (SELECT e.seq, e.remaining - sg.gone AS remaining FROM sg JOIN element e ON e.seq = sg.seq
    ORDER BY e.seq FOR UPDATE OF e),
  sd AS (DELETE FROM element e USING sl WHERE e.seq = sl.seq AND sl.remaining <= 0 RETURNING ${elementColumns('e')}),
  su AS (UPDATE element e SET remaining = sl.remaining FROM sl WHERE e.seq = sl.seq AND sl.remaining > 0),
  ${tallyElements('st', 'sd', '-')}`;
}

/** Non-empty parts of a `WITH` list. */
export function withList(...parts: readonly (string | false)[]): string {
  return `WITH ${parts.filter((part) => part !== false).join(',\n')}`;
}
