import { SCAN_BYTES, scanCursor, scanStarts } from '../../../engine/scan-cursor.ts';
import { PLAIN_GROUP } from '../../../model/element.ts';
import { LIMITS } from '../../../model/limits.ts';
import {
  bodyAt,
  type Fields,
  NOT_SIMILAR,
  type Scanned,
  type SharedTakenFields,
  SIMILAR,
  type TakenFields,
} from '../protocol.ts';
import { StoredDelivery, setAsideDamaged } from './delivery.ts';
import {
  elementOf,
  isIntactContent,
  isIntactDelivery,
  type ReadyRow,
  type ScannedRow,
  stateOf,
} from './rows.ts';
import type { Run } from './store.ts';
import { drawStoredToken, tokenOf } from './tokens.ts';

// Operations that read deliveries: takes, with the undo of pops, and scans.

/** Maximum number of rows read at a time. */
const MAX_PAGE_ROWS = 64;
/** Once the bodies have this many bytes, a call returns, with `isLeft` set, even if there are fewer than `count`. */
const MAX_REPLY_BYTES = LIMITS.takeBytes;
/** Expired elements that one call removes; if there are more, it sets `isLeft`, too. */
const MAX_EXPIRED = 1000;

/** Pops eligible deliveries, or reserves them if `leaseMs` is not null. See {@link Operations} for the result. */
export const take: Run<'take'> = (store, name, group, count, leaseMs, holders, maxBytes, isTransient) => {
  const { queues, rows, reply, now } = store;
  const queue = queues.find(name);
  if (queue !== null) queues.noteUse(queue, now);
  const subscription = queue?.subscriptions.get(group);
  if (subscription === undefined) return [null, null, [], false, false];
  const until = leaseMs === null ? null : now + leaseMs;
  const bytesBefore = reply.byteLength;
  let isCut = false;
  let isLeft = false;
  const fields: Fields = [];
  /** Index of the last {@link SharedTakenFields}; -1: there are none. */
  let sharedAt = -1;
  let storedToken: string | null = null;
  let left = count;
  let expired = 0;
  const copiedBefore = store.copiedBytes;
  for (let isLast = false; left > 0 && !isLast; ) {
    const limit = Math.min(left, MAX_PAGE_ROWS);
    const page = rows.ready(subscription, now, limit);
    isLast = page.length < limit;
    const taken: ReadyRow[] = [];
    const takenBefore = count - left;
    for (const row of page) {
      if (left === 0) break;
      const { seq, dueAt, tries, expiresAt, reason } = row;
      const isStepOver = expired === MAX_EXPIRED || !store.mayCopyMore(copiedBefore);
      if (isStepOver || reply.byteLength - bytesBefore >= MAX_REPLY_BYTES) {
        isLast = isLeft = true;
        break;
      }
      if (expiresAt !== null && expiresAt <= now) {
        const whole = rows.bySeq(seq);
        const delivery = whole && new StoredDelivery(store, subscription, whole);
        if (delivery?.isIntact()) delivery.expire();
        expired++;
        continue;
      }
      const content = rows.contentOf(row);
      if (content === null || !isIntactDelivery(row) || !isIntactContent(row, content)) {
        setAsideDamaged(store, seq);
        continue;
      }
      const { type, more, body } = content;
      if (maxBytes !== null && left < count && reply.byteLength - bytesBefore + body.byteLength > maxBytes) {
        isLast = isCut = true;
        break;
      }
      let token: string | null = null;
      if (until !== null) {
        storedToken ??= drawStoredToken(store.tokens);
        token = tokenOf(storedToken, elementOf(row));
      }
      taken.push(row);
      const id = store.ids.format(elementOf(row));
      const { byteLength } = body;
      const offset = reply.add(body);
      const isSimilar =
        sharedAt >= 0 &&
        fields[sharedAt] === tries &&
        fields[sharedAt + 1] === expiresAt &&
        fields[sharedAt + 2] === reason &&
        fields[sharedAt + 3] === type &&
        fields[sharedAt + 4] === more;
      const own: TakenFields = [isSimilar ? SIMILAR : NOT_SIMILAR, id, dueAt, offset, byteLength, token];
      const end = fields.push(...own);
      if (!isSimilar) {
        sharedAt = end;
        const shared: SharedTakenFields = [tries, expiresAt, reason, type, more];
        fields.push(...shared);
      }
      left--;
    }
    if (until === null) rows.remove(subscription, taken);
    // A take that finds nothing must write nothing, as waiting consumers repeat it often.
    else if (storedToken !== null && taken.length > 0) {
      const reservation = { until, at: now, token: storedToken };
      if (isTransient && typeof holders === 'string' && taken.every(canStayUnwritten)) {
        rows.reserveUnwritten(subscription, taken, { ...reservation, holders });
      } else {
        const pageHolders = typeof holders === 'string' ? holders : holders.slice(takenBefore);
        rows.reserve(subscription, taken, { ...reservation, holders: pageHolders });
      }
    }
  }
  const nextDueAt = left > 0 ? rows.firstDueAt(subscription) : null;
  return [nextDueAt, until, fields, isCut, isLeft];
};

/** Whether a transient reservation may stay in memory: a sweep looks in the table for what expires. */
function canStayUnwritten({ element, expiresAt }: ReadyRow): boolean {
  return element === null && expiresAt === null;
}

/**
 * Restores popped deliveries. The element has the same number as before, and so its old place. If another group still
 * has the element, only the delivery is restored. If not, the element's age for retention starts again, since the pop
 * deleted its row.
 */
export const undoTake: Run<'undoTake'> = ({ queues, ids, rows, received, now }, name, deliveries) => {
  const queue = queues.use(name, now);
  for (const { id, group, body: place, ...rest } of deliveries) {
    const element = ids.parse(id);
    if (element === null) throw new Error(`undo of the take of an element that this engine never had: ${id}`);
    const subscription = queues.subscription(queue, group);
    if (rows.find(subscription, element) !== null) continue;
    const row = { ...rest, body: bodyAt(received, ...place) };
    if (group === PLAIN_GROUP) {
      rows.addPlain(subscription, element, [row], now);
      continue;
    }
    if (!rows.markShared(element)) rows.addElement(queue, element, 1, row, now);
    // The insert issued a number for each group after the element's own: any free one keeps the order.
    let seq = element + 1;
    while (rows.bySeq(seq) !== null) seq++;
    rows.addShared(subscription, seq, element, row, now);
    queues.noteWaiting(queue, Number.MIN_SAFE_INTEGER);
  }
};

/**
 * Returns a page of deliveries: waiting ones by maturity, then insertion; reserved ones by lease end. A page ends early
 * instead of exceeding {@link SCAN_BYTES}. Deliveries that fail their checksum are skipped, and left for `take` to set
 * aside, because a scan changes nothing.
 */
export const scan: Run<'scan'> = (store, name, group, states, named, after, limit, bodies) => {
  const { ids, rows, reply, now } = store;
  const subscription = store.queues.find(name)?.subscriptions.get(group);
  const deliveries: Scanned[1] = [];
  if (subscription === undefined) return [null, deliveries];
  // Bodies are read one by one, since a page may end after a few large ones.
  const addIfIntact = (row: ScannedRow): void => {
    const content = bodies ? rows.contentOf(row) : null;
    const isSound = content === null ? !bodies && row.contentCrc !== null : isIntactContent(row, content);
    if (!isIntactDelivery(row) || !isSound) return;
    const { seq, tries, dueAt, leaseUntil, insertedAt, expiresAt, reason } = row;
    const { type, more, bytes, reservedAt, holder } = row;
    const state = stateOf(row, now);
    deliveries.push({
      id: ids.format(elementOf(row)),
      state,
      tries,
      matureAt: dueAt,
      leaseUntil,
      insertedAt: insertedAt ?? 0,
      expiresAt,
      reason,
      contentType: type,
      more,
      offset: content && reply.add(content.body),
      bytes: bytes ?? 0,
      reservedAt,
      holder,
      cursor: named === null ? scanCursor(state, leaseUntil ?? dueAt, ids.format(seq)) : null,
    });
  };
  if (named !== null) {
    for (const row of rows.named(
      subscription,
      named.map((id) => ids.parse(id)),
      now,
      states,
    ))
      addIfIntact(row);
    return [null, deliveries];
  }
  const maxBytes = reply.byteLength + SCAN_BYTES;
  let left = limit;
  for (const start of scanStarts(states, after, (id) => ids.parse(id))) {
    const { state } = start;
    let { moment, seq } = start;
    for (const row of rows.page(subscription, start, now, left + 1)) {
      if (left === 0 || reply.byteLength >= maxBytes) {
        return [scanCursor(state, moment, seq === 0 ? '' : ids.format(seq)), deliveries];
      }
      addIfIntact(row);
      moment = row.leaseUntil ?? row.dueAt;
      seq = row.seq;
      left--;
    }
  }
  return [null, deliveries];
};
