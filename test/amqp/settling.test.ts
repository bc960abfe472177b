import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { LIMITS } from '../../src/model/limits.ts';
import { until } from '../support/until.ts';
import type { AmqpClient, Got, TestReceiver } from './client.ts';
import { textOf } from './client.ts';
import { AmqpNode } from './node.ts';
import { conditionOf, KIND, type RawClient } from './raw-client.ts';
import { attachReceiver, begin, credit, disposition } from './wire.ts';

describe('an outcome of a receiving client', () => {
  let node: AmqpNode;
  let client: AmqpClient;

  beforeEach(async () => {
    node = await AmqpNode.start();
    client = await node.client();
  });
  afterEach(() => node.stop());

  const held = async (ns = 'N', fields: object = {}): Promise<{ got: Got; receiver: TestReceiver }> => {
    await node.insertInto(ns, 'a', 'x');
    const receiver = await client.receiver(`${ns}/a`, fields, 1);
    return { got: await receiver.next(), receiver };
  };
  const settled = (): Promise<void> => until(() => node.server.counts.unacknowledged === 0);
  /** Waits until all outcomes are processed, then checks the sizes. */
  const sizesAre = async (expected: object, name = 'a', ns = 'N'): Promise<void> => {
    await settled();
    await until(async () => (await node.sizes(name, ns)).reserved === 0);
    assert.deepEqual(await node.sizes(name, ns), expected);
  };

  it('accepted commits the element', async () => {
    const { got } = await held();
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 1 });
    got.delivery.accept();
    await sizesAre({ ready: 0, scheduled: 0, reserved: 0 });
  });

  it('settles only what its own session was sent, although all sessions and connections use the same delivery ids', async () => {
    const { got } = await held();
    const deliveryOf = async (channel: number, queue: string): Promise<RawClient> => {
      const raw = await node.rawClient(
        begin(channel),
        attachReceiver({ address: `N/${queue}`, channel }),
        credit(0, 1, channel),
      );
      return raw;
    };
    await node.insert('b', 'y');
    const other = await deliveryOf(0, 'b');
    await other.until(KIND.transfer);
    const empty = await deliveryOf(1, 'none');
    await empty.until(KIND.attach);
    // One connection has a delivery with the same id, the other has none.
    other.write(disposition(0, 0));
    await until(async () => (await node.sizes('b')).reserved === 0);
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 1 });
    const frames = disposition(0, 0);
    frames.writeUInt16BE(1, 6);
    empty.write(frames);
    assert.equal(conditionOf(await empty.until(KIND.close)), 'amqp:invalid-field');
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 1 });
    got.delivery.accept();
    await sizesAre({ ready: 0, scheduled: 0, reserved: 0 });
  });

  it('rejected is a failed try with the growing retry delay: 3, 9, 21 s', async () => {
    await node.insert('a', 'x');
    const receiver = await client.receiver('N/a');
    for (const [tries, seconds] of [3, 9, 21].entries()) {
      const { delivery, message } = await receiver.take();
      assert.equal(message.delivery_count ?? 0, tries);
      delivery.reject();
      await sizesAre({ ready: 0, scheduled: 1, reserved: 0 });
      node.clock.advance(seconds * 1000 - 1);
      assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 1, reserved: 0 });
      node.clock.advance(1);
      assert.deepEqual(await node.sizes('a'), { ready: 1, scheduled: 0, reserved: 0 });
    }
  });

  it('rejected with a long reason passes a truncated reason to the engine', async () => {
    const { storage } = node.engine.engine;
    const { settle } = storage;
    const reasons: (string | null | undefined)[] = [];
    storage.settle = (items) => {
      for (const { action } of items) if (action.kind === 'release') reasons.push(action.reason);
      return settle.call(storage, items);
    };
    const { got } = await held();
    got.delivery.reject({ condition: 'a:b', description: 'x'.repeat(100_000) });
    await settled();
    assert.deepEqual(reasons, [`a:b: ${'x'.repeat(LIMITS.reasonBytes - 5)}`]);
  });

  it('missing when the node stops counts no try: the broker drains before connections end', async () => {
    await node.insert('a', 'x', 'y');
    const receiver = await client.receiver('N/a', {}, 10);
    await receiver.next();
    await receiver.next();
    await until(() => node.queue('a').consumers().length === 1);
    node.broker.drain();
    await settled();
    await node.server.stop();
    const request = { group: '', count: 5, leaseMs: null, owner: null };
    const { deliveries } = await node.engine.engine.storage.take({ ns: 'N', name: 'a' }, request);
    assert.deepEqual(
      deliveries.map(({ tries }) => tries),
      [0, 0],
    );
  });

  it('released returns the element immediately and counts no try', async () => {
    const { got, receiver } = await held();
    got.delivery.release();
    const { message, delivery } = await receiver.take();
    assert.equal(message.delivery_count ?? 0, 0);
    delivery.accept();
    await sizesAre({ ready: 0, scheduled: 0, reserved: 0 });
  });

  it('modified returns the element immediately, and is a failed try with delivery-failed', async () => {
    const { got, receiver } = await held();
    got.delivery.modified({ delivery_failed: false });
    const again = await receiver.take();
    assert.equal(again.message.delivery_count ?? 0, 0);
    again.delivery.modified({ delivery_failed: true });
    const third = await receiver.take();
    assert.equal(third.message.delivery_count, 1);
    third.delivery.accept();
    await settled();
  });

  for (const [what, fail] of [
    ['modified with delivery-failed', ({ delivery }) => delivery.modified({ delivery_failed: true })],
    ['missing when the client settles', ({ delivery }) => delivery.update(true)],
    ['missing when the connection is lost', () => client.cut()],
  ] as readonly (readonly [string, (got: Got) => void])[]) {
    it(`${what} delays the element by the retry delay of its queue`, async () => {
      await node
        .queue('a')
        .storeOptions({ retryDelay: { firstMs: 7000, factor: 2, maxMs: 60_000, jitter: 0 } });
      const { got } = await held();
      fail(got);
      await sizesAre({ ready: 0, scheduled: 1, reserved: 0 });
      node.clock.advance(7000);
      assert.equal((await node.pop('a'))?.tries, 1);
    });
  }

  it('modified with undeliverable-here moves the element to the dead-letter queue', async () => {
    const [id] = await node.insertInto('D', 'a', {
      body: Buffer.from('hopeless'),
      headers: ['colour', 'blue'],
    });
    const receiver = await client.receiver('D/a', {}, 1);
    const { delivery } = await receiver.next();
    delivery.modified({ delivery_failed: true, undeliverable_here: true });
    await sizesAre({ ready: 0, scheduled: 0, reserved: 0 }, 'a', 'D');
    const deadLetter = await node.pop('__deadletter__', 'D');
    assert.equal(Buffer.from(deadLetter?.body ?? []).toString(), 'hopeless');
    const [colour, blue, from, queue, at, , tries, count, origin, first] = deadLetter?.headers ?? [];
    assert.deepEqual([origin, first], ['x-ks-origin-id', id]);
    assert.deepEqual([colour, blue, from, queue, at], ['colour', 'blue', 'x-dl-from-queue', 'a', 'x-dl-at']);
    assert.deepEqual([tries, count], ['x-dl-tries', '1']);
    assert.equal(deadLetter?.tries, 0);
  });

  it('modified with undeliverable-here delays the element if there is no dead-letter queue', async () => {
    const { got } = await held();
    got.delivery.modified({ undeliverable_here: true });
    await sizesAre({ ready: 0, scheduled: 1, reserved: 0 });
    node.clock.advance(3000);
    assert.equal((await node.pop('a'))?.tries, 0);
  });

  it('modified with undeliverable-here delays an element of the dead-letter queue itself', async () => {
    await node.insertInto('D', '__deadletter__', 'x');
    const receiver = await client.receiver('D/__deadletter__', {}, 10);
    (await receiver.next()).delivery.modified({ delivery_failed: true, undeliverable_here: true });
    await sizesAre({ ready: 0, scheduled: 1, reserved: 0 }, '__deadletter__', 'D');
    node.clock.advance(3000);
    assert.equal((await receiver.next()).message.delivery_count, 1);
  });

  it('rejected too often moves the element to the dead-letter queue', async () => {
    await node.insertInto('D', 'a', { body: Buffer.from('x'), tries: 1 });
    const receiver = await client.receiver('D/a', {}, 1);
    (await receiver.next()).delivery.reject();
    await sizesAre({ ready: 0, scheduled: 0, reserved: 0 }, 'a', 'D');
    assert.equal(Buffer.from((await node.pop('__deadletter__', 'D'))?.body ?? []).toString(), 'x');
  });

  it('missing when the client settles is a failed try', async () => {
    const { got, receiver } = await held();
    got.delivery.update(true);
    const { message } = await receiver.take();
    assert.equal(message.delivery_count, 1);
  });

  it('without settlement is settled by the server once the engine has applied it', async () => {
    const { got } = await held('N', { rcv_settle_mode: 1, autosettle: false });
    assert.equal(got.delivery.link.rcv_settle_mode, 1);
    const answered = new Promise((resolve) => got.delivery.link.once('settled', resolve));
    got.delivery.accept();
    await answered;
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
  });

  it('without settlement is settled by the server before the close if the server stops during the settlement', async () => {
    const { got } = await held('N', { rcv_settle_mode: 1, autosettle: false });
    const { storage } = node.engine.engine;
    const settle = storage.settle.bind(storage);
    const called = Promise.withResolvers<void>();
    const resumed = Promise.withResolvers<void>();
    storage.settle = async (items) => {
      called.resolve();
      await resumed.promise;
      return settle(items);
    };
    const events: string[] = [];
    got.delivery.link.once('settled', () => events.push('settled'));
    got.delivery.accept();
    await called.promise;
    const stopped = node.server.stop();
    await until(() => node.server.counts.links === 0);
    resumed.resolve();
    await stopped;
    await until(() => client.connection.is_closed());
    assert.deepEqual(events, ['settled']);
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
  });

  it('may cover many deliveries in one disposition', async () => {
    await node.insert('a', ...Array.from({ length: 500 }, (_, i) => String(i)));
    const receiver = await client.receiver('N/a', {}, 500);
    const got: Got[] = [];
    for (let i = 0; i < 500; i++) got.push(await receiver.next());
    assert.deepEqual(
      got.map(textOf),
      Array.from({ length: 500 }, (_, i) => String(i)),
    );
    for (const { delivery } of got) delivery.accept();
    await sizesAre({ ready: 0, scheduled: 0, reserved: 0 });
  });

  it('sent after the lease expired detaches the link, because another consumer holds the element', async () => {
    await node.insert('a', 'x');
    const receiver = await client.receiver('N/a?lease=1000', {}, 1);
    const { delivery } = await receiver.next();
    node.clock.advance(1000);
    await until(() => node.broker.namespace('N').queue('a') !== undefined);
    let taken = await node.reserve('a');
    while (taken === null) taken = await node.reserve('a');
    assert.equal(taken.tries, 1);
    delivery.accept();
    const ended = await receiver.ended();
    assert.equal(ended?.condition, 'amqp:resource-locked');
    assert.equal(ended?.info.code, 'lease-lost');
    assert.equal((await node.sizes('a')).reserved, 1);
  });

  it('is not needed for a pre-settled delivery, which is a pop', async () => {
    const { got } = await held('N', { snd_settle_mode: 1 });
    assert.equal(got.delivery.remote_settled, true);
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
  });

  it('may take as long as the link lives, because leases are renewed', async () => {
    const { got } = await held();
    for (let i = 0; i < 20; i++) {
      node.clock.advance(40_000);
      await new Promise(setImmediate);
      await node.sizes('a');
    }
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 1 });
    got.delivery.accept();
    await sizesAre({ ready: 0, scheduled: 0, reserved: 0 });
  });
});
