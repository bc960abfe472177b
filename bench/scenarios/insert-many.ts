import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { PostgresServer } from '../../test/support/postgres-server.ts';
import { startRedis } from '../../test/support/redis-servers.ts';
import { compareThroughput } from '../compare.ts';
import { comparePeer } from '../compare-peer.ts';
import { type HttpLoad, type LoadResult, runLoad } from '../load/http-load.ts';
import { postgresCpu } from '../postgres.ts';
import { cpuTimeOf, Helper } from '../process.ts';
import {
  AUTHORIZATION,
  benchPath,
  createServer,
  ELEMENT,
  elements,
  NAMESPACE,
  openEngine,
} from '../quayside.ts';
import { redisCpu } from '../redis.ts';
import { Beanstalkd } from '../reference/beanstalkd.ts';
import type { BullAnswer, BullRequest } from '../reference/bullmq.ts';
import type { GraphileAnswer, GraphileRequest } from '../reference/graphile-worker.ts';
import { installReferences } from '../reference/install.ts';
import type { BenchContext, Finding, Scenario } from '../scenario.ts';

/** Elements per request. */
const SIZE = 100;
const CONNECTIONS = 4;
const WHAT = `insert many, ${SIZE} lines of 46 bytes a request, ${CONNECTIONS} connections`;

/** Many elements in one request. All figures are in elements. */
export const insertMany: Scenario = {
  name: 'insert-many',
  async run(context) {
    return [...(await onSqlite(context)), await onRedis(context), await onPostgres(context)];
  },
};

function loadOf({ url, pid }: { url: string; pid: number }, queue: string, seconds: number): HttpLoad {
  return {
    url,
    pid,
    method: 'POST',
    path: `${benchPath(queue)}/elements`,
    headers: { authorization: AUTHORIZATION, 'content-type': 'application/x-ndjson' },
    body: `{"json":${ELEMENT}}\n`.repeat(SIZE),
    connections: CONNECTIONS,
    seconds,
  };
}

async function inElements(load: HttpLoad): Promise<LoadResult> {
  const { requests, perSecond, cpu } = await runLoad(load);
  return {
    requests: requests * SIZE,
    perSecond: perSecond * SIZE,
    cpu: { total: cpu.total / SIZE, mainThread: cpu.mainThread / SIZE },
  };
}

async function onSqlite(context: BenchContext): Promise<Finding[]> {
  const [seconds, rounds] = context.quick ? [1, 1] : [4, 5];
  const beanstalkd = await Beanstalkd.start();
  const folder = await mkdtemp(path.join(tmpdir(), 'quayside-bench-'));
  const engine = await openEngine(folder);
  try {
    await using server = await createServer(context);
    await server.start();
    if (!context.quick) await inElements(loadOf(server, 'warm-up', 3));
    const measure = (round: number): Promise<LoadResult> =>
      inElements(loadOf(server, `round-${round}`, seconds));
    const findings = [
      await compareThroughput(context, {
        what: `${WHAT}, SQLite FULL, against beanstalkd`,
        target: { kind: 'at least', ratio: 15 },
        rounds,
        measure,
        reference: () => beanstalkd.put(ELEMENT, CONNECTIONS, seconds),
      }),
      await compareThroughput(context, {
        what: `${WHAT}, SQLite FULL, against the engine alone`,
        target: { kind: 'at least', ratio: 0.6 },
        rounds,
        measure,
        reference: async () => {
          const batch = elements(SIZE);
          const key = { ns: NAMESPACE, name: 'alone' };
          return calls(seconds, () => engine.storage.insert(key, batch));
        },
      }),
    ];
    await server.stop();
    return findings;
  } finally {
    await engine.stop();
    await rm(folder, { recursive: true });
    await beanstalkd.stop();
  }
}

/** Runs calls of {@link SIZE} elements each, with as many concurrent ones as the load has connections. */
async function calls(seconds: number, call: () => Promise<unknown>): Promise<LoadResult> {
  const before = cpuTimeOf(process.pid);
  const from = performance.now();
  let done = 0;
  const caller = async (): Promise<void> => {
    while (performance.now() < from + seconds * 1000) {
      await call();
      done += SIZE;
    }
  };
  await Promise.all(Array.from({ length: CONNECTIONS }, caller));
  const after = cpuTimeOf(process.pid);
  return {
    requests: done,
    perSecond: (done * 1000) / (performance.now() - from),
    cpu: {
      total: (after.total - before.total) / done,
      mainThread: (after.mainThread - before.mainThread) / done,
    },
  };
}

async function onRedis(context: BenchContext): Promise<Finding> {
  const [seconds, rounds] = context.quick ? [1, 1] : [4, 5];
  installReferences(context.note);
  const database = await startRedis();
  const program = new URL('../reference/bullmq.ts', import.meta.url);
  const [bull] = await Helper.start(program, [String(database.port)]);
  try {
    await using server = await createServer(context, database.url);
    await server.start();
    const request = { what: 'addBulk', concurrent: CONNECTIONS, size: SIZE, seconds } as const;
    const peers = { peer: 'BullMQ', database: 'Redis', databaseCpu: () => redisCpu(database) };
    const finding = await comparePeer(context, peers, {
      what: `${WHAT}, Redis`,
      target: { kind: 'at least', ratio: 1.5 },
      rounds,
      own: (round) => inElements(loadOf(server, `round-${round}`, seconds)),
      reference: () => bull.ask<BullAnswer>(request satisfies BullRequest),
    });
    await server.stop();
    return finding;
  } finally {
    await bull.stop();
    await database.stop();
  }
}

async function onPostgres(context: BenchContext): Promise<Finding> {
  const [seconds, rounds] = context.quick ? [1, 1] : [4, 5];
  const database = await PostgresServer.start();
  const program = new URL('../reference/graphile-worker.ts', import.meta.url);
  const [graphile] = await Helper.start(program, [database.url()]);
  try {
    await using server = await createServer(context, database.url());
    await server.start();
    const request = { what: 'addJobs', concurrent: CONNECTIONS, size: SIZE, seconds } as const;
    const peers = {
      peer: 'graphile-worker',
      database: 'PostgreSQL',
      databaseCpu: () => postgresCpu(database),
    };
    const finding = await comparePeer(context, peers, {
      what: `${WHAT}, PostgreSQL`,
      target: { kind: 'at least', ratio: 2 },
      rounds,
      own: (round) => inElements(loadOf(server, `round-${round}`, seconds)),
      reference: () => graphile.ask<GraphileAnswer>(request satisfies GraphileRequest),
    });
    await server.stop();
    return finding;
  } finally {
    await graphile.stop();
    database.dispose();
  }
}
