import { setTimeout as delay } from 'node:timers/promises';
import type { QueueClient } from '../../test/support/http-client.ts';
import { ELEMENT, NAMESPACE } from '../quayside.ts';

/** Each worker inserts an element, gets it, and pauses. */
const WORKERS = 8;
const REST_MS = 5;

/** Runs a moderate load until `end` resolves. Returns the time of each request, ms. */
export async function ordinaryLoad(client: QueueClient, end: Promise<unknown>): Promise<number[]> {
  const times: number[] = [];
  let isOver = false;
  void end.finally(() => {
    isOver = true;
  });
  const timed = async (call: () => Promise<{ status: number }>): Promise<void> => {
    const from = performance.now();
    const { status } = await call();
    if (status !== 200) throw new Error(`a request was answered ${status}`);
    times.push(performance.now() - from);
  };
  const worker = async (queue: string): Promise<void> => {
    while (!isOver) {
      await timed(() => client.insert(NAMESPACE, queue, ELEMENT));
      await timed(() => client.get(NAMESPACE, queue));
      await delay(REST_MS);
    }
  };
  await Promise.all(Array.from({ length: WORKERS }, (_, i) => worker(`ordinary-${i}`)));
  await end;
  return times;
}
