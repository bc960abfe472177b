import { startRedis } from '../../test/support/redis-servers.ts';
import { compareThroughput } from '../compare.ts';
import { comparePeer } from '../compare-peer.ts';
import { type PairLoad, runTakeSettle } from '../load/pairs.ts';
import { Helper } from '../process.ts';
import { AUTHORIZATION, benchPath, createServer, ELEMENT, fill, fillStopped } from '../quayside.ts';
import { openRedisEngine, redisCpu } from '../redis.ts';
import { Beanstalkd } from '../reference/beanstalkd.ts';
import type { BullAnswer, BullRequest } from '../reference/bullmq.ts';
import { installReferences } from '../reference/install.ts';
import type { BenchContext, Finding, Scenario } from '../scenario.ts';

const COUNT = 100;
const CONNECTIONS = 4;

/**
 * A worker's loop: takes 100 elements under leases, then commits all of them with one request. Four connections. On
 * SQLite compared with beanstalkd, which syncs each write as well; on Redis with a BullMQ worker of concurrency 100.
 */
export const takeMany: Scenario = {
  name: 'take-many',
  async run(context) {
    return [await onSqlite(context), await onRedis(context)];
  },
};

function loadOf(
  server: { url: string; pid: number },
  queue: string,
  seconds: number,
  atMost: number,
): PairLoad {
  return {
    url: server.url,
    pid: server.pid,
    queuePath: benchPath(queue),
    authorization: AUTHORIZATION,
    connections: CONNECTIONS,
    seconds,
    atMost,
  };
}

async function onSqlite(context: BenchContext): Promise<Finding> {
  const [seconds, rounds, stock, jobs] = context.quick ? [1, 1, 50_000, 5_000] : [4, 5, 400_000, 60_000];
  const beanstalkd = await Beanstalkd.start();
  try {
    await using server = await createServer(context);
    const queues = Array.from({ length: rounds }, (_, round) => `round-${round}`);
    await fillStopped(server, ['warm-up', ...queues], stock);
    await server.start();
    await runTakeSettle(loadOf(server, 'warm-up', 1, stock), COUNT);
    const finding = await compareThroughput(context, {
      what: 'take many with reserve, 100, then settle many, 4 connections, SQLite FULL',
      target: { kind: 'at least', ratio: 8 },
      rounds,
      measure: (round) => runTakeSettle(loadOf(server, `round-${round}`, seconds, stock), COUNT),
      reference: async () => {
        await beanstalkd.fill(ELEMENT, jobs);
        return beanstalkd.work(64, seconds, jobs);
      },
    });
    await server.stop();
    return finding;
  } finally {
    await beanstalkd.stop();
  }
}

async function onRedis(context: BenchContext): Promise<Finding> {
  const [seconds, rounds, stock] = context.quick ? [1, 1, 30_000] : [4, 5, 300_000];
  installReferences(context.note);
  const database = await startRedis();
  const program = new URL('../reference/bullmq.ts', import.meta.url);
  const [bull] = await Helper.start(program, [String(database.port)]);
  const engine = await openRedisEngine(database.url);
  try {
    await using server = await createServer(context, database.url);
    await server.start();
    const peers = { peer: 'BullMQ', database: 'Redis', databaseCpu: () => redisCpu(database) };
    const finding = await comparePeer(context, peers, {
      what: 'take many with reserve, 100, then settle many, 4 connections, Redis',
      target: { kind: 'at least', ratio: 2 },
      rounds,
      prepare: async (round) => {
        await fill(engine, `round-${round}`, stock);
        await bull.ask<BullAnswer>({ what: 'fill', count: stock / 2 } satisfies BullRequest);
      },
      own: (round) => runTakeSettle(loadOf(server, `round-${round}`, seconds, stock), COUNT),
      reference: () =>
        bull.ask<BullAnswer>({
          what: 'work',
          concurrent: COUNT,
          seconds,
          atMost: stock / 4,
        } satisfies BullRequest),
    });
    await server.stop();
    return finding;
  } finally {
    await engine.stop();
    await bull.stop();
    await database.stop();
  }
}
