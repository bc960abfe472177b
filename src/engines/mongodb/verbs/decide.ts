import type { QueueKey } from '../../../model/names.ts';
import type { Settled, SettleItem } from '../call.ts';
import type { Change } from '../changes.ts';
import type { DeliveryHead } from '../documents.ts';
import type { Policies } from '../policies.ts';

/** What is to be done for one item of a settling call. */
export type Decision =
  | { readonly kind: 'refuse'; readonly settled: Settled }
  | { readonly kind: 'change'; readonly change: Change; readonly settled: Settled }
  /** The try was its last one: it moves to the dead-letter queue. */
  | { readonly kind: 'letter' };

/**
 * Decides by what was read of a delivery. The rules are those of `docs/lifecycle.md`.
 * @param head null where there is no such document
 * @param now the server's time of the reading, ms
 */
export function decide(
  head: DeliveryHead | null,
  queue: QueueKey,
  item: SettleItem,
  now: number,
  policies: Policies,
): Decision {
  if (head === null || !isNamed(head, queue, item) || head.state === 'gone') return refuse('not-found');
  switch (item.verb) {
    case 'remove':
      return isHeld(head, now) ? refuse('reserved') : { ...finish(head, now), settled: 'done' };
    case 'commit': {
      const refusal = refusalOf(head, item.token, head.token !== null);
      return refusal === null ? { ...finish(head, now), settled: 'done' } : refuse(refusal);
    }
    case 'extend': {
      const refusal = refusalOf(head, item.token, isHeld(head, now));
      if (refusal !== null) return refuse(refusal);
      const until = now + Math.ceil(item.leaseMs);
      return change(head, { until: new Date(until) }, { until });
    }
    case 'rollback': {
      const refusal = refusalOf(head, item.token, isHeld(head, now));
      if (refusal !== null) return refuse(refusal);
      const tries = item.countTry ? head.tries + 1 : head.tries;
      if (item.countTry && policies.letterTarget(queue, tries) !== null) return { kind: 'letter' };
      const isDelayed = item.countTry || item.delayMs > 0;
      const at = isDelayed ? new Date(now + Math.ceil(item.delayMs)) : head.at;
      return change(head, { state: 'waiting', at, tries, token: null }, 'done', ['until']);
    }
  }
}

/** A lease that ended: the try counts, and the token stays, so that a late commit still finds it. */
export function lapsed(head: DeliveryHead, until: Date): Change {
  const set = { state: 'waiting', at: until, tries: head.tries + 1 } as const;
  return { _id: head._id, readOp: head.op, set, unset: ['until'] };
}

function refusalOf(
  { token }: DeliveryHead,
  named: string | null,
  isHolding: boolean,
): 'not-reserved' | 'lease-lost' | null {
  if (named === null) return isHolding ? null : 'not-reserved';
  return isHolding && named === token ? null : 'lease-lost';
}

/** Whether the document is what was named: an id from a client may be made to look like another one's `_id`. */
function isNamed(head: DeliveryHead, { ns, name }: QueueKey, { id, group }: SettleItem): boolean {
  return head.id === id && head.group === group && head.ns === ns && head.queue === name;
}

/** Whether its lease runs. One that has ended is as good as waiting, though nobody has written so yet. */
function isHeld({ state, until }: DeliveryHead, now: number): boolean {
  return state === 'reserved' && until !== undefined && until.getTime() > now;
}

/** It is marked and then deleted: deleting at once would not tell which of several were there. */
function finish(head: DeliveryHead, now: number): { readonly kind: 'change'; readonly change: Change } {
  const set = { state: 'gone' } as const;
  const max = { deleteAfter: new Date(now) };
  return { kind: 'change', change: { _id: head._id, readOp: head.op, set, max, unset: ['until', 'born'] } };
}

function change(
  { _id, op }: DeliveryHead,
  set: Change['set'],
  settled: Settled,
  unset: Change['unset'] = [],
): Decision {
  return { kind: 'change', change: { _id, readOp: op, set, unset }, settled };
}

function refuse(settled: Settled): Decision {
  return { kind: 'refuse', settled };
}
