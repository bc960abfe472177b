import { LIMITS } from '../../../model/limits.ts';
import { type Fields, type QueueName, TAKEN_FIELDS, type Taken } from '../protocol.ts';
import { expire, setAsideDamaged } from './moves.ts';
import type { Subscription } from './names.ts';
import type { Bodies } from './operations.ts';
import { isWhole, type Joined } from './rows.ts';
import type { Store } from './store.ts';

/** Rows read at a time: enough for speed, few enough that a page of large bodies stays small. */
const PAGE = 64;
/**
 * A call returns no more once its bodies have this many bytes, fewer than `count` or not. The caller sees a `nextDueAt` that
 * has passed and asks again.
 */
export const MAX_REPLY_BYTES = LIMITS.takeBytes;
/** Expired elements that one call ends; with more of them, the caller asks again. */
const MAX_EXPIRED = 1000;

const NONE: Taken = [null, null, null, [], false];

/** Pops, or reserves for `leaseMs`, what is eligible. */
export function take(
  store: Store,
  { reply }: Bodies,
  name: QueueName,
  group: string,
  count: number,
  ids: readonly string[] | null,
  leaseMs: number | null,
  owner: number,
  holders: string | readonly string[],
  maxBytes: number | null,
): Taken {
  const { names, rows, now } = store;
  const queue = names.find(name);
  if (queue !== null) names.noteUse(queue, now);
  const subscription = queue?.subscriptions.get(group);
  if (subscription === undefined) return NONE;
  const until = leaseMs === null ? null : now + leaseMs;
  const from = reply.byteLength;
  let isCut = false;
  const fields: Fields = [];
  let lost: Fields | null = null;
  let left = count;
  let expired = 0;
  for (let isLast = false; left > 0 && !isLast; ) {
    const limit = Math.min(PAGE, left);
    const page = ids === null ? rows.ready(subscription, now, limit) : named(store, subscription, ids, now);
    isLast = page.length < limit || ids !== null;
    for (const row of page) {
      if (left === 0) break;
      const [seq, element, dueAt, tries, , expiresAt, reason, type, more, , body] = row;
      if (reply.byteLength - from >= MAX_REPLY_BYTES || expired === MAX_EXPIRED) {
        isLast = true;
        break;
      }
      if (expiresAt !== null && expiresAt <= now) {
        const delivery = rows.bySeq(seq);
        if (delivery !== null) expire(store, subscription, delivery);
        expired++;
        continue;
      }
      if (body === null || !isWhole(subscription, row)) {
        setAsideDamaged(store, seq);
        continue;
      }
      if (maxBytes !== null && left < count && reply.byteLength - from + body.byteLength > maxBytes) {
        isLast = isCut = true;
        break;
      }
      let token: string | null = null;
      if (until === null) {
        rows.removeWaiting(subscription, seq, element, dueAt);
        if (expiresAt !== null || reason !== null) {
          lost ??= [];
          lost.push(fields.length / TAKEN_FIELDS, expiresAt, reason);
        }
      } else {
        token = store.tokens.text();
        const holder = typeof holders === 'string' ? holders : (holders[count - left] ?? '');
        rows.reserve(subscription, seq, dueAt, { token, until, owner, at: now, holder });
      }
      const id = store.ids.text(element ?? seq);
      fields.push(id, tries, dueAt, type, more, reply.add(body), body.byteLength, token);
      left--;
    }
  }
  return [left > 0 && ids === null ? rows.firstDueAt(subscription) : null, until, lost, fields, isCut];
}

/** The eligible ones of these elements, by maturity, then by insertion. */
function named(
  { rows, ids }: Store,
  subscription: Subscription,
  texts: readonly string[],
  now: number,
): Joined[] {
  const elements = texts.map((text) => ids.parse(text));
  return rows.named(subscription, elements, now).flatMap(([row, state]) => (state === 'ready' ? [row] : []));
}
