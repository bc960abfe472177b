import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import { withoutExpiry } from '../support/engine-with.ts';
import { elementHeadersOf, headerOf, jsonOf } from '../support/http-client.ts';
import { sharedHarness } from './harness.ts';

const DEAD = '__deadletter__';

describe('an insert with ttl, and a rollback with a reason', () => {
  const engine = withoutExpiry(MEMORY_SQLITE);
  const harness = sharedHarness({ engine });

  it('are rejected on an engine that supports neither', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const inserted = await client.insert('N', queue, 'x', { query: { ttl: '1' } });
    assert.deepEqual([inserted.status, jsonOf<{ code: string }>(inserted).code], [405, 'not-supported']);
    await client.insert('N', queue, 'x');
    const id = headerOf(await client.reserve('N', queue), 'x-ks-id');
    const rolledBack = await client.rollback('N', queue, id, { query: { reason: 'why' } });
    assert.deepEqual([rolledBack.status, jsonOf<{ code: string }>(rolledBack).code], [405, 'not-supported']);
    assert.equal((await client.commit('N', queue, id)).status, 200, 'nothing was rolled back');
  });

  it('are rejected if they are out of bounds', async () => {
    const client = harness().client();
    for (const ttl of ['0', '0.0001', '-1', 'x', '', '315360001']) {
      const { status, body } = await client.insert('N', harness().queue(), 'x', { query: { ttl } });
      assert.equal(status, 400, `ttl=${ttl}: ${body}`);
    }
    for (const reason of ['', 'x'.repeat(1025), 'é'.repeat(513)]) {
      const { status, body } = await client.rollback('N', harness().queue(), 'id', { query: { reason } });
      assert.equal(status, 400, `${reason}: ${body}`);
    }
  });
});

describe('an element with a time to live', () => {
  const harness = sharedHarness({ engine: MEMORY_SQLITE });

  it('is delivered before it expires, and not afterwards', async () => {
    const client = harness().client();
    const queue = harness().queue();
    for (const body of ['a', 'b']) await client.insert('N', queue, body, { query: { ttl: '1.5' } });
    assert.equal((await client.get('N', queue, { to: 0 })).body.toString(), 'a');
    await harness().passTime(1500);
    assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
  });

  it('goes to the dead-letter queue when it expires and is delivered to a waiting consumer there', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('jobs', queue, 'late', { query: { ttl: '2' } });
    const waiting = client.get('jobs', DEAD);
    await harness().waiting(1);
    await harness().passTime(10_000);
    const deadLetter = await waiting;
    assert.equal(deadLetter.body.toString(), 'late');
    const headers = elementHeadersOf(deadLetter);
    assert.deepEqual(
      ['x-dl-from-queue', 'x-dl-tries', 'x-dl-reason'].map((name) => headers.get(name)),
      [queue, '0', 'expired'],
    );
  });

  it('repeats an Idempotency-Key only with the same ttl', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const headers = { 'idempotency-key': 'k' };
    const insert = (ttl: string) => client.insert('N', queue, 'x', { headers, query: { ttl } });
    const { id } = jsonOf<{ id: string }>(await insert('10'));
    await harness().passTime(1000);
    const again = await insert('10');
    assert.equal(jsonOf<{ id: string }>(again).id, id);
    assert.equal(headerOf(again, 'x-ks-repeated'), 'true');
    assert.equal(jsonOf<{ code: string }>(await insert('11')).code, 'idempotency-mismatch');
  });

  it('carries the reason of its last rollback into the dead-letter queue', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const reason = `broken: "é" ${'x'.repeat(1000)}`;
    await client.insert('jobs', queue, 'x', { tries: 2 });
    const id = headerOf(await client.reserve('jobs', queue), 'x-ks-id');
    assert.equal((await client.rollback('jobs', queue, id, { query: { reason } })).status, 200);
    const headers = elementHeadersOf(await client.get('jobs', DEAD, { to: 0 }));
    assert.equal(Buffer.from(headers.get('x-dl-reason') ?? '', 'latin1').toString(), reason);
  });
});
