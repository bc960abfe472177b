import { parentPort, workerData } from 'node:worker_threads';
import { serve } from '../../src/engines/sqlite/worker/serve.ts';
import { type FaultyThreadData, failAt } from './sqlite-faults.ts';

/** The engine's thread, with faults injected at the points that a test has armed. */
if (parentPort === null) throw new Error('this module is the body of a worker thread');
const { data, cells }: FaultyThreadData = workerData;
serve(parentPort, data, (point) => failAt(cells, point));
