import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, it } from 'node:test';
import { StompNode, until } from './node.ts';

describe('a STOMP server that stops', () => {
  it('closes each connection without an ERROR, after the receipts of what was sent before', async () => {
    const node = await StompNode.start();
    const idle = await node.client();
    const stranger = await node.stranger();
    const busy = await node.client();
    await node.insert('a', 'x');
    await busy.ask('SUBSCRIBE', { destination: '/q/N/b', id: 's' });
    const { frames } = node.server.counts;
    for (let i = 0; i < 20; i++) busy.send('SEND', { destination: '/q/N/c', receipt: i }, 'x');
    await until(() => node.server.counts.frames === frames + 20);
    const stopped = node.server.stop();
    for (let i = 0; i < 20; i++) await busy.expect('RECEIPT');
    for (const client of [busy, idle, stranger]) await client.expectClose();
    await stopped;
    assert.equal(node.server.counts.errors, 0);
    assert.equal((await node.sizes('c')).ready, 20);
    await node.stop();
  });

  it('gives back what clients hold and counts no try, as the failure is not theirs', async () => {
    const node = await StompNode.start();
    await node.insert('a', 'x', 'y');
    const client = await node.client();
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
    await client.expect('MESSAGE');
    await client.expect('MESSAGE');
    const stopped = node.server.stop();
    await client.expectClose();
    await stopped;
    const left = [await node.pop('a'), await node.pop('a')];
    assert.deepEqual(
      left.map((delivery) => delivery?.tries),
      [0, 0],
    );
    await node.stop();
  });

  it('closes the connections of those who wait when the broker is drained before it', async () => {
    const node = await StompNode.start();
    const client = await node.client();
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's' });
    node.broker.drain();
    await client.expectClose();
    const late = await node.client();
    late.send('SUBSCRIBE', { destination: '/q/N/a', id: 's' });
    await late.expectClose();
    await node.stop();
  });

  it('lets nobody new in', async () => {
    const node = await StompNode.start();
    const { port } = node;
    await node.server.stop();
    const socket = connect({ port, host: '127.0.0.1' });
    const [error] = await once(socket, 'error');
    assert.equal((error as NodeJS.ErrnoException).code, 'ECONNREFUSED');
    await node.stop();
  });

  it('cuts a client that does not close, soon after the end of what it was sent', async () => {
    const node = await StompNode.start();
    const client = await node.client();
    client.socket.pause();
    const stopped = node.server.stop();
    await until(() => node.server.counts.sessions === 1);
    await until(() => node.server.counts.outgoingBytes === 0);
    node.clock.advance(2_000);
    await stopped;
    await node.stop();
  });

  it('is harmless when stopped before its start, and twice', async () => {
    const node = await StompNode.start();
    const first = node.server.stop();
    assert.equal(node.server.stop(), first);
    await first;
    await node.stop();
  });
});

describe('a STOMP server that cannot start', () => {
  it('says so', async () => {
    const node = await StompNode.start();
    await assert.rejects(StompNode.start({ options: { port: node.port } }), { code: 'EADDRINUSE' });
    await node.stop();
  });
});

describe('connections', () => {
  it('over the limit are closed when they come', async () => {
    const node = await StompNode.start({ options: { maxSockets: 2 } });
    const clients = [await node.client(), await node.client()];
    const third = await node.stranger();
    assert.equal(await third.nextOrEnd(), null);
    for (const client of clients) await client.disconnect();
    await node.stop();
  });
});
