import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { MIGRATIONS } from '../../src/engines/postgres/schema.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { commit } from '../support/settle.ts';
import { freshSchema, runSql } from './postgres.ts';
import { openNode } from './postgres-node.ts';

const POP = { group: '', count: 9, leaseMs: null };

/** What a node of the first version stored: an element that waits, one that is reserved, a stream's, a key, a definition. */
const FIRST_DATA = `
  INSERT INTO queue (ns, name, known) VALUES ('plain', 'q', true), ('stream', 's', true), ('jobs', 'dead', false);
  INSERT INTO lane (queue, grp) VALUES (1, ''), (2, 'g1'), (2, 'g2'), (3, '');
  SELECT setval('element_seq', 3);
  INSERT INTO delivery (seq, due_at, lane, tries, bytes, head, body, lease_until, token) VALUES
    (1, 1, 1, 0, 30, '["text/plain",null]', 'waits', NULL, NULL),
    (2, 1, 1, 0, 30, '["text/plain",null]', 'reserved', 8000000000000, 42);
  INSERT INTO delivery (seq, due_at, lane, tries, bytes, inserted_at) VALUES (3, 1, 2, 0, 30, 1), (3, 1, 3, 0, 30, 1);
  INSERT INTO element VALUES (3, 2, 2, '["text/plain",null]', 'shared');
  INSERT INTO tally (lane, step, waiting, reserved) VALUES (1, 0, 1, 1), (2, 0, 1, 0), (3, 0, 1, 0), (-2, 0, 1, 0);
  INSERT INTO dedup VALUES (1, sha256('k'), 1, now_ms());
  INSERT INTO definition VALUES ('queue', '["plain","q"]', '{"paused":true}', 1);
  INSERT INTO stats VALUES ('plain', 'q', '', 2, 0, 1, 0, 0, 0)`;

/** The tables, columns, indexes and functions of a schema. */
async function shapeOf(server: PostgresServer, schema: string): Promise<unknown[]> {
  const { rows } = await runSql(
    server,
    `SELECT table_name AS name, string_agg(concat_ws(' ', column_name, data_type, is_nullable), ', ' ORDER BY column_name) AS text
      FROM information_schema.columns WHERE table_schema = '${schema}' GROUP BY 1
    UNION ALL SELECT indexname, replace(indexdef, '${schema}.', '') FROM pg_indexes WHERE schemaname = '${schema}'
    UNION ALL SELECT proname, pg_get_function_arguments(oid) || prosrc FROM pg_proc WHERE pronamespace = '${schema}'::regnamespace
    ORDER BY 1, 2`,
  );
  return rows;
}

describe('A PostgreSQL schema of an earlier version', () => {
  let server: PostgresServer;

  before(async () => {
    server = await PostgresServer.start();
  });
  after(() => server.dispose());

  /** A schema as a node of that version made it, with data of the first one. */
  const makeOld = async (schema: string, version: number): Promise<void> => {
    const [first = '', ...later] = MIGRATIONS.slice(0, version);
    await runSql(
      server,
      `CREATE SCHEMA ${schema}; SET search_path = ${schema}; ${first};
      INSERT INTO meta VALUES ('version', '${version}'), ('tag', 'tag0'); ${FIRST_DATA};
      ${later.join(';\n')}`,
    );
  };
  const withNode = async (schema: string, use: (node: Engine) => Promise<void>): Promise<void> => {
    const node = await openNode(server, { schema });
    try {
      await use(node);
    } finally {
      await node.stop();
    }
  };

  for (let version = 1; version < MIGRATIONS.length; version++) {
    it(`${version} is brought up to date with all that it holds`, async () => {
      const schema = freshSchema();
      await makeOld(schema, version);
      const plain = { ns: 'plain', name: 'q' };
      const stream = { ns: 'stream', name: 's' };
      await withNode(schema, async ({ storage, stats, definitions }) => {
        assert.deepEqual(await storage.queues('plain'), ['q']);
        assert.deepEqual(
          [(await storage.counts(plain)).ready, (await storage.counts(plain)).reserved],
          [1, 1],
        );
        assert.equal((await storage.usage('plain')).elements, 2);
        assert.deepEqual((await definitions.get('queue', '["plain","q"]'))?.value, { paused: true });
        assert.equal((await stats.read(plain)).get('')?.put, 2);
        // A repeat of the key stores nothing.
        assert.deepEqual(await storage.insert(plain, [newElement({ dedupKey: 'k' })]), ['tag011']);
        assert.deepEqual(bodyTexts((await storage.take(plain, POP)).deliveries), ['waits']);
        const committed = await commit(storage, plain, [{ id: 'tag012', group: '', token: null }]);
        assert.deepEqual(committed, ['done']);
        for (const group of ['g1', 'g2']) {
          const { deliveries } = await storage.take(stream, { ...POP, group });
          assert.deepEqual(bodyTexts(deliveries), ['shared']);
        }
        await storage.insert(plain, newElements('new'));
        assert.deepEqual(bodyTexts((await storage.take(plain, POP)).deliveries), ['new']);
        await storage.sweep();
        for (const ns of ['plain', 'stream']) {
          assert.deepEqual(await storage.usage(ns), { elements: 0, bytes: 0 });
        }
      });
      const fresh = freshSchema();
      await withNode(fresh, async () => {});
      assert.deepEqual(await shapeOf(server, schema), await shapeOf(server, fresh));
      // A second start changes nothing.
      await withNode(schema, async ({ storage }) => assert.deepEqual(await storage.queues('plain'), ['q']));
    });
  }

  it('that is newer than the program is refused, and left as it is', async () => {
    const schema = freshSchema();
    await makeOld(schema, MIGRATIONS.length);
    await runSql(
      server,
      `UPDATE ${schema}.meta SET value = '${MIGRATIONS.length + 1}' WHERE key = 'version'`,
    );
    await assert.rejects(openNode(server, { schema }), /was written by a newer version of Quayside/);
    const { rows } = await runSql(server, `SELECT value FROM ${schema}.meta WHERE key = 'version'`);
    assert.deepEqual(rows, [{ value: String(MIGRATIONS.length + 1) }]);
  });
});
