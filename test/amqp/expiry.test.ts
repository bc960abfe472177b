import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import { withoutExpiry } from '../support/engine-with.ts';
import { until } from '../support/until.ts';
import { AmqpNode } from './node.ts';

const YEAR_9999 = Date.UTC(9999, 11, 31);

describe('a message with a time to live', () => {
  let node: AmqpNode;
  afterEach(() => node.stop());

  it('is rejected by an engine without expiry, unless it lasts forever', async () => {
    node = await AmqpNode.start({ engine: withoutExpiry(MEMORY_SQLITE) });
    const sender = await (await node.client()).sender('N/a');
    const at = new Date(node.clock.now() + 1000);
    for (const fields of [{ ttl: 1000 }, { absolute_expiry_time: at }]) {
      const { kind } = await sender.send({ body: 'x', ...fields });
      assert.equal(kind, 'rejected');
    }
    const never = [0, YEAR_9999].map((time) => ({ absolute_expiry_time: new Date(time) }));
    for (const fields of [{ ttl: 0 }, ...never, {}]) {
      const { kind } = await sender.send({ body: 'x', ...fields });
      assert.equal(kind, 'accepted');
    }
    assert.equal((await node.sizes('a')).ready, 4);
  });

  it('that the client rejects on an engine without expiry stays in the queue, and its reason is dropped', async () => {
    node = await AmqpNode.start({ engine: withoutExpiry(MEMORY_SQLITE) });
    await node.insert('a', 'x');
    const receiver = await (await node.client()).receiver('N/a', {}, 1);
    (await receiver.next()).delivery.reject({ condition: 'app:bad', description: 'why' });
    await until(() => node.server.counts.unacknowledged === 0);
    while ((await node.sizes('a')).scheduled !== 1);
  });

  describe('on an engine with expiry', () => {
    for (const [name, fields] of [
      ['ttl', () => ({ ttl: 2000 })],
      ['absolute-expiry-time', (now: number) => ({ absolute_expiry_time: new Date(now + 2000) })],
      [
        'ttl, even with an earlier absolute-expiry-time',
        () => ({ ttl: 2000, absolute_expiry_time: new Date(1000) }),
      ],
    ] as const) {
      it(`expires by its ${name}`, async () => {
        node = await AmqpNode.start({ engine: MEMORY_SQLITE });
        const sender = await (await node.client()).sender('N/a');
        for (const body of ['a', 'b']) {
          assert.equal((await sender.send({ body, ...fields(node.clock.now()) })).kind, 'accepted');
        }
        assert.notEqual(await node.pop('a'), null);
        node.clock.advance(2000);
        assert.equal(await node.pop('a'), null);
      });
    }

    it('never expires if its absolute-expiry-time is 0, as old versions of Qpid Proton send it', async () => {
      node = await AmqpNode.start({ engine: MEMORY_SQLITE });
      const sender = await (await node.client()).sender('N/a');
      await sender.send({ body: 'x', absolute_expiry_time: new Date(0) });
      node.clock.advance(1000);
      assert.notEqual(await node.pop('a'), null);
    });

    it('returns its absolute-expiry-time to the receiver', async () => {
      node = await AmqpNode.start({ engine: MEMORY_SQLITE });
      const client = await node.client();
      const at = new Date(node.clock.now() + 2000);
      await (await client.sender('N/a')).send({ body: 'x', absolute_expiry_time: at });
      const { message } = await (await client.receiver('N/a', {}, 1)).next();
      assert.deepEqual(message.absolute_expiry_time, at);
    });

    it('has no absolute-expiry-time for the receiver once it is a dead letter or was redriven', async () => {
      node = await AmqpNode.start({ engine: MEMORY_SQLITE });
      const client = await node.client();
      const at = node.clock.now() + 2000;
      await (await client.sender('D/a')).send({ body: 'x', absolute_expiry_time: new Date(at) });
      node.clock.advance(2000);
      assert.equal(await node.pop('a', 'D'), null);
      const receiver = await client.receiver('D/__deadletter__', { snd_settle_mode: 1 }, 1);
      const { message } = await receiver.next();
      assert.equal(message.absolute_expiry_time, undefined);
      const { 'absolute-expiry-time': kept, 'x-dl-reason': reason } = message.application_properties ?? {};
      assert.deepEqual([kept, reason], [String(at), 'expired']);
      // The headers that `redrive` leaves.
      const headers = ['absolute-expiry-time', String(at), 'x-ks-origin-id', 'id'];
      await node.insert('b', { body: Buffer.from('x'), headers });
      const back = await (await client.receiver('N/b', {}, 1)).next();
      assert.equal(back.message.absolute_expiry_time, undefined);
    });

    it('has no absolute-expiry-time for the receiver of an exchange’s copy, because copies do not expire', async () => {
      node = await AmqpNode.start({ engine: MEMORY_SQLITE });
      const client = await node.client();
      const past = String(node.clock.now() - 2000);
      for (const mark of ['x-hop-count', 'x-exchange-name']) {
        await node.insert('c', {
          body: Buffer.from('x'),
          headers: ['absolute-expiry-time', past, mark, '1'],
        });
        const { message } = await (await client.receiver('N/c', { snd_settle_mode: 1 }, 1)).next();
        assert.equal(message.absolute_expiry_time, undefined);
        assert.equal(message.application_properties?.['absolute-expiry-time'], past);
      }
    });

    it('passes the error of its rejection to the dead-letter queue as the reason', async () => {
      node = await AmqpNode.start({ engine: MEMORY_SQLITE });
      const client = await node.client();
      for (const [error, expected] of [
        [{ condition: 'app:bad', description: 'no customer 7' }, 'app:bad: no customer 7'],
        [{ condition: 'app:bad' }, 'app:bad'],
        [undefined, undefined],
      ] as const) {
        await node.insertInto('D', 'a', { body: Buffer.from('x'), tries: 1 });
        const receiver = await client.receiver('D/a', {}, 1);
        (await receiver.next()).delivery.reject(error);
        let deadLetter = await node.pop('__deadletter__', 'D');
        while (deadLetter === null) deadLetter = await node.pop('__deadletter__', 'D');
        const at = deadLetter.headers.indexOf('x-dl-reason');
        assert.equal(at < 0 ? undefined : deadLetter.headers[at + 1], expected);
        await receiver.close();
      }
    });
  });
});
