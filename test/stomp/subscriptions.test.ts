import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { QuaysideError } from '../../src/model/errors.ts';
import { until } from '../support/until.ts';
import type { StompClient } from './client.ts';
import { StompNode } from './node.ts';

describe('a subscription', () => {
  let node: StompNode;
  let client: StompClient;

  beforeEach(async () => {
    node = await StompNode.start();
    client = await node.client();
  });
  afterEach(() => node.stop());

  const numbers = (count: number, from = 0): string[] =>
    Array.from({ length: count }, (_, i) => `${from + i}`);

  /** The bodies and `ack` headers of the next `count` messages. */
  const messages = async (count: number, from = client): Promise<{ body: string; ack: string }[]> => {
    const got: { body: string; ack: string }[] = [];
    while (got.length < count) {
      const { body, headers } = await from.expect('MESSAGE');
      got.push({ body: body.toString(), ack: headers.get('ack') ?? '' });
    }
    return got;
  };

  it('receives the existing elements in queue order, then new ones', async () => {
    await node.insert('a', ...numbers(300));
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's' });
    assert.deepEqual(
      (await messages(300)).map(({ body }) => body),
      numbers(300),
    );
    await node.insert('a', 'x');
    assert.equal((await messages(1))[0]?.body, 'x');
    await node.insert('a', 'y', 'z');
    assert.deepEqual(
      (await messages(2)).map(({ body }) => body),
      ['y', 'z'],
    );
  });

  it('never holds more elements than its window', async () => {
    for (const header of ['x-wsize', 'prefetch-count']) {
      await node.insert(header, ...numbers(20));
      await client.ask('SUBSCRIBE', {
        destination: `/q/N/${header}`,
        id: header,
        ack: 'client-individual',
        [header]: 4,
      });
      const first = await messages(4);
      assert.deepEqual(await node.sizes(header), { ready: 16, scheduled: 0, reserved: 4 });
      for (const { ack } of first) client.send('ACK', { id: ack });
      assert.equal((await messages(4))[3]?.body, '7');
      assert.deepEqual(await node.sizes(header), { ready: 12, scheduled: 0, reserved: 4 });
      await client.ask('UNSUBSCRIBE', { id: header });
    }
  });

  it('with a window of one receives the next element after it has acknowledged the previous one', async () => {
    await node.insert('a', ...numbers(3));
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client', 'x-wsize': 1 });
    for (let i = 0; i < 3; i++) {
      const [message] = await messages(1);
      assert.equal(message?.body, `${i}`);
      assert.equal((await node.sizes('a')).reserved, 1);
      await client.ask('ACK', { id: message?.ack ?? '' });
    }
  });

  it('refills a large window at once when half of it is free, and otherwise after 5 ms', async () => {
    await node.insert('a', ...numbers(300));
    const headers = { destination: '/q/N/a', id: 's', ack: 'client-individual', 'x-wsize': 100 };
    await client.ask('SUBSCRIBE', headers);
    const { counts } = node.server;
    // How many elements one take returns depends on the bodies before it.
    while (counts.unacknowledged < 100) {
      node.clock.advance(5);
      await turn();
    }
    const held = await messages(100);
    const ack = (count: number): void => {
      client.write(Buffer.concat(held.splice(0, count).map((one) => client.frame('ACK', { id: one.ack }))));
    };
    ack(49);
    await until(() => counts.unacknowledged === 51);
    assert.deepEqual(node.queue('a').consumers(), []);
    ack(1);
    held.push(...(await messages(50)));
    ack(1);
    await until(() => counts.unacknowledged === 99);
    assert.equal(node.queue('a').consumers().length, 0);
    node.clock.advance(5);
    held.push(...(await messages(1)));
    assert.equal((await node.sizes('a')).reserved, 100);
    ack(100);
    assert.equal((await messages(50)).length, 50);
  });

  it('prefers x-wsize to prefetch-count, and rejects invalid windows', async () => {
    await node.insert('a', ...numbers(10));
    await client.ask('SUBSCRIBE', {
      destination: '/q/N/a',
      id: 's',
      ack: 'client',
      'x-wsize': 2,
      'prefetch-count': 9,
    });
    await messages(2);
    assert.equal((await node.sizes('a')).reserved, 2);
    for (const headers of [
      { 'x-wsize': '0' },
      { 'x-wsize': '65537' },
      { 'prefetch-count': 'many' },
      { 'x-parallel': '0' },
    ]) {
      const other = await node.client();
      other.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', ...headers });
      await other.expectError('invalid-parameter');
    }
    await client.ask('SUBSCRIBE', { destination: '/q/N/b', id: 'p', 'x-parallel': 4 });
  });

  it('is listed among the consumers while it waits, and not while its window is full', async () => {
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client', 'x-wsize': 1 });
    const [waiting, ...others] = node.queue('a').consumers();
    assert.ok(waiting !== undefined && others.length === 0);
    assert.deepEqual(
      [waiting.callback, waiting.cleanup_timeout, waiting.wakeup_timeout],
      ['set', 'unset', 'unset'],
    );
    await node.insert('a', 'x');
    const [message] = await messages(1);
    assert.deepEqual(node.queue('a').consumers(), []);
    await client.ask('ACK', { id: message?.ack ?? '' });
    assert.equal(node.queue('a').consumers()[0]?.tid, waiting.tid);
  });

  it('that is cancelled ends its session with an ERROR that names it', async () => {
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 'my own' });
    const tid = node.queue('a').consumers()[0]?.tid ?? '';
    assert.equal(node.queue('a').cancel(tid, 'somebody else'), 0);
    assert.equal(node.queue('a').cancel(tid, 'test'), 1);
    const { headers, body } = await client.expectError('pop-cancelled');
    assert.equal(headers.get('subscription'), 'my own');
    assert.equal(
      body.toString(),
      'This consumer was cancelled by its tid, or because its queue was deleted.',
    );
  });

  it('waits while the queue is paused, and continues when it is resumed', async () => {
    await node.queue('a').pause();
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's' });
    await node.insert('a', 'x');
    assert.equal((await node.sizes('a')).ready, 1);
    await node.queue('a').resume();
    assert.equal((await messages(1))[0]?.body, 'x');
  });

  it('shares a queue with others, and each element is delivered to one of them', async () => {
    const other = await node.client();
    for (const one of [client, other]) {
      await one.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client-individual', 'x-wsize': 8 });
    }
    await node.insert('a', ...numbers(16));
    const got = [...(await messages(8)), ...(await messages(8, other))].map(({ body }) => Number(body));
    assert.deepEqual(
      got.sort((a, b) => a - b),
      numbers(16).map(Number),
    );
  });

  it('may be one of several on a connection', async () => {
    for (const id of ['a', 'b', 'c']) await client.ask('SUBSCRIBE', { destination: `/q/N/${id}`, id });
    for (const id of ['c', 'a', 'b']) {
      await node.insert(id, id);
      const { headers, body } = await client.expect('MESSAGE');
      assert.equal(headers.get('subscription'), id);
      assert.equal(body.toString(), id);
    }
    assert.equal(node.server.counts.subscriptions, 3);
  });

  it('is rejected if its user has too many waiting consumers', async () => {
    // The broker of the tests allows a user 100 waiting calls.
    for (let i = 0; i <= 100; i++) client.send('SUBSCRIBE', { destination: `/q/N/q${i}`, id: i });
    await client.expectError('too-many-consumers');
  });

  it('is one of at most 256 in a session', async () => {
    // Browsers of empty queues do not count as waiting consumers.
    for (let i = 0; i < 256; i++) {
      await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: i, browser: 'true' });
      await client.expect('MESSAGE');
    }
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 'x', browser: 'true' });
    const { body } = await client.expectError('overloaded');
    assert.equal(body.toString(), 'This session has 256 subscriptions, the maximum.');
  });

  it('has an id of at most 1024 bytes, which the session keeps in memory', async () => {
    const destination = '/q/N/a';
    await client.ask('SUBSCRIBE', { destination, id: 'i'.repeat(1024), browser: 'true' });
    await client.expect('MESSAGE');
    client.send('SUBSCRIBE', { destination, id: 'i'.repeat(1025), browser: 'true' });
    const { headers, body } = await client.expectError('headers-too-large');
    assert.equal(headers.get('x-ks-parameter'), 'id');
    assert.equal(body.toString(), 'The id has 1025 bytes. Allowed: at most 1024.');
  });

  it('is rejected if the client could hold too many unacknowledged messages with those that it has', async () => {
    const headersOf = (id: string, ack: string) => ({
      id,
      destination: `/q/N/${id}`,
      ack,
      'x-wsize': 65_536,
    });
    for (const id of ['a', 'b', 'c', 'd']) await client.ask('SUBSCRIBE', headersOf(id, 'client'));
    await client.ask('UNSUBSCRIBE', { id: 'd' });
    await client.ask('SUBSCRIBE', headersOf('d', 'client-individual'));
    // Popped elements are not held.
    await client.ask('SUBSCRIBE', headersOf('e', 'auto'));
    client.send('SUBSCRIBE', headersOf('f', 'client'));
    const { headers, body } = await client.expectError('overloaded');
    assert.equal(headers.get('x-ks-retry'), 'false');
    assert.match(body.toString(), /could hold 327680 unacknowledged messages\. Allowed: 262144;/);
  });

  it('that could not wait because there were too many consumers waits again after a second', async () => {
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client', 'x-wsize': 1 });
    await node.insert('a', 'x', 'y');
    const [first] = await messages(1);
    const removals = Array.from({ length: 100 }, () => addConsumer(node, 'crowd'));
    await client.ask('ACK', { id: first?.ack ?? '' });
    assert.equal((await node.sizes('a')).ready, 1);
    for (const remove of removals) remove();
    node.clock.advance(1000);
    assert.equal((await messages(1))[0]?.body, 'y');
  });

  it('returns its unacknowledged messages at UNSUBSCRIBE before the receipt is sent', async () => {
    await node.insert('a', ...numbers(3));
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client-individual' });
    const [, second] = await messages(3);
    client.send('ACK', { id: second?.ack ?? '' });
    await client.ask('UNSUBSCRIBE', { id: 's' });
    assert.deepEqual(await node.sizes('a'), { ready: 2, scheduled: 0, reserved: 0 });
    assert.equal((await node.pop('a'))?.tries, 1);
    client.send('ACK', { id: second?.ack ?? '' });
    await client.expectError('element-not-found');
  });

  it('gets the receipt of UNSUBSCRIBE before the last frame of the session, RECEIPT or ERROR', async () => {
    for (const held of [0, 2]) {
      for (const [command, last] of [
        ['DISCONNECT', 'RECEIPT'],
        ['NONSENSE', 'ERROR'],
      ] as const) {
        const one = await node.client();
        await node.insert('a', ...numbers(held));
        await one.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
        await messages(held, one);
        const unsubscribe = one.frame('UNSUBSCRIBE', { id: 's', receipt: 'unsubscribed' });
        one.write(Buffer.concat([unsubscribe, one.frame(command, { receipt: 'last' })]));
        assert.equal((await one.expect('RECEIPT')).headers.get('receipt-id'), 'unsubscribed');
        assert.equal((await one.expect(last)).headers.get('receipt-id'), 'last');
        assert.equal(await one.nextOrEnd(), null);
        while (held > 0 && (await node.pop('a')) !== null);
      }
    }
  });

  it('gets no receipt of an UNSUBSCRIBE whose elements could not be returned', async () => {
    const { storage } = node.engine.engine;
    const { settle } = storage;
    for (const receipt of [null, 'unsubscribed']) {
      await node.insert('a', 'x');
      const one = await node.client();
      await one.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
      await messages(1, one);
      storage.settle = () => Promise.reject(new QuaysideError('storage-unavailable', 'It is gone.'));
      one.send('UNSUBSCRIBE', { id: 's', receipt });
      if (receipt === null) {
        // Without a receipt the failure is not reported, and the session continues.
        await one.ask('BEGIN', { transaction: 't' });
        one.socket.destroy();
      } else {
        const { headers } = await one.expectError('storage-unavailable');
        assert.equal(headers.get('receipt-id'), receipt);
      }
      storage.settle = settle;
    }
  });

  it('is counted in the metrics', async () => {
    await node.insert('a', ...numbers(3));
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client', 'x-wsize': 5 });
    const [first] = await messages(3);
    const { sessions, subscriptions, unacknowledged, window, messages: sent } = node.server.counts;
    assert.deepEqual([sessions, subscriptions, unacknowledged, window, sent], [1, 1, 3, 5, 3]);
    await client.ask('ACK', { id: first?.ack ?? '' });
    assert.equal(node.server.counts.unacknowledged, 2);
  });

  it('is counted as a failed reserve if it is cancelled, but not if its session ends it', async () => {
    const { meter } = node.broker.namespace('N');
    const outcomes = () =>
      Object.fromEntries([...(meter.operations().get('reserve') ?? [])].filter(([, count]) => count > 0));
    await node.insert('a', 'x');
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
    const [message] = await messages(1);
    await client.ask('ACK', { id: message?.ack ?? '' });
    await client.ask('UNSUBSCRIBE', { id: 's' });
    const other = await node.client();
    await other.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
    await other.ask('DISCONNECT', {});
    await until(() => node.broker.waiting === 0);
    assert.deepEqual(outcomes(), { ok: 1 });
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
    const queue = node.broker.namespace('N').queue('a');
    queue.cancel(queue.consumers()[0]?.tid ?? '', null);
    assert.deepEqual(outcomes(), { ok: 1, 'pop-cancelled': 1 });
  });

  describe('has leases that', () => {
    it('are renewed as long as the session lives', async () => {
      await node.insert('a', 'x');
      await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
      const [message] = await messages(1);
      for (let i = 0; i < 20; i++) {
        node.clock.advance(30_000);
        await client.ask('BEGIN', { transaction: i });
        await client.ask('ABORT', { transaction: i });
        assert.equal((await node.sizes('a')).reserved, 1);
      }
      await client.ask('ACK', { id: message?.ack ?? '' });
      assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('expire after x-lease if it was given: that counts a failed try, and a late ACK is rejected', async () => {
      await node.insert('a', 'x');
      await client.ask('SUBSCRIBE', {
        destination: '/q/N/a',
        id: 's',
        ack: 'client',
        'x-lease': 5000,
        'x-wsize': 1,
      });
      const [message] = await messages(1);
      node.clock.advance(5001);
      await turn();
      const taken = await node.reserve('a');
      assert.equal(taken?.tries, 1);
      client.send('ACK', { id: message?.ack ?? '', receipt: 'r' });
      assert.equal((await client.expectError('lease-lost')).headers.get('receipt-id'), 'r');
    });

    it('accept a late ACK as long as the element was not taken again', async () => {
      await node.insert('a', 'x');
      await client.ask('SUBSCRIBE', {
        destination: '/q/N/a',
        id: 's',
        ack: 'client',
        'x-lease': 5000,
        'x-wsize': 1,
      });
      const [message] = await messages(1);
      node.clock.advance(5001);
      await turn();
      await client.ask('ACK', { id: message?.ack ?? '' });
      assert.equal(await node.pop('a'), null);
    });

    it('redeliver an element to the same subscription when they expire, with another ack header', async () => {
      await node.insert('a', 'x');
      await client.ask('SUBSCRIBE', {
        destination: '/q/N/a',
        id: 's',
        ack: 'client-individual',
        'x-lease': 5000,
      });
      const [first] = await messages(1);
      node.clock.advance(5001);
      const [second] = await messages(1);
      assert.notEqual(first?.ack, second?.ack);
      await client.ask('ACK', { id: second?.ack ?? '' });
      assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('are not settled by a cumulative ACK if they expired and their elements were redelivered', async () => {
      await node.insert('a', 'x', 'y');
      await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client', 'x-lease': 5000 });
      const first = await messages(2);
      node.clock.advance(5001);
      const second = await messages(2);
      assert.deepEqual(
        second.map(({ body }) => body),
        first.map(({ body }) => body),
      );
      assert.equal(node.server.counts.unacknowledged, 2);
      await client.ask('ACK', { id: second[1]?.ack ?? '' });
      assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('are rejected if they are invalid or ack is auto', async () => {
      for (const [headers, code] of [
        [{ 'x-lease': '0', ack: 'client' }, 'invalid-parameter'],
        [{ 'x-lease': 'long', ack: 'client' }, 'invalid-parameter'],
        [{ 'x-lease': '1000' }, 'invalid-parameter'],
      ] as const) {
        const other = await node.client();
        other.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', ...headers });
        await other.expectError(code);
      }
    });
  });
});

/** Adds a waiting consumer of the same user; returns a function that removes it. */
function addConsumer(node: StompNode, name: string): () => void {
  const queue = node.queue(name);
  const consumer = queue.get(
    { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: 'test' },
    { deliver: () => {}, end: () => {} },
  );
  return () => queue.leave(consumer);
}
