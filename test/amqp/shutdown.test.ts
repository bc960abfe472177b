import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, it } from 'node:test';
import { socketOf } from './client.ts';
import { AmqpNode, until } from './node.ts';

const FORCED = 'amqp:connection:forced';

describe('an AMQP server that stops', () => {
  it('tells every client, after the outcomes of what they sent before', async () => {
    const node = await AmqpNode.start();
    const idle = await node.client();
    const busy = await node.client();
    await busy.receiver('N/b', {}, 1);
    const sender = await busy.sender('N/c');
    await sender.sendable();
    const { frames } = node.server.counts;
    const outcomes = Array.from({ length: 20 }, () => sender.send({ body: 'x' }));
    await until(() => node.server.counts.frames >= frames + 20);
    const stopped = node.server.stop();
    for (const { kind } of await Promise.all(outcomes)) assert.equal(kind, 'accepted');
    for (const client of [busy, idle]) {
      const told = await client.closed;
      assert.deepEqual([told?.condition, told?.info.code], [FORCED, 'shutting-down']);
    }
    await stopped;
    assert.equal((await node.sizes('c')).ready, 20);
    assert.equal(node.server.counts.errors, 0);
    await node.stop();
  });

  it('gives back what clients hold and counts no try, as the failure is not theirs', async () => {
    const node = await AmqpNode.start();
    await node.insert('a', 'x', 'y');
    const client = await node.client();
    const receiver = await client.receiver('N/a', {}, 2);
    await receiver.next();
    await receiver.next();
    const stopped = node.server.stop();
    assert.equal((await client.closed)?.condition, FORCED);
    await stopped;
    const left = [await node.pop('a'), await node.pop('a')];
    assert.deepEqual(
      left.map((delivery) => delivery?.tries),
      [0, 0],
    );
    await node.stop();
  });

  it('tells those who wait when the broker is drained before it', async () => {
    const node = await AmqpNode.start();
    const client = await node.client();
    await client.receiver('N/a', {}, 1);
    await until(() => node.queue('a').consumers().length === 1);
    node.broker.drain();
    assert.equal((await client.closed)?.condition, FORCED);
    const late = await node.client();
    void late.receiver('N/a', {}, 1).catch(() => {});
    assert.equal((await late.closed)?.condition, FORCED);
    await node.stop();
  });

  it('lets nobody new in', async () => {
    const node = await AmqpNode.start();
    const { port } = node;
    await node.server.stop();
    const socket = connect({ port, host: '127.0.0.1' });
    const [error] = await once(socket, 'error');
    assert.equal((error as NodeJS.ErrnoException).code, 'ECONNREFUSED');
    await node.stop();
  });

  it('cuts a client that does not answer, soon after its close', async () => {
    const node = await AmqpNode.start();
    const client = await node.client();
    socketOf(client.connection).pause();
    const { outgoingBytes } = node.server.counts;
    const stopped = node.server.stop();
    await until(() => node.server.counts.outgoingBytes > outgoingBytes);
    await until(() => node.server.counts.outgoingBytes === 0);
    node.clock.advance(2_000);
    await stopped;
    await node.stop();
  });

  it('is harmless when stopped before its start, and twice', async () => {
    const node = await AmqpNode.start();
    const first = node.server.stop();
    assert.equal(node.server.stop(), first);
    await first;
    await node.stop();
  });
});

describe('an AMQP server that cannot start', () => {
  it('says so', async () => {
    const node = await AmqpNode.start();
    await assert.rejects(AmqpNode.start({ options: { port: node.port } }), { code: 'EADDRINUSE' });
    await node.stop();
  });
});

describe('a consumer over AMQP', () => {
  it('is listed, and cancelled by its tid: its link ends, the connection goes on', async () => {
    const node = await AmqpNode.start();
    const client = await node.client();
    const receiver = await client.receiver('N/a', {}, 1);
    await until(() => node.queue('a').consumers().length === 1);
    const [consumer] = node.queue('a').consumers();
    assert.equal(node.queue('a').cancel(consumer?.tid ?? '', null), 1);
    const ended = await receiver.ended();
    assert.deepEqual([ended?.condition, ended?.info.code], ['amqp:link:detach-forced', 'pop-cancelled']);
    assert.equal((await (await client.sender('N/a')).send({ body: 'x' })).kind, 'accepted');
    await client.close();
    await node.stop();
  });

  it('waits while the queue is paused', async () => {
    const node = await AmqpNode.start();
    const client = await node.client();
    await node.queue('a').pause();
    const receiver = await client.receiver('N/a', {}, 1);
    await node.insert('a', 'x');
    await until(() => node.queue('a').consumers().length === 1);
    assert.equal(receiver.inbox.length, 0);
    await node.queue('a').resume();
    (await receiver.next()).delivery.accept();
    await client.close();
    await node.stop();
  });
});
