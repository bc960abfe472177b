import type { BrowseOptions, BrowsePage } from '../../../engine/old-port.ts';
import type { Delivery, DeliveryState } from '../../../model/element.ts';
import type { Batch, Verb } from '../call.ts';
import { delivery } from '../content.ts';
import type { Ids } from '../ids.ts';
import type { Queue } from '../names.ts';
import { number, numberOrNull, type Query, type Row, type Statement, text } from '../statement.ts';
import { NOW, withList } from './fragments.ts';

export interface BrowseArgs extends BrowseOptions {
  readonly queue: Queue;
}

type BrowseVerb = Verb<BrowseArgs, BrowsePage>;

/** As for a take: a page ends early rather than growing past this. */
const MOST_BYTES = 16 * 1024 * 1024;

/**
 * Waiting deliveries come by maturity, then insertion; reserved ones by the end of their lease. A page ends
 * with the sort key of its last row, so pages hold together while elements come and go between them.
 */
function browseStatement(state: DeliveryState): Statement {
  const key = state === 'reserved' ? 'd.lease_until' : 'd.due_at';
  const where = {
    ready: 'd.lease_until IS NULL AND d.due_at <= t.now',
    scheduled: 'd.lease_until IS NULL AND d.due_at > t.now',
    reserved: 'd.lease_until IS NOT NULL',
  }[state];
  return {
    name: `browse ${state}`,
    text: `${withList(
      NOW,
      `p AS MATERIALIZED (SELECT d.ctid AS tid, ${key} AS moment, d.seq, d.bytes FROM t CROSS JOIN delivery d
        WHERE d.lane = $1::int AND ${where} AND (${key}, d.seq) > ($2::bigint, $3::bigint)
        ORDER BY ${key}, d.seq LIMIT $4::int + 1)`,
      `k AS MATERIALIZED (SELECT p.*, row_number() OVER w AS place, sum(p.bytes) OVER w - p.bytes AS before
        FROM p WINDOW w AS (ORDER BY p.moment, p.seq))`,
    )}
    SELECT d.seq, d.due_at, d.tries, d.lease_until, coalesce(d.head, e.head), coalesce(d.body, e.body),
      (SELECT count(*) FROM p)
    FROM k JOIN delivery d ON d.ctid = k.tid LEFT JOIN element e ON d.head IS NULL AND e.seq = d.seq
    WHERE k.place <= $4::int AND k.before < ${MOST_BYTES} ORDER BY k.place`,
  };
}

export function browseVerbs(ids: Ids): (state: DeliveryState) => BrowseVerb {
  const verb = (state: DeliveryState): BrowseVerb => {
    const statement = browseStatement(state);
    return { name: statement.name, batch: () => new BrowseBatch(ids, statement) };
  };
  const verbs = { ready: verb('ready'), scheduled: verb('scheduled'), reserved: verb('reserved') };
  return (state) => verbs[state];
}

/** One page a statement: pages are asked for by people, one at a time. */
class BrowseBatch implements Batch<BrowseArgs, BrowsePage> {
  readonly #ids: Ids;
  readonly #statement: Statement;
  #args: BrowseArgs | null = null;

  constructor(ids: Ids, statement: Statement) {
    this.#ids = ids;
    this.#statement = statement;
  }

  add(args: BrowseArgs): boolean {
    if (this.#args !== null) return false;
    this.#args = args;
    return true;
  }

  query(): Query | null {
    const lane = this.#args?.queue.lanes.get(this.#args.group);
    if (this.#args === null || lane === undefined) return null;
    const [moment, seq] = readCursor(this.#ids, this.#args.after);
    const values = [String(lane.id), String(moment), String(seq), String(this.#args.limit)];
    return { statement: this.#statement, values };
  }

  read(rows: readonly Row[]): BrowsePage[] {
    const [first] = rows;
    const last = rows.at(-1);
    if (first === undefined || last === undefined) return [{ deliveries: [], next: null }];
    const found = number(first, 6);
    return [
      {
        deliveries: rows.map((row) => this.#delivery(row)),
        next: rows.length < found ? this.#cursorAt(last) : null,
      },
    ];
  }

  #delivery(row: Row): Delivery {
    const until = numberOrNull(row, 3);
    const lease = until === null ? null : { token: '', until };
    const state = { tries: number(row, 2), matureAt: number(row, 1), lease };
    const content = { head: text(row, 4), body: text(row, 5) };
    return delivery(this.#ids.text(number(row, 0)), this.#args?.group ?? '', state, content);
  }

  #cursorAt(row: Row): string {
    const moment = this.#args?.state === 'reserved' ? number(row, 3) : number(row, 1);
    return `${moment}.${this.#ids.text(number(row, 0))}`;
  }
}

/** The sort key of a page's last row: a moment and an element's number. */
type Cursor = readonly [moment: number, seq: number];

const START: Cursor = [Number.MIN_SAFE_INTEGER, 0];

/** A text that is none of ours begins at the start, as a bookmark from before a restore would. */
function readCursor(ids: Ids, after: string | null): Cursor {
  const parts = /^(-?\d{1,16})\.(.+)$/.exec(after ?? '');
  if (parts === null) return START;
  const moment = Number(parts[1]);
  const seq = ids.parse(parts[2] ?? '');
  return seq === null || !Number.isSafeInteger(moment) ? START : [moment, seq];
}
