import assert from 'node:assert/strict';
import { it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import type { ScanOptions } from '../../src/engine/storage.ts';
import { newElement } from '../support/elements.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { until } from '../support/until.ts';
import { freshSchema, runSql, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

const QUEUE = { ns: 'plain', name: 'q' };
const OTHER = { ns: 'plain', name: 'other' };
const ELEMENTS = 2_000;
const PAGE: ScanOptions = {
  group: '',
  states: ['ready', 'scheduled', 'reserved'],
  after: null,
  limit: 10,
  bodies: false,
};

/**
 * Runs `work` with an engine whose plans are made while its tables are empty. Returns how many entries of each index of
 * deliveries it read.
 */
async function entriesRead(
  server: PostgresServer,
  work: (node: Engine) => Promise<void>,
): Promise<ReadonlyMap<string, number>> {
  const schema = freshSchema();
  const node = await openNode(server, { schema });
  try {
    await runSql(
      server,
      `ALTER TABLE ${schema}.delivery SET (autovacuum_enabled = off); ANALYZE ${schema}.delivery`,
    );
    await work(node);
  } finally {
    // Sessions publish their statistics at the latest when they end.
    await node.stop();
  }
  const read = async (): Promise<Map<string, number>> => {
    const { rows } = await runSql(
      server,
      `SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = '${schema}' AND relname = 'delivery'`,
    );
    return new Map(rows.map((row) => [row.indexrelname, Number(row.idx_tup_read)]));
  };
  await until(async () => [...(await read()).values()].some((entries) => entries >= 10));
  const entries = await read();
  await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  return entries;
}

it('PostgreSQL reads a page by ids without other rows, even if its statistics are of an empty table', async () => {
  const entries = await entriesRead(await sharedServer(), async ({ storage }) => {
    const ids = await storage.insert(QUEUE, Array.from({ length: ELEMENTS }, newElement));
    const page = await storage.scan(QUEUE, { ...PAGE, ids: ids.slice(-10) });
    assert.equal(page.deliveries.length, 10);
  });
  for (const [index, count] of entries) assert.ok(count < ELEMENTS / 2, `${index}: ${count}`);
});

it('PostgreSQL reads a page without the reservations of other queues, if the queue has none or the page is full', async () => {
  const entries = await entriesRead(await sharedServer(), async ({ storage }) => {
    await storage.insert(OTHER, Array.from({ length: ELEMENTS }, newElement));
    for (let taken = 0; taken < ELEMENTS; taken += 1000)
      await storage.take(OTHER, { group: '', count: 1000, leaseMs: 60_000 });
    await storage.insert(QUEUE, Array.from({ length: 5 }, newElement));
    assert.equal((await storage.scan(QUEUE, PAGE)).deliveries.length, 5);
    await storage.insert(QUEUE, Array.from({ length: 20 }, newElement));
    await storage.take(QUEUE, { group: '', count: 1, leaseMs: 60_000 });
    assert.equal((await storage.scan(QUEUE, PAGE)).deliveries.length, 10);
  });
  const reserved = entries.get('delivery_reserved') ?? 0;
  assert.ok(reserved < ELEMENTS / 2, `${reserved}`);
});
