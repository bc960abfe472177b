import assert from 'node:assert/strict';
import { afterEach, before, beforeEach, describe, it } from 'node:test';
import pg from 'pg';
import type { Engine } from '../../src/engine/engine.ts';
import { newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { until } from '../support/until.ts';
import { freshSchema, runSql, sharedServer } from './postgres.ts';
import { endSessions, openNode } from './postgres-node.ts';

const STREAM = { ns: 'stream', name: 'q' };
/** Advisory lock that a count waits for. The engine's own locks have pairs of numbers as keys. */
const GATE = 11;
/** Advisory lock that statements of the main connection wait for when they read the clock. */
const MAIN_GATE = 12;

describe('Counts of a stream on PostgreSQL', () => {
  let server: PostgresServer;
  let schema: string;
  let engine: Engine;
  let gate: pg.Client;

  before(async () => {
    server = await sharedServer();
  });
  beforeEach(async () => {
    schema = freshSchema();
    engine = await openNode(server, { schema });
    await engine.storage.insert(STREAM, [newElement({ groups: ['g1', 'g2'] })]);
    gate = new pg.Client({ connectionString: server.url() });
    await gate.connect();
    // While the gate is closed, statements that count a stream wait when they read the clock.
    await gate.query(`SELECT pg_advisory_lock(${GATE});
      CREATE OR REPLACE FUNCTION ${schema}.now_ms() RETURNS bigint LANGUAGE plpgsql VOLATILE SET lock_timeout = 0 AS $$ BEGIN
        IF current_query() LIKE '%WHERE subscription = -$%' THEN PERFORM pg_advisory_xact_lock_shared(${GATE}); END IF;
        IF current_setting('application_name') LIKE 'quayside main %' THEN PERFORM pg_advisory_xact_lock_shared(${MAIN_GATE}); END IF;
        RETURN floor(extract(epoch FROM clock_timestamp()) * 1000); END $$`);
  });
  afterEach(async () => {
    await gate.end();
    await engine.stop();
    await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  });

  const open = () => gate.query(`SELECT pg_advisory_unlock(${GATE})`);
  const counting = (ended: string[], name: string) =>
    engine.storage.counts(STREAM).then(({ ready }) => {
      ended.push(name);
      return ready;
    });
  const isWaiting = async (): Promise<boolean> => (await waiting()) > 0;
  const waiting = async (): Promise<number> =>
    (await gate.query("SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")).rows.length;

  it('delay no other call', async () => {
    const ended: string[] = [];
    const counts = counting(ended, 'counts');
    await until(isWaiting);
    await engine.storage.insert({ ns: 'plain', name: 'q' }, newElements('a'));
    assert.deepEqual(ended, []);
    await open();
    assert.equal(await counts, 1);
  });

  it('are read one at a time, so that other calls of the second connection run between them', async () => {
    const ended: string[] = [];
    const counts = [1, 2, 3].map((n) => counting(ended, `counts ${n}`));
    await until(isWaiting);
    const listed = engine.definitions.list('queue').then(() => ended.push('definitions'));
    await open();
    assert.deepEqual(await Promise.all(counts), [1, 1, 1]);
    await listed;
    // The first count and the definitions may have arrived at the same moment.
    assert.deepEqual(ended.slice(0, 2).sort(), ['counts 1', 'definitions']);
    assert.deepEqual(ended.slice(2), ['counts 2', 'counts 3']);
  });

  it('include elements of an insert that was called earlier', async () => {
    await open();
    const stored = engine.storage.insert(STREAM, [newElement({ groups: ['g1'] })]);
    const counts = await engine.storage.counts(STREAM);
    assert.equal(counts.ready, 2);
    assert.deepEqual([counts.groups.get('g1')?.ready, counts.groups.get('g2')?.ready], [2, 1]);
    await stored;
  });

  it('fail if the main connection ends before they are sent; a count that is being read does not', async () => {
    const first = counting([], 'first');
    await until(isWaiting);
    await gate.query(`SELECT pg_advisory_lock(${MAIN_GATE})`);
    const second = codeOf(engine.storage.counts(STREAM));
    await until(async () => (await waiting()) === 2);
    await endSessions(server, 'main');
    await gate.query(`SELECT pg_advisory_unlock(${MAIN_GATE})`);
    // It is connected again, so everything that failed with the first connection has been rejected.
    await engine.ping();
    await open();
    assert.deepEqual([await first, await second], [1, 'storage-unavailable']);
  });
});
