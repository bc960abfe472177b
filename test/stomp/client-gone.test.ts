import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { StompClient } from './client.ts';
import { StompNode, stalled, until } from './node.ts';

describe('a STOMP client that goes away', () => {
  let node: StompNode;

  beforeEach(async () => {
    node = await StompNode.start();
  });
  afterEach(() => node.stop());

  const gone = (): Promise<void> => until(() => node.server.counts.sessions === 0);

  const ways: readonly (readonly [string, (client: StompClient) => void])[] = [
    ['resets its connection', ({ socket }) => socket.resetAndDestroy()],
    ['closes its connection', ({ socket }) => socket.destroy()],
    ['closes its half of the connection', ({ socket }) => socket.end()],
    ['sends DISCONNECT', (client) => client.send('DISCONNECT')],
    ['sends what is no frame', (client) => client.write('nonsense')],
  ];

  for (const [what, leave] of ways) {
    it(`and ${what} while it waits: takes no element any more`, async () => {
      const client = await node.client();
      await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
      await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 't' });
      assert.equal(node.queue('a').consumers().length, 2);
      leave(client);
      await gone();
      assert.deepEqual(node.queue('a').consumers(), []);
      await node.insert('a', 'x');
      assert.equal((await node.sizes('a')).ready, 1);
    });

    it(`and ${what} with messages that it did not acknowledge: they go back at once, a failed try more`, async () => {
      await node.insert('a', '0', '1', '2');
      const client = await node.client();
      await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client-individual' });
      const second = [await client.expect('MESSAGE'), await client.expect('MESSAGE')][1];
      await client.expect('MESSAGE');
      await client.ask('ACK', { id: second?.headers.get('ack') ?? '' });
      leave(client);
      await gone();
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
    client.write(
      Buffer.concat(Array.from({ length: 30 }, () => client.frame('SEND', { destination: '/q/N/a' }, 'x'))),
    );
    await until(() => node.server.counts.frames >= 31);
    client.socket.resetAndDestroy();
    await gone();
    assert.equal((await node.sizes('a')).ready, 30);
  });

  it('hands what it waited for to the next in the line', async () => {
    const first = await node.client();
    await first.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's' });
    const second = await node.client();
    await second.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's' });
    first.socket.resetAndDestroy();
    await until(() => node.server.counts.sessions === 1);
    await node.insert('a', 'x');
    assert.equal((await second.expect('MESSAGE')).body.toString(), 'x');
  });

  it('counts no try for what it cannot have seen', async () => {
    const count = 400;
    const body = Buffer.alloc(60_000, 1);
    await node.insert('a', ...Array.from({ length: count }, () => ({ body })));
    const client = await node.client();
    client.socket.pause();
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client-individual', 'x-wsize': count });
    await stalled(node, 1);
    const handedOut = (await node.sizes('a')).reserved;
    assert.ok(handedOut < count, 'the way out bounds what is handed out');
    client.socket.resetAndDestroy();
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
    await node.insert(
      'a',
      ...Array.from({ length: count }, (_, i) => ({ body: Buffer.from(`${i}`.padStart(30_000, '.')) })),
    );
    const client = await node.client();
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's' });
    const numberOf = (body: Uint8Array): number =>
      Number(Buffer.from(body.subarray(-4)).toString().replace(/^\.*/, ''));
    const seen = new Set<number>();
    for (let i = 0; i < 20; i++) seen.add(numberOf((await client.expect('MESSAGE')).body));
    client.socket.pause();
    await stalled(node, 1);
    const { ready } = await node.sizes('a');
    const unsent = Math.floor(node.server.counts.outgoingBytes / 30_000);
    assert.ok(unsent > 0);
    client.socket.resetAndDestroy();
    await gone();
    const left: number[] = [];
    for (let next = await node.pop('a'); next !== null; next = await node.pop('a')) {
      assert.equal(next.tries, 0);
      left.push(numberOf(next.body));
    }
    assert.equal(left.length, ready + unsent);
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
    client.socket.pause();
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
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
    for (const client of clients) {
      client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client', 'x-wsize': 10 });
    }
    await until(() => node.server.counts.unacknowledged === 900);
    for (const { socket } of clients) socket.resetAndDestroy();
    await gone();
    await until(() => node.server.counts.unacknowledged === 0);
    assert.deepEqual(await node.sizes('a'), { ready: 1000, scheduled: 0, reserved: 0 });
  });
});
