import { type RedisServer, startRedis } from '../../test/support/redis-servers.ts';
import { comparePeer } from '../compare-peer.ts';
import { runLoad } from '../load/http-load.ts';
import { type PairLoad, runReserveCommit } from '../load/pairs.ts';
import { Helper } from '../process.ts';
import { AUTHORIZATION, benchPath, createServer, fill } from '../quayside.ts';
import { openRedisEngine, redisCpu } from '../redis.ts';
import type { BullAnswer, BullRequest } from '../reference/bullmq.ts';
import { installReferences } from '../reference/install.ts';
import { startInsertReference } from '../reference/reference.ts';
import { type BenchContext, type Finding, grouped, type Scenario } from '../scenario.ts';
import { insertLoad } from '../shared.ts';

const CONNECTIONS = 64;

/**
 * HTTP on Redis with 64 connections, compared with BullMQ on the same server: inserts with 64 concurrent `add`; reserve
 * and commit with a worker of concurrency 64 and an empty task.
 */
export const redis: Scenario = {
  name: 'redis',
  async run(context) {
    installReferences(context.note);
    const database = await startRedis();
    try {
      return await measure(context, database);
    } finally {
      await database.stop();
    }
  },
};

async function measure(context: BenchContext, database: RedisServer): Promise<Finding[]> {
  const [seconds, rounds, stock] = context.quick ? [1, 1, 10_000] : [5, 7, 100_000];
  const program = new URL('../reference/bullmq.ts', import.meta.url);
  const [bull] = await Helper.start(program, [String(database.port)]);
  const engine = await openRedisEngine(database.url);
  await using server = await createServer(context, database.url);
  try {
    const ask = (request: BullRequest): Promise<BullAnswer> => bull.ask(request);
    await server.start();
    const pairs = (round: number): PairLoad => ({
      url: server.url,
      pid: server.pid,
      queuePath: benchPath(`stored-${round}`),
      authorization: AUTHORIZATION,
      connections: CONNECTIONS,
      seconds,
      atMost: stock,
    });
    const peers = { peer: 'BullMQ', database: 'Redis', databaseCpu: () => redisCpu(database) };
    const findings = [
      await comparePeer(context, peers, {
        what: 'PUT insert, 46 bytes, 64 connections',
        target: { kind: 'at least', ratio: 2 },
        rounds,
        own: (round) => runLoad(insertLoad(server, `insert-${round}`, seconds)),
        reference: () => ask({ what: 'add', concurrent: CONNECTIONS, seconds }),
      }),
      await comparePeer(context, peers, {
        what: 'reserve and commit, pairs, 64 connections',
        target: { kind: 'at least', ratio: 1.5 },
        rounds,
        prepare: async (round) => {
          await fill(engine, `stored-${round}`, stock);
          await ask({ what: 'fill', count: stock });
        },
        own: (round) => runReserveCommit(pairs(round)),
        reference: () => ask({ what: 'work', concurrent: CONNECTIONS, seconds, atMost: stock / 2 }),
      }),
    ];
    await server.stop();
    await noteBareServer(context, seconds);
    return findings;
  } finally {
    await engine.stop();
    await bull.stop();
  }
}

/** Notes the rate at which a single Node process can answer these inserts here at all, without storing them. */
async function noteBareServer({ note }: BenchContext, seconds: number): Promise<void> {
  await using bare = await startInsertReference();
  const { perSecond } = await runLoad(insertLoad(bare, 'bare', seconds));
  note(`the same PUT to a bare HTTP server that stores nothing: ${grouped(perSecond)}/s`);
}
