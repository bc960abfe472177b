import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { freshSchema, runSql, sharedPostgres } from '../engines/postgres.ts';
import { headerOf } from '../support/http-client.ts';
import { redisCli, startRedis } from '../support/redis-servers.ts';
import { withParameter } from '../support/run-servers.ts';
import { Nodes } from './nodes.ts';

/** How the data of an engine is lost while nodes serve. */
interface Loss {
  readonly name: string;
  /**
   * Whether another node has to start before the engine can be used again. Nodes that have served since before must be
   * restarted, too: elements which they deliver have ids of the lost schema.
   */
  readonly needsStart: boolean;
  start(): Promise<{ readonly url: string; empty(): Promise<void>; stop(): Promise<void> }>;
}

const LOSSES: readonly Loss[] = [
  {
    name: 'FLUSHALL of Redis',
    needsStart: false,
    start: async () => {
      const server = await startRedis();
      return {
        url: server.url,
        empty: async () => void redisCli(server.port, 'FLUSHALL'),
        stop: () => server.stop(),
      };
    },
  },
  {
    name: 'TRUNCATE of the tables of PostgreSQL',
    needsStart: false,
    start: () =>
      onPostgres(
        (schema) => `DO $$ DECLARE name text; BEGIN
          FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '${schema}' AND tablename <> 'meta' LOOP
            EXECUTE 'TRUNCATE ${schema}.' || name || ' RESTART IDENTITY';
          END LOOP; END $$`,
      ),
  },
  {
    name: 'DROP SCHEMA on PostgreSQL',
    needsStart: true,
    start: () => onPostgres((schema) => `DROP SCHEMA ${schema} CASCADE`),
  },
];

async function onPostgres(statement: (schema: string) => string): ReturnType<Loss['start']> {
  const server = { url: await sharedPostgres() };
  const [url, schema] = [server.url, freshSchema()];
  const run = async (sql: string): Promise<void> => void (await runSql({ url: () => url }, sql));
  return {
    url: withParameter(url, 'schema', schema),
    empty: () => run(statement(schema)),
    stop: () => run(`DROP SCHEMA ${schema} CASCADE`),
  };
}

describe('Nodes whose engine loses its data', { concurrency: true }, () => {
  for (const { name, needsStart, start } of LOSSES) {
    it(`by ${name} report it once each, and the empty engine can be used`, async () => {
      const engine = await start();
      const nodes = await Nodes.start(engine.url, 2);
      const lines = (at: number): string[] =>
        nodes
          .server(at)
          .output.split('\n')
          .filter((line) => line.includes('"data-lost"') && line.includes('"ns":"N"'));
      try {
        const { id } = JSON.parse((await nodes.client(0).insert('N', 'jobs', 'before')).body.toString());
        assert.equal((await nodes.client(1).reserve('N', 'jobs')).status, 200);
        await engine.empty();
        if (needsStart) await nodes.add();
        const end = performance.now() + 150_000;
        while ([0, 1].some((at) => lines(at).length === 0)) {
          assert.ok(performance.now() < end, 'no report within 150 s');
          await new Promise((resolve) => setTimeout(resolve, 250));
        }
        const pairs = needsStart
          ? [[2, 2]]
          : [
              [0, 1],
              [1, 0],
            ];
        for (const [from = 0, to = 0] of pairs) {
          const inserted = await nodes.client(from).insert('N', 'jobs', 'after');
          assert.equal(inserted.status, 200, inserted.body.toString());
          const held = await nodes.client(to).reserve('N', 'jobs', { to: 10_000 });
          assert.deepEqual([held.status, held.body.toString()], [200, 'after']);
          const committed = await nodes.client(from).commit('N', 'jobs', headerOf(held, 'x-ks-id') ?? '');
          assert.equal(committed.status, 200, committed.body.toString());
        }
        assert.equal((await nodes.client(1).commit('N', 'jobs', id)).status, 404);
        assert.deepEqual(
          [0, 1].map((at) => lines(at).length),
          [1, 1],
        );
      } finally {
        await nodes.stop();
        await engine.stop();
      }
    });
  }
});
