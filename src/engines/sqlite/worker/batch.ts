import { type MessageReader, MessageWriter } from '../message.ts';
import { ANSWERED, operationNumber, REFUSED } from '../operations.ts';
import { type Fault, faultOf, isFatal, isFull, Refusal } from './faults.ts';
import type { Store } from './store.ts';
import { endLapsedLeases } from './try-end.ts';
import { VERBS } from './verbs/index.ts';

/** Where each call of a message begins: operation, value, byte, large body; four numbers a call. */
export type CallTable = readonly number[];
const CALL_FIELDS = 4;

/** What takes space, and is refused while the disk is nearly full. */
const TAKES_SPACE: ReadonlySet<number> = new Set([operationNumber('insert'), operationNumber('transfer')]);
const NO_SPACE: Fault = {
  code: 'storage-full',
  message: 'The disk is nearly full; consuming goes on, inserting when there is space again.',
};

/** Calls that came together, and when they did by the main side's clock. */
export interface Batch {
  readonly now: number;
  readonly calls: CallTable;
  readonly message: MessageReader;
}

/**
 * Runs batches of calls in their order, in one transaction, and answers only after its commit: one reply each.
 *
 * If a call throws, the transaction is rolled back and each call runs again in one of its own, so that one
 * caller's failure never reaches another. A failure of the file itself (see `faults.ts`) is different: it is
 * thrown to the worker's loop, which answers for all.
 * @throws whatever makes the store unusable
 */
export function runBatches(store: Store, batches: readonly Batch[]): MessageWriter[] {
  const bytes = batches.reduce((sum, { message }) => sum + message.byteLength, 0);
  store.space?.look(bytes, batches[0]?.now ?? store.now);
  try {
    let replies: MessageWriter[] = [];
    inTransaction(store, () => {
      replies = batches.map((batch) => {
        const reply = new MessageWriter();
        arriveAt(store, batch.now);
        for (let at = 0; at < batch.calls.length; at += CALL_FIELDS) runCall(store, batch, at, reply);
        return reply;
      });
    });
    return replies;
  } catch (error) {
    if (isFatal(error)) throw error;
    if (isFull(error)) store.space?.giveUpBallast();
  }
  return batches.map((batch) => runOneByOne(store, batch));
}

function runOneByOne(store: Store, batch: Batch): MessageWriter {
  const { now, calls } = batch;
  const reply = new MessageWriter();
  for (let at = 0; at < calls.length; at += CALL_FIELDS) {
    const start = reply.position();
    try {
      inTransaction(store, () => {
        arriveAt(store, now);
        runCall(store, batch, at, reply);
      });
    } catch (error) {
      if (isFatal(error)) throw error;
      reply.rewind(start);
      refuse(reply, faultOf(error, TAKES_SPACE.has(calls[at] ?? -1)));
    }
  }
  return reply;
}

/** Leases that have run out by then are over before a call of that time is looked at. */
function arriveAt(store: Store, now: number): void {
  store.now = now;
  endLapsedLeases(store);
}

function runCall(store: Store, { calls, message }: Batch, at: number, reply: MessageWriter): void {
  const operation = calls[at] ?? -1;
  const verb = VERBS[operation];
  if (verb === undefined) throw new Error(`unknown operation ${operation}`);
  if (store.space?.isTight && TAKES_SPACE.has(operation)) {
    refuse(reply, NO_SPACE);
    return;
  }
  message.seek(calls[at + 1] ?? 0, calls[at + 2] ?? 0, calls[at + 3] ?? 0);
  reply.value(ANSWERED);
  try {
    verb(store, message, reply);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    // Nothing else was written for this call.
    reply.rewind({ ...reply.position(), value: reply.valueCount - 1 });
    refuse(reply, error.fault);
  }
}

function inTransaction(store: Store, run: () => void): void {
  store.begin();
  try {
    run();
    store.commit();
  } catch (error) {
    store.rollback();
    throw error;
  }
}

function refuse(reply: MessageWriter, fault: Fault): void {
  reply.value(REFUSED);
  reply.value(fault.code);
  reply.value(fault.message);
}
