import { DELIVERY_STATES, type DeliveryState } from '../../../model/element.ts';
import type { BodyWriter, Fields, QueueName, Scanned } from '../protocol.ts';
import type { Subscription } from './names.ts';
import type { Bodies } from './operations.ts';
import { isWhole, type Joined } from './rows.ts';
import type { Store } from './store.ts';
import { MAX_REPLY_BYTES } from './take.ts';

/** The state, and the moment and number of a page's last row: pages hold together while elements come and go between them. */
interface Cursor {
  readonly state: DeliveryState;
  readonly moment: number;
  readonly seq: number;
}

/**
 * Waiting deliveries come by maturity, then insertion; reserved ones by the end of their lease. A page ends early rather
 * than growing past {@link MAX_REPLY_BYTES}. What fails its checksum is left out, and set aside by `take`: a scan
 * changes nothing.
 */
export function scan(
  store: Store,
  { reply }: Bodies,
  name: QueueName,
  group: string,
  given: readonly string[],
  ids: readonly string[] | null,
  after: string | null,
  limit: number,
  bodies: boolean,
): Scanned {
  const { rows, now } = store;
  const subscription = store.names.find(name)?.subscriptions.get(group);
  const states = DELIVERY_STATES.filter((state) => given.includes(state));
  const fields: Fields = [];
  if (subscription === undefined) return [null, fields];
  const show = (row: Joined, state: DeliveryState): void => {
    if (isWhole(subscription, row, bodies || ids !== null))
      writeScanned(store, row, state, bodies, reply, fields);
  };
  if (ids !== null) {
    for (const [row, state] of named(store, subscription, ids)) if (states.includes(state)) show(row, state);
    return [null, fields];
  }
  const maxBytes = reply.byteLength + MAX_REPLY_BYTES;
  const cursor = readCursor(store, after);
  let left = limit;
  for (const state of states) {
    const start = cursor?.state === state ? cursor : { moment: Number.MIN_SAFE_INTEGER, seq: 0 };
    if (cursor !== null && DELIVERY_STATES.indexOf(state) < DELIVERY_STATES.indexOf(cursor.state)) continue;
    const { moment, seq } = start;
    let last: Joined | null = null;
    for (const row of rows.page(subscription, state, now, { moment, seq }, left + 1, bodies)) {
      if (left === 0 || reply.byteLength >= maxBytes) return [cursorText(store, state, last, start), fields];
      show(row, state);
      last = row;
      left--;
    }
  }
  return [null, fields];
}

/** In the order of the page: by state, then in delivery order. */
function named(
  { rows, ids, now }: Store,
  subscription: Subscription,
  texts: readonly string[],
): [Joined, DeliveryState][] {
  const found = new Map<number, [Joined, DeliveryState]>();
  for (const text of texts) {
    const element = ids.parse(text);
    const row = element === null ? null : rows.findJoined(subscription, element);
    if (row !== null)
      found.set(row[0], [row, row[11] !== null ? 'reserved' : row[2] <= now ? 'ready' : 'scheduled']);
  }
  const order = ([row, state]: [Joined, DeliveryState]): number => momentOf(row, state);
  return [...found.values()].sort(
    (a, b) =>
      DELIVERY_STATES.indexOf(a[1]) - DELIVERY_STATES.indexOf(b[1]) ||
      order(a) - order(b) ||
      a[0][0] - b[0][0],
  );
}

function writeScanned(
  { ids }: Store,
  row: Joined,
  state: DeliveryState,
  bodies: boolean,
  reply: BodyWriter,
  fields: Fields,
): void {
  const [seq, element, dueAt, tries, , expiresAt, reason, type, more, , body, leaseUntil, insertedAt, bytes] =
    row;
  fields.push(ids.text(element ?? seq), state, tries, dueAt, leaseUntil, insertedAt, expiresAt, reason);
  fields.push(type, more, bodies && body !== null ? reply.add(body) : null, bytes ?? 0);
}

function momentOf(row: Joined, state: DeliveryState): number {
  return state === 'reserved' ? (row[11] ?? 0) : row[2];
}

function cursorText(
  { ids }: Store,
  state: DeliveryState,
  last: Joined | null,
  start: Omit<Cursor, 'state'>,
): string {
  const { moment, seq } = last === null ? start : { moment: momentOf(last, state), seq: last[0] };
  return `${state}.${moment}.${seq === 0 ? '' : ids.text(seq)}`;
}

/** A text that is none of ours begins at the start, as a client's bookmark from before a restore would. */
function readCursor({ ids }: Store, after: string | null): Cursor | null {
  const [given, moment = '', text = ''] = after?.split('.') ?? [];
  const state = DELIVERY_STATES.find((one) => one === given);
  const seq = text === '' ? 0 : ids.parse(text);
  const at = Number(moment);
  return state === undefined || seq === null || !Number.isSafeInteger(at) ? null : { state, moment: at, seq };
}
