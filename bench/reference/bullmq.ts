/**
 * Runs BullMQ for the bench, in a process of its own: `node bullmq.ts <port of Redis>`. Communicates through {@link
 * Helper}: a ready message, then one answer per request.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { ELEMENT } from '../quayside.ts';

/** The requests of the bench. `seconds` is the time to measure; `fill` adds jobs in bulk beforehand. */
export type BullRequest =
  | { readonly what: 'add'; readonly concurrent: number; readonly seconds: number }
  /** Adds jobs in bulk. */
  | {
      readonly what: 'addBulk';
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
    }
  | { readonly what: 'fill'; readonly count: number };

/** Jobs per second, for `fill` as well. */
export interface BullAnswer {
  readonly jobs: number;
  readonly perSecond: number;
}

/** The part of BullMQ's interface used here; the package exists only after its installation. */
interface Library {
  readonly Queue: new (name: string, options: object) => JobQueue;
  readonly Worker: new (name: string, work: () => Promise<void>, options: object) => JobWorker;
}

interface JobQueue {
  add(name: string, payload: unknown): Promise<unknown>;
  addBulk(jobs: readonly { name: string; data: unknown }[]): Promise<unknown>;
}

interface JobWorker {
  on(event: 'error', listener: (error: Error) => void): void;
  close(): Promise<void>;
}

const TASK = 'bench';
const PACKAGE = 'bullmq';
const FILL_BATCH = 1000;

const [port] = process.argv.slice(2);
const library: Library = await import(PACKAGE);
const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };
// As with commits in Quayside, a finished job is removed.
const options = { connection, defaultJobOptions: { removeOnComplete: true } };
/** Jobs to measure adding, and jobs for workers, in separate queues. */
const added = new library.Queue('added', options);
const stored = new library.Queue('stored', options);
const payload: unknown = JSON.parse(ELEMENT);

process.on('message', (request: BullRequest) => {
  answer(request).then(
    (result) => process.send?.(result),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.send?.({});

function answer(request: BullRequest): Promise<BullAnswer> {
  if (request.what === 'fill') return fill(request.count);
  if (request.what === 'addBulk') return addBulk(request);
  return request.what === 'add' ? add(request.concurrent, request.seconds) : work(request);
}

async function addBulk({
  concurrent,
  size,
  seconds,
}: Extract<BullRequest, { what: 'addBulk' }>): Promise<BullAnswer> {
  const from = performance.now();
  const until = from + seconds * 1000;
  const batch = Array.from({ length: size }, () => ({ name: TASK, data: payload }));
  let jobs = 0;
  const worker = async (): Promise<void> => {
    while (performance.now() < until) {
      await added.addBulk(batch);
      jobs += size;
    }
  };
  await Promise.all(Array.from({ length: concurrent }, worker));
  return rateOf(jobs, from);
}

async function add(concurrent: number, seconds: number): Promise<BullAnswer> {
  const from = performance.now();
  const until = from + seconds * 1000;
  let jobs = 0;
  const worker = async (): Promise<void> => {
    while (performance.now() < until) {
      await added.add(TASK, payload);
      jobs += 1;
    }
  };
  await Promise.all(Array.from({ length: concurrent }, worker));
  return rateOf(jobs, from);
}

async function fill(count: number): Promise<BullAnswer> {
  const from = performance.now();
  for (let left = count; left > 0; left -= FILL_BATCH) {
    const batch = Array.from({ length: Math.min(left, FILL_BATCH) }, () => ({ name: TASK, data: payload }));
    await stored.addBulk(batch);
  }
  return rateOf(count, from);
}

/** Processes stored jobs with an empty task. Counting starts once the worker is busy. */
async function work({
  concurrent,
  seconds,
  atMost,
}: Extract<BullRequest, { what: 'work' }>): Promise<BullAnswer> {
  let jobs = 0;
  const { promise: busy, resolve, reject } = Promise.withResolvers<void>();
  const done = new AbortController();
  const task = async (): Promise<void> => {
    jobs += 1;
    if (jobs === concurrent * 4) resolve();
    if (jobs === atMost) done.abort();
  };
  const worker = new library.Worker('stored', task, { connection, concurrency: concurrent });
  worker.on('error', reject);
  await busy;
  jobs = 0;
  const from = performance.now();
  await delay(seconds * 1000, null, { signal: done.signal }).catch(() => {});
  const result = rateOf(jobs, from);
  await worker.close();
  return result;
}

function rateOf(jobs: number, from: number): BullAnswer {
  return { jobs, perSecond: (jobs * 1000) / (performance.now() - from) };
}
