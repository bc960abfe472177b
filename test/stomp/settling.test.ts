import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { RELEASE } from '../../src/broker/queue.ts';
import { DELIVERY_STATES } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { purge } from '../support/settle.ts';
import { until } from '../support/until.ts';
import type { StompClient } from './client.ts';
import { StompNode } from './node.ts';

describe('Settling over STOMP', () => {
  let node: StompNode;
  let client: StompClient;

  beforeEach(async () => {
    node = await StompNode.start();
    client = await node.client();
  });
  afterEach(() => node.stop());

  /** Subscribes; returns the `ack` headers of the first `count` messages. */
  async function take(
    destination: string,
    count: number,
    headers: Record<string, string> = {},
  ): Promise<string[]> {
    await client.ask('SUBSCRIBE', { destination, id: 's', ack: 'client-individual', ...headers });
    const acks: string[] = [];
    while (acks.length < count) acks.push((await client.expect('MESSAGE')).headers.get('ack') ?? '');
    return acks;
  }

  describe('NACK', () => {
    it('redelivers an element after five seconds, with one more failed try', async () => {
      await node.insert('a', 'x');
      const [id = ''] = await take('/q/N/a', 1);
      await client.ask('NACK', { id });
      assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 1, reserved: 0 });
      await node.pass(4_999, 'a');
      assert.equal((await node.sizes('a')).scheduled, 1);
      await node.pass(1, 'a');
      const { headers } = await client.expect('MESSAGE');
      assert.equal(headers.get('x-tries'), '1');
      assert.equal(headers.get('x-mature'), new Date(node.clock.now()).toISOString());
    });

    it('redelivers an element after x-delta-t; 0 means at once', async () => {
      await node.insert('a', 'x');
      const [id = ''] = await take('/q/N/a', 1);
      await client.ask('NACK', { id, 'x-delta-t': 0 });
      const again = await client.expect('MESSAGE');
      await client.ask('NACK', { id: again.headers.get('ack') ?? '', 'x-delta-t': 100 });
      assert.equal((await node.sizes('a')).scheduled, 1);
      await node.pass(100, 'a');
      assert.equal((await client.expect('MESSAGE')).headers.get('x-tries'), '2');
    });

    it('redelivers an element at x-next-t; a moment in the past means at once', async () => {
      await node.insert('a', 'x');
      const [id = ''] = await take('/q/N/a', 1);
      await client.ask('NACK', { id, 'x-next-t': node.clock.now() + 60_000, 'x-delta-t': 0 });
      const { next_mature_t } = await node.broker.namespace('N').visit('a').status(null);
      assert.equal(next_mature_t, new Date(node.clock.now() + 60_000).toISOString());
      await node.pass(60_000, 'a');
      const again = await client.expect('MESSAGE');
      await client.ask('NACK', { id: again.headers.get('ack') ?? '', 'x-next-t': 1 });
      await client.expect('MESSAGE');
    });

    it('redelivers an element at x-next-t by the wall clock, even if that was set back', async () => {
      await node.insert('a', 'x');
      const [id = ''] = await take('/q/N/a', 1);
      node.clock.setWallTime(node.clock.now() - 3_600_000);
      await client.ask('NACK', { id, 'x-next-t': node.clock.now() + 60_000 });
      await node.pass(59_000, 'a');
      assert.equal((await node.sizes('a')).scheduled, 1);
      await node.pass(2_000, 'a');
      await client.expect('MESSAGE');
    });

    it('is rejected if its delay is invalid, and the element is returned nevertheless', async () => {
      for (const headers of [{ 'x-delta-t': '-1' }, { 'x-delta-t': 'soon' }, { 'x-next-t': '1.5' }]) {
        client = await node.client();
        await node.insert('a', 'x');
        const [id = ''] = await take('/q/N/a', 1);
        client.send('NACK', { id, ...headers });
        await client.expectError('invalid-parameter');
        assert.deepEqual(await node.sizes('a'), { ready: 1, scheduled: 0, reserved: 0 });
        await node.pop('a');
      }
    });

    it('moves an element to the dead-letter queue after maxTries failed tries', async () => {
      await node.insertInto('D', 'a', 'x');
      const [id = ''] = await take('/q/D/a', 1);
      await client.ask('SUBSCRIBE', { destination: '/q/D/__deadletter__', id: 'dead' });
      await client.ask('NACK', { id, 'x-delta-t': 0 });
      const again = await client.expect('MESSAGE');
      await client.ask('NACK', { id: again.headers.get('ack') ?? '', 'x-delta-t': 0 });
      const { headers, body } = await client.expect('MESSAGE');
      assert.equal(headers.get('subscription'), 'dead');
      assert.equal(body.toString(), 'x');
      assert.equal(headers.get('x-ks-hdr-x-dl-from-queue'), 'a');
      assert.equal(headers.get('x-ks-hdr-x-dl-tries'), '2');
    });
  });

  describe('ACK', () => {
    it('of each of many messages in one write gets a receipt, after all of them took effect', async () => {
      await node.insert('a', ...Array.from({ length: 50 }, (_, i) => `${i}`));
      const acks = await take('/q/N/a', 50);
      client.write(
        Buffer.concat(acks.map((id, i) => client.frame('ACK', { id, receipt: `same ${i < 25}` }))),
      );
      client.send('DISCONNECT', { receipt: 'last' });
      const receipts: (string | undefined)[] = [];
      while (receipts.at(-1) !== 'last')
        receipts.push((await client.expect('RECEIPT')).headers.get('receipt-id'));
      assert.deepEqual(receipts, [...Array(25).fill('same true'), ...Array(25).fill('same false'), 'last']);
      assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('and NACK in one write each take effect', async () => {
      await node.insert('a', '0', '1', '2', '3');
      const acks = await take('/q/N/a', 4);
      client.write(
        Buffer.concat(
          acks.map((id, i) =>
            client.frame(i % 2 === 0 ? 'ACK' : 'NACK', { id, 'x-delta-t': 1000, receipt: i }),
          ),
        ),
      );
      for (let i = 0; i < 4; i++) await client.receipt(`${i}`);
      assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 2, reserved: 0 });
    });

    it('of thousands of messages takes several engine calls; the ERROR of one is sent after the earlier ones took effect', async () => {
      const count = 2500;
      await node.insert('a', ...Array.from({ length: count }, () => 'x'));
      client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client', 'x-wsize': count });
      const timer = setInterval(() => node.clock.advance(5), 1);
      let id = '';
      for (let i = 0; i < count; i++) id = (await client.expect('MESSAGE')).headers.get('ack') ?? '';
      clearInterval(timer);
      const { storage } = node.engine.engine;
      const { settle } = storage;
      const calls: number[] = [];
      storage.settle = (items, time) => {
        calls.push(items.length);
        if (calls.length === 3)
          return Promise.reject(new QuaysideError('storage-unavailable', 'It is gone.'));
        return settle.call(storage, items, time);
      };
      client.send('ACK', { id, receipt: 'all' });
      const { headers } = await client.expectError('storage-unavailable');
      storage.settle = settle;
      assert.equal(headers.get('receipt-id'), 'all');
      // The end of the session may have returned the rest already, which is one more call.
      assert.deepEqual(calls.slice(0, 3), [1000, 1000, 500]);
      await until(async () => (await node.sizes('a')).ready === 500);
      assert.deepEqual(await node.sizes('a'), { ready: 500, scheduled: 0, reserved: 0 });
    });

    it('that is rejected among others gets its ERROR after the others took effect and got their receipts', async () => {
      await node.insert('a', '0', '1', '2');
      const acks = await take('/q/N/a', 3, { 'x-lease': '1000', 'x-wsize': '3' });
      node.clock.advance(1001);
      const stolen = [await node.reserve('a')];
      assert.equal(stolen[0]?.tries, 1);
      client.write(Buffer.concat(acks.map((id, i) => client.frame('ACK', { id, receipt: i }))));
      const seen: string[] = [];
      for (let frame = await client.nextOrEnd(); frame !== null; frame = await client.nextOrEnd()) {
        seen.push(`${frame.command} ${frame.headers.get('receipt-id')}`);
      }
      assert.deepEqual(seen, ['RECEIPT 1', 'RECEIPT 2', 'ERROR 0']);
      assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 1 });
    });

    for (const [command, headers] of [
      ['UNSUBSCRIBE', { id: 's' }],
      ['DISCONNECT', {}],
    ] as const) {
      it(`followed by ${command} in the same write takes no further elements for the client`, async () => {
        await node.insert('a', '0', '1', '2', '3');
        const acks = await take('/q/N/a', 2, { 'x-wsize': '2' });
        const { storage } = node.engine.engine;
        const { take: takeOf } = storage;
        let takes = 0;
        storage.take = (...given) => {
          takes += 1;
          return takeOf.apply(storage, given);
        };
        const frames = acks.map((id) => client.frame('ACK', { id }));
        client.write(Buffer.concat([...frames, client.frame(command, { ...headers, receipt: 'r' })]));
        await client.receipt('r');
        assert.equal(takes, 0);
        assert.deepEqual(await node.sizes('a'), { ready: 2, scheduled: 0, reserved: 0 });
      });
    }

    it('must name a message by its complete ack header', async () => {
      await node.insert('a', ...Array.from({ length: 37 }, (_, i) => `${i}`));
      const acks = await take('/q/N/a', 37);
      assert.equal(acks.at(-1), '1-11');
      client.send('ACK', { id: '11' });
      await client.expectError('element-not-found');
    });

    it('settles nothing that another session holds, even one of the same user', async () => {
      await node.insert('a', 'x');
      const [id = ''] = await take('/q/N/a', 1);
      for (const command of ['ACK', 'NACK']) {
        const other = await node.client();
        other.send(command, { id });
        await other.expectError('element-not-found');
        assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 1 });
      }
      await client.ask('ACK', { id });
      assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('of an element that was purged in between is rejected', async () => {
      await node.insert('a', 'x');
      const [id = ''] = await take('/q/N/a', 1);
      await purge(node.engine.engine.storage, { ns: 'N', name: 'a' });
      client.send('ACK', { id, receipt: 'r' });
      const error = await client.expectError('element-not-found');
      assert.equal(error.headers.get('receipt-id'), 'r');
      assert.match(error.body.toString(), /^There is no element \S+ in "a"\.$/);
    });

    it('of an element whose reservation was released in between is rejected with lease-lost', async () => {
      await node.insert('a', 'x');
      const [id = ''] = await take('/q/N/a', 1, { 'x-wsize': '1' });
      const { storage } = node.engine.engine;
      const queue = { ns: 'N', name: 'a' };
      const options = { group: '', states: DELIVERY_STATES, after: null, limit: 1, bodies: false };
      const [held] = (await storage.scan(queue, options)).deliveries;
      const item = {
        queue,
        id: held?.id ?? '',
        group: '',
        from: 'reserved',
        token: null,
        action: RELEASE,
      } as const;
      assert.equal((await storage.settle([item]))[0]?.outcome, 'done');
      client.send('ACK', { id });
      await client.expectError('lease-lost');
    });
  });

  describe('consumer groups', () => {
    it('of SEND are the groups that receive the element', async () => {
      await client.ask('SEND', { destination: '/q/S/a', 'x-ks-groups': ' G1 , G2,G1' }, 'both');
      await client.ask('SEND', { destination: '/q/S/a', 'x-ks-groups': 'G2' }, 'second');
      await client.ask('SEND', { destination: '/q/S/a' }, 'default');
      assert.equal(await bodies('G1'), 'both,default');
      assert.equal(await bodies('G2'), 'both,second,default');
    });

    it('of SUBSCRIBE select the group to consume as, by default the first of the namespace', async () => {
      await client.ask('SEND', { destination: '/q/S/a', 'x-ks-groups': 'G1' }, 'first');
      await client.ask('SEND', { destination: '/q/S/a', 'x-ks-groups': 'ünï' }, 'second');
      await client.ask('SUBSCRIBE', { destination: '/q/S/a', id: '1' });
      await client.ask('SUBSCRIBE', { destination: '/q/S/a', id: '2', 'x-ks-group': 'ünï' });
      const got = [await client.expect('MESSAGE'), await client.expect('MESSAGE')];
      assert.deepEqual(
        got.map(({ headers, body }) => [
          headers.get('x-ks-group'),
          headers.get('subscription'),
          body.toString(),
        ]),
        [
          ['G1', '1', 'first'],
          ['ünï', '2', 'second'],
        ],
      );
    });

    it('of ACK and NACK must be that of the reservation, or left out', async () => {
      for (const command of ['ACK', 'NACK']) {
        await node.insertInto('S', command, '1', '2', '3');
        const other = await node.client();
        await other.ask('SUBSCRIBE', {
          destination: `/q/S/${command}`,
          id: 's',
          ack: 'client-individual',
          'x-ks-group': 'G2',
        });
        const ids: string[] = [];
        while (ids.length < 3) ids.push((await other.expect('MESSAGE')).headers.get('ack') ?? '');
        await other.ask(command, { id: ids[0] ?? '', 'x-ks-group': 'G2', ...longDelay(command) });
        await other.ask(command, { id: ids[1] ?? '', ...longDelay(command) });
        other.send(command, { id: ids[2] ?? '', 'x-ks-group': 'G1' });
        await other.expectError('element-not-found');
        const { groups } = await node.broker.namespace('S').visit(command).status(null);
        assert.equal(groups?.G2?.size, 1);
        assert.equal(groups?.G1?.size, 3);
      }
    });

    it('are trimmed in ACK as in SUBSCRIBE', async () => {
      await node.insertInto('S', 'a', 'x');
      const group = { 'x-ks-group': ' G2 ' };
      await client.ask('SUBSCRIBE', { destination: '/q/S/a', id: 's', ack: 'client', ...group });
      const { headers } = await client.expect('MESSAGE');
      await client.ask('ACK', { id: headers.get('ack') ?? '', ...group });
    });

    it('are rejected on a plain queue, and if their names are invalid', async () => {
      await node.insert('a', 'x');
      for (const [command, headers, code] of [
        ['SEND', { destination: '/q/N/a', 'x-ks-groups': 'G1' }, 'invalid-parameter'],
        ['SUBSCRIBE', { destination: '/q/N/a', id: 's', 'x-ks-group': 'G1' }, 'invalid-parameter'],
        ['SEND', { destination: '/q/S/a', 'x-ks-groups': 'a,,b' }, 'invalid-parameter'],
        ['SEND', { destination: '/q/S/a', 'x-ks-groups': '' }, 'invalid-parameter'],
        ['SEND', { destination: '/q/S/a', 'x-ks-groups': 'x'.repeat(65) }, 'invalid-parameter'],
      ] as const) {
        const other = await node.client();
        other.send(command, headers);
        await other.expectError(code);
      }
      const [id = ''] = await take('/q/N/a', 1);
      client.send('ACK', { id, 'x-ks-group': 'G1' });
      await client.expectError('element-not-found');
    });

    const bodies = async (group: string): Promise<string> => {
      const popped: string[] = [];
      for (
        let next = await node.pop('a', 'S', group);
        next !== null;
        next = await node.pop('a', 'S', group)
      ) {
        popped.push(Buffer.from(next.body).toString());
      }
      return popped.join();
    };

    const longDelay = (command: string): Record<string, string> =>
      command === 'NACK' ? { 'x-delta-t': '60000' } : {};
  });
});
