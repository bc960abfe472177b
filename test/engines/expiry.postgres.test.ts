import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { bodyTexts, newElement } from '../support/elements.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
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
});
