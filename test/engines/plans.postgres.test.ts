import assert from 'node:assert/strict';
import { it } from 'node:test';
import { newElement } from '../support/elements.ts';
import { until } from '../support/until.ts';
import { freshSchema, runSql, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

const QUEUE = { ns: 'plain', name: 'q' };
const ELEMENTS = 2_000;

it('PostgreSQL reads a page by ids without other rows, even if its statistics are of an empty table', async () => {
  const server = await sharedServer();
  const schema = freshSchema();
  const node = await openNode(server, { schema });
  try {
    await runSql(
      server,
      `ALTER TABLE ${schema}.delivery SET (autovacuum_enabled = off); ANALYZE ${schema}.delivery`,
    );
    const ids = await node.storage.insert(QUEUE, Array.from({ length: ELEMENTS }, newElement));
    const page = await node.storage.scan(QUEUE, {
      group: '',
      states: ['ready', 'scheduled', 'reserved'],
      ids: ids.slice(-10),
      after: null,
      limit: 10,
      bodies: false,
    });
    assert.equal(page.deliveries.length, 10);
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
  await until(async () => [...(await read()).values()].some((tuples) => tuples >= 10));
  for (const [index, tuples] of await read()) assert.ok(tuples < ELEMENTS / 2, `${index}: ${tuples}`);
  await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
});
