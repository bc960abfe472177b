import type { SettleOutcome } from '../../../engine/storage.ts';
import { QuaysideError } from '../../../model/errors.ts';
import { messageOf } from '../../../util/message-of.ts';
import {
  type Batch,
  BodyWriter,
  type Call,
  type CallOf,
  ELEMENT_FIELDS,
  type Fields,
  nameOf,
  type Operation,
  type OtherAction,
  type QueueName,
  READS,
  type Rejection,
  SETTLE_FIELDS,
} from '../protocol.ts';
import { endLeases } from './delivery.ts';
import { isFatal, isFull, rejectionOf, StoreLost } from './errors.ts';
import { elementAt, insert, insertAll } from './insert.ts';
import { deliveriesIn, type WorkerQueue } from './queues.ts';
import { isCommit, settle } from './settle.ts';
import type { Run, Store } from './store.ts';
import { purge, sweep } from './sweep.ts';
import { scan, take, undoTake } from './take.ts';

const OPERATIONS: { readonly [O in Operation]: Run<O> } = {
  declare: ({ queues, now }, names, options) => queues.declare(names, options, now),
  queues: ({ queues }, ns) =>
    queues
      .inNamespace(ns)
      .map(({ key }) => key.name)
      .sort(),
  insert,
  take,
  settle: (store, ...args) => {
    const results = settle(store, ...args);
    const [outcome, until] = results;
    return results.length === 2 && until === null ? (outcome as SettleOutcome) : results;
  },
  undoTake,
  scan,
  purge,
  drop: ({ queues }, name) => queues.drop(queues.find(name)),
  counts: ({ counter, now }, name, group) => counter.counts(name, group, now),
  usage: (store, ns) => ({
    elements: store.queues.inNamespace(ns).reduce((sum, queue) => sum + deliveriesIn(queue), 0),
    bytes: store.bytesInUse(),
  }),
  sweep,
  definitionGet: ({ records }, kind, key) => records.definition(kind, key),
  definitionList: ({ records }, kind) => records.definitions(kind),
  definitionPut: ({ records, ids }, kind, key, value, expected) => {
    const version = ids.next();
    return records.putDefinition(kind, key, value, expected, version) ? String(version) : null;
  },
  definitionDelete: ({ records }, kind, key, expected) => records.deleteDefinition(kind, key, expected),
  statsAdd: ({ records, now }, entries) => records.addStats(entries, now),
  statsRead: ({ records }, name) => records.stats(name),
  ping: () => {},
};

/** Operations that do not need the reservations of `UnwrittenReservations` in the tables. */
const KEEPS_UNWRITTEN: ReadonlySet<Operation> = new Set([
  'insert',
  'take',
  'settle',
  'declare',
  'queues',
  'usage',
  'definitionGet',
  'definitionList',
  'definitionPut',
  'definitionDelete',
  'statsAdd',
  'statsRead',
  'ping',
]);

const NO_SPACE: Rejection = {
  code: 'storage-full',
  message:
    'The disk is nearly full: inserts, copies and moves are rejected until it has space again; elements can still be consumed.',
};

/** The results of a batch, whose bodies are not packed yet. */
export interface BatchResult {
  readonly results: unknown[];
  rejections: Map<number, Rejection> | null;
  readonly bodies: BodyWriter;
}

/** A range of the calls of a batch, and where their results go. */
export interface Part {
  readonly batch: Batch;
  readonly result: BatchResult;
  readonly from: number;
  readonly to: number;
}

export function wholeOf(batch: Batch): Part {
  const result = { results: [], rejections: null, bodies: new BodyWriter() };
  return { batch, result, from: 0, to: batch.calls.length };
}

/**
 * Runs batches of calls in their order, in one transaction. Replies are sent after its commit or, if any call needs it,
 * its fsync.
 *
 * If a call throws, the transaction is rolled back and each half of the calls runs in a transaction of its own,
 * recursively, until the call that throws is alone: one caller's failure never affects another's calls. A failure of
 * the file itself (see `errors.ts`) is thrown to the worker's loop, which replies for all.
 * @param beforeSync called between commit and fsync if one transaction has all the calls and needs an fsync
 * @param isRepeated whether a lone call has failed once: the error may have been temporary, so it is attempted twice
 * @throws the error that makes the store unusable
 */
export function runBatches(
  store: Store,
  parts: readonly Part[],
  beforeSync?: () => void,
  isRepeated = false,
): void {
  const marks = parts.map(({ result }) => result.bodies.mark());
  const isSyncNeeded = parts.some((part) => needsSync(store, part));
  try {
    inTransaction(store, isSyncNeeded, () => {
      // Once per batch: each ends up to a thousand leases, and copies their dead letters, in this transaction.
      for (const [index, part] of parts.entries()) {
        runCalls(store, part, part.batch !== parts[index - 1]?.batch);
      }
    });
    store.sync(beforeSync);
  } catch (error) {
    if (isFatal(error)) throw error;
    if (isFull(error)) store.space?.releaseBallast();
    for (const [index, { result }] of parts.entries()) result.bodies.truncate(marks[index]);
    const calls = parts.flatMap(callsOf);
    const [call] = calls;
    if (call === undefined) return;
    if (calls.length > 1) {
      const middle = calls.length >> 1;
      runBatches(store, calls.slice(0, middle));
      runBatches(store, calls.slice(middle));
    } else if (!isRepeated) runBatches(store, calls, undefined, true);
    else reject(call.result, call.from, rejectionOf(error, takesSpace(call.batch.calls[call.from])));
  }
}

/** The calls of a part, each as a part of its own. */
function callsOf(part: Part): Part[] {
  const calls: Part[] = [];
  for (let from = part.from; from < part.to; from++) calls.push({ ...part, from, to: from + 1 });
  return calls;
}

/**
 * Runs the calls of a part, after handling leases that ended by the batch's time. On a full disk only a sweep handles
 * them: it may need space for dead letters, and must not make other calls fail.
 * @param isFirst whether the transaction has no earlier part of the same batch, which has handled them
 */
function runCalls(store: Store, { batch, result, from, to }: Part, isFirst: boolean): void {
  store.now = batch.now;
  store.received = batch.bodies;
  store.reply = result.bodies;
  const isNearlyFull = store.space?.isNearlyFull === true;
  if (isFirst && !isNearlyFull) endLeases(store);
  for (let index = from, end = from; index < to; index = end) {
    const call = batch.calls[index];
    end = isNearlyFull ? index + 1 : endOfAlike(batch.calls, index, to);
    // A transaction that was rolled back may have rejected them.
    for (let place = index; place < end; place++) result.rejections?.delete(place);
    if (call === undefined) continue;
    if (end > index + 1) {
      for (const one of runAlike(store, batch.calls.slice(index, end))) result.results[index++] = one;
      continue;
    }
    if (isNearlyFull && takesSpace(call)) {
      reject(result, index, NO_SPACE);
      continue;
    }
    const [operation, ...args] = call;
    const run = OPERATIONS[operation] as (store: Store, ...args: unknown[]) => unknown;
    if (store.rows.areUnwritten && !KEEPS_UNWRITTEN.has(operation)) store.rows.writeReservations();
    try {
      result.results[index] = run(store, ...args) ?? null;
    } catch (error) {
      // The operation has stored nothing (but may have evicted empty groups), so only its own call is rejected.
      if (!(error instanceof QuaysideError)) throw error;
      reject(result, index, rejectionOf(error, false));
    }
  }
}

function reject(result: BatchResult, index: number, rejection: Rejection): void {
  result.results[index] = null;
  result.rejections ??= new Map();
  result.rejections.set(index, rejection);
}

/** Whether the call is rejected while the disk is nearly full. */
function takesSpace(call: Call | undefined): boolean {
  if (call === undefined) return false;
  if (!isOf(call, 'settle')) return isOf(call, 'insert');
  const [, , actions, inserts] = call;
  return inserts !== undefined || actions?.some((action) => action?.kind === 'move') === true;
}

/**
 * Whether the call must be on the disk before its reply. A reservation need not: if a power loss undoes it, its lease
 * ends early, and its side effects, such as dead letters of expired elements, happen again. Reads need nothing.
 */
function needsFsync(call: Call): boolean {
  if (isOf(call, 'take')) {
    const [, , , , leaseMs] = call;
    return leaseMs === null;
  }
  if (isOf(call, 'settle')) return !changesLeasesOnly(call);
  return !READS.has(call[0]);
}

/**
 * Whether a settlement need not be on the disk before its reply: if a power loss undoes it, leases end early, or
 * undelivered elements stay reserved until their leases end. Neither loses an element.
 */
function changesLeasesOnly([, items, actions]: CallOf<'settle'>): boolean {
  if (actions === null) return false;
  return actions.every((action, index) => {
    if (action === null) return false;
    if (action.kind === 'extend') return true;
    const isWaiting = items[index * SETTLE_FIELDS + 3] === 1;
    if (action.kind !== 'release' || isWaiting) return false;
    return !action.countTry && action.delayMs === 0 && (action.dueAt ?? null) === null;
  });
}

/**
 * For each call of each batch, whether it may be replied to before the transaction is synced, because it needs no
 * fsync. Null if none may, or if one of them might deliver an element that another call of the transaction adds to its
 * queue, and that a power loss may still undo.
 */
export function earlyCalls(store: Store, batches: readonly Batch[]): boolean[][] | null {
  if (!batches.some(({ calls }) => calls.some(isEarly))) return null;
  const filled = new Set<QueueName>();
  for (const { now, calls } of batches) {
    // Expired leases may create dead letters.
    if (store.rows.mayLeaseHaveEnded(now)) return null;
    for (const call of calls) {
      // Both messages would need bodies, but they can be transferred only once.
      if (isOf(call, 'scan')) return null;
      const queues = needsFsync(call) ? filledBy(store, call) : [];
      if (queues === null) return null;
      for (const queue of queues) filled.add(queue);
    }
  }
  const isOfFilled = (call: Call): boolean => isOf(call, 'take') && filled.has(call[1]);
  if (batches.some(({ calls }) => calls.some(isOfFilled))) return null;
  return batches.map(({ calls }) => calls.map(isEarly));
}

function isEarly(call: Call): boolean {
  return (isOf(call, 'take') || isOf(call, 'settle')) && !needsFsync(call);
}

/** The queues to which a call that needs an fsync may add elements; null if that is any queue, or it returns bodies. */
function filledBy({ queues }: Store, call: Call): readonly QueueName[] | null {
  if (isOf(call, 'insert')) return [call[1]];
  if (!isOf(call, 'settle')) return null;
  const [, items, actions, inserts] = call;
  const filled = inserts?.[1].map(([queue]) => queue) ?? [];
  if (actions === null) return filled;
  let from: WorkerQueue | null = null;
  for (const [index, action] of actions.entries()) {
    const name = items[index * SETTLE_FIELDS] as QueueName | null;
    if (name !== null) from = queues.find(name);
    if (action?.kind === 'move') return null;
    const to = from?.policy.deadLetter?.queue;
    if (from !== null && to !== undefined && mayFail(action))
      filled.push(nameOf({ ns: from.key.ns, name: to }));
  }
  return filled;
}

/** Whether an action may make its element a dead letter. */
function mayFail(action: OtherAction | null): boolean {
  return action?.kind === 'dead-letter' || (action?.kind === 'release' && action.countTry);
}

function isOf<O extends Operation>(call: Call, operation: O): call is CallOf<O> {
  return call[0] === operation;
}

function needsSync(store: Store, { batch, from, to }: Part): boolean {
  if (store.rows.mayLeaseHaveEnded(batch.now)) return true;
  for (let index = from; index < to; index++) {
    const call = batch.calls[index];
    if (call !== undefined && needsFsync(call)) return true;
  }
  return false;
}

/** @throws the error of `run`, after the transaction is rolled back; StoreLost if the rollback fails, too */
function inTransaction(store: Store, isSyncNeeded: boolean, run: () => void): void {
  try {
    store.begin(isSyncNeeded);
    run();
    store.commit();
  } catch (error) {
    try {
      store.rollback();
    } catch (second) {
      throw new StoreLost(`${messageOf(error)}; the rollback failed as well: ${messageOf(second)}`);
    }
    throw error;
  }
}

// Most clients insert or commit one element per call. Consecutive calls of a batch that do so in the same queue share
// their statements, as the elements of one call do. In batches of 64 inserts this saves a fifth of the processor time
// of both threads; commits of one take are finished as a range, see `finishRange`.

/**
 * Returns the end of the run of calls that, like the one at `from`, each insert one plain element into the same queue,
 * or each commit one reservation of it.
 */
function endOfAlike(calls: readonly Call[], from: number, to: number): number {
  const first = calls[from];
  const queueOf = first?.[0] === 'insert' ? queueOfInsert : queueOfCommit;
  const queue = queueOf(first);
  let end = from + 1;
  while (queue !== null && end < to && queueOf(calls[end]) === queue) end += 1;
  return end;
}

/** Runs calls that {@link endOfAlike} found. Returns the result of each. */
function runAlike(store: Store, calls: readonly Call[]): unknown[] {
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
  for (const [, item] of calls) {
    const at = items.push(...item) - SETTLE_FIELDS;
    // Each item after the first is of the same queue.
    if (at > 0) items[at] = null;
  }
  const results = settle(store, items, null);
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
  const [, items, actions, inserts] = call as CallOf<'settle'>;
  const isOne = items.length === SETTLE_FIELDS && actions === null && inserts === undefined;
  return isOne && isCommit(items, 0) && items[4] !== null ? (items[0] as QueueName) : null;
}
