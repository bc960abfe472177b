import type { SettleOutcome } from '../../../engine/storage.ts';
import { QuaysideError } from '../../../model/errors.ts';
import { messageOf } from '../../../util/message-of.ts';
import {
  type Batch,
  BodyWriter,
  type Call,
  type CallOf,
  type Operation,
  type Operations,
  READS,
  type Rejection,
  SETTLE_NEEDS,
} from '../protocol.ts';
import { endOfAlike, runAlike } from './alike.ts';
import { isFatal, isFull, isUnreadable, rejectionOf, StoreLost } from './errors.ts';
import { insert } from './insert.ts';
import { purge } from './purge.ts';
import { deliveriesIn } from './queues.ts';
import { endLeases, settle } from './settle.ts';
import type { Store } from './store.ts';
import { scan, take, undoTake } from './take.ts';

type Run<O extends Operation> = (
  store: Store,
  ...args: Parameters<Operations[O]>
) => ReturnType<Operations[O]>;

/** The implementation of each operation, within the transaction of the batch. */
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
  usage: (store, ns) => {
    const elements = store.queues.inNamespace(ns).reduce((sum, queue) => sum + deliveriesIn(queue), 0);
    return { elements, bytes: store.bytesInUse() };
  },
  sweep: (store) => store.sweeper.sweep(store),
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

const NO_SPACE: Rejection = {
  code: 'storage-full',
  message:
    'The disk is nearly full: inserts are rejected until it has space again; elements can still be consumed.',
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
      for (const part of parts) runCalls(store, part);
    });
    store.sync(beforeSync);
  } catch (error) {
    if (isFatal(error)) throw error;
    if (isFull(error)) store.space?.releaseBallast();
    if (isUnreadable(error)) {
      inTransaction(store, true, () => store.rows.makeReadable());
      store.sync();
    }
    for (const [index, { result }] of parts.entries()) result.bodies.truncate(marks[index]);
    const [part] = parts;
    const halves = halvesOf(parts);
    for (const half of halves) runBatches(store, half);
    if (halves.length > 0 || part === undefined) return;
    if (!isRepeated) runBatches(store, parts, undefined, true);
    else reject(part.result, part.from, rejectionOf(error, takesSpace(part.batch.calls[part.from])));
  }
}

/** The two halves of the calls; empty if there is only one call. */
function halvesOf(parts: readonly Part[]): (readonly Part[])[] {
  const [part] = parts;
  if (part === undefined) return [];
  const middle = parts.length >> 1;
  if (middle > 0) return [parts.slice(0, middle), parts.slice(middle)];
  const at = (part.from + part.to) >> 1;
  return at === part.from ? [] : [[{ ...part, to: at }], [{ ...part, from: at }]];
}

/**
 * Runs the calls of a part, after handling leases that ended by the batch's time. On a full disk only a sweep handles
 * them: it may need space for dead letters, and must not make other calls fail.
 */
function runCalls(store: Store, { batch, result, from, to }: Part): void {
  store.now = batch.now;
  store.received = batch.bodies;
  store.reply = result.bodies;
  const isNearlyFull = store.space?.isNearlyFull === true;
  if (!isNearlyFull) endLeases(store);
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
    try {
      result.results[index] = run(store, ...args);
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
  return isOf(call, 'settle') ? (call[1] & SETTLE_NEEDS.space) !== 0 : isOf(call, 'insert');
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
  if (isOf(call, 'settle')) return (call[1] & SETTLE_NEEDS.sync) !== 0;
  return !READS.has(call[0]);
}

/** Indexes of the calls of a batch: those that are replied to before the transaction is synced, and the others. */
interface PlacesBySync {
  readonly early: number[];
  readonly late: number[];
}

/**
 * The calls of each batch that may be replied to before the transaction is synced, because they need no fsync. Null if
 * there are none, or if one of them might deliver an element that another call of the transaction inserts, and that a
 * power loss may still undo.
 */
export function placesBySync(store: Store, batches: readonly Batch[]): PlacesBySync[] | null {
  const places: PlacesBySync[] = [];
  for (const { now, calls } of batches) {
    // Expired leases may create dead letters.
    if (store.rows.mayLeaseHaveEnded(now)) return null;
    const [early, late]: [number[], number[]] = [[], []];
    for (const [place, call] of calls.entries()) {
      const isSynced = needsFsync(call);
      if (isSynced && (!isOf(call, 'settle') || takesSpace(call))) return null;
      // Both messages would need bodies, but they can be transferred only once.
      if (isOf(call, 'scan')) return null;
      const isEarly = !isSynced && (isOf(call, 'take') || isOf(call, 'settle'));
      (isEarly ? early : late).push(place);
    }
    places.push({ early, late });
  }
  return places.some(({ early }) => early.length > 0) ? places : null;
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
