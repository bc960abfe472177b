import type { SettleOutcome } from '../../../engine/storage.ts';
import {
  type Call,
  type CallOf,
  ELEMENT_FIELDS,
  type Fields,
  type QueueName,
  SETTLE_FIELDS,
} from '../protocol.ts';
import { insert } from './insert.ts';
import { isCommit, settle } from './settle.ts';
import type { Store } from './store.ts';

// What most clients send is one element a call, or the commit of one. Calls of a batch that do so for one queue, one
// after the other, share their statements, as the elements of one call do.

/** Where the calls end that, like the one at `from`, each insert an element into one queue, or commit one of it. */
export function endOfAlike(calls: readonly Call[], from: number, to: number): number {
  const first = calls[from];
  const queueOf = first?.[0] === 'insert' ? queueOfInsert : queueOfCommit;
  const queue = queueOf(first);
  let end = from + 1;
  while (queue !== null && end < to && queueOf(calls[end]) === queue) end += 1;
  return end;
}

/** Runs such calls. Returns the result of each. */
export function runAlike(store: Store, calls: readonly Call[]): unknown[] {
  const [first] = calls;
  if (first?.[0] !== 'insert') return commitEach(store, calls as CallOf<'settle'>[]);
  return insertEach(store, calls as CallOf<'insert'>[]);
}

function insertEach(store: Store, calls: readonly CallOf<'insert'>[]): string[] {
  const elements = calls.flatMap(([, , element]) => element);
  const [, ids] = insert(store, calls[0]?.[1] ?? '', elements, null);
  return ids;
}

function commitEach(store: Store, calls: readonly CallOf<'settle'>[]): SettleOutcome[] {
  const items: Fields = [];
  for (const [, , item] of calls) {
    const at = items.push(...item) - SETTLE_FIELDS;
    if (at > 0) items[at] = null;
  }
  const results = settle(store, 0, items, null);
  return calls.map((_, index) => results[2 * index] as SettleOutcome);
}

/** Null: not a call that inserts one element without a key, for no groups. */
function queueOfInsert(call: Call | undefined): QueueName | null {
  if (call?.[0] !== 'insert') return null;
  const [, queue, fields, request] = call as CallOf<'insert'>;
  const isPlain = fields.length === ELEMENT_FIELDS && fields[6] === '' && fields[7] === null;
  return request === null && isPlain ? queue : null;
}

/** Null: not a call that commits one reservation, whose token it has. */
function queueOfCommit(call: Call | undefined): QueueName | null {
  if (call?.[0] !== 'settle') return null;
  const [, , items, details] = call as CallOf<'settle'>;
  const isOne = items.length === SETTLE_FIELDS && details === null;
  return isOne && isCommit(items, 0) && items[4] !== null ? (items[0] as QueueName) : null;
}
