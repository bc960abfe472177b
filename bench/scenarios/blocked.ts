import { setTimeout as delay } from 'node:timers/promises';
import { jsonOf, QueueClient } from '../../test/support/http-client.ts';
import type { ServerProcess } from '../../test/support/server-process.ts';
import { compareThroughput } from '../compare.ts';
import type { BlockedLoad } from '../load/blocked-client.ts';
import { runLoad } from '../load/http-load.ts';
import { WireConnection, wireRequest } from '../load/wire.ts';
import { Helper, residentBytesOf } from '../process.ts';
import { AUTHORIZATION, benchPath, createServer, ELEMENT, NAMESPACE } from '../quayside.ts';
import { type BenchContext, type Finding, grouped, type Scenario } from '../scenario.ts';
import { idleShare, insertLoad, limit } from '../shared.ts';

const KIBIBYTE = 1024;
/** Time for the garbage collector and the kernel to settle after thousands of new connections. */
const SETTLE_MS = 3000;
const IDLE_MS = 5000;

/** The cost of 10,000 blocked gets on one queue, then on 1,000, compared with a server without any. */
export const blocked: Scenario = {
  name: 'blocked',
  async run(context) {
    const findings: Finding[] = [];
    for (const queues of context.quick ? [1, 50] : [1, 1000])
      findings.push(...(await measure(context, queues)));
    return findings;
  },
};

async function measure(context: BenchContext, queues: number): Promise<Finding[]> {
  const count = context.quick ? 500 : 10_000;
  const name = `${grouped(count)} blocked gets on ${grouped(queues)} ${queues === 1 ? 'queue' : 'queues'}`;
  await using server = await createServer(context);
  await using free = await createServer({ ...context, profileDir: null });
  await server.start();
  await free.start();
  if (!context.quick) {
    for (const target of [server, free]) await runLoad(insertLoad(target, 'warm-up', 3));
    await delay(SETTLE_MS);
  }
  const residentBefore = residentBytesOf(server.pid);
  const load: BlockedLoad = { url: server.url, ns: NAMESPACE, authorization: AUTHORIZATION, count, queues };
  const program = new URL('../load/blocked-client.ts', import.meta.url);
  const [client] = await Helper.start<{ waiting: number }>(program, [JSON.stringify(load)]);
  const http = new QueueClient({ url: server.url, maxSockets: 16 });
  try {
    await allWait(http, count, queues);
    await delay(context.quick ? 0 : SETTLE_MS);
    const each = (residentBytesOf(server.pid) - residentBefore) / count / KIBIBYTE;
    const idle = await idleShare(server, context.quick ? 500 : IDLE_MS);
    const throughput = await compareInserts(context, name, server, free);
    const cancelMs = await cancelSome(server.url, client, Math.min(1000, count / 2), queues);
    await wakesOne(http, client);
    await server.stop();
    return [
      throughput,
      limit(`${name}: memory each`, `${each.toFixed(1)} KiB`, '24 KiB', each / 24),
      limit(`${name}: idle CPU`, `${(idle * 100).toFixed(2)} %`, '2 %', idle / 0.02),
      limit(`${name}: cancels`, `${cancelMs.toFixed(0)} ms`, '1,000 ms', cancelMs / 1000),
    ];
  } finally {
    http.close();
    await client.stop();
  }
}

function compareInserts(
  context: BenchContext,
  name: string,
  server: ServerProcess,
  free: ServerProcess,
): Promise<Finding> {
  const [rounds, seconds] = context.quick ? [1, 1] : [5, 4];
  return compareThroughput(context, {
    what: `${name}: inserts elsewhere, against none blocked`,
    target: { kind: 'at least', ratio: 0.9 },
    rounds,
    measure: (round) => runLoad(insertLoad(server, `insert-${round}`, seconds)),
    reference: (round) => runLoad(insertLoad(free, `insert-${round}`, seconds)),
  });
}

/** Polls the server, because it may not have read a written request yet. */
async function allWait(http: QueueClient, count: number, queues: number): Promise<void> {
  let listed = 0;
  for (let attempt = 0; attempt < 100 && listed < count; attempt++) {
    if (attempt > 0) await delay(100);
    listed = 0;
    for (let queue = 0; queue < queues; queue++) {
      const answer = await http.consumers(NAMESPACE, `blocked-${queue}`);
      listed += jsonOf<unknown[]>(answer).length;
    }
  }
  if (listed !== count) throw new Error(`${listed} gets are listed as waiting instead of ${count}.`);
}

interface Answered {
  readonly statuses: Readonly<Record<string, number>>;
}

async function wakesOne(http: QueueClient, client: Helper): Promise<void> {
  await http.insert(NAMESPACE, 'blocked-0', ELEMENT, { contentType: 'application/json' });
  await answered(client, '200', 1);
}

/**
 * Returns the time until all gets are cancelled and answered, ms. Uses 16 raw connections, so that the client costs
 * little.
 */
async function cancelSome(url: string, client: Helper, count: number, queues: number): Promise<number> {
  const connections = await Promise.all(Array.from({ length: 16 }, () => WireConnection.open(url)));
  let next = 0;
  const from = performance.now();
  try {
    await Promise.all(
      connections.map(async (connection) => {
        while (next < count) {
          const at = next++;
          const path = `${benchPath(`blocked-${at % queues}`)}/consumer/t${at}`;
          const { status, head } = await connection.ask(wireRequest('DELETE', path, AUTHORIZATION));
          if (status !== 200) throw new Error(`A cancel was answered with: ${head}`);
        }
      }),
    );
    await answered(client, '410', count);
    return performance.now() - from;
  } finally {
    for (const connection of connections) connection.close();
  }
}

/** Waits until the client has received this many answers of the status. @throws Error if it has more, or not in time */
async function answered(client: Helper, status: string, count: number): Promise<void> {
  let seen = 0;
  for (let attempt = 0; attempt < 500 && seen < count; attempt++) {
    if (attempt > 0) await delay(10);
    seen = (await client.ask<Answered>({})).statuses[status] ?? 0;
  }
  if (seen !== count)
    throw new Error(`${seen} waiting gets were answered with ${status} instead of ${count}.`);
}
