import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { DatabaseClock } from '../../src/engines/postgres/operations.ts';
import { Registry } from '../../src/engines/postgres/registry.ts';
import { systemClock } from '../../src/util/clock.ts';
import { newElement, newElements } from '../support/elements.ts';
import { memoryInUse, useUpBlock } from '../support/memory.ts';
import { codeOf } from '../support/outcome.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { freshSchema, runSql, sharedServer } from './postgres.ts';
import { openNode } from './postgres-node.ts';

const registry = () => new Registry([], new DatabaseClock(systemClock));

describe('The queues cached by a PostgreSQL engine', () => {
  it('are one object per name, and so are their groups', () => {
    const names = registry();
    const queue = names.queue({ ns: 'a', name: 'q' });
    assert.equal(names.queue({ ns: 'a', name: 'q' }), queue);
    assert.notEqual(names.queue({ ns: 'b', name: 'q' }), queue);
    assert.equal(names.subscription(queue, 'g'), names.subscription(queue, 'g'));
  });

  it('do not grow with the names of requests; names in use stay cached', () => {
    const names = registry();
    const idle = names.queue({ ns: 'a', name: 'idle' });
    const stream = names.queue({ ns: 'a', name: 'stream' });
    const group = names.subscription(stream, 'idle');
    const used = names.queue({ ns: 'a', name: 'used' });
    for (let index = 0; index < 25_000; index += 1) {
      names.queue({ ns: 'a', name: 'used' });
      names.queue({ ns: 'a', name: `asked ${index}` });
      names.subscription(names.queue({ ns: 'a', name: 'stream' }), `asked ${index}`);
    }
    assert.equal(names.queue({ ns: 'a', name: 'used' }), used);
    assert.notEqual(names.queue({ ns: 'a', name: 'idle' }), idle);
    assert.notEqual(names.subscription(stream, 'idle'), group);
    assert.ok(stream.subscriptions.size < 20_000);
  });

  it('retain no pooled buffers shared with other allocations', async () => {
    const names = registry();
    const before = await memoryInUse();
    for (let index = 0; index < 200; index += 1) {
      const queue = names.queue({ ns: 'a', name: `q${index}` });
      names.subscription(queue, `g${index}`);
      useUpBlock();
    }
    const retained = (await memoryInUse()) - before;
    assert.ok(retained < 200 * 8_192, `200 queues retain ${retained} bytes`);
    assert.equal(names.queue({ ns: 'a', name: 'q7' }).key.name, 'q7');
  });

  it('have different ids if their names differ only in where one ends and the next begins', () => {
    const names = registry();
    const ids = [
      ['a', 'bc', 'd'],
      ['ab', 'c', 'd'],
      ['a', 'b', 'cd'],
      ['a', 'bcd', ''],
    ].map(([ns = '', name = '', group = '']) => names.subscription(names.queue({ ns, name }), group).idText);
    assert.equal(new Set(ids).size, ids.length);
    for (const id of ids) assert.ok(BigInt(id) > 0n, 'ids are positive: negative ones are used for elements');
  });
});

describe('The registry of queues in PostgreSQL', () => {
  let server: PostgresServer;
  let schema: string;
  let engine: Engine;

  before(async () => {
    server = await sharedServer();
    schema = freshSchema();
    engine = await openNode(server, { schema });
  });
  after(async () => {
    await engine.stop();
    await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  });

  it('computes the same ids as the database, whatever characters names have', async () => {
    for (const name of ['plain', 'é€😀', '1:2:3', 'it\'s {a} "name"', '\\']) {
      await engine.storage.insert({ ns: 'plain', name }, newElements('x'));
      await engine.storage.insert({ ns: 'stream', name }, [newElement({ groups: ['g1', name] })]);
    }
    const { rows } = await runSql(
      server,
      `SET search_path = ${schema}; SELECT count(*) FILTER (WHERE id = subscription_id(ns, name, grp)
        AND queue = subscription_id(ns, name, '')) AS same, count(*) AS total FROM subscription`,
    ).then((results) => (Array.isArray(results) ? results[1] : results));
    assert.equal(rows[0].total, '20');
    assert.equal(rows[0].same, '20');
  });

  it('rejects inserts into a queue whose id collides with that of another, and stores nothing', async () => {
    const queue = { ns: 'plain', name: 'collides' };
    await runSql(
      server,
      `SET search_path = ${schema}; INSERT INTO subscription (id, queue, ns, name, grp)
        SELECT subscription_id('plain', 'collides', ''), 1, 'plain', 'another', ''`,
    );
    const [collided, other] = await Promise.all([
      codeOf(engine.storage.insert(queue, newElements('x'))),
      codeOf(engine.storage.insert({ ...queue, name: 'no collision' }, newElements('y'))),
    ]);
    assert.deepEqual([collided, other], ['storage-unavailable', 'done']);
    assert.equal((await engine.storage.counts(queue)).ready, 0);
  });
});
