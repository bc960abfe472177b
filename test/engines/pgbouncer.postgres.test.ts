import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Finding } from '../../src/engine/engine.ts';
import { open } from '../../src/engines/postgres/index.ts';
import { systemClock } from '../../src/util/clock.ts';
import { newElements } from '../support/elements.ts';
import { PgBouncer } from '../support/pgbouncer.ts';
import { freshSchema, runSql, SILENT, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

const QUEUE = { ns: 'plain', name: 'q' };
const SHARED = /a connection pooler shares one session among several connections; configure session mode/;

describe('PgBouncer in front of PostgreSQL', () => {
  it('can be used in session mode by two nodes, which wake each other', async (t) => {
    const server = await sharedServer();
    const schema = freshSchema();
    t.after(() => runSql(server, `DROP SCHEMA ${schema} CASCADE`));
    const pooler = await PgBouncer.start(server.url(), 'session');
    t.after(() => pooler.stop());
    const url = server.url({ port: pooler.port });
    const one = await openNode(server, { schema, url });
    const other = await openNode(server, { schema, url });
    const { promise: signal, resolve } = Promise.withResolvers<unknown>();
    other.signaller.subscribe('topic', resolve);
    const [id = ''] = await one.storage.insert(QUEUE, newElements('a'));
    one.signaller.publish('topic', { id });
    assert.deepEqual(await signal, { id });
    assert.equal((await other.storage.counts(QUEUE)).ready, 1);
    // Another node gets sessions that these have used: PgBouncer resets them.
    await one.stop();
    const third = await openNode(server, { schema, url });
    assert.equal((await third.storage.counts(QUEUE)).ready, 1);
    await Promise.all([other.stop(), third.stop()]);
  });

  it('is rejected in transaction mode, by a start and by the examination of the engine', async (t) => {
    const server = await sharedServer();
    const schema = freshSchema();
    const pooler = await PgBouncer.start(server.url(), 'transaction');
    t.after(() => pooler.stop());
    const url = server.url({ port: pooler.port, parameters: `?schema=${schema}` });
    await assert.rejects(examine(url), SHARED);
    t.after(() => runSql(server, `DROP SCHEMA IF EXISTS ${schema} CASCADE`));
    await assert.rejects(openNode(server, { schema, port: pooler.port }), SHARED);
  });
});

/** Examines an engine that has not been started, as `doctor` does. */
async function examine(url: string): Promise<readonly Finding[]> {
  const engine = open({
    url,
    dataDir: '.',
    namespaces: [],
    clock: systemClock,
    dedupWindowMs: 1000,
    settings: {},
    log: SILENT,
  });
  try {
    return (await engine.examine?.()) ?? [];
  } finally {
    await engine.stop();
  }
}
