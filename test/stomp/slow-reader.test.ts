import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { until } from '../support/until.ts';
import { readSlowly, StompNode, stalled } from './node.ts';

describe('clients that read slowly or not at all', () => {
  it('have at most 128 KiB and one element buffered, even if large elements follow small ones, and receive all in order', async (t) => {
    for (const ack of ['client-individual', 'auto']) {
      const node = await StompNode.start();
      t.after(() => node.stop());
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
    }
  });

  it('are served from all of their subscriptions in turn', async (t) => {
    const node = await StompNode.start();
    t.after(() => node.stop());
    const client = await node.client();
    client.socket.pause();
    const queues = 60;
    for (let i = 0; i < queues; i++) {
      await node.insert(`q${i}`, ...Array.from({ length: 12 }, () => ({ body: Buffer.alloc(100_000) })));
      client.send('SUBSCRIBE', { destination: `/q/N/q${i}`, id: i, ack: 'client-individual', 'x-wsize': 12 });
    }
    await stalled(node, 1);
    client.socket.resume();
    const served = new Set<string>();
    // The system has buffered all elements of the first subscriptions.
    for (let i = 0; i < 5 * queues; i++) {
      const { headers } = await client.expect('MESSAGE');
      served.add(headers.get('subscription') ?? '');
    }
    assert.equal(served.size, queues);
  });

  it('are not disconnected while they read, however long one body takes', async (t) => {
    const node = await StompNode.start();
    t.after(() => node.stop());
    const client = await node.client();
    await readSlowly(node, client);
    assert.equal(node.server.counts.sessions, 1);
  });

  it('are no longer read from once 1 MiB of their receipts is unread', async (t) => {
    const node = await StompNode.start();
    t.after(() => node.stop());
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
  });
});
