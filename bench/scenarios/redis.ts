import { type RedisServer, startRedis } from '../../test/support/redis-servers.ts';
import { comparePeer } from '../compare-peer.ts';
import { runLoad } from '../load/http-load.ts';
import { runReserveCommit } from '../load/pairs.ts';
import { Helper } from '../process.ts';
import { AUTHORIZATION, benchPath, createServer, fill } from '../quayside.ts';
import { openRedisEngine, redisCpu } from '../redis.ts';
import type { BullAnswer, BullRequest } from '../reference/bullmq.ts';
import { installReferences } from '../reference/install.ts';
import { startInsertReference } from '../reference/reference.ts';
import { type BenchContext, type Finding, grouped, type Scenario } from '../scenario.ts';
import { insertLoad } from '../shared.ts';

const CONNECTIONS = 64;
const RESERVED = 'stored';

/**
 * HTTP on Redis, 64 connections, against BullMQ on the same server: inserts against 64 concurrent `add`;
 * reserve and commit against a worker of concurrency 64 with a task that does nothing.
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
  const [seconds, rounds, stock] = context.quick ? [1, 1, 40_000] : [5, 7, 600_000];
  const program = new URL('../reference/bullmq.ts', import.meta.url);
  const [bull] = await Helper.start(program, [String(database.port)]);
  await using server = await createServer(context, database.url);
  try {
    await stockUp(database.url, stock);
    const ask = (request: BullRequest): Promise<BullAnswer> => bull.ask(request);
    await ask({ what: 'fill', count: stock });
    await server.start();
    const pairs = {
      url: server.url,
      pid: server.pid,
      queuePath: benchPath(RESERVED),
      authorization: AUTHORIZATION,
      connections: CONNECTIONS,
      seconds,
    };
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
        own: () => runReserveCommit(pairs),
        reference: () => ask({ what: 'work', concurrent: CONNECTIONS, seconds }),
      }),
    ];
    await server.stop();
    await noteBareServer(context, seconds);
    return findings;
  } finally {
    await bull.stop();
  }
}

/** How many of these inserts one Node process can answer at all here, whatever stores them. */
async function noteBareServer({ note }: BenchContext, seconds: number): Promise<void> {
  await using bare = await startInsertReference();
  const { perSecond } = await runLoad(insertLoad(bare, 'bare', seconds));
  note(`the same PUT to a bare HTTP server that stores nothing: ${grouped(perSecond)}/s`);
}

/** Elements for the consumers, before the server runs. */
async function stockUp(url: string, count: number): Promise<void> {
  const engine = await openRedisEngine(url);
  await fill(engine, RESERVED, count);
  await engine.stop();
}
