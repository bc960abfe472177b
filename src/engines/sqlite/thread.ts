import { Worker } from 'node:worker_threads';
import type { Clock } from '../../util/clock.ts';
import type { FromWorker, ToWorker } from './protocol.ts';
import type { WorkerData } from './worker/serve.ts';

/** What serves a file. A `Worker` is one. */
export interface StoreThread {
  postMessage(message: ToWorker, transfer?: ArrayBuffer[]): void;
  on(event: 'message', listener: (message: FromWorker) => void): unknown;
  on(event: 'error', listener: (error: Error) => void): unknown;
  on(event: 'exit', listener: () => void): unknown;
}

export type StartThread = (data: WorkerData) => StoreThread;

/**
 * Runs the store in the caller's thread: given as the engine's setting `testThread`; the server never sets it. A call can
 * only be late if the whole process is, so calls expire by a clock that the test owns.
 */
export class TestThread {
  readonly start: StartThread;
  readonly clock: Clock;

  constructor(start: StartThread, clock: Clock) {
    this.start = start;
    this.clock = clock;
  }
}

export const startWorker: StartThread = (workerData) =>
  new Worker(workerModule(), { workerData, name: 'quayside-sqlite' });

/** Next to this module, as TypeScript in the repository and as JavaScript where the package is installed. */
function workerModule(): URL {
  return new URL(import.meta.url.endsWith('.ts') ? './worker/main.ts' : './worker/main.js', import.meta.url);
}
