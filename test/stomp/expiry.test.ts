import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import { withoutExpiry } from '../support/engine-with.ts';
import { until } from '../support/until.ts';
import { StompNode } from './node.ts';

describe('x-ks-ttl and x-ks-reason', () => {
  let node: StompNode;
  afterEach(() => node.stop());

  it('are rejected with not-supported on an engine that supports neither', async () => {
    node = await StompNode.start({ engine: withoutExpiry(MEMORY_SQLITE) });
    const sender = await node.client();
    sender.send('SEND', { destination: '/q/N/a', 'x-ks-ttl': '1000' }, 'x');
    assert.equal((await sender.expectError('not-supported')).headers.get('x-ks-parameter'), 'x-ks-ttl');
    await node.insert('a', 'x');
    const client = await node.client();
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client-individual' });
    const id = (await client.expect('MESSAGE')).headers.get('ack') ?? '';
    client.send('NACK', { id, 'x-ks-reason': 'why' });
    assert.equal((await client.expectError('not-supported')).headers.get('x-ks-parameter'), 'x-ks-reason');
    await until(() => node.server.counts.unacknowledged === 0);
  });

  it('are rejected if a value is out of bounds or not a number', async () => {
    node = await StompNode.start();
    for (const header of [
      { 'x-ks-ttl': '0' },
      { 'x-ks-ttl': '1.5' },
      { 'x-ks-ttl': '' },
      { expires: 'soon' },
    ]) {
      const client = await node.client();
      client.send('SEND', { destination: '/q/N/a', ...header }, 'x');
      await client.expectError('invalid-parameter');
    }
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
  });

  describe('on an engine that supports them', () => {
    it('expire an element after x-ks-ttl, which is not stored as a header', async () => {
      node = await StompNode.start({ engine: MEMORY_SQLITE });
      const client = await node.client();
      for (const body of ['a', 'b']) {
        await client.ask('SEND', { destination: '/q/N/a', 'x-ks-ttl': '2000' }, body);
      }
      const first = await node.pop('a');
      assert.deepEqual([...(first?.headers ?? [])], []);
      node.clock.advance(2000);
      assert.equal(await node.pop('a'), null);
    });

    it('expire an element at the moment in expires, unless x-ks-ttl is given; expires:0 means never', async () => {
      node = await StompNode.start({ engine: MEMORY_SQLITE });
      const client = await node.client();
      const expires = node.clock.now() + 2000;
      await client.ask('SEND', { destination: '/q/N/a', expires }, 'x');
      await client.ask('SEND', { destination: '/q/N/a', expires, 'x-ks-ttl': 5000 }, 'y');
      await client.ask('SEND', { destination: '/q/N/a', expires: 0 }, 'z');
      await client.ask('SEND', { destination: '/q/N/b', expires }, 'x');
      assert.deepEqual([...((await node.pop('b'))?.headers ?? [])], ['expires', String(expires)]);
      node.clock.advance(2000);
      const bodyOf = async (): Promise<string> => Buffer.from((await node.pop('a'))?.body ?? []).toString();
      assert.deepEqual([await bodyOf(), await bodyOf(), await bodyOf()], ['y', 'z', '']);
    });

    it('expire an element of a transaction x-ks-ttl after its SEND', async () => {
      node = await StompNode.start({ engine: MEMORY_SQLITE });
      const client = await node.client();
      await client.ask('BEGIN', { transaction: 't' });
      await client.ask('SEND', { destination: '/q/N/a', transaction: 't', 'x-ks-ttl': '2000' }, 'x');
      node.clock.advance(2000);
      await client.ask('COMMIT', { transaction: 't' });
      assert.equal(await node.pop('a'), null);
    });

    it('do not expire a dead letter that a client sends again with all headers of its MESSAGE', async () => {
      node = await StompNode.start({ engine: MEMORY_SQLITE });
      const client = await node.client();
      const expires = String(node.clock.now() + 2000);
      await node.insertInto('D', 'a', { body: Buffer.from('x'), headers: ['expires', expires], tries: 1 });
      await client.ask('SUBSCRIBE', { destination: '/q/D/a', id: 's', ack: 'client-individual' });
      const message = await client.expect('MESSAGE');
      assert.equal(message.headers.get('expires'), expires);
      await client.ask('NACK', { id: message.headers.get('ack') ?? '' });
      await client.ask('UNSUBSCRIBE', { id: 's' });
      node.clock.advance(2000);
      client.send('SUBSCRIBE', { destination: '/q/D/__deadletter__', id: 'd' });
      const { headers, body } = await client.expect('MESSAGE');
      await client.ask('SEND', { ...Object.fromEntries(headers), destination: '/q/D/b' }, body);
      const again = await node.pop('b', 'D');
      assert.equal(Buffer.from(again?.body ?? []).toString(), 'x');
      assert.ok(again?.headers.includes('expires'));
    });

    for (const transaction of [undefined, 't']) {
      it(`store the reason of a NACK in the dead letter, ${transaction === undefined ? 'alone' : 'in a transaction'}`, async () => {
        node = await StompNode.start({ engine: MEMORY_SQLITE });
        await node.insertInto('D', 'a', { body: Buffer.from('x'), tries: 1 });
        const client = await node.client();
        await client.ask('SUBSCRIBE', { destination: '/q/D/a', id: 's', ack: 'client-individual' });
        const id = (await client.expect('MESSAGE')).headers.get('ack') ?? '';
        if (transaction !== undefined) await client.ask('BEGIN', { transaction });
        const headers = transaction === undefined ? {} : { transaction };
        await client.ask('NACK', { id, 'x-ks-reason': 'schlüssel fehlt', ...headers });
        if (transaction !== undefined) await client.ask('COMMIT', { transaction });
        const deadLetter = await node.pop('__deadletter__', 'D');
        const own = deadLetter?.headers ?? [];
        const reason = own[own.indexOf('x-dl-reason') + 1] ?? '';
        assert.equal(Buffer.from(reason, 'latin1').toString(), 'schlüssel fehlt');
      });
    }

    it('are rejected if the reason has more than 1024 bytes', async () => {
      node = await StompNode.start({ engine: MEMORY_SQLITE });
      await node.insert('a', 'x');
      const client = await node.client();
      await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client-individual' });
      const id = (await client.expect('MESSAGE')).headers.get('ack') ?? '';
      client.send('NACK', { id, 'x-ks-reason': 'é'.repeat(513) });
      await client.expectError('invalid-parameter');
      await until(() => node.server.counts.unacknowledged === 0);
    });
  });
});
