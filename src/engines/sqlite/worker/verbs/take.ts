import type { MessageReader, MessageWriter } from '../../message.ts';
import { setAsideDamaged } from '../damage.ts';
import { isWhole, type Joined } from '../deliveries.ts';
import type { Lane } from '../names.ts';
import type { Store } from '../store.ts';

/** Rows read at a time: enough for speed, few enough that a page of large bodies stays small. */
const PAGE = 64;

/**
 * A call stops handing out at this many bytes, fewer than `count` or not: a thousand elements of a megabyte
 * would be a gigabyte in one answer. The caller sees a `nextDueAt` that has passed and asks again.
 */
const LARGEST_ANSWER = 16 * 1024 * 1024;

/** queue, group, count, lease length or null, of a reserve its owner -> one delivery after the other, then null and `nextDueAt` */
export function take(store: Store, call: MessageReader, reply: MessageWriter): void {
  const queue = store.names.find(call.number());
  if (queue !== null) store.names.use(queue, store.now);
  const lane = queue?.lanes.get(call.text());
  const count = call.number();
  const leaseMs = call.numberOrNull();
  if (lane === undefined) {
    reply.value(null);
    reply.value(null);
    return;
  }
  const taken =
    leaseMs === null
      ? pop(store, lane, count, reply)
      : reserve(store, lane, count, { leaseMs, owner: call.number() }, reply);
  reply.value(null);
  reply.value(taken < count ? store.counts.firstDueAt(lane) : null);
}

function pop(store: Store, lane: Lane, count: number, reply: MessageWriter): number {
  return handOut(store, lane, count, reply, (seq, dueAt, groups) => {
    store.deliveries.removeWaiting(lane, seq, dueAt);
    store.elements.removeIfFinished(seq, groups > 1);
    reply.value(null);
  });
}

function reserve(
  store: Store,
  lane: Lane,
  count: number,
  { leaseMs, owner }: { leaseMs: number; owner: number },
  reply: MessageWriter,
): number {
  const until = store.now + leaseMs;
  return handOut(store, lane, count, reply, (seq, dueAt) => {
    const token = store.tokens.text();
    store.deliveries.reserve(lane, seq, dueAt, { token, until, owner });
    reply.value(token);
    reply.value(until);
  });
}

/** Writes eligible deliveries to the answer, each followed by what `move` adds. Answers how many. */
function handOut(
  store: Store,
  lane: Lane,
  count: number,
  reply: MessageWriter,
  move: (seq: number, dueAt: number, groups: number) => void,
): number {
  const most = reply.byteLength + LARGEST_ANSWER;
  let taken = 0;
  while (taken < count && reply.byteLength < most) {
    const limit = Math.min(PAGE, count - taken);
    const rows = store.deliveries.ready(lane, store.now, limit);
    for (const row of rows) {
      if (reply.byteLength >= most) return taken;
      if (!isWhole(lane, row)) {
        setAsideDamaged(store, row[0]);
        continue;
      }
      writeDelivery(store, row, reply);
      move(row[0], row[1], row[4]);
      taken++;
    }
    if (rows.length < limit) break;
  }
  return taken;
}

/** id, tries, due, type, more, body */
export function writeDelivery(store: Store, row: Joined, reply: MessageWriter): void {
  const [seq, dueAt, tries, , , type, more, , body] = row;
  reply.value(store.ids.text(seq));
  reply.value(tries);
  reply.value(dueAt);
  reply.value(type);
  reply.value(more);
  reply.body(body);
}
