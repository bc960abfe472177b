import { SCAN_BYTES, scanCursor, scanStarts } from '../../engine/scan-cursor.ts';
import type { ScannedDelivery, ScanOptions, ScanPage } from '../../engine/storage.ts';
import { DELIVERY_STATES, type DeliveryState, type ElementId, NO_BODY } from '../../model/element.ts';
import { readHolder } from '../../model/owner.ts';
import { decodeBody, decodeHead } from './content.ts';
import { type Context, MAX_RETURNED_BYTES, type Operation } from './operations.ts';
import type { Subscription } from './registry.ts';
import { contentOf, NOW, withList } from './sql.ts';
import {
  int4Array,
  int8Array,
  number,
  numberOrNull,
  type Row,
  type Statement,
  text,
  variantsByFlags,
} from './statement.ts';

interface ScanItem extends ScanOptions {
  readonly subscription: Subscription;
}

/** For each state: its condition, and the moment by which its deliveries are sorted, before their sequence numbers. */
const STATES: Record<DeliveryState, { readonly where: string; readonly moment: string }> = {
  ready: { where: 'd.lease_until IS NULL AND d.due_at <= t.now', moment: 'd.due_at' },
  scheduled: { where: 'd.lease_until IS NULL AND d.due_at > t.now', moment: 'd.due_at' },
  reserved: { where: 'd.lease_until IS NOT NULL', moment: 'd.lease_until' },
};

/**
 * Waiting deliveries are sorted by maturity, then insertion; reserved ones by the end of their lease. The cursor of a
 * page is the sort key of its last row, so elements may come and go between pages. A page ends early rather than exceed
 * the bytes that a statement may return.
 *
 * The index of reserved deliveries has those of all queues, so it is only read if the queue has some, and if the
 * waiting ones do not fill the page.
 */
function scanStatement(bodies: boolean, byIds: boolean, includesReserved: boolean): Statement {
  const from = byIds ? BY_IDS : 'delivery d';
  const [ready, scheduled, reserved] = DELIVERY_STATES.map((state, place) => {
    const { where, moment } = STATES[state];
    return `(SELECT s.state, d.ctid AS tid, ${moment} AS moment, d.seq, d.bytes FROM ${from}
      WHERE s.state = ${place} AND d.subscription = $1::bigint AND ${where} AND (${moment}, d.seq) > (s.from_moment, s.from_seq)
      ORDER BY ${moment}, d.seq LIMIT $5::int + 1)`;
  });
  return {
    name: `scan${bodies ? '' : ' without bodies'}${byIds ? ' by ids' : ''}${includesReserved ? '' : ' of waiting'}`,
    text: `${withList(
      NOW,
      's AS MATERIALIZED (SELECT * FROM unnest($2::int[], $3::bigint[], $4::bigint[]) AS s(state, from_moment, from_seq))',
      `waiting AS MATERIALIZED (SELECT x.* FROM t CROSS JOIN s CROSS JOIN LATERAL (${ready} UNION ALL ${scheduled}) x
        ORDER BY 1, 3, 4 LIMIT $5::int + 1)`,
      includesReserved &&
        `leased AS MATERIALIZED (SELECT x.* FROM s CROSS JOIN LATERAL ${reserved} x
        WHERE (SELECT coalesce(sum(y.reserved), 0) FROM counter y
          WHERE y.subscription = $1::bigint AND y.id >= $${byIds ? 7 : 6}::bigint) <> 0
        LIMIT $5::int + 1 - (SELECT count(*) FROM waiting))`,
      `p AS MATERIALIZED (SELECT * FROM waiting${includesReserved ? ' UNION ALL SELECT * FROM leased' : ''})`,
      `k AS MATERIALIZED (SELECT p.*, row_number() OVER w AS place, ${bodies ? 'sum(p.bytes) OVER w - p.bytes' : '0'} AS before
        FROM p WINDOW w AS (ORDER BY p.state, p.moment, p.seq))`,
    )}
    SELECT k.state, k.moment, d.seq, d.due_at, d.tries, d.lease_until, d.inserted_at, d.expires_at, d.reason,
      octet_length(coalesce(d.body, e.body)), (SELECT count(*) FROM p), coalesce(d.head, e.head),
      d.reserved_at, d.holder
      ${bodies ? ', coalesce(d.body, e.body)' : ''}
    FROM k JOIN delivery d ON d.ctid = k.tid ${contentOf('d')}
    WHERE k.place <= $5::int AND k.before < ${byIds ? MAX_RETURNED_BYTES : SCAN_BYTES} ORDER BY k.place`,
  };
}

/**
 * A lookup per id by the primary key, whose result is then compared with the state: otherwise a plan made while the
 * table was empty may read all deliveries of the subscription in this state.
 */
const BY_IDS = `unnest($6::bigint[]) AS i(seq) CROSS JOIN LATERAL (SELECT w.ctid, w.* FROM delivery w
      WHERE w.seq = i.seq AND w.subscription = $1::bigint LIMIT 1) d`;

type ScanOperation = Operation<ScanItem, ScanPage>;

/** One page per statement: pages are requested by people, one at a time. */
export function scanOperations(context: Context): (item: ScanItem) => ScanOperation {
  const operation = (bodies: boolean, byIds: boolean, includesReserved: boolean): ScanOperation => {
    const statement = scanStatement(bodies, byIds, includesReserved);
    return {
      statement,
      changes: false,
      isSingle: true,
      prepare: ([item]) => {
        if (item === undefined) throw new Error('a scan has an item');
        const starts = scanStarts(item.states, item.after, (id) => context.ids.parse(id));
        const values = [
          item.subscription.idText,
          int4Array(starts.map(({ state }) => DELIVERY_STATES.indexOf(state))),
          int8Array(starts.map(({ moment }) => moment)),
          int8Array(starts.map(({ seq }) => seq)),
          String(item.limit),
          ...(item.ids === undefined ? [] : [int8Array(seqsOf(context, item.ids))]),
          ...(includesReserved ? [String(context.registry.counterWatermark.from)] : []),
        ];
        return { values, read: (rows) => [readPage(context, item, rows)] };
      },
    };
  };
  const operations = variantsByFlags(operation);
  return ({ bodies, ids, states }) => operations(bodies, ids !== undefined, states.includes('reserved'));
}

/** The sequence numbers of those ids that this store may have issued. */
function seqsOf({ ids }: Context, given: readonly ElementId[]): number[] {
  return [...new Set(given.flatMap((id) => ids.parse(id) ?? []))];
}

function readPage(
  { ids }: Context,
  { subscription, bodies, ids: only }: ScanItem,
  rows: readonly Row[],
): ScanPage {
  const deliveries = rows.map((row): ScannedDelivery => {
    const until = numberOrNull(row, 5);
    return {
      id: ids.format(number(row, 2)),
      group: subscription.group,
      tries: number(row, 4),
      matureAt: number(row, 3),
      lease: until === null ? null : { token: '', until },
      ...decodeHead(text(row, 11), ids),
      body: bodies ? decodeBody(text(row, 14)) : NO_BODY,
      state: stateOf(row),
      insertedAt: number(row, 6),
      expiresAt: numberOrNull(row, 7),
      reason: row[8] == null ? null : (JSON.parse(row[8]) as string),
      bytes: number(row, 9),
      holder: until === null ? null : { ...readHolder(row[13] ?? null), since: numberOrNull(row, 12) ?? 0 },
      cursor: only === undefined ? cursorOf(ids, row) : null,
    };
  });
  const last = rows.at(-1);
  if (last === undefined || rows.length >= number(last, 10)) return { deliveries, next: null };
  return { deliveries, next: cursorOf(ids, last) };
}

function stateOf(row: Row): DeliveryState {
  return DELIVERY_STATES[number(row, 0)] ?? 'ready';
}

function cursorOf(ids: Context['ids'], row: Row): string {
  return scanCursor(stateOf(row), text(row, 1), ids.format(number(row, 2)));
}
