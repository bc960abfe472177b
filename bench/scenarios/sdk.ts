import type { Engine } from '../../src/engine/engine.ts';
import { PostgresServer } from '../../test/support/postgres-server.ts';
import { startRedis } from '../../test/support/redis-servers.ts';
import { comparePeer, type PeerRate, type Peers } from '../compare-peer.ts';
import { cpuPer, type LoadResult } from '../load/http-load.ts';
import type { SdkAnswer, SdkRequest } from '../load/sdk-client.ts';
import { openPostgresEngine, postgresCpu } from '../postgres.ts';
import { cpuTimeOf, Helper } from '../process.ts';
import { createServer, fill, fillStopped, NAMESPACE } from '../quayside.ts';
import { openRedisEngine, redisCpu } from '../redis.ts';
import type { BullAnswer, BullRequest } from '../reference/bullmq.ts';
import type { GraphileAnswer, GraphileRequest } from '../reference/graphile-worker.ts';
import { installReferences } from '../reference/install.ts';
import type { BenchContext, Finding, Scenario } from '../scenario.ts';

const CONCURRENT = 64;
const WORK = `SDK worker, concurrency ${CONCURRENT}, empty handler`;
const CLIENT = new URL('../load/sdk-client.ts', import.meta.url);

/**
 * The client library on each engine: concurrent inserts, which it batches, and a worker. Compared with the
 * corresponding calls of BullMQ and graphile-worker; each client has a process of its own.
 */
export const sdk: Scenario = {
  name: 'sdk',
  async run(context) {
    installReferences(context.note);
    return [...(await againstBullmq(context)), await againstGraphile(context)];
  },
};

/** Elements that wait for the worker of a round: more than it can do in its time. */
interface Lengths {
  readonly seconds: number;
  readonly rounds: number;
  readonly stock: number;
}

function lengthsOf({ quick }: BenchContext): Lengths {
  return quick ? { seconds: 1, rounds: 1, stock: 10_000 } : { seconds: 5, rounds: 5, stock: 100_000 };
}

async function againstBullmq(context: BenchContext): Promise<Finding[]> {
  const { seconds, stock } = lengthsOf(context);
  const database = await startRedis();
  const program = new URL('../reference/bullmq.ts', import.meta.url);
  const [bull] = await Helper.start(program, [String(database.port)]);
  const ask = (request: BullRequest): Promise<BullAnswer> => bull.ask(request);
  const reference: Reference = {
    peer: 'BullMQ',
    database: 'Redis',
    databaseCpu: () => redisCpu(database),
    fill: () => ask({ what: 'fill', count: stock }),
    work: () => ask({ what: 'work', concurrent: CONCURRENT, seconds, atMost: stock / 2 }),
  };
  const add = (): Promise<BullAnswer> => ask({ what: 'add', concurrent: CONCURRENT, seconds });
  try {
    return [...(await onSqlite(context, reference, add)), await onRedis(context, reference, database.url)];
  } finally {
    await bull.stop();
    await database.stop();
  }
}

/** The other library, with a worker of the same concurrency. */
interface Reference extends Peers {
  fill(): Promise<unknown>;
  work(): Promise<PeerRate>;
}

async function onSqlite(
  context: BenchContext,
  reference: Reference,
  add: () => Promise<PeerRate>,
): Promise<Finding[]> {
  const { seconds, rounds, stock } = lengthsOf(context);
  await using server = await createServer(context);
  // The embedded engine is exclusive to its server, so the elements of all rounds are stored before the server starts.
  const queues = Array.from({ length: rounds }, (_, round) => `stored-${round}`);
  await fillStopped(server, context.quick ? queues : ['stored--1', ...queues], stock);
  await server.start();
  const [client] = await Helper.start(CLIENT, [server.url]);
  try {
    const findings = [
      await comparePeer(context, reference, {
        what: `SDK insert, ${CONCURRENT} callers, SQLite FULL`,
        target: { kind: 'at least', ratio: 1.5 },
        rounds,
        own: (round) =>
          runSdk(client, server, {
            what: 'insert',
            queue: `${NAMESPACE}/insert-${round}`,
            concurrent: CONCURRENT,
            seconds,
          }),
        reference: add,
      }),
      await comparePeer(context, reference, {
        what: `${WORK}, SQLite FULL`,
        target: { kind: 'at least', ratio: 1.5 },
        rounds,
        prepare: () => reference.fill(),
        own: (round) => runWorker(context, client, server, round),
        reference: () => reference.work(),
      }),
    ];
    await server.stop();
    return findings;
  } finally {
    await client.stop();
  }
}

async function onRedis(context: BenchContext, reference: Reference, url: string): Promise<Finding> {
  const engine = await openRedisEngine(url);
  try {
    return await onShared(context, reference, { url, engine, target: 1 });
  } finally {
    await engine.stop();
  }
}

async function againstGraphile(context: BenchContext): Promise<Finding> {
  const { seconds, stock } = lengthsOf(context);
  const database = await PostgresServer.start();
  const url = database.url();
  const program = new URL('../reference/graphile-worker.ts', import.meta.url);
  const [graphile] = await Helper.start(program, [url]);
  const engine = await openPostgresEngine(url);
  const work = { what: 'work', concurrent: CONCURRENT, seconds, atMost: stock / 2, batched: false } as const;
  const reference: Reference = {
    peer: 'graphile-worker',
    database: 'PostgreSQL',
    databaseCpu: () => postgresCpu(database),
    fill: () => graphile.ask({ what: 'fill', count: stock } satisfies GraphileRequest),
    work: () => graphile.ask<GraphileAnswer>(work satisfies GraphileRequest),
  };
  try {
    return await onShared(context, reference, { url, engine, target: 2 });
  } finally {
    await engine.stop();
    await graphile.stop();
    database.dispose();
  }
}

interface Shared {
  readonly url: string;
  /** Stores elements as another node would. */
  readonly engine: Engine;
  /** The minimal ratio. */
  readonly target: number;
}

/** A worker on the server of the database that the reference also uses. */
async function onShared(
  context: BenchContext,
  reference: Reference,
  { url, engine, target }: Shared,
): Promise<Finding> {
  const { rounds, stock } = lengthsOf(context);
  await using server = await createServer(context, url);
  await server.start();
  const [client] = await Helper.start(CLIENT, [server.url]);
  try {
    const finding = await comparePeer(context, reference, {
      what: `${WORK}, ${reference.database}`,
      target: { kind: 'at least', ratio: target },
      rounds,
      prepare: async (round) => {
        await fill(engine, `stored-${round}`, stock);
        await reference.fill();
      },
      own: (round) => runWorker(context, client, server, round),
      reference: () => reference.work(),
    });
    await server.stop();
    return finding;
  } finally {
    await client.stop();
  }
}

function runWorker(
  context: BenchContext,
  client: Helper,
  server: { pid: number },
  round: number,
): Promise<LoadResult> {
  const { seconds, stock } = lengthsOf(context);
  const queue = `${NAMESPACE}/stored-${round}` as const;
  return runSdk(client, server, { what: 'work', queue, concurrent: CONCURRENT, seconds, atMost: stock / 2 });
}

/** The client's result with the server's processor time per element. */
async function runSdk(client: Helper, { pid }: { pid: number }, request: SdkRequest): Promise<LoadResult> {
  const before = cpuTimeOf(pid);
  const { jobs, perSecond } = await client.ask<SdkAnswer>(request);
  return { requests: jobs, perSecond, cpu: cpuPer(jobs, before, cpuTimeOf(pid)) };
}
