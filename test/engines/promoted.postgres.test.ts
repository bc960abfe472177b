import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { bodyTexts, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { until } from '../support/until.ts';
import { freshSchema, runSql } from './postgres.ts';
import { endSessions, openNode, sessionsOf } from './postgres-node.ts';

const QUEUE = { ns: 'plain', name: 'q' };
const ROLES = ['main', 'second', 'listener'] as const;

/** A primary, its standby, and a node that names both and uses the primary. */
async function openPair(t: TestContext) {
  const primary = await PostgresServer.start({ settings: { fsync: 'off' } });
  t.after(() => primary.dispose());
  const standby = await primary.startStandby();
  t.after(() => standby.dispose());
  const schema = freshSchema();
  const reasons: string[] = [];
  const node = await openNode(primary, {
    schema,
    url: primary.url().replace(`:${primary.port}`, `:${primary.port},127.0.0.1:${standby.port}`),
    log: { info: () => {}, warn: (fields) => reasons.push(String((fields as { reason?: unknown }).reason)) },
  });
  t.after(() => node.stop());
  const bodiesIn = async (server: PostgresServer): Promise<string[]> => {
    const { rows } = await runSql(
      server,
      `SELECT convert_from(body, 'UTF8') AS body FROM ${schema}.delivery`,
    );
    return rows.map(({ body }) => String(body));
  };
  return { primary, standby, node, reasons, bodiesIn };
}

/** Inserts an element as soon as the node can. */
async function insert(node: Engine, body: string): Promise<void> {
  await until(async () => (await codeOf(node.storage.insert(QUEUE, newElements(body)))) === 'done');
}

describe('A node whose PostgreSQL standby was promoted', () => {
  it('does not use the old primary again when that comes back as a second one', async (t) => {
    const { primary, standby, node, reasons, bodiesIn } = await openPair(t);
    await primary.stop('immediate');
    await runSql(standby, 'SELECT pg_promote()');
    await insert(node, 'first');
    await primary.start();
    // Each connection tries the hosts in turn, so the old primary comes first.
    for (const role of ROLES) await until(async () => (await sessionsOf(standby, role)).length === 1);
    for (const role of ROLES) await endSessions(standby, role);
    await insert(node, 'second');
    assert.deepEqual([await bodiesIn(primary), await bodiesIn(standby)], [[], ['first', 'second']]);
    assert.match(reasons.join('\n'), /it is an old primary: .* make it a standby of the new one/);
  });

  it('uses the new primary with all its connections as soon as one of them does', async (t) => {
    const { primary, standby, node, bodiesIn } = await openPair(t);
    await runSql(standby, 'SELECT pg_promote()');
    await endSessions(primary, 'second');
    for (const role of ROLES) await until(async () => (await sessionsOf(standby, role)).length === 1);
    await insert(node, 'first');
    assert.deepEqual([await bodiesIn(primary), await bodiesIn(standby)], [[], ['first']]);
  });
});

describe('A PostgreSQL that its administrator made read-only', () => {
  it('stores nothing until it is writable again, and a start names the setting', async (t) => {
    const server = await PostgresServer.start({ settings: { fsync: 'off' } });
    t.after(() => server.dispose());
    const schema = freshSchema();
    const node = await openNode(server, { schema });
    t.after(() => node.stop());
    const setReadOnly = async (value: 'on' | 'off'): Promise<void> => {
      await runSql(server, `ALTER SYSTEM SET default_transaction_read_only = ${value}`);
      await runSql(server, 'SELECT pg_reload_conf()');
      await until(
        async () =>
          (await runSql(server, 'SHOW default_transaction_read_only')).rows[0]
            .default_transaction_read_only === value,
      );
    };
    await setReadOnly('on');
    for (const role of ROLES) await endSessions(server, role);
    await assert.rejects(
      openNode(server, { schema }),
      /it is read-only \(default_transaction_read_only is on\); .* name the primary/,
    );
    assert.equal(await codeOf(node.storage.insert(QUEUE, newElements('lost'))), 'storage-unavailable');
    await setReadOnly('off');
    await insert(node, 'kept');
    const { deliveries } = await node.storage.take(QUEUE, { group: '', count: 10, leaseMs: null });
    assert.deepEqual(bodyTexts(deliveries), ['kept']);
  });

  it('is no longer used by sessions that were open before', async (t) => {
    const server = await PostgresServer.start({ settings: { fsync: 'off' } });
    t.after(() => server.dispose());
    const node = await openNode(server, { schema: freshSchema() });
    t.after(() => node.stop());
    await insert(node, 'before');
    await runSql(server, 'ALTER SYSTEM SET default_transaction_read_only = on');
    await runSql(server, 'SELECT pg_reload_conf()');
    await until(
      async () => (await codeOf(node.storage.insert(QUEUE, newElements('x')))) === 'storage-unavailable',
    );
  });
});

describe('A PostgreSQL whose timeline', () => {
  const openServer = async (t: TestContext): Promise<PostgresServer> => {
    const server = await PostgresServer.start({ settings: { fsync: 'off' } });
    t.after(() => server.dispose());
    return server;
  };

  it('is hidden from the user is used without the check', async (t) => {
    const server = await openServer(t);
    const schema = freshSchema();
    await runSql(
      server,
      `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; CREATE ROLE guest LOGIN PASSWORD 'pw';
        CREATE SCHEMA ${schema} AUTHORIZATION guest`,
    );
    const node = await openNode(server, { schema, url: server.url().replace(/\/\/.*@/, '//guest:pw@') });
    t.after(() => node.stop());
    assert.equal(await codeOf(node.storage.insert(QUEUE, newElements('a'))), 'done');
  });

  it('is null is used without the check', async (t) => {
    const server = await openServer(t);
    await runSql(server, walFileName('SELECT NULL::text'));
    const node = await openNode(server, { schema: freshSchema() });
    t.after(() => node.stop());
    assert.equal(await codeOf(node.storage.insert(QUEUE, newElements('a'))), 'done');
  });

  it('does not arrive in time is not used: it may have been frozen, and replaced', async (t) => {
    const server = await openServer(t);
    // Ends at the timeout of the session.
    await runSql(server, walFileName("SELECT 'x' FROM pg_sleep(3600)"));
    await assert.rejects(openNode(server, { schema: freshSchema() }), /57014/);
  });
});

/** SQL that replaces the function that names the timeline. It keeps the old one: PostgreSQL calls its own by their OID. */
function walFileName(body: string): string {
  return `ALTER FUNCTION pg_walfile_name(pg_lsn) RENAME TO own_walfile_name;
    CREATE FUNCTION pg_catalog.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS $$ ${body} $$`;
}
