import { parentPort, workerData } from 'node:worker_threads';
import type { NamespacePolicy } from '../../../engine/engine.ts';
import { Faults } from '../fault-point.ts';
import { MessageReader } from '../message.ts';
import type { FromWorker, ToWorker } from '../thread.ts';
import { runBatch } from './batch.ts';
import { checkpoint } from './checkpoint.ts';
import { type OpenOptions, openDatabase } from './open.ts';
import { Store } from './store.ts';

/** What the main side gives the thread at its start. */
export interface WorkerData extends OpenOptions {
  readonly policies: readonly NamespacePolicy[];
  readonly dedupWindowMs: number;
  readonly faultMemory: SharedArrayBuffer | null;
}

const port = parentPort;
if (port === null) throw new Error('this module is the body of a worker thread');

const say = (message: FromWorker, transfer: ArrayBuffer[] = []): void => port.postMessage(message, transfer);

try {
  serve(workerData as WorkerData);
} catch (error) {
  say({ kind: 'refused', message: error instanceof Error ? error.message : String(error) });
  port.close();
}

function serve(options: WorkerData): void {
  const db = openDatabase(options);
  const store = new Store(db, {
    policies: options.policies,
    dedupWindowMs: options.dedupWindowMs,
    faults: options.faultMemory === null ? null : new Faults(options.faultMemory),
    warn: (fields, message) => say({ kind: 'warn', fields, message }),
  });
  say({ kind: 'opened' });
  port?.on('message', (message: ToWorker) => {
    if (message.kind === 'close') {
      checkpoint(db, 0);
      db.close();
      port?.close();
      return;
    }
    answer(store, message);
  });
}

/** The file can no longer be trusted: say so once, then leave the thread without another word. */
function fail(store: Store, error: unknown): void {
  say({
    kind: 'failed',
    message: error instanceof Error ? error.message : String(error),
    uncertain: store.committing,
  });
  port?.close();
}

function answer(store: Store, { batch, calls, names, now }: ToWorker & { kind: 'batch' }): void {
  try {
    for (let at = 0; at < names.length; at += 2) {
      store.names.addHandle({ ns: names[at] ?? '', name: names[at + 1] ?? '' });
    }
    store.now = now;
    const { message, transfer } = runBatch(store, calls, new MessageReader(batch)).pack(true);
    say({ kind: 'answers', batch: message }, transfer);
    // After the answer, so that nobody waits for it.
    checkpoint(store.db, CHECKPOINT_PAGES);
  } catch (error) {
    fail(store, error);
  }
}

const CHECKPOINT_PAGES = 1000;
