import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { readSlowly, StompNode, stalled, until } from './node.ts';

describe('clients that read slowly or not at all', () => {
  it('cost 128 KiB each of what waits for them, however large their windows', async () => {
    const node = await StompNode.start();
    const clients = await Promise.all(Array.from({ length: 4 }, () => node.client()));
    for (let i = 0; i < 24; i++) {
      await node.insert('a', ...Array.from({ length: 50 }, () => ({ body: Buffer.alloc(50_000, 1) })));
    }
    for (const client of clients) {
      client.socket.pause();
      client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client', 'x-wsize': 65_536 });
    }
    await stalled(node, clients.length);
    assert.ok(node.server.counts.outgoingBytes > 0);
    assert.ok(node.server.counts.outgoingBytes <= 4 * 128 * 1024, `${node.server.counts.outgoingBytes}`);
    await node.stop();
  });

  it('cost no more where large elements come behind small ones, which all come in the end, in order', async () => {
    for (const ack of ['client-individual', 'auto']) {
      const node = await StompNode.start();
      const [small, large] = [400, 150];
      await node.insert('a', ...Array.from({ length: small }, (_, i) => `${i} `));
      const body = (i: number): Buffer => Buffer.alloc(100_000, `${small + i} `);
      await node.insert('a', ...Array.from({ length: large }, (_, i) => ({ body: body(i) })));
      const client = await node.client();
      client.socket.pause();
      client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack, 'x-wsize': 65_536 });
      await stalled(node, 1);
      const { outgoingBytes } = node.server.counts;
      assert.ok(outgoingBytes <= 128 * 1024 + 100_000, `${outgoingBytes}`);
      client.socket.resume();
      for (let i = 0; i < small + large; i++) {
        const { body, headers } = await client.expect('MESSAGE');
        assert.ok(body.subarray(0, 20).toString().startsWith(`${i} `), `${i}`);
        assert.equal(headers.get('x-tries'), '0');
        if (ack !== 'auto') client.send('ACK', { id: headers.get('ack') ?? null });
      }
      await client.disconnect();
      assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
      await node.stop();
    }
  });

  it('get everything in the end, in order', async () => {
    const node = await StompNode.start();
    const count = 300;
    await node.insert(
      'a',
      ...Array.from({ length: count }, (_, i) => ({ body: Buffer.alloc(40_000, `${i} `) })),
    );
    const client = await node.client();
    client.socket.pause();
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client-individual', 'x-wsize': 1000 });
    await stalled(node, 1);
    client.socket.resume();
    for (let i = 0; i < count; i++) {
      const { body, headers } = await client.expect('MESSAGE');
      assert.ok(body.subarray(0, 20).toString().startsWith(`${i} `));
      client.send('ACK', { id: headers.get('ack') ?? null });
    }
    await client.disconnect();
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
    await node.stop();
  });

  it('are not cut while they read, however long one body takes', async () => {
    const node = await StompNode.start();
    const client = await node.client();
    await readSlowly(node, client);
    assert.equal(node.server.counts.sessions, 1);
    await node.stop();
  });

  it('are cut when they take nothing for twice 90 s', async () => {
    const node = await StompNode.start();
    const client = await node.client();
    await node.insert('a', { body: Buffer.alloc(30_000_000, 'x') });
    client.socket.pause();
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'auto' });
    await stalled(node, 1);
    node.clock.advance(180_000);
    await until(() => node.server.counts.sessions === 0);
    while ((await node.sizes('a')).ready === 0);
    await node.stop();
  });

  it('that leave their receipts unread are not listened to for ever', async () => {
    const node = await StompNode.start();
    const client = await node.client();
    client.socket.pause();
    const receipt = 'r'.repeat(20_000);
    const frame = client.frame('BEGIN', { transaction: 't', receipt });
    const end = client.frame('ABORT', { transaction: 't', receipt });
    const round = Buffer.concat([frame, end]);
    for (let i = 0; i < 1000; i++) client.write(round);
    await until(() => node.server.counts.outgoingBytes > 1024 * 1024);
    assert.ok(node.server.counts.frames < 2000, 'the server went on reading');
    assert.ok(node.server.counts.outgoingBytes < 1.2 * 1024 * 1024, `${node.server.counts.outgoingBytes}`);
    client.socket.resume();
    for (let i = 0; i < 2000; i++) await client.expect('RECEIPT');
    await node.stop();
  });

  it('that send faster than the engine stores are slowed down, and lose nothing', async () => {
    const node = await StompNode.start();
    const client = await node.client();
    const body = Buffer.alloc(500_000, 1);
    for (let i = 0; i < 60; i++) client.send('SEND', { destination: '/q/N/a', receipt: i }, body);
    for (let i = 0; i < 60; i++) await client.expect('RECEIPT');
    assert.equal((await node.sizes('a')).ready, 60);
    await node.stop();
  });
});
