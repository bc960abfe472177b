import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { WrongStore } from '../../src/engine/engine.ts';
import { newElement, newElements } from '../support/elements.ts';
import { blocksOf } from '../support/page-commands.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { rollback } from '../support/settle.ts';
import { freshSchema, runSql, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

const PAGE = new URL('../../docs/engines/postgres.md', import.meta.url);

describe('A PostgreSQL schema', () => {
  let server: PostgresServer;
  let schema: string;

  before(async () => {
    server = await sharedServer();
    schema = freshSchema();
  });
  after(() => runSql(server, `DROP SCHEMA ${schema} CASCADE`));

  it('is reused by the next node that starts: ids continue where they were', async () => {
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

  it('keeps the origin of a dead letter whose headers an earlier version changed', async (t) => {
    const queue = { ns: 'jobs', name: 'changed' };
    const node = await openNode(server, { schema });
    t.after(() => node.stop());
    const [id = ''] = await node.storage.insert(queue, [newElement({ headers: ['own', '1'], tries: 2 })]);
    // It failed, the header with its origin was removed, and it failed again: by two lines, and one in between.
    const lines = [
      ['d', queue.name, 1, 3, 1001, 'broken', ''],
      ['h', 'x-ks-origin-id', null, 'own', '2'],
      ['d', queue.name, 2, 3, 1002, 'broken', ''],
    ].map((line) => `\n${JSON.stringify(line)}`);
    await runSql(server, `UPDATE ${schema}.delivery SET head = head || '${lines.join('')}' WHERE tries = 2`);
    const take = async (name: string, leaseMs: number | null): Promise<(name: string) => unknown> => {
      const { deliveries } = await node.storage.take({ ...queue, name }, { group: '', count: 1, leaseMs });
      const headers = deliveries[0]?.headers ?? [];
      return (header) => headers[headers.indexOf(header) + 1];
    };
    const held = await take(queue.name, 60_000);
    const failed = { id, group: '', token: null, delayMs: 0, countTry: true };
    assert.deepEqual(await rollback(node.storage, queue, [failed]), ['dead-lettered']);
    const dead = await take('dead', null);
    assert.notEqual(held('x-ks-origin-id'), id);
    assert.equal(dead('x-ks-origin-id'), held('x-ks-origin-id'));
    assert.equal(dead('own'), '2');
  });

  it('may be named with a reserved word of SQL', async () => {
    const node = await openNode(server, { schema: 'order' });
    await node.storage.insert({ ns: 'plain', name: 'q' }, newElements('a'));
    await node.stop();
    await runSql(server, 'DROP SCHEMA "order" CASCADE');
  });

  it('of another version is rejected at the start, and not changed', async () => {
    for (const [version, message] of [
      ['15', /has tables of version "15"; this Quayside needs version "2"/],
      ['0', /has tables of version "0"; this Quayside needs version "2"/],
    ] as const) {
      await runSql(server, `UPDATE ${schema}.meta SET value = '${version}' WHERE key = 'version'`);
      await assert.rejects(openNode(server, { schema }), (error: Error) => {
        assert.match(error.message, message);
        // WrongStore makes the server exit with the code on which process managers do not restart it.
        return error instanceof WrongStore;
      });
      const { rows } = await runSql(server, `SELECT value FROM ${schema}.meta WHERE key = 'version'`);
      assert.equal(rows[0].value, version);
    }
    await runSql(server, `UPDATE ${schema}.meta SET value = '2' WHERE key = 'version'`);
  });

  it('is rejected at the start if the user may not use a sequence or a table of it', async (t) => {
    const user = freshSchema();
    await runSql(
      server,
      `CREATE ROLE ${user} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA ${schema} TO ${user};
      GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ${schema} TO ${user};
      REVOKE DELETE ON ${schema}.dedup FROM ${user}`,
    );
    t.after(() => runSql(server, `DROP OWNED BY ${user}; DROP ROLE ${user}`));
    const url = Object.assign(new URL(server.url()), { username: user, password: 'x' }).href;
    await assert.rejects(
      openNode(server, { schema, url }),
      new RegExp(
        `the user may not use dedup, definition_version, element_seq of the schema "${schema}"; make them the owner`,
      ),
    );
    await runSql(
      server,
      `GRANT DELETE ON ${schema}.dedup TO ${user}; GRANT USAGE ON ALL SEQUENCES IN SCHEMA ${schema} TO ${user}`,
    );
    const node = await openNode(server, { schema, url });
    await node.storage.insert({ ns: 'plain', name: 'q' }, newElements('a'));
    await node.stop();
  });

  it('can be used by the user that docs/engines/postgres.md sets up', async () => {
    const [setup] = blocksOf(readFileSync(PAGE, 'utf8')).filter(({ language }) => language === 'sql');
    assert.ok(setup !== undefined);
    const address = new URL(server.url());
    /** The database that psql is connected to after `\\connect`. */
    const inQueues = { url: () => Object.assign(new URL(address), { pathname: '/queues' }).href };
    const [before = '', after = ''] = setup.text.split('\\connect queues\n');
    try {
      // CREATE DATABASE cannot be one of several statements.
      for (const statement of before.trimEnd().split('\n')) await runSql(server, statement);
      await runSql(inQueues, after);
      const [, password = ''] = /PASSWORD '([^']+)'/.exec(setup.text) ?? [];
      const url = Object.assign(new URL(inQueues.url()), { username: 'quayside', password }).href;
      const node = await openNode(server, { schema: 'quayside', url });
      await node.storage.insert({ ns: 'plain', name: 'q' }, newElements('a'));
      assert.equal((await node.storage.counts({ ns: 'plain', name: 'q' })).ready, 1);
      await node.stop();
    } finally {
      await runSql(server, 'DROP DATABASE IF EXISTS queues WITH (FORCE)');
      await runSql(server, 'DROP ROLE IF EXISTS quayside');
    }
  });
});
