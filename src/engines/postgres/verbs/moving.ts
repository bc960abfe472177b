import {
  CAME,
  CONTENT_BYTES,
  elementColumns,
  finishShared,
  queueOf,
  tally,
  tallyElements,
  WENT,
} from './fragments.ts';

/**
 * The `WITH` entries that move failed elements to the dead-letter queues: a new element with the same content
 * and four more headers, for the default groups of its namespace, with no tries. Deliveries that have
 * just gone stand in `moved`, with columns ord, seq, lane, due_at, tries (before the last one), head, body and
 * target. In a stream only the group that failed loses its delivery.
 * @param first the number of the first of the four parameters of `DeadLetters.values`
 */
export function moving(first: number): string[] {
  const [numbers, lanes, counts, streams] = [first, first + 1, first + 2, first + 3];
  const targets = `unnest($${numbers}::int[], $${lanes}::int[], $${counts}::int[], $${streams}::bool[]) WITH ORDINALITY
    AS p(target, lane, lanes, in_stream, ord)`;
  return [
    `dm AS MATERIALIZED (SELECT nextval('element_seq') AS seq, m.target,
        dead_head(coalesce(m.head, e.head), q.name, t.now, m.tries + 1,
          id_text((SELECT value FROM meta WHERE key = 'tag'), m.seq)) AS head, coalesce(m.body, e.body) AS body
      FROM (SELECT * FROM moved ORDER BY ord) m CROSS JOIN t
      JOIN lane l ON l.id = m.lane JOIN queue q ON q.id = l.queue
      LEFT JOIN element e ON m.head IS NULL AND e.seq = m.seq)`,
    `dd AS (INSERT INTO delivery AS d (seq, due_at, inserted_at, lane, tries, bytes, head, body)
      SELECT dm.seq, t.now, CASE WHEN p.in_stream THEN t.now END, p.lane, 0, octet_length(dm.head) + octet_length(dm.body),
        CASE WHEN NOT p.in_stream THEN dm.head END, CASE WHEN NOT p.in_stream THEN dm.body END
      FROM dm CROSS JOIN t JOIN ${targets} ON p.target = dm.target RETURNING d.lane, d.due_at, ${CONTENT_BYTES})`,
    `de AS (INSERT INTO element AS e (seq, queue, remaining, head, body)
      SELECT DISTINCT ON (dm.seq) dm.seq, ${queueOf('p.lane')}, p.lanes, dm.head, dm.body
      FROM dm JOIN ${targets} ON p.target = dm.target WHERE p.in_stream RETURNING ${elementColumns('e')})`,
    tallyElements('det', 'de', ''),
    `dk AS (UPDATE queue q SET known = true, idle_from = NULL
      WHERE (NOT q.known OR q.idle_from IS NOT NULL) AND q.id IN (SELECT l.queue FROM dd JOIN lane l ON l.id = dd.lane))`,
    finishShared('moved'),
    tally('dt', 'dd', { waiting: 'count(*)', reserved: '0', bytes: CAME }),
    tally('mt', 'moved', { waiting: '0', reserved: '-count(*)', bytes: WENT }),
  ];
}
