import { PostgresServer } from '../../test/support/postgres-server.ts';
import { comparePeer } from '../compare-peer.ts';
import { runLoad } from '../load/http-load.ts';
import { type PairLoad, runReserveCommit } from '../load/pairs.ts';
import { openPostgresEngine, postgresCpu } from '../postgres.ts';
import { Helper } from '../process.ts';
import { AUTHORIZATION, benchPath, createServer, fill } from '../quayside.ts';
import type { GraphileAnswer, GraphileRequest } from '../reference/graphile-worker.ts';
import { installReferences } from '../reference/install.ts';
import { type BenchContext, type Finding, grouped, type Scenario } from '../scenario.ts';
import { insertLoad } from '../shared.ts';

const CONNECTIONS = 64;
const WORKERS = 24;

/**
 * HTTP on PostgreSQL with 64 connections, compared with graphile-worker on the same server with the same durability:
 * inserts with 64 concurrent `addJob`; reserve and commit with 24 workers and an empty task.
 */
export const postgres: Scenario = {
  name: 'postgres',
  async run(context) {
    installReferences(context.note);
    const database = await PostgresServer.start();
    try {
      return await measure(context, database);
    } finally {
      database.dispose();
    }
  },
};

async function measure(context: BenchContext, database: PostgresServer): Promise<Finding[]> {
  const url = database.url();
  const [seconds, rounds, stock] = context.quick ? [1, 1, 10_000] : [5, 7, 60_000];
  const [graphile] = await Helper.start(new URL('../reference/graphile-worker.ts', import.meta.url), [url]);
  const engine = await openPostgresEngine(url);
  await using server = await createServer(context, url);
  try {
    await server.start();
    const ask = (request: GraphileRequest): Promise<GraphileAnswer> => graphile.ask(request);
    const pairs = (round: number): PairLoad => ({
      url: server.url,
      pid: server.pid,
      queuePath: benchPath(`stored-${round}`),
      authorization: AUTHORIZATION,
      connections: CONNECTIONS,
      seconds,
      atMost: stock,
    });
    const work = { what: 'work', concurrent: WORKERS, seconds, atMost: stock / 2 } as const;
    const peers = {
      peer: 'graphile-worker',
      database: 'PostgreSQL',
      databaseCpu: () => postgresCpu(database),
    };
    const findings = [
      await comparePeer(context, peers, {
        what: 'PUT insert, 46 bytes, 64 connections',
        target: { kind: 'at least', ratio: 10 },
        rounds,
        own: (round) => runLoad(insertLoad(server, `insert-${round}`, seconds)),
        reference: () => ask({ what: 'add', concurrent: CONNECTIONS, seconds }),
      }),
      await comparePeer(context, peers, {
        what: 'reserve and commit, pairs, 64 connections',
        target: { kind: 'at least', ratio: 2 },
        rounds,
        prepare: async (round) => {
          await fill(engine, `stored-${round}`, stock);
          await ask({ what: 'fill', count: stock });
        },
        own: (round) => runReserveCommit(pairs(round)),
        reference: () => ask({ ...work, batched: false }),
      }),
    ];
    await ask({ what: 'fill', count: stock });
    const tuned = await ask({ ...work, batched: true });
    context.note(`graphile-worker that fetches and completes in batches: ${grouped(tuned.perSecond)}/s`);
    await server.stop();
    return findings;
  } finally {
    await engine.stop();
    await graphile.stop();
  }
}
