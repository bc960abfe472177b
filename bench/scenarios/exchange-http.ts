import { setTimeout as delay } from 'node:timers/promises';
import { jsonOf, QueueClient } from '../../test/support/http-client.ts';
import { compareThroughput } from '../compare.ts';
import { runLoad } from '../load/http-load.ts';
import { residentBytesOf } from '../process.ts';
import { createServer, NAMESPACE } from '../quayside.ts';
import { type BenchContext, type Finding, grouped, type Scenario } from '../scenario.ts';
import { idleShare, insertLoad, limit } from '../shared.ts';

const MEBIBYTE = 1024 * 1024;
const MOST_EACH_MIB = 2;
const MOST_IDLE_SHARE = 0.02;
const SETTLE_MS = 3000;
const IDLE_MS = 5000;

/** The cost of exchanges for concurrent inserts, and while they are idle. */
export const exchangeHttp: Scenario = {
  name: 'exchange-http',
  run: async (context) => [...(await insertsWhileForwarding(context)), ...(await idle(context))],
};

async function insertsWhileForwarding(context: BenchContext): Promise<Finding[]> {
  await using busy = await createServer(context);
  await using free = await createServer({ ...context, profileDir: null });
  await busy.start();
  await free.start();
  const client = new QueueClient({ url: busy.url });
  try {
    const seconds = context.quick ? 1 : 4;
    await create(client, 'forward', 'forwarded');
    if (!context.quick) for (const target of [busy, free]) await runLoad(insertLoad(target, 'warm-up', 2));
    const finding = await compareThroughput(context, {
      what: 'PUT insert, 64 connections, an exchange forwards every element',
      target: { kind: 'at least', ratio: 0.5 },
      rounds: context.quick ? 1 : 5,
      measure: async () => {
        const result = await runLoad(insertLoad(busy, 'forwarded', seconds));
        await emptied(client, 'forwarded');
        return result;
      },
      reference: (round) => runLoad(insertLoad(free, `free-${round}`, seconds)),
    });
    await busy.stop();
    return [finding];
  } finally {
    client.close();
  }
}

async function idle(context: BenchContext): Promise<Finding[]> {
  const count = context.quick ? 10 : 100;
  await using server = await createServer({ ...context, profileDir: null });
  await server.start();
  const client = new QueueClient({ url: server.url, maxSockets: 1 });
  try {
    await client.status(NAMESPACE, 'warm-up');
    await delay(context.quick ? 100 : SETTLE_MS);
    const before = residentBytesOf(server.pid);
    for (let i = 0; i < count; i++) await create(client, `idle-${i}`, `idle-${i}`);
    await delay(context.quick ? 100 : SETTLE_MS);
    const each = (residentBytesOf(server.pid) - before) / count / MEBIBYTE;
    const share = await idleShare(server, context.quick ? 500 : IDLE_MS);
    await server.stop();
    const name = `${grouped(count)} idle exchanges`;
    return [
      limit(`${name}: memory`, `${each.toFixed(2)} MiB each`, `${MOST_EACH_MIB} MiB`, each / MOST_EACH_MIB),
      limit(
        `${name}: idle CPU`,
        `${(share * 100).toFixed(2)} %`,
        `${MOST_IDLE_SHARE * 100} %`,
        share / MOST_IDLE_SHARE,
      ),
    ];
  } finally {
    client.close();
  }
}

async function create(client: QueueClient, id: string, queue: string): Promise<void> {
  const body = JSON.stringify({
    src: { ns: NAMESPACE, queue },
    dst: [{ ns: NAMESPACE, queue: `${queue}-out`, selector: 'env => env.msg.hdrs.x === undefined' }],
    consumer: {},
  });
  const { status } = await client.request('PUT', `/x/${id}`, { body });
  if (status !== 201) throw new Error(`Exchange ${id} could not be created: ${status}.`);
}

/** Resolves once everything is forwarded, so that the next round's reference has the machine to itself. */
async function emptied(client: QueueClient, queue: string): Promise<void> {
  for (;;) {
    const { totalSize } = jsonOf<{ totalSize: number }>(await client.status(NAMESPACE, queue));
    if (totalSize === 0) return;
    await delay(20);
  }
}
