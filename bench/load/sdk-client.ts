/**
 * Runs the client library for the bench, in a process of its own: `node sdk-client.ts <address of the server>`.
 * Communicates through {@link Helper}: a ready message, then one answer per request.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type Name, Quayside, Worker } from '../../src/client/index.ts';
import { ELEMENT } from '../quayside.ts';

export type SdkRequest =
  /** Concurrent callers, each of which inserts one element after the other. */
  | { readonly what: 'insert'; readonly queue: Name; readonly concurrent: number; readonly seconds: number }
  /** A worker with an empty handler. */
  | {
      readonly what: 'work';
      readonly queue: Name;
      readonly concurrent: number;
      readonly seconds: number;
      /** Ends the measurement early after this many elements; more must be stored. */
      readonly atMost: number;
    };

export interface SdkAnswer {
  readonly jobs: number;
  readonly perSecond: number;
}

const [url = ''] = process.argv.slice(2);
const quayside = new Quayside({ url, auth: { user: 'test1', password: 'test1' } });
const payload: unknown = JSON.parse(ELEMENT);

process.on('message', (request: SdkRequest) => {
  (request.what === 'insert' ? insert(request) : work(request)).then(
    (result) => process.send?.(result),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.send?.({});

async function insert({
  queue: name,
  concurrent,
  seconds,
}: Extract<SdkRequest, { what: 'insert' }>): Promise<SdkAnswer> {
  const queue = quayside.queue(name);
  const from = performance.now();
  const until = from + seconds * 1000;
  let jobs = 0;
  const caller = async (): Promise<void> => {
    while (performance.now() < until) {
      await queue.insert(payload);
      jobs += 1;
    }
  };
  await Promise.all(Array.from({ length: concurrent }, caller));
  return rateOf(jobs, from);
}

/** Counting starts once the worker is busy, as for BullMQ. */
async function work({
  queue,
  concurrent,
  seconds,
  atMost,
}: Extract<SdkRequest, { what: 'work' }>): Promise<SdkAnswer> {
  let jobs = 0;
  const { promise: busy, resolve } = Promise.withResolvers<void>();
  const done = new AbortController();
  const handler = (): void => {
    jobs += 1;
    if (jobs === concurrent * 4) resolve();
    if (jobs === atMost) done.abort();
  };
  const worker = new Worker(quayside.queue(queue), handler, { concurrency: concurrent }).start();
  await busy;
  jobs = 0;
  const from = performance.now();
  await delay(seconds * 1000, null, { signal: done.signal }).catch(() => {});
  const result = rateOf(jobs, from);
  await worker.stop();
  return result;
}

function rateOf(jobs: number, from: number): SdkAnswer {
  return { jobs, perSecond: (jobs * 1000) / (performance.now() - from) };
}
