import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { DeliveryState } from '../../../../model/element.ts';
import type { MessageReader, MessageWriter } from '../../message.ts';
import { isWhole, JOINED, JOINED_FROM, type Joined } from '../deliveries.ts';
import type { Store } from '../store.ts';
import { writeDelivery } from './take.ts';

/** As for `take`: a page ends early rather than growing past this. */
const LARGEST_PAGE = 16 * 1024 * 1024;

/**
 * queue, group, state, after or null, limit -> deliveries, null, then where to go on or null
 *
 * Waiting deliveries come by maturity, then insertion; reserved ones by the end of their lease. A page ends
 * with the sort key of its last row, so pages hold together while elements come and go between them.
 */
export function browse(store: Store, call: MessageReader, reply: MessageWriter): void {
  const lane = store.names.find(call.number())?.lanes.get(call.text());
  const state = call.text() as DeliveryState;
  const after = readCursor(store, call.textOrNull());
  const limit = call.number();
  const rows = lane === undefined ? [] : store.pages.read(state, lane.id, store.now, after, limit + 1);
  const most = reply.byteLength + LARGEST_PAGE;
  let next: string | null = null;
  let shown = 0;
  for (const row of rows) {
    if (shown === limit || reply.byteLength >= most) break;
    shown++;
    next = `${row[state === 'reserved' ? 3 : 1]}.${store.ids.text(row[0])}`;
    // Not set aside here, as browsing changes nothing; `take` will.
    if (lane === undefined || !isWhole(lane, row)) continue;
    writeDelivery(store, row, reply);
    if (row[3] === null) reply.value(null);
    else {
      reply.value('');
      reply.value(row[3]);
    }
  }
  reply.value(null);
  reply.value(shown < rows.length ? next : null);
}

/** The sort key of a page's last row: a moment and an element's number. */
type Cursor = readonly [moment: number, seq: number];

const START: Cursor = [Number.MIN_SAFE_INTEGER, 0];

/** A text that is none of ours begins at the start, as a client's bookmark from before a restore would. */
function readCursor(store: Store, after: string | null): Cursor {
  const dot = after?.indexOf('.') ?? -1;
  if (after === null || dot < 0) return START;
  const moment = Number(after.slice(0, dot));
  const seq = store.ids.parse(after.slice(dot + 1));
  return seq === null || !Number.isSafeInteger(moment) ? START : [moment, seq];
}

/** Pages of joined rows, one statement per state. */
export class Pages {
  readonly #statements: Record<DeliveryState, StatementSync>;

  constructor(db: DatabaseSync) {
    const prepare = (where: string, key: string): StatementSync => {
      const statement = db.prepare(
        `SELECT ${JOINED} ${JOINED_FROM}
         WHERE d.lane = :lane AND ${where} AND (${key}, d.seq) > (:moment, :seq) ORDER BY ${key}, d.seq LIMIT :limit`,
      );
      statement.setReturnArrays(true);
      return statement;
    };
    this.#statements = {
      ready: prepare('d.lease_until IS NULL AND d.due_at <= :now', 'd.due_at'),
      scheduled: prepare('d.lease_until IS NULL AND d.due_at > :now', 'd.due_at'),
      reserved: prepare('d.lease_until IS NOT NULL AND :now IS NOT NULL', 'd.lease_until'),
    };
  }

  read(state: DeliveryState, lane: number, now: number, [moment, seq]: Cursor, limit: number): Joined[] {
    return this.#statements[state].all({ lane, now, moment, seq, limit }) as unknown as Joined[];
  }
}
