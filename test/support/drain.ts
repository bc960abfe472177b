import type { History } from './history.ts';
import { jsonOf, QueueClient } from './http-client.ts';
import { type Lane, RecordedClient } from './recorded-client.ts';
import { LANES } from './recorded-load.ts';

const TIMEOUT_MS = 60_000;

/**
 * Reserves and commits until every lane of the load was empty three times in a row and its status counts
 * nothing. Answers a line for each lane that cannot be emptied.
 */
export async function drain(url: string, history: History): Promise<string[]> {
  const http = new QueueClient({ url, maxSockets: 1 });
  const client = new RecordedClient('drain', http, history);
  const faults: string[] = [];
  try {
    for (const lane of LANES) faults.push(...(await drainLane(client, http, lane)));
  } finally {
    http.close();
  }
  return faults;
}

async function drainLane(client: RecordedClient, http: QueueClient, lane: Lane): Promise<string[]> {
  const deadline = performance.now() + TIMEOUT_MS;
  let empty = 0;
  while (empty < 3 || (await left(http, lane)) > 0) {
    if (performance.now() > deadline) {
      const { body } = await http.status(lane.ns, lane.queue);
      return [`left: ${lane.ns}/${lane.queue} cannot be drained: ${body}`];
    }
    const handed = await client.reserve(lane, 100, TIMEOUT_MS);
    empty = handed === null ? empty + 1 : 0;
    if (handed !== null) await client.commit(lane, handed);
  }
  return [];
}

async function left(http: QueueClient, { ns, queue, group }: Lane): Promise<number> {
  const answer = await http.status(ns, queue, { query: { group: group === '' ? undefined : group } });
  if (answer.status !== 200)
    throw new Error(`The status of ${ns}/${queue} answers ${answer.status}: ${answer.body}`);
  const { totalSize, size, schedSize, resvSize } = jsonOf<Record<string, number>>(answer);
  return Math.max(...[totalSize, size, schedSize, resvSize].map(Number));
}
