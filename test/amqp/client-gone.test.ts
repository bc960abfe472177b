import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { type AmqpClient, socketOf, textOf } from './client.ts';
import { AmqpNode, stalled, until } from './node.ts';

describe('an AMQP client that goes away', () => {
  let node: AmqpNode;

  beforeEach(async () => {
    node = await AmqpNode.start();
  });
  afterEach(() => node.stop());

  const gone = (): Promise<void> => until(() => node.server.counts.sessions === 0);

  const ways: readonly (readonly [string, (client: AmqpClient) => void])[] = [
    ['resets its connection', ({ connection }) => socketOf(connection).resetAndDestroy()],
    ['closes its connection', (client) => client.cut()],
    ['closes its half of the connection', ({ connection }) => socketOf(connection).end()],
    ['sends close', ({ connection }) => connection.close()],
    ['sends what is no frame', ({ connection }) => socketOf(connection).write('nonsense')],
  ];

  for (const [what, leave] of ways) {
    it(`and ${what} while it waits: takes no element any more`, async () => {
      const client = await node.client();
      await client.receiver('N/a', {}, 1);
      await client.receiver('N/a', { snd_settle_mode: 1 }, 1);
      await until(() => node.queue('a').consumers().length === 2);
      leave(client);
      await gone();
      client.cut();
      assert.deepEqual(node.queue('a').consumers(), []);
      await node.insert('a', 'x');
      assert.equal((await node.sizes('a')).ready, 1);
    });

    it(`and ${what} with messages that it did not settle: they go back at once, a failed try more`, async () => {
      await node.insert('a', '0', '1', '2');
      const client = await node.client();
      const receiver = await client.receiver('N/a', {}, 3);
      const [, second] = [await receiver.next(), await receiver.next(), await receiver.next()];
      second?.delivery.accept();
      await until(() => node.server.counts.unacknowledged === 2);
      leave(client);
      await gone();
      client.cut();
      const left = [await node.pop('a'), await node.pop('a')];
      assert.deepEqual(
        left.map((delivery) => [Buffer.from(delivery?.body ?? []).toString(), delivery?.tries]),
        [
          ['0', 1],
          ['2', 1],
        ],
      );
      assert.equal(await node.pop('a'), null);
    });
  }

  it('leaves what the engine was asked for to be done', async () => {
    const client = await node.client();
    const sender = await client.sender('N/a');
    await sender.sendable();
    const { frames } = node.server.counts;
    for (let i = 0; i < 30; i++) sender.link.send({ body: 'x' });
    await until(() => node.server.counts.frames >= frames + 30);
    client.cut();
    await gone();
    await until(() => node.server.counts.links === 0);
    while ((await node.sizes('a')).ready < 30);
    assert.equal((await node.sizes('a')).ready, 30);
  });

  it('hands what it waited for to the next in the line', async () => {
    const first = await node.client();
    await first.receiver('N/a', {}, 1);
    await until(() => node.queue('a').consumers().length === 1);
    const second = await node.client();
    const receiver = await second.receiver('N/a', {}, 1);
    await until(() => node.queue('a').consumers().length === 2);
    first.cut();
    await until(() => node.server.counts.sessions === 1);
    await node.insert('a', 'x');
    assert.equal(textOf(await receiver.next()), 'x');
  });

  it('counts no try for what it cannot have seen', async () => {
    const count = 400;
    const body = Buffer.alloc(60_000, 1);
    await node.insert('a', ...Array.from({ length: count }, () => ({ body })));
    const client = await node.client();
    const receiver = await client.receiver('N/a');
    receiver.link.add_credit(count);
    await until(() => node.server.counts.unacknowledged > 0);
    socketOf(client.connection).pause();
    await stalled(node, 1);
    const handedOut = (await node.sizes('a')).reserved;
    assert.ok(handedOut < count, 'the way out bounds what is handed out');
    client.cut();
    await gone();
    const tries: number[] = [];
    for (let next = await node.pop('a'); next !== null; next = await node.pop('a')) tries.push(next.tries);
    assert.equal(tries.length, count);
    const seen = tries.filter((number) => number === 1).length;
    assert.ok(seen > 0 && seen < handedOut, `${seen} of ${handedOut} were counted`);
    assert.ok(tries.every((number) => number <= 1));
  });

  it('gets back into the queue, in its place, what was popped for it and not sent; nothing twice', async () => {
    const count = 600;
    const numbered = (i: number): Buffer => Buffer.from(`${i}`.padStart(30_000, '.'));
    await node.insert('a', ...Array.from({ length: count }, (_, i) => ({ body: numbered(i) })));
    const client = await node.client();
    const receiver = await client.receiver('N/a', { snd_settle_mode: 1 });
    const seen = new Set<number>();
    const numberOf = (text: string): number => Number(text.replace(/^\.*/, ''));
    receiver.link.add_credit(count);
    for (let i = 0; i < 20; i++) seen.add(numberOf(textOf(await receiver.next())));
    socketOf(client.connection).pause();
    await stalled(node, 1);
    for (const got of receiver.inbox) seen.add(numberOf(textOf(got)));
    const { ready } = await node.sizes('a');
    client.cut();
    await gone();
    const left: number[] = [];
    for (let next = await node.pop('a'); next !== null; next = await node.pop('a')) {
      assert.equal(next.tries, 0);
      left.push(numberOf(Buffer.from(next.body).toString()));
    }
    assert.ok(left.length > ready, 'what waited for the client went back');
    // What is left is the end of the queue, in order: what was lost was with the kernel, before it.
    assert.deepEqual(
      left,
      Array.from({ length: left.length }, (_, i) => count - left.length + i),
    );
    assert.ok(left.every((number) => !seen.has(number)));
  });

  it('without a word is noticed when it takes nothing for too long', async () => {
    await node.insert('a', ...Array.from({ length: 400 }, () => ({ body: Buffer.alloc(60_000, 1) })));
    const client = await node.client();
    const receiver = await client.receiver('N/a');
    receiver.link.add_credit(400);
    await until(() => node.server.counts.unacknowledged > 0);
    socketOf(client.connection).pause();
    await stalled(node, 1);
    node.clock.advance(89_999);
    assert.equal(node.server.counts.sessions, 1);
    node.clock.advance(1);
    await gone();
    assert.deepEqual(await node.sizes('a'), { ready: 400, scheduled: 0, reserved: 0 });
  });

  it('is one of many that go at once: nothing is lost', async () => {
    await node.insert('a', ...Array.from({ length: 1000 }, (_, i) => `${i}`));
    const clients = await Promise.all(Array.from({ length: 90 }, () => node.client()));
    await Promise.all(clients.map((client) => client.receiver('N/a', {}, 10)));
    await until(() => node.server.counts.unacknowledged === 900);
    for (const client of clients) client.cut();
    await gone();
    await until(() => node.server.counts.unacknowledged === 0);
    assert.deepEqual(await node.sizes('a'), { ready: 1000, scheduled: 0, reserved: 0 });
  });
});
