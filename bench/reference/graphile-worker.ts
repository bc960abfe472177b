/**
 * Runs graphile-worker for the bench, in a process of its own: `node graphile-worker.ts <database URL>`. Communicates
 * through {@link Helper}: a ready message, then one answer per request.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { ELEMENT } from '../quayside.ts';

/** The requests of the bench. `seconds` is the time to measure; `fill` adds jobs in bulk beforehand. */
export type GraphileRequest =
  | { readonly what: 'add'; readonly concurrent: number; readonly seconds: number }
  /** Adds jobs in bulk. */
  | {
      readonly what: 'addJobs';
      readonly concurrent: number;
      readonly size: number;
      readonly seconds: number;
    }
  | {
      readonly what: 'work';
      readonly concurrent: number;
      readonly seconds: number;
      /** Ends the measurement early after this many jobs; more must be stored. */
      readonly atMost: number;
      readonly batched: boolean;
    }
  | { readonly what: 'fill'; readonly count: number };

/** Jobs per second, for `fill` as well. */
export interface GraphileAnswer {
  readonly jobs: number;
  readonly perSecond: number;
}

/** The part of graphile-worker's interface used here; the package exists only after its installation. */
interface Library {
  readonly Logger: new (factory: () => () => void) => object;
  makeWorkerUtils(options: object): Promise<Utils>;
  run(options: object): Promise<{ stop(): Promise<void> }>;
}

interface Utils {
  addJob(task: string, payload: unknown): Promise<unknown>;
  addJobs(jobs: readonly { identifier: string; payload: unknown }[]): Promise<unknown>;
}

const TASK = 'bench';
const PACKAGE = 'graphile-worker';
const FILL_BATCH = 1000;

const [url = ''] = process.argv.slice(2);
const library: Library = await import(PACKAGE);
// The default logger writes two lines per job.
const shared = {
  connectionString: url,
  logger: new library.Logger(() => () => {}),
};
// Uses the default of ten connections; 32 and 64 were slower on two cores.
const utils = await library.makeWorkerUtils(shared);
const payload: unknown = JSON.parse(ELEMENT);

process.on('message', (request: GraphileRequest) => {
  answer(request).then(
    (result) => process.send?.(result),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.send?.({});

function answer(request: GraphileRequest): Promise<GraphileAnswer> {
  if (request.what === 'fill') return fill(request.count);
  if (request.what === 'addJobs') return addJobs(request);
  return request.what === 'add' ? add(request.concurrent, request.seconds) : work(request);
}

async function addJobs({
  concurrent,
  size,
  seconds,
}: Extract<GraphileRequest, { what: 'addJobs' }>): Promise<GraphileAnswer> {
  const from = performance.now();
  const until = from + seconds * 1000;
  const batch = Array.from({ length: size }, () => ({ identifier: TASK, payload }));
  let jobs = 0;
  const worker = async (): Promise<void> => {
    while (performance.now() < until) {
      await utils.addJobs(batch);
      jobs += size;
    }
  };
  await Promise.all(Array.from({ length: concurrent }, worker));
  return rateOf(jobs, from);
}

async function add(concurrent: number, seconds: number): Promise<GraphileAnswer> {
  const from = performance.now();
  const until = from + seconds * 1000;
  let jobs = 0;
  const worker = async (): Promise<void> => {
    while (performance.now() < until) {
      await utils.addJob(TASK, payload);
      jobs += 1;
    }
  };
  await Promise.all(Array.from({ length: concurrent }, worker));
  return rateOf(jobs, from);
}

async function fill(count: number): Promise<GraphileAnswer> {
  const from = performance.now();
  for (let left = count; left > 0; left -= FILL_BATCH) {
    const batch = Array.from({ length: Math.min(left, FILL_BATCH) }, () => ({ identifier: TASK, payload }));
    await utils.addJobs(batch);
  }
  return rateOf(count, from);
}

/** Processes stored jobs with an empty task. Counting starts once all workers are busy. */
async function work({
  concurrent,
  seconds,
  atMost,
  batched,
}: Extract<GraphileRequest, { what: 'work' }>): Promise<GraphileAnswer> {
  let jobs = 0;
  const { promise: busy, resolve } = Promise.withResolvers<void>();
  const done = new AbortController();
  const task = (): void => {
    jobs += 1;
    if (jobs === concurrent * 4) resolve();
    if (jobs === atMost) done.abort();
  };
  const tuned = { localQueue: { size: concurrent + 1 }, completeJobBatchDelay: 0 };
  const runner = await library.run({
    ...shared,
    concurrency: concurrent,
    maxPoolSize: concurrent + 2,
    noHandleSignals: true,
    taskList: { [TASK]: task },
    ...(batched && { preset: { worker: tuned } }),
  });
  await busy;
  jobs = 0;
  const from = performance.now();
  await delay(seconds * 1000, null, { signal: done.signal }).catch(() => {});
  const result = rateOf(jobs, from);
  await runner.stop();
  return result;
}

function rateOf(jobs: number, from: number): GraphileAnswer {
  return { jobs, perSecond: (jobs * 1000) / (performance.now() - from) };
}
