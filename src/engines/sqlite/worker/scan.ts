import { DELIVERY_STATES, type DeliveryState } from '../../../model/element.ts';
import type { BodyWriter, Fields, QueueName, Scanned } from '../protocol.ts';
import type { Bodies } from './operations.ts';
import { isWhole, type Joined, placeOf } from './rows.ts';
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
    const elements = ids.map((id) => store.ids.parse(id));
    for (const [row, state] of rows.named(subscription, elements, now)) {
      if (states.includes(state)) show(row, state);
    }
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

function writeScanned(
  { ids }: Store,
  row: Joined,
  state: DeliveryState,
  bodies: boolean,
  reply: BodyWriter,
  fields: Fields,
): void {
  const [seq, element, dueAt, tries, , expiresAt, reason, type, more, , body, leaseUntil, ...scanned] = row;
  const [insertedAt, bytes, reservedAt, holder] = scanned;
  fields.push(ids.text(element ?? seq), state, tries, dueAt, leaseUntil, insertedAt, expiresAt, reason);
  fields.push(type, more, bodies && body !== null ? reply.add(body) : null, bytes ?? 0);
  fields.push(element === null || element === seq ? null : ids.text(seq), reservedAt, holder);
}

function cursorText(
  { ids }: Store,
  state: DeliveryState,
  last: Joined | null,
  start: Omit<Cursor, 'state'>,
): string {
  const { moment, seq } = last === null ? start : { moment: placeOf(last, state), seq: last[0] };
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
