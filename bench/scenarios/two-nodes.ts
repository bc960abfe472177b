import type { Engine } from '../../src/engine/engine.ts';
import { type RedisServer, startRedis } from '../../test/support/redis-servers.ts';
import type { ServerProcess } from '../../test/support/server-process.ts';
import { type LoadResult, runLoad } from '../load/http-load.ts';
import { runReserveCommit } from '../load/pairs.ts';
import { AUTHORIZATION, benchPath, createServer, fill } from '../quayside.ts';
import { openRedisEngine, redisCpu } from '../redis.ts';
import { type BenchContext, type Finding, grouped, interleave, median, type Scenario } from '../scenario.ts';
import { insertLoad } from '../shared.ts';

const CONNECTIONS = 64;

/** 64 connections to one node, and divided among two nodes, on one Redis and one machine. */
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

/** Runs one node's share of a round's load. */
type Drive = (node: ServerProcess, share: Share) => Promise<LoadResult>;

interface Share {
  readonly connections: number;
  readonly queue: string;
  /** The number of elements of the queue that this node may take. */
  readonly elements: number;
}

async function measure(context: BenchContext, database: RedisServer): Promise<Finding[]> {
  const [seconds, rounds, stock] = context.quick ? [1, 1, 10_000] : [4, 7, 80_000];
  const engine = await openRedisEngine(database.url);
  await using first = await createServer(context, database.url);
  await using second = await createServer(context, database.url);
  await Promise.all([first.start(), second.start()]);
  const nodes = [first, second];
  const insert: Load = {
    what: 'PUT insert, 46 bytes',
    queuePrefix: 'insert',
    stock: 0,
    drive: (node, { connections, queue }) => runLoad({ ...insertLoad(node, queue, seconds), connections }),
  };
  const pairs: Load = {
    what: 'reserve and commit, pairs',
    queuePrefix: 'stored',
    stock,
    drive: ({ url, pid }, { connections, queue, elements }) =>
      runReserveCommit({
        url,
        pid,
        queuePath: benchPath(queue),
        authorization: AUTHORIZATION,
        connections,
        seconds,
        atMost: elements,
      }),
  };
  try {
    const findings = [
      await compare(context, database, engine, nodes, insert, rounds),
      await compare(context, database, engine, nodes, pairs, rounds),
    ];
    await Promise.all(nodes.map((node) => node.stop()));
    return findings;
  } finally {
    await engine.stop();
  }
}

interface Load {
  readonly what: string;
  readonly queuePrefix: string;
  /** The number of elements that each round stores before it is timed. */
  readonly stock: number;
  readonly drive: Drive;
}

async function compare(
  { note, quick }: BenchContext,
  database: RedisServer,
  engine: Engine,
  nodes: readonly ServerProcess[],
  { what, queuePrefix, stock, drive }: Load,
  rounds: number,
): Promise<Finding> {
  const over = async (some: readonly ServerProcess[], round: string): Promise<Total> => {
    const queue = `${queuePrefix}-${round}`;
    await fill(engine, queue, stock);
    const share = { connections: CONNECTIONS / some.length, queue, elements: stock / some.length };
    return together(database, some, (node) => drive(node, share));
  };
  if (!quick) await over(nodes, 'warm');
  const pairs = await interleave(
    rounds,
    (round) => over(nodes, `both-${round}`),
    (round) => over(nodes.slice(0, 1), `one-${round}`),
  );
  for (const [two, one] of pairs) note(`${what}: two nodes ${text(two)}; one ${text(one)}`);
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
  /** CPU time per request, µs. */
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

function text({ perSecond, nodes, redis }: Total): string {
  return `${grouped(perSecond)}/s (CPU of each: nodes ${nodes.toFixed(1)} us, Redis ${redis.toFixed(1)} us)`;
}
