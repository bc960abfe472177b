import { type RedisServer, startRedis } from '../../test/support/redis-servers.ts';
import { type LoadResult, runLoad } from '../load/http-load.ts';
import { runReserveCommit } from '../load/pairs.ts';
import { Helper } from '../process.ts';
import { AUTHORIZATION, benchPath, createServer, fill } from '../quayside.ts';
import { openRedisEngine, redisCpu } from '../redis.ts';
import type { BullAnswer, BullRequest } from '../reference/bullmq.ts';
import { installReferences } from '../reference/install.ts';
import {
  type BenchContext,
  type Finding,
  grouped,
  interleave,
  median,
  type Scenario,
  type Target,
} from '../scenario.ts';
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
    const findings = [
      await compare(context, database, {
        what: 'PUT insert, 46 bytes, 64 connections',
        target: { kind: 'at least', ratio: 2 },
        rounds,
        own: (round) => runLoad(insertLoad(server, `insert-${round}`, seconds)),
        reference: () => ask({ what: 'add', concurrent: CONNECTIONS, seconds }),
      }),
      await compare(context, database, {
        what: 'reserve and commit, pairs, 64 connections',
        target: { kind: 'at least', ratio: 1.5 },
        rounds,
        own: () => runReserveCommit(pairs),
        reference: () => ask({ what: 'work', concurrent: CONNECTIONS, seconds }),
      }),
    ];
    await server.stop();
    return findings;
  } finally {
    await bull.stop();
  }
}

/** Elements for the consumers, before the server runs. */
async function stockUp(url: string, count: number): Promise<void> {
  const engine = await openRedisEngine(url);
  await fill(engine, RESERVED, count);
  await engine.stop();
}

interface Comparison {
  readonly what: string;
  readonly target: Target;
  readonly rounds: number;
  own(round: number): Promise<LoadResult>;
  reference(round: number): Promise<BullAnswer>;
}

/** Throughput in interleaved rounds. The CPU time for each, of Redis and of this server, is printed beside it. */
async function compare(
  { note, quick }: BenchContext,
  database: RedisServer,
  { what, target, rounds, own, reference }: Comparison,
): Promise<Finding> {
  if (!quick) await own(-1);
  const pairs = await interleave(
    rounds,
    (round) => withCpu(database, () => own(round)),
    (round) => withCpu(database, () => reference(round)),
  );
  for (const [mine, other] of pairs) {
    const ratio = (mine.perSecond / other.perSecond).toFixed(2);
    note(`${what}: ${figureOf(mine)}; BullMQ ${figureOf(other)}; ratio ${ratio}`);
  }
  return {
    what,
    figure: `${grouped(median(pairs.map(([{ perSecond }]) => perSecond)))}/s`,
    reference: `${grouped(median(pairs.map(([, { perSecond }]) => perSecond)))}/s (BullMQ)`,
    ratio: median(pairs.map(([mine, other]) => mine.perSecond / other.perSecond)),
    target,
  };
}

interface Rate {
  readonly perSecond: number;
  /** Redis's CPU time for each, microseconds. */
  readonly redis: number;
  /** The service's CPU time for each, microseconds; null for the reference, whose load is in the same process. */
  readonly service: number | null;
}

async function withCpu(database: RedisServer, run: () => Promise<LoadResult | BullAnswer>): Promise<Rate> {
  const before = redisCpu(database);
  const result = await run();
  const isLoad = 'requests' in result;
  const count = isLoad ? result.requests : result.jobs;
  return {
    perSecond: result.perSecond,
    redis: (redisCpu(database) - before) / count,
    service: isLoad ? result.cpu.total : null,
  };
}

function figureOf({ perSecond, redis, service }: Rate): string {
  const own = service === null ? '' : `, service ${service.toFixed(0)}`;
  return `${grouped(perSecond)}/s (Redis ${redis.toFixed(0)} µs CPU each${own})`;
}
