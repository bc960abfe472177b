import type { Delivery } from '../../../model/element.ts';
import { byteaArray, int4Array, int8Array, textArray } from '../arrays.ts';
import type { Batch, Verb } from '../call.ts';
import { encodeHead } from '../content.ts';
import type { Ids } from '../ids.ts';
import type { Lane, Queue } from '../names.ts';
import type { Query, Statement } from '../statement.ts';
import {
  CAME,
  CONTENT_BYTES,
  elementColumns,
  NOW,
  queueOf,
  tally,
  tallyElements,
  withList,
} from './fragments.ts';

export interface PutBackArgs {
  readonly queue: Queue;
  readonly deliveries: readonly Delivery[];
}

/**
 * The element keeps its number, so it regains its place. In a stream it may still be there for other groups,
 * or two of them may come back at once; so there the content goes where they share it. Its age for
 * `retention` begins anew where its row does: the pop forgot it.
 */
function putBackStatement(shared: boolean): Statement {
  const content = shared ? 'NULL, NULL' : 'u.head, u.body';
  return {
    name: `put back${shared ? ' shared' : ''}`,
    text: `${withList(
      NOW,
      `u AS MATERIALIZED (SELECT * FROM
        unnest($1::bigint[], $2::bigint[], $3::int[], $4::int[], $5::text[], $6::bytea[])
        AS u(seq, due, lane, tries, head, body))`,
      `d AS (INSERT INTO delivery AS d (seq, due_at, inserted_at, lane, tries, bytes, head, body)
        SELECT u.seq, u.due, ${shared ? 't.now' : 'NULL'}, u.lane, u.tries,
          octet_length(u.head) + octet_length(u.body), ${content} FROM t CROSS JOIN u
        ON CONFLICT (seq, lane) DO NOTHING RETURNING d.seq, d.lane, d.due_at, ${CONTENT_BYTES})`,
      shared &&
        `e AS (INSERT INTO element AS x (seq, queue, remaining, head, body)
        SELECT DISTINCT ON (u.seq) u.seq, ${queueOf('u.lane')}, (SELECT count(*) FROM d WHERE d.seq = u.seq), u.head, u.body
        FROM u WHERE (u.seq IN (SELECT d.seq FROM d)) IS TRUE ORDER BY u.seq
        ON CONFLICT (seq) DO UPDATE SET remaining = x.remaining + excluded.remaining
        RETURNING ${elementColumns('x')}, x.xmax = 0 AS is_new),
      n AS (SELECT queue, content_bytes FROM e WHERE is_new),
      ${tallyElements('et', 'n', '')}`,
      tally('dt', 'd', { waiting: 'count(*)', reserved: '0', bytes: CAME }),
    )} SELECT count(*) FROM d`,
  };
}

export function putBackVerbs(ids: Ids): (queue: Queue) => Verb<PutBackArgs, void> {
  const verb = (shared: boolean): Verb<PutBackArgs, void> => {
    const statement = putBackStatement(shared);
    return {
      name: statement.name,
      locksElements: shared,
      batch: () => new PutBackBatch(ids, statement),
    };
  };
  const [plain, stream] = [verb(false), verb(true)];
  return ({ isStream }) => (isStream ? stream : plain);
}

interface Returned {
  readonly seq: number;
  readonly lane: Lane;
  readonly delivery: Delivery;
}

class PutBackBatch implements Batch<PutBackArgs, void> {
  readonly #ids: Ids;
  readonly #statement: Statement;
  readonly #returned: Returned[] = [];
  #steps = 0;

  constructor(ids: Ids, statement: Statement) {
    this.#ids = ids;
    this.#statement = statement;
  }

  add({ queue, deliveries }: PutBackArgs): boolean {
    this.#steps += 1;
    for (const delivery of deliveries) {
      const seq = this.#ids.parse(delivery.id);
      const lane = queue.lanes.get(delivery.group);
      if (seq === null || lane === undefined) {
        throw new Error(`put back of an element that this engine never popped: ${delivery.id}`);
      }
      this.#returned.push({ seq, lane, delivery });
    }
    this.#lowerMarks();
    return true;
  }

  query(): Query | null {
    const all = this.#returned;
    if (all.length === 0) return null;
    const values = [
      int8Array(all.map(({ seq }) => seq)),
      int8Array(all.map(({ delivery }) => delivery.matureAt)),
      int4Array(all.map(({ lane }) => lane.id)),
      int4Array(all.map(({ delivery }) => delivery.tries)),
      textArray(all.map(({ delivery }) => encodeHead(delivery))),
      byteaArray(all.map(({ delivery }) => delivery.body)),
    ];
    return { statement: this.#statement, values };
  }

  read(): undefined[] {
    this.#lowerMarks();
    return Array.from({ length: this.#steps }, () => undefined);
  }

  #lowerMarks(): void {
    for (const { lane, delivery } of this.#returned) lane.mark.lower(delivery.matureAt);
  }
}
