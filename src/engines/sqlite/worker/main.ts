import { type MessagePort, parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads';
import type { NamespacePolicy } from '../../../engine/engine.ts';
import { Faults } from '../fault-point.ts';
import { MessageReader } from '../message.ts';
import { MEMORY } from '../settings.ts';
import type { FromWorker, ToWorker } from '../thread.ts';
import { type Batch, runBatches } from './batch.ts';
import { faultOf, isFull, messageOf } from './faults.ts';
import { type OpenOptions, openDatabase, openError } from './open.ts';
import { Space } from './space.ts';
import { Store } from './store.ts';

/** What the main side gives the thread at its start. */
export interface WorkerData extends OpenOptions {
  readonly policies: readonly NamespacePolicy[];
  readonly dedupWindowMs: number;
  /** When the thread was started. */
  readonly now: number;
  readonly ballastBytes: number;
  readonly minFreeBytes: number;
  readonly faultMemory: SharedArrayBuffer | null;
}

/** Less is no more than clocks of one machine differ by. */
const OLDER_CLOCK_MS = 1000;

/** Log pages at which a checkpoint is made: 4 MiB. */
const CHECKPOINT_PAGES = 1000;

const port = parentPort;
if (port === null) throw new Error('this module is the body of a worker thread');

const say = (message: FromWorker, transfer: ArrayBuffer[] = []): void => port.postMessage(message, transfer);
const warn = (fields: object, message: string): void => say({ kind: 'warn', fields, message });

try {
  const store = openStore(workerData as WorkerData);
  say({ kind: 'opened' });
  port.on('message', (first: ToWorker) => {
    const batches: BatchMessage[] = [];
    let message: ToWorker | undefined = first;
    for (; message?.kind === 'batch'; message = nextAtPort(port)) batches.push(message);
    if (batches.length > 0) answer(store, batches);
    if (message?.kind === 'backup') void backUp(store, message.file);
    if (message?.kind === 'close' && !hasFailed) void close(store);
  });
} catch (error) {
  say({ kind: 'refused', message: messageOf(error) });
  port.close();
}

function openStore(options: WorkerData): Store {
  const { file, ballastBytes, minFreeBytes, policies, durability, dedupWindowMs, faultMemory } = options;
  const space = file === MEMORY ? null : new Space({ file, ballastBytes, minFreeBytes, warn });
  const faults = faultMemory === null ? null : new Faults(faultMemory);
  const open = (): Store => {
    const db = openDatabase(options, warn);
    try {
      const store = new Store(db, { policies, durability, dedupWindowMs, minFreeBytes, faults, space, warn });
      space?.opened();
      warnOfOlderClock(store, options);
      return store;
    } catch (error) {
      db.close();
      throw openError(file, error);
    }
  };
  try {
    return open();
  } catch (error) {
    // Opening writes a little. A full disk must not keep the consumers out after a restart.
    if (!isFull(causeOf(error)) || !space?.giveUpBallast()) throw error;
    return open();
  }
}

/** Elements keep the moments that the clock showed then; what is ready by them waits until it shows them again. */
function warnOfOlderClock(store: Store, { file, now }: WorkerData): void {
  const behindMs = store.counts.lastMoment() - now;
  if (behindMs < OLDER_CLOCK_MS) return;
  warn(
    { file, behindMs },
    'the clock shows an earlier time than when the file was last used: what was ready may be withheld, and leases last longer, by the difference',
  );
}

let hasFailed = false;

type BatchMessage = ToWorker & { readonly kind: 'batch' };

/** What came while the transaction before ran, and waits. */
function nextAtPort(port: MessagePort): ToWorker | undefined {
  return receiveMessageOnPort(port)?.message as ToWorker | undefined;
}

/** All of them in one transaction, with one sync. */
function answer(store: Store, messages: readonly BatchMessage[]): void {
  if (hasFailed) return;
  try {
    const batches = messages.map(({ names, now, calls, batch }): Batch => {
      for (let at = 0; at < names.length; at += 2) {
        store.names.addHandle({ ns: names[at] ?? '', name: names[at + 1] ?? '' });
      }
      return { now, calls, message: new MessageReader(batch) };
    });
    const firstHandle = messages.at(-1)?.firstHandle ?? 0;
    const packed = runBatches(store, batches).map((reply) => reply.pack(true));
    say(
      { kind: 'answers', batches: packed.map(({ message }) => message) },
      packed.flatMap(({ transfer }) => transfer),
    );
    store.answered();
    // Not before: earlier batches of the transaction may name them.
    store.names.forgetHandlesBelow(firstHandle);
    checkpoint(store);
  } catch (error) {
    fail(store, error, messages.length);
  }
}

/** After the answer, so that nobody waits for it. On a full disk the log grows until there is space. */
function checkpoint(store: Store): void {
  try {
    store.checkpoint(store.freePages.takeGiven() ? 0 : CHECKPOINT_PAGES);
  } catch (error) {
    if (!isFull(error)) throw error;
    store.space?.giveUpBallast();
  }
}

/**
 * The file can no longer be relied on: say so once, then end the thread without another word. A batch that
 * waits in the port already must not run: its callers are told that it did not.
 */
function fail(store: Store, error: unknown, batches: number): void {
  hasFailed = true;
  say({ kind: 'failed', message: messageOf(error), uncertain: store.mayBeDurable ? batches : 0 });
  port?.close();
}

async function backUp(store: Store, file: string): Promise<void> {
  try {
    say({ kind: 'backedUp', bytes: await store.backup.run(file) });
  } catch (error) {
    const { code, message } = faultOf(error, true);
    say({ kind: 'backupFailed', code, message });
  }
}

/** What the log still holds is in the file after this, but for a disk that is full: then the log stays. */
async function close(store: Store): Promise<void> {
  await store.backup.stop();
  try {
    store.checkpoint(0);
  } catch (error) {
    warn({ err: messageOf(error) }, 'the last checkpoint failed; the next start makes it');
  }
  store.db.close();
  port?.close();
}

function causeOf(error: unknown): unknown {
  return error instanceof Error && error.cause !== undefined ? error.cause : error;
}
