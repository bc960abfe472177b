import type { History } from './history.ts';
import { jsonOf, QueueClient } from './http-client.ts';
import { type QueueGroup, RecordedClient } from './recorded-client.ts';
import { TARGETS } from './recorded-load.ts';

const TIMEOUT_MS = 60_000;

/**
 * Reserves and commits until every target of the load was empty three times in a row and its status shows no elements.
 * Returns a line for each target that cannot be emptied.
 */
export async function drain(url: string, history: History): Promise<string[]> {
  const http = new QueueClient({ url, maxSockets: 1 });
  const client = new RecordedClient('drain', http, history);
  const faults: string[] = [];
  try {
    for (const target of TARGETS) faults.push(...(await drainTarget(client, http, target)));
  } finally {
    http.close();
  }
  return faults;
}

async function drainTarget(client: RecordedClient, http: QueueClient, target: QueueGroup): Promise<string[]> {
  const deadline = performance.now() + TIMEOUT_MS;
  let empty = 0;
  while (empty < 3 || (await left(http, target)) > 0) {
    if (performance.now() > deadline) {
      const { body } = await http.status(target.ns, target.queue);
      return [`left: ${target.ns}/${target.queue} cannot be drained: ${body}`];
    }
    const handed = await client.reserve(target, 100, TIMEOUT_MS);
    empty = handed === null ? empty + 1 : 0;
    if (handed !== null) await client.commit(target, handed);
  }
  return [];
}

async function left(http: QueueClient, { ns, queue, group }: QueueGroup): Promise<number> {
  const answer = await http.status(ns, queue, { query: { group: group === '' ? undefined : group } });
  if (answer.status !== 200)
    throw new Error(`The status of ${ns}/${queue} answers ${answer.status}: ${answer.body}`);
  const { totalSize, size, schedSize, resvSize } = jsonOf<Record<string, number>>(answer);
  return Math.max(...[totalSize, size, schedSize, resvSize].map(Number));
}
