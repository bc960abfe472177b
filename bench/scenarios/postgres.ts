import { PostgresServer } from '../../test/support/postgres-server.ts';
import { comparePeer } from '../compare-peer.ts';
import { runLoad } from '../load/http-load.ts';
import { runReserveCommit } from '../load/pairs.ts';
import { openPostgresEngine, postgresCpu } from '../postgres.ts';
import { Helper } from '../process.ts';
import { AUTHORIZATION, benchPath, createServer, fill } from '../quayside.ts';
import type { GraphileAnswer, GraphileRequest } from '../reference/graphile-worker.ts';
import { installReferences } from '../reference/install.ts';
import { type BenchContext, type Finding, grouped, type Scenario } from '../scenario.ts';
import { insertLoad } from '../shared.ts';

const CONNECTIONS = 64;
const WORKERS = 24;
const RESERVED = 'stored';

/**
 * HTTP on PostgreSQL, 64 connections, against graphile-worker on the same server with the same durability:
 * inserts against 64 concurrent `addJob`; reserve and commit against 24 workers with a task that does nothing.
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
  const [seconds, rounds, stock] = context.quick ? [1, 1, 30_000] : [5, 7, 400_000];
  const [graphile] = await Helper.start(new URL('../reference/graphile-worker.ts', import.meta.url), [url]);
  await using server = await createServer(context, url);
  try {
    await stockUp(url, stock);
    await graphile.ask<GraphileAnswer>({ what: 'fill', count: stock } satisfies GraphileRequest);
    await server.start();
    const ask = (request: GraphileRequest): Promise<GraphileAnswer> => graphile.ask(request);
    const pairs = {
      url: server.url,
      pid: server.pid,
      queuePath: benchPath(RESERVED),
      authorization: AUTHORIZATION,
      connections: CONNECTIONS,
      seconds,
    };
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
        own: () => runReserveCommit(pairs),
        reference: () => ask({ what: 'work', concurrent: WORKERS, seconds, batched: false }),
      }),
    ];
    const tuned = await ask({ what: 'work', concurrent: WORKERS, seconds, batched: true });
    context.note(`graphile-worker that fetches and completes in batches: ${grouped(tuned.perSecond)}/s`);
    await server.stop();
    return findings;
  } finally {
    await graphile.stop();
  }
}

/** Elements for the consumers, before the server runs. */
async function stockUp(url: string, count: number): Promise<void> {
  const engine = await openPostgresEngine(url);
  await fill(engine, RESERVED, count);
  await engine.stop();
}
