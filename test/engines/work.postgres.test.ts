import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { newElement } from '../support/elements.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { commit, extend, nextDueAt, purge, remove, rollback, transfer } from '../support/settle.ts';
import { freshSchema, reportAtOnce, reported, runSql, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

/** Elements that wait in another queue, which a plan that reads too much would step over. */
const BYSTANDERS = 20_000;
/** Queues that were created since the statistics were made. */
const QUEUES = 2_000;

/** What PostgreSQL knows about the tables when it plans the statements. */
const STATISTICS = ['none', 'of emptied tables', 'of tables without streams'] as const;

/**
 * A plan that reads a whole table or index passes every other test, and is too slow with a million elements. So these
 * tests count what operations read while another queue is large.
 */
for (const statistics of STATISTICS)
  describe(`Operations of the PostgreSQL engine with statistics ${statistics}`, () => {
    let server: PostgresServer;
    let schema: string;
    let engine: Engine;

    before(async () => {
      server = await sharedServer();
      schema = freshSchema();
      engine = await openNode(server, { schema });
      await reportAtOnce(server, schema);
      if (statistics === 'of emptied tables') {
        for (const ns of ['plain', 'stream']) {
          await store(ns, 100);
          await purge(engine.storage, { ns, name: 'bystanders' });
        }
        await vacuum();
      }
      await store('plain', BYSTANDERS);
      if (statistics === 'of tables without streams') await vacuum();
      await store('stream', BYSTANDERS);
    });
    after(async () => {
      await engine.stop();
      await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
    });

    it('read only the rows they need, by index, however many other elements are stored', async () => {
      await reported(engine);
      const rounds = statistics === 'none' ? 20 : 5;
      const before = await reads();
      for (let round = 0; round < rounds; round++) {
        await everyVerb('plain', '');
        await everyVerb('jobs', '');
        await everyVerb('stream', 'g1');
      }
      await reported(engine);
      const after = await reads();
      assert.equal(after.scans - before.scans, 0, 'no table is read from end to end');
      const perRound = (after.entries - before.entries) / rounds;
      assert.ok(perRound < 2000, `${perRound} index entries a round`);
    });

    async function store(ns: string, count: number): Promise<void> {
      const groups = ns === 'stream' ? ['g1', 'g2'] : [''];
      for (let stored = 0; stored < count; stored += 2000) {
        const elements = Array.from({ length: Math.min(count, 2000) }, () =>
          newElement({ groups, body: 'bystander' }),
        );
        await engine.storage.insert({ ns, name: 'bystanders' }, elements);
      }
    }

    async function vacuum(): Promise<void> {
      await runSql(server, `VACUUM ANALYZE ${schema}.delivery, ${schema}.element`);
    }

    /** Calls each operation once, on a few elements. */
    async function everyVerb(ns: string, group: string): Promise<void> {
      const { storage } = engine;
      const queue = { ns, name: 'worked' };
      const groups = ns === 'stream' ? ['g1', 'g2'] : [''];
      const element = (fields: object = {}) => newElement({ groups, ...fields });
      await storage.declare([queue]);
      const [first = ''] = await storage.insert(queue, [
        element(),
        element({ dedupKey: 'k' }),
        element(),
        element(),
      ]);
      await storage.insert(queue, [element({ delayMs: 60_000 })]);
      const popped = await storage.take(queue, { group, count: 1, leaseMs: null });
      await storage.undoTake(queue, popped.deliveries);
      const { deliveries } = await storage.take(queue, { group, count: 4, leaseMs: 60_000 });
      const refs = deliveries.map(({ id, lease }) => ({ id, group, token: lease?.token ?? null }));
      await extend(
        storage,
        queue,
        refs.slice(0, 1).map((ref) => ({ ...ref, leaseMs: 60_000 })),
      );
      await commit(storage, queue, refs.slice(0, 1));
      await rollback(
        storage,
        queue,
        refs.slice(1, 2).map((ref) => ({ ...ref, delayMs: 0, countTry: true })),
      );
      const inserts = [{ queue: { ...queue, name: 'moved' }, element: element() }];
      await transfer(
        storage,
        refs.slice(2, 3).map((finish) => ({ from: queue, finish, inserts })),
      );
      await storage.scan(queue, { group, states: ['ready'], bodies: true, after: null, limit: 5 });
      await storage.scan(queue, { group, states: ['reserved'], bodies: true, after: null, limit: 5 });
      await storage.counts(queue);
      await nextDueAt(storage, queue, group);
      await remove(storage, queue, [first]);
      await storage.sweep();
      await purge(storage, queue);
      await purge(storage, { ...queue, name: 'moved' });
      assert.equal(await storage.drop({ ...queue, name: 'moved' }), true);
    }

    /** Scans of whole tables, and entries read from indexes, of the tables that grow with the elements. */
    async function reads(): Promise<{ scans: number; entries: number }> {
      const { rows } = await runSql(
        server,
        `SELECT (SELECT sum(seq_scan) FROM pg_stat_user_tables WHERE schemaname = '${schema}'
           AND relname IN ('delivery', 'element', 'dedup', 'counter')) AS scans,
         (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = '${schema}'
           AND relname IN ('delivery', 'element', 'dedup')) AS entries`,
      );
      return { scans: Number(rows[0].scans), entries: Number(rows[0].entries) };
    }
  });

it('Stores, dead letters, expiries and drops on PostgreSQL do not read all queues, even if its statistics are of few', async () => {
  const server = await sharedServer();
  const schema = freshSchema();
  const engine = await openNode(server, { schema });
  try {
    const { storage } = engine;
    const queue = { ns: 'jobs', name: 'worked' };
    await reportAtOnce(server, schema);
    await storage.declare([queue]);
    await runSql(server, `VACUUM ANALYZE ${schema}.subscription`);
    const useQueue = async (): Promise<void> => {
      await storage.insert(queue, [newElement(), newElement({ tries: 2 })]);
      const { deliveries } = await storage.take(queue, { group: '', count: 2, leaseMs: 60_000 });
      const refs = deliveries.map(({ id, lease }) => ({ id, group: '', token: lease?.token ?? null }));
      await rollback(
        storage,
        queue,
        refs.map((ref) => ({ ...ref, delayMs: 0, countTry: true })),
      );
      await storage.insert(queue, [newElement({ tries: 2, expiresAt: 1 })]);
      await engine.ping();
      await purge(storage, { ...queue, name: 'dead' });
      assert.equal(await storage.drop({ ...queue, name: 'dead' }), true);
    };
    const read = async (): Promise<number> => {
      await reported(engine);
      const { rows } = await runSql(
        server,
        `SELECT sum(idx_tup_read) AS entries FROM pg_stat_user_indexes
          WHERE schemaname = '${schema}' AND relname = 'subscription'`,
      );
      return Number(rows[0].entries);
    };
    // Plans the statements, and notes that the queue is taken from.
    await useQueue();
    await storage.declare(Array.from({ length: QUEUES }, (_, i) => ({ ns: 'plain', name: `q${i}` })));
    const before = await read();
    await useQueue();
    const entries = (await read()) - before;
    assert.ok(entries < QUEUES, `${entries} entries of the registry`);
  } finally {
    await engine.stop();
    await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  }
});
