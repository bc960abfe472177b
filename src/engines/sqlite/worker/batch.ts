import {
  BodyWriter,
  byteLengthOf,
  type Call,
  type PackedBodies,
  READS,
  type Rejection,
  SETTLE_NEEDS,
} from '../protocol.ts';
import { isFatal, isFull, Rejected, rejectionOf } from './faults.ts';
import { endLeases } from './moves.ts';
import { type Bodies, OPERATIONS } from './operations.ts';
import type { Store } from './store.ts';

const NO_SPACE: Rejection = {
  code: 'storage-full',
  message: 'The disk is nearly full; consuming continues, inserting when there is space again.',
};

/** Calls that came together, and when they did by the main side's clock. */
export interface Batch {
  readonly now: number;
  readonly calls: readonly Call[];
  readonly bodies: PackedBodies;
}

/** What a batch is replied with, its bodies not packed yet. */
export interface BatchResult {
  readonly results: unknown[];
  rejections: Map<number, Rejection> | null;
  readonly bodies: BodyWriter;
}

/**
 * Runs batches of calls in their order, in one transaction; they have their replies only after its commit.
 *
 * If a call throws, the transaction is rolled back and each call runs again in one of its own, so that one
 * caller's failure never reaches another. A failure of the file itself (see `faults.ts`) is different: it is
 * thrown to the worker's loop, which replies for all.
 * @throws whatever makes the store unusable
 */
export function runBatches(store: Store, batches: readonly Batch[]): BatchResult[] {
  const bytes = batches.reduce((sum, { bodies }) => sum + byteLengthOf(bodies), 0);
  store.space?.look(bytes, batches[0]?.now ?? store.now);
  const needsSync = batches.some(
    ({ now, calls }) => store.rows.mayLeaseHaveEnded(now) || calls.some(isSynced),
  );
  const results = batches.map(newResult);
  try {
    inTransaction(store, needsSync, () => {
      for (const [index, batch] of batches.entries()) runCalls(store, batch, batch.calls, results[index]);
    });
    return results;
  } catch (error) {
    if (isFatal(error)) throw error;
    if (isFull(error)) store.space?.giveUpBallast();
  }
  return batches.map((batch) => runOneByOne(store, batch));
}

function runOneByOne(store: Store, batch: Batch): BatchResult {
  const result = newResult();
  for (const [index, call] of batch.calls.entries()) {
    try {
      inTransaction(store, true, () => runCalls(store, batch, [call], result));
    } catch (error) {
      if (isFatal(error)) throw error;
      result.results.length = index;
      result.rejections?.delete(index);
      reject(result, rejectionOf(error, takesSpace(call)));
    }
  }
  return result;
}

/** Leases that have ended by the batch's moment are settled before its calls run. */
function runCalls(store: Store, batch: Batch, calls: readonly Call[], result = newResult()): void {
  store.now = batch.now;
  endLeases(store);
  const bodies: Bodies = { received: batch.bodies, reply: result.bodies };
  for (const call of calls) {
    const [operation, ...args] = call;
    if (store.space?.isTight && takesSpace(call)) {
      reject(result, NO_SPACE);
      continue;
    }
    const run = OPERATIONS[operation] as (store: Store, bodies: Bodies, ...args: unknown[]) => unknown;
    try {
      result.results.push(run(store, bodies, ...args));
    } catch (error) {
      if (!(error instanceof Rejected)) throw error;
      reject(result, error.rejection);
    }
  }
}

function newResult(): BatchResult {
  return { results: [], rejections: null, bodies: new BodyWriter() };
}

function reject(result: BatchResult, rejection: Rejection): void {
  result.rejections ??= new Map();
  result.rejections.set(result.results.push(null) - 1, rejection);
}

/** What is rejected while the disk is nearly full. */
function takesSpace([operation, needs]: Call): boolean {
  return operation === 'insert' || (operation === 'settle' && (Number(needs) & SETTLE_NEEDS.space) !== 0);
}

/**
 * Whether the call must be on the disk before its reply. What moves only leases need not: a power loss that takes it back
 * ends them early. What is read needs nothing.
 */
function isSynced([operation, needs, , , , leaseMs]: Call): boolean {
  if (operation === 'take') return leaseMs === null;
  if (operation === 'settle') return (Number(needs) & SETTLE_NEEDS.sync) !== 0;
  return !READS.has(operation);
}

function inTransaction(store: Store, needsSync: boolean, run: () => void): void {
  store.begin(needsSync);
  try {
    run();
    store.commit();
  } catch (error) {
    store.rollback();
    throw error;
  }
}
