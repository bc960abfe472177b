import type { SettleOutcome } from '../../../engine/storage.ts';
import {
  type Call,
  type CallOf,
  ELEMENT_FIELDS,
  type Fields,
  type QueueName,
  SETTLE_FIELDS,
} from '../protocol.ts';
import { elementAt, insertAll } from './insert.ts';
import { isCommit, settle } from './settle.ts';
import type { Store } from './store.ts';

// Most clients insert or commit one element per call. Consecutive calls of a batch that do so in the same queue share
// their statements, as the elements of one call do. In batches of 64 inserts this saves a fifth of the processor time
// of both threads; commits of one take are finished as a range, see `finishRange`.

/**
 * Returns the end of the run of calls that, like the one at `from`, each insert one plain element into the same queue,
 * or each commit one reservation of it.
 */
export function endOfAlike(calls: readonly Call[], from: number, to: number): number {
  const first = calls[from];
  const queueOf = first?.[0] === 'insert' ? queueOfInsert : queueOfCommit;
  const queue = queueOf(first);
  let end = from + 1;
  while (queue !== null && end < to && queueOf(calls[end]) === queue) end += 1;
  return end;
}

/** Runs calls that {@link endOfAlike} found. Returns the result of each. */
export function runAlike(store: Store, calls: readonly Call[]): unknown[] {
  return calls[0]?.[0] === 'insert'
    ? insertEach(store, calls as CallOf<'insert'>[])
    : commitEach(store, calls as CallOf<'settle'>[]);
}

function insertEach(store: Store, calls: readonly CallOf<'insert'>[]): string[] {
  const { ids, queues, received, now } = store;
  const elements = calls.map(([, , element]) => elementAt(element, 0, received));
  return insertAll(store, queues.use(calls[0]?.[1] ?? '', now), elements).map((seq) => ids.format(seq));
}

function commitEach(store: Store, calls: readonly CallOf<'settle'>[]): SettleOutcome[] {
  const items: Fields = [];
  for (const [, , item] of calls) {
    const at = items.push(...item) - SETTLE_FIELDS;
    // Each item after the first is of the same queue.
    if (at > 0) items[at] = null;
  }
  const results = settle(store, 0, items, null);
  return calls.map((_, index) => results[2 * index] as SettleOutcome);
}

/** The queue of a call that inserts one element without rare fields and groups; null for any other call. */
function queueOfInsert(call: Call | undefined): QueueName | null {
  if (call?.[0] !== 'insert') return null;
  const [, queue, fields, request] = call as CallOf<'insert'>;
  const isPlain = fields.length === ELEMENT_FIELDS && fields[6] === '' && fields[7] === null;
  return request === null && isPlain ? queue : null;
}

/** The queue of a call that commits one reservation by its token; null for any other call. */
function queueOfCommit(call: Call | undefined): QueueName | null {
  if (call?.[0] !== 'settle') return null;
  const [, , items, details] = call as CallOf<'settle'>;
  const isOne = items.length === SETTLE_FIELDS && details === null;
  return isOne && isCommit(items, 0) && items[4] !== null ? (items[0] as QueueName) : null;
}
