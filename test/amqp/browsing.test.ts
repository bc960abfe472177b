import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { holdScans } from '../support/held-takes.ts';
import { until } from '../support/until.ts';
import { type AmqpClient, type Ended, type Got, socketOf, type TestReceiver, textOf } from './client.ts';
import { AmqpNode, stalled } from './node.ts';
import { KIND } from './raw-client.ts';
import { attachReceiver, begin, credit, frame, NULL, uint } from './wire.ts';

describe('A link with the distribution mode copy', () => {
  let node: AmqpNode;
  let client: AmqpClient;

  beforeEach(async () => {
    node = await AmqpNode.start();
    client = await node.client();
  });
  afterEach(() => node.stop());

  const numbers = (count: number): string[] => Array.from({ length: count }, (_, i) => String(i));
  const browse = (address = 'N/a', fields: object = {}, as = client): Promise<TestReceiver> =>
    as.receiver({ address, distribution_mode: 'copy' }, fields);
  const texts = async (receiver: TestReceiver, count: number): Promise<string[]> => {
    const got: string[] = [];
    for (let i = 0; i < count; i++) got.push(textOf(await receiver.next()));
    return got;
  };

  it('confirms the mode in its source', async () => {
    const receiver = await browse();
    const { source } = receiver.link as unknown as { source: { distribution_mode: string } };
    assert.equal(source.distribution_mode, 'copy');
  });

  for (const snd_settle_mode of [0, 1, 2]) {
    it(`sends copies of the ready elements in order, unaffected by settling: snd-settle-mode ${snd_settle_mode}`, async () => {
      await node.insert('a', 'x', { body: Buffer.from('y'), tries: 3 }, 'z', 'u', 'v');
      await node.insert('a', { body: Buffer.from('later'), delayMs: 60_000 });
      const receiver = await browse('N/a', { snd_settle_mode });
      receiver.link.add_credit(10);
      const got: Got[] = [];
      for (let i = 0; i < 5; i++) got.push(await receiver.next());
      assert.deepEqual(got.map(textOf), ['x', 'y', 'z', 'u', 'v']);
      assert.deepEqual(
        got.map(({ message }) => message.delivery_count ?? 0),
        [0, 3, 0, 0, 0],
      );
      assert.deepEqual(
        got.map(({ delivery }) => delivery.remote_settled),
        Array(5).fill(snd_settle_mode === 1),
      );
      got[0]?.delivery.accept();
      got[1]?.delivery.reject();
      got[2]?.delivery.release();
      got[3]?.delivery.modified({ undeliverable_here: true, delivery_failed: true });
      got[4]?.delivery.update(true);
      await receiver.close();
      assert.deepEqual(await node.sizes('a'), { ready: 5, scheduled: 1, reserved: 0 });
      assert.deepEqual(await texts(await client.receiver('N/a', {}, 5), 5), ['x', 'y', 'z', 'u', 'v']);
    });
  }

  it('is not listed as a consumer and also reads a paused queue', async () => {
    await node.insert('a', 'x');
    await node.queue('a').pause();
    const receiver = await browse();
    receiver.link.add_credit(2);
    assert.equal(textOf(await receiver.next()), 'x');
    assert.deepEqual(node.queue('a').consumers(), []);
  });

  it('does not send reserved elements', async () => {
    await node.insert('a', 'held', 'free');
    await node.reserve('a');
    const receiver = await browse();
    receiver.link.add_credit(5);
    await receiver.drain();
    assert.deepEqual(receiver.inbox.map(textOf), ['free']);
  });

  it('stops when its credit is used up and continues with new credit', async () => {
    await node.insert('a', ...numbers(700));
    const receiver = await browse('N/a', { snd_settle_mode: 1 });
    receiver.link.add_credit(300);
    assert.deepEqual(await texts(receiver, 300), numbers(300));
    assert.equal(receiver.link.has_credit(), false);
    receiver.link.add_credit(1000);
    assert.deepEqual(await texts(receiver, 400), numbers(700).slice(300));
    assert.deepEqual(await node.sizes('a'), { ready: 700, scheduled: 0, reserved: 0 });
  });

  it('answers a drain at the end of the queue, stays attached, and sends newer elements after the next flow', async () => {
    await node.insert('a', 'x', 'y');
    const receiver = await browse();
    receiver.link.add_credit(10);
    await receiver.drain();
    assert.deepEqual(receiver.inbox.splice(0).map(textOf), ['x', 'y']);
    receiver.link.add_credit(10);
    await receiver.drain();
    assert.equal(receiver.inbox.length, 0);
    await node.insert('a', 'z');
    receiver.link.add_credit(1);
    assert.equal(textOf(await receiver.next()), 'z');
    assert.equal((await node.sizes('a')).ready, 3);
  });

  it('answers a drain only after sending elements that were inserted while a page was being read', async () => {
    const { storage } = node.engine.engine;
    const { scan } = storage;
    const isRead = Promise.withResolvers<void>();
    const held = Promise.withResolvers<void>();
    storage.scan = async (...given) => {
      const page = await scan.apply(storage, given);
      isRead.resolve();
      await held.promise;
      return page;
    };
    const receiver = await browse();
    receiver.link.add_credit(10);
    await isRead.promise;
    await node.insert('a', 'x');
    const { frames } = node.server.counts;
    const drained = receiver.drain();
    await until(() => node.server.counts.frames > frames);
    held.resolve();
    await drained;
    assert.deepEqual(receiver.inbox.map(textOf), ['x']);
  });

  it('does not answer a drain if the server stops before everything sent for it was written', async () => {
    await node.insert('filler', ...Array.from({ length: 400 }, () => ({ body: Buffer.alloc(60_000) })));
    await node.insert('a', 'x', 'y', 'z');
    // The first page has one element, because the sizes of elements are not known yet.
    const held = holdScans(node.engine.engine.storage, () => held.queues.length > 1);
    const { counts } = node.server;
    const receiver = await browse();
    const filler = await client.receiver('N/filler', { snd_settle_mode: 1 });
    let isDrained = false;
    receiver.link.once('receiver_drained', () => {
      isDrained = true;
    });
    receiver.link.add_credit(10);
    receiver.link.drain_credit();
    await until(() => held.queues.length === 2);
    socketOf(client.connection).pause();
    filler.link.add_credit(400);
    await stalled(node, 1);
    const before = counts.messages;
    held.release();
    await until(() => counts.messages === before + 2);
    void node.server.stop();
    await until(() => counts.links === 0);
    socketOf(client.connection).resume();
    await client.closed;
    assert.deepEqual([receiver.inbox.map(textOf), isDrained], [['x'], false]);
  });

  it('answers a drain when the credit is used up before the queue ends', async () => {
    await node.insert('a', ...numbers(10));
    const receiver = await browse();
    receiver.link.add_credit(4);
    await receiver.drain();
    assert.deepEqual(receiver.inbox.map(textOf), numbers(4));
  });

  it('sends at most as many deliveries as a session may leave unsettled, and more once they are settled', async () => {
    const count = 2100;
    await node.insert('a', ...numbers(count));
    const receiver = await browse();
    receiver.link.add_credit(count);
    const first: Got[] = [];
    for (let i = 0; i < 2048; i++) first.push(await receiver.next());
    assert.equal(receiver.inbox.length, 0);
    for (const { delivery } of first) delivery.accept();
    assert.deepEqual(await texts(receiver, count - 2048), numbers(count).slice(2048));
  });

  it('settles a delivery for which the client sent an outcome without settling', async () => {
    await node.insert('a', 'x');
    const raw = await node.rawClient(
      begin(),
      attachReceiver({ address: 'N/a', distributionMode: 'copy' }),
      credit(0, 1),
    );
    await raw.until(KIND.transfer);
    const accepted = Buffer.from([0, 0x53, 0x24, 0x45]);
    raw.write(frame('disposition', [Buffer.from([0x41]), uint(0), NULL, Buffer.from([0x42]), accepted]));
    await raw.until(KIND.disposition);
    assert.equal((await node.sizes('a')).ready, 1);
  });

  it('requires the right browse and omits bodies for a user who may not see them', async () => {
    await node.insert('a', { body: Buffer.from('"secret"'), headers: ['x-amqp-body', 'string'] });
    const textFor = async (user: string): Promise<string> => {
      const receiver = await browse('N/a', {}, await node.client(user));
      receiver.link.add_credit(1);
      return textOf(await receiver.next());
    };
    assert.equal(await textFor('browser'), '"secret"');
    assert.equal(await textFor('reader'), '"secret"');
    assert.equal(await textFor('masked'), '');
    const refused = async (attempt: Promise<unknown>): Promise<string> =>
      attempt.then(
        () => 'served',
        (error: Ended) => error.condition,
      );
    const [writer, browser] = [await node.client('writer'), await node.client('browser')];
    assert.equal(await refused(browse('N/a', {}, writer)), 'amqp:unauthorized-access');
    assert.equal(await refused(browser.receiver('N/a')), 'amqp:unauthorized-access');
  });

  it('sends only the elements of its group', async () => {
    await node.insertInto('S', 'a', { body: Buffer.from('one'), groups: ['G1'] });
    await node.insertInto('S', 'a', { body: Buffer.from('both'), groups: ['G1', 'G2'] });
    const receiver = await browse('S/a?group=G2');
    receiver.link.add_credit(5);
    await receiver.drain();
    assert.deepEqual(receiver.inbox.map(textOf), ['both']);
    await assert.rejects(browse('N/a?group=G2'), /invalid-field/);
  });

  it('stops reading the queue while its client does not read', async () => {
    await node.insert('a', ...Array.from({ length: 100 }, () => ({ body: Buffer.alloc(200_000) })));
    const receiver = await browse('N/a', { snd_settle_mode: 1 });
    socketOf(client.connection).pause();
    receiver.link.add_credit(100);
    await stalled(node, 1);
    assert.ok(node.server.counts.messages < 100);
    assert.ok(node.server.counts.outgoingBytes < 1_048_576);
    socketOf(client.connection).resume();
    for (let i = 0; i < 100; i++) await receiver.next();
  });

  it('is detached if an element exceeds the max-message-size of the client', async () => {
    await node.insert('a', { body: Buffer.alloc(5000) });
    const receiver = await browse('N/a', { max_message_size: 1000 });
    receiver.link.add_credit(1);
    assert.equal((await receiver.ended())?.condition, 'amqp:link:message-size-exceeded');
    assert.equal((await node.sizes('a')).ready, 1);
  });

  it('leaves no state behind if its client disconnects while browsing', async () => {
    await node.insert('a', ...numbers(500));
    const receiver = await browse();
    receiver.link.add_credit(500);
    await receiver.next();
    client.cut();
    await until(() => node.server.counts.links === 0 && node.server.counts.subscriptions === 0);
    assert.deepEqual(await node.sizes('a'), { ready: 500, scheduled: 0, reserved: 0 });
  });
});
