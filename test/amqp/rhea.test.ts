import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { until } from '../support/until.ts';
import { type AmqpClient, textOf } from './client.ts';
import { AmqpNode } from './node.ts';

describe('rhea’s client', () => {
  it('reconnects by itself, and its links continue', async () => {
    const node = await AmqpNode.start();
    const client: AmqpClient = await node.client('test', { reconnect: 1, initial_reconnect_delay: 1 });
    const sender = await client.sender('N/a');
    const receiver = await client.receiver('N/a', { credit_window: 10 });
    assert.equal((await sender.send({ body: 'before' })).kind, 'accepted');
    assert.equal(textOf(await receiver.next()), 'before');
    const { connections } = node.server.counts;
    client.cut();
    await until(() => node.server.counts.connections > connections && node.server.counts.links === 2);
    const again = await receiver.next();
    assert.deepEqual([textOf(again), again.message.delivery_count], ['before', 1]);
    again.delivery.accept();
    assert.equal((await sender.send({ body: 'after' })).kind, 'accepted');
    const after = await receiver.next();
    assert.equal(textOf(after), 'after');
    after.delivery.accept();
    await until(() => node.server.counts.unacknowledged === 0);
    client.connection.set_reconnect(false);
    await client.close();
    await node.stop();
  });

  it('stays connected by empty frames in both directions, and is closed when it sends none', async () => {
    const node = await AmqpNode.start({ options: { idleTimeoutMs: 600 } });
    node.runClock(600);
    const client = await node.client('test', { idle_time_out: 3000 });
    const { frames } = node.server.counts;
    // This takes longer than the silence that the client tolerates.
    await until(() => node.server.counts.frames >= frames + 12);
    assert.equal(node.server.counts.sessions, 1);
    // Silence the client: it sends no more frames, not even from its own timers.
    node.runClock();
    const inner = client.connection as unknown as { _write_frame(): void };
    inner._write_frame = () => {};
    const error = await client.closed;
    assert.equal(error?.condition, 'amqp:resource-limit-exceeded');
    await node.stop();
  });

  it('is not considered silent while this server does not read, but is afterwards', async (t) => {
    t.mock.timers.enable({ apis: ['setTimeout'] });
    const idleTimeoutMs = 10_000;
    const node = await AmqpNode.start({ options: { idleTimeoutMs } });
    const client = await node.client();
    const pass = (ms: number): void => {
      node.clock.advance(ms);
      t.mock.timers.tick(ms);
    };
    const { release } = node.holdInserts();
    const sender = await client.sender('N/a');
    await sender.sendable();
    // More bytes than a client may have in flight to the engine.
    const sending = Array.from({ length: 8 }, () => sender.send({ body: Buffer.alloc(1_000_000) }));
    await until(() => node.server.counts.receivedBytes > 5_000_000);
    for (let i = 0; i < 10; i++) pass(idleTimeoutMs / 2);
    assert.equal(client.connection.is_open(), true);
    release();
    for (const { kind } of await Promise.all(sending)) assert.equal(kind, 'accepted');
    (client.connection as unknown as { _write_frame(): void })._write_frame = () => {};
    for (let i = 0; i < 4; i++) pass(idleTimeoutMs / 2);
    assert.equal((await client.closed)?.condition, 'amqp:resource-limit-exceeded');
    await node.stop();
  });
});
