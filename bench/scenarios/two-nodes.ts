import { type RedisServer, startRedis } from '../../test/support/redis-servers.ts';
import type { ServerProcess } from '../../test/support/server-process.ts';
import { type LoadResult, runLoad } from '../load/http-load.ts';
import { runReserveCommit } from '../load/pairs.ts';
import { AUTHORIZATION, benchPath, createServer, fill } from '../quayside.ts';
import { openRedisEngine, redisCpu } from '../redis.ts';
import { type BenchContext, type Finding, grouped, interleave, median, type Scenario } from '../scenario.ts';
import { insertLoad } from '../shared.ts';

const CONNECTIONS = 64;
const RESERVED = 'stored';

/** The same 64 connections on one node, and shared out over two, on one Redis and one machine. */
export const twoNodes: Scenario = {
  name: 'two-nodes',
  async run(context) {
    const database = await startRedis();
    try {
      return await measure(context, database);
    } finally {
      await database.stop();
    }
  },
};

/** Drives one node over so many connections for a while. */
type Drive = (node: ServerProcess, connections: number, round: string) => Promise<LoadResult>;

async function measure(context: BenchContext, database: RedisServer): Promise<Finding[]> {
  const [seconds, rounds, stock] = context.quick ? [1, 1, 60_000] : [4, 7, 900_000];
  const engine = await openRedisEngine(database.url);
  await fill(engine, RESERVED, stock);
  await engine.stop();
  await using first = await createServer(context, database.url);
  await using second = await createServer(context, database.url);
  await Promise.all([first.start(), second.start()]);
  const nodes = [first, second];
  const insert: Drive = (node, connections, round) =>
    runLoad({ ...insertLoad(node, `insert-${round}`, seconds), connections });
  const pairs: Drive = ({ url, pid }, connections) =>
    runReserveCommit({
      url,
      pid,
      queuePath: benchPath(RESERVED),
      authorization: AUTHORIZATION,
      connections,
      seconds,
    });
  const findings = [
    await compare(context, database, nodes, 'PUT insert, 46 bytes', insert, rounds),
    await compare(context, database, nodes, 'reserve and commit, pairs', pairs, rounds),
  ];
  await Promise.all(nodes.map((node) => node.stop()));
  return findings;
}

async function compare(
  { note, quick }: BenchContext,
  database: RedisServer,
  nodes: readonly ServerProcess[],
  what: string,
  drive: Drive,
  rounds: number,
): Promise<Finding> {
  const over = (some: readonly ServerProcess[], round: string): Promise<Total> =>
    together(database, some, (node) => drive(node, CONNECTIONS / some.length, round));
  if (!quick) await over(nodes, 'warm');
  const pairs = await interleave(
    rounds,
    (round) => over(nodes, `both-${round}`),
    (round) => over(nodes.slice(0, 1), `one-${round}`),
  );
  for (const [two, one] of pairs) note(`${what}: two nodes ${told(two)}; one ${told(one)}`);
  return {
    what: `${what}, 64 connections over two nodes`,
    figure: `${grouped(median(pairs.map(([two]) => two.perSecond)))}/s`,
    reference: `${grouped(median(pairs.map(([, one]) => one.perSecond)))}/s (one node)`,
    ratio: median(pairs.map(([two, one]) => two.perSecond / one.perSecond)),
    target: { kind: 'at least', ratio: 1 },
  };
}

interface Total {
  readonly perSecond: number;
  /** CPU time for each request, microseconds. */
  readonly nodes: number;
  readonly redis: number;
}

async function together(
  database: RedisServer,
  nodes: readonly ServerProcess[],
  run: (node: ServerProcess) => Promise<LoadResult>,
): Promise<Total> {
  const before = redisCpu(database);
  const results = await Promise.all(nodes.map(run));
  const sum = (of: (result: LoadResult) => number): number =>
    results.reduce((total, result) => total + of(result), 0);
  const requests = sum((result) => result.requests);
  return {
    perSecond: sum((result) => result.perSecond),
    nodes: sum((result) => result.cpu.total * result.requests) / requests,
    redis: (redisCpu(database) - before) / requests,
  };
}

function told({ perSecond, nodes, redis }: Total): string {
  return `${grouped(perSecond)}/s (CPU of each: nodes ${nodes.toFixed(1)} us, Redis ${redis.toFixed(1)} us)`;
}
