import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { WrongStore } from '../../src/engine/engine.ts';
import { newElements } from '../support/elements.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { freshSchema, runSql, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

describe('A PostgreSQL schema', () => {
  let server: PostgresServer;
  let schema: string;

  before(async () => {
    server = await sharedServer();
    schema = freshSchema();
  });
  after(() => runSql(server, `DROP SCHEMA ${schema} CASCADE`));

  it('is used as it is by the next node that starts: ids continue where they were', async () => {
    const queue = { ns: 'plain', name: 'q' };
    const first = await openNode(server, { schema });
    const [before = ''] = await first.storage.insert(queue, newElements('a'));
    await first.stop();
    const second = await openNode(server, { schema });
    const [after = ''] = await second.storage.insert(queue, newElements('b'));
    assert.equal(after.slice(0, 4), before.slice(0, 4), 'the tag of the schema');
    assert.ok(after > before);
    assert.equal((await second.storage.counts(queue)).ready, 2);
    await second.stop();
  });

  it('may have a name that is a word of SQL', async () => {
    const node = await openNode(server, { schema: 'order' });
    await node.storage.insert({ ns: 'plain', name: 'q' }, newElements('a'));
    await node.stop();
    await runSql(server, 'DROP SCHEMA "order" CASCADE');
  });

  it('of another version is rejected at the start, and left as it is', async () => {
    for (const [version, message] of [
      ['15', /has tables of version "15"; this Quayside needs version "2"/],
      ['0', /has tables of version "0"; this Quayside needs version "2"/],
    ] as const) {
      await runSql(server, `UPDATE ${schema}.meta SET value = '${version}' WHERE key = 'version'`);
      await assert.rejects(openNode(server, { schema }), (error: Error) => {
        assert.match(error.message, message);
        // A server ends with the exit code for which nothing starts it again.
        return error instanceof WrongStore;
      });
      const { rows } = await runSql(server, `SELECT value FROM ${schema}.meta WHERE key = 'version'`);
      assert.equal(rows[0].value, version);
    }
    await runSql(server, `UPDATE ${schema}.meta SET value = '2' WHERE key = 'version'`);
  });
});
