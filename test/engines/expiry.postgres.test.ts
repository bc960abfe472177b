import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import pg from 'pg';
import type { Engine } from '../../src/engine/engine.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElement } from '../support/elements.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { until } from '../support/until.ts';
import { clockAt, freshSchema, runSql, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

const RESERVE = { group: '', count: 9, leaseMs: 600_000 };
/** More elements than one statement expires. */
const MANY = 2500;

describe('Elements on PostgreSQL that expire, with several nodes,', () => {
  let server: PostgresServer;
  let schema: string;
  let nodes: [Engine, Engine];
  let now = Date.UTC(2026, 0, 1);
  let queues = 0;

  before(async () => {
    server = await sharedServer();
    schema = freshSchema();
    nodes = [await openNode(server, { schema }), await openNode(server, { schema })];
    await pass(0);
  });
  after(async () => {
    await Promise.all(nodes.map((node) => node.stop()));
    await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  });

  /** Sets the database's clock forward; nodes read it with their next call. */
  const pass = async (ms: number): Promise<void> => {
    now += ms;
    await runSql(server, clockAt(schema, now));
    await Promise.all(nodes.map((node) => node.ping()));
  };
  /** Takes until nothing is due, as a consumer that takes again when the engine says so. */
  const takeAll = async ({ storage }: Engine, queue: { ns: string; name: string }): Promise<string[]> => {
    const bodies: string[] = [];
    for (;;) {
      const { deliveries, nextDueAt } = await storage.take(queue, RESERVE);
      bodies.push(...bodyTexts(deliveries));
      if (nextDueAt === null || nextDueAt > now) return bodies;
    }
  };

  it('are not delivered by a node that has cached that nothing expires', async () => {
    const [a, b] = nodes;
    const queue = { ns: 'jobs', name: `queue ${++queues}` };
    // From here on the node has cached that nothing expires.
    await b.storage.take(queue, RESERVE);
    await a.storage.insert(queue, [
      newElement({ body: 'late', expiresAt: now + 1000 }),
      newElement({ body: 'stays' }),
    ]);
    await pass(1000);
    assert.deepEqual(await takeAll(b, queue), ['stays']);
    assert.deepEqual(await takeAll(b, { ns: 'jobs', name: 'dead' }), ['late']);
  });

  it('do not delay other elements, however many expire', async () => {
    const [a, b] = nodes;
    const queue = { ns: 'plain', name: `queue ${++queues}` };
    const expiring = Array.from({ length: MANY }, () => newElement({ expiresAt: now + 1000 }));
    await b.storage.take(queue, RESERVE);
    await a.storage.insert(queue, [...expiring, newElement({ body: 'stays' })]);
    await pass(1000);
    for (const node of nodes) await node.storage.insert(queue, [newElement({ body: 'younger' })]);
    assert.deepEqual(await takeAll(b, queue), ['stays', 'younger', 'younger']);
    assert.equal((await a.storage.counts(queue)).ready, 0);
    assert.equal((await a.storage.usage('plain')).elements, 3);
  });

  it('are found after an undone pop although the first statement that looked for them failed', async (t) => {
    const clock = new FakeClock();
    const node = await openNode(server, { schema, clock });
    t.after(() => node.stop());
    const other = new pg.Client({ connectionString: server.url() });
    await other.connect();
    t.after(() => other.end());
    await other.query(`SET search_path = ${schema}`);
    const queue = { ns: 'plain', name: `queue ${++queues}` };
    await node.storage.insert(queue, [newElement({ expiresAt: now + 1000 })]);
    const { deliveries } = await node.storage.take(queue, { ...RESERVE, leaseMs: null });
    assert.equal(deliveries.length, 1);
    now += 60_000;
    await runSql(server, clockAt(schema, now));
    await node.ping();
    // A full pass is slow, so none follows for a while.
    await other.query('BEGIN; LOCK TABLE delivery IN ACCESS EXCLUSIVE MODE');
    clock.advance(1000);
    const sweep = node.storage.sweep();
    await until(async () => (await other.query('SELECT FROM pg_locks WHERE NOT granted')).rows.length > 0);
    clock.advance(1000);
    await other.query('COMMIT');
    await sweep;
    await other.query(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'asked for by a test'; END $$;
      CREATE TRIGGER failing BEFORE DELETE ON delivery FOR EACH ROW EXECUTE FUNCTION fail()`);
    await node.storage.undoTake(queue, deliveries);
    await node.storage.sweep();
    await other.query('DROP TRIGGER failing ON delivery; DROP FUNCTION fail()');
    assert.equal((await node.storage.counts(queue)).ready, 1);
    // The pause after the failure.
    clock.advance(1000);
    await node.storage.sweep();
    assert.equal((await node.storage.counts(queue)).ready, 0);
  });
});
