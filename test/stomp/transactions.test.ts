import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { LIMITS } from '../../src/model/limits.ts';
import { memoryInUse, useUpBlock } from '../support/memory.ts';
import type { StompClient } from './client.ts';
import { StompNode } from './node.ts';

describe('a transaction', () => {
  let node: StompNode;
  let client: StompClient;

  beforeEach(async () => {
    node = await StompNode.start();
    client = await node.client();
    await client.ask('BEGIN', { transaction: 't' });
  });
  afterEach(() => node.stop());

  const transaction = 't';

  const take = async (count: number, mode = 'client-individual', more = {}): Promise<string[]> => {
    await node.insert('from', ...Array.from({ length: count }, (_, i) => `${i}`));
    await client.ask('SUBSCRIBE', { destination: '/q/N/from', id: 's', ack: mode, ...more });
    const acks: string[] = [];
    while (acks.length < count) acks.push((await client.expect('MESSAGE')).headers.get('ack') ?? '');
    return acks;
  };

  const bodies = async (queue: string, ns = 'N'): Promise<string[]> => {
    const popped: string[] = [];
    for (let next = await node.pop(queue, ns); next !== null; next = await node.pop(queue, ns)) {
      popped.push(Buffer.from(next.body).toString());
    }
    return popped;
  };

  it('stores its SENDs at COMMIT, in order in each queue', async () => {
    for (const [queue, body] of [
      ['a', '1'],
      ['b', '2'],
      ['a', '3'],
    ] as const) {
      await client.ask('SEND', { destination: `/q/N/${queue}`, transaction }, body);
    }
    client.send('SEND', { destination: '/q/N/a' }, 'outside');
    await client.ask('COMMIT', { transaction });
    assert.deepEqual(await bodies('a'), ['outside', '1', '3']);
    assert.deepEqual(await bodies('b'), ['2']);
  });

  it('applies its ACKs, NACKs and SENDs together at COMMIT', async () => {
    const [first = '', second = '', third = ''] = await take(3);
    await client.ask('ACK', { id: first, transaction });
    await client.ask('NACK', { id: second, transaction, 'x-delta-t': 60_000 });
    await client.ask('SEND', { destination: '/q/N/to', transaction }, 'made of 0');
    await client.ask('SEND', { destination: '/q/D/far', transaction }, 'elsewhere');
    assert.deepEqual(await node.sizes('from'), { ready: 0, scheduled: 0, reserved: 3 });
    await client.ask('COMMIT', { transaction });
    assert.deepEqual(await node.sizes('from'), { ready: 0, scheduled: 1, reserved: 1 });
    assert.deepEqual(await bodies('to'), ['made of 0']);
    assert.deepEqual(await bodies('far', 'D'), ['elsewhere']);
    await client.ask('ACK', { id: third });
    client.send('ACK', { id: first });
    await client.expectError('element-not-found');
  });

  it('delays a NACK until x-next-t however late COMMIT comes, or by x-delta-t after COMMIT', async () => {
    const [first = '', second = ''] = await take(2);
    const at = node.clock.now() + 60_000;
    await client.ask('NACK', { id: first, transaction, 'x-next-t': at });
    await client.ask('NACK', { id: second, transaction, 'x-delta-t': 60_000 });
    node.clock.advance(30_000);
    await client.ask('COMMIT', { transaction });
    assert.deepEqual(await node.sizes('from'), { ready: 0, scheduled: 2, reserved: 0 });
    await node.pass(30_000, 'from');
    await client.expect('MESSAGE');
    await node.pass(29_999, 'from');
    assert.equal((await node.sizes('from')).scheduled, 1);
    await node.pass(1, 'from');
    await client.expect('MESSAGE');
  });

  it('includes all earlier messages in a cumulative ACK', async () => {
    const [, second = '', third = ''] = await take(3, 'client');
    await client.ask('ACK', { id: second, transaction });
    await client.ask('ACK', { id: third });
    assert.deepEqual(await node.sizes('from'), { ready: 0, scheduled: 0, reserved: 2 });
    await client.ask('COMMIT', { transaction });
    assert.deepEqual(await node.sizes('from'), { ready: 0, scheduled: 0, reserved: 0 });
  });

  it('that is aborted stores nothing, and its messages can be acknowledged again', async () => {
    const [first = ''] = await take(1);
    await client.ask('ACK', { id: first, transaction });
    await client.ask('SEND', { destination: '/q/N/to', transaction }, 'x');
    await client.ask('ABORT', { transaction });
    assert.deepEqual(await bodies('to'), []);
    await client.ask('ACK', { id: first });
    assert.deepEqual(await node.sizes('from'), { ready: 0, scheduled: 0, reserved: 0 });
  });

  it('claims its messages: a second ACK of one is rejected', async () => {
    const [first = ''] = await take(1);
    await client.ask('ACK', { id: first, transaction });
    client.send('ACK', { id: first });
    await client.expectError('element-not-found');
    assert.deepEqual(await node.sizes('from'), { ready: 1, scheduled: 0, reserved: 0 });
  });

  it('with a message whose lease is lost has no effect, and returns all its messages', async () => {
    const [first = '', second = ''] = await take(2, 'client-individual', { 'x-lease': 1000, 'x-wsize': 2 });
    await client.ask('SEND', { destination: '/q/N/to', transaction }, 'x');
    await client.ask('ACK', { id: first, transaction });
    await client.ask('ACK', { id: second, transaction });
    node.clock.advance(1001);
    const taken = await node.reserve('from');
    assert.equal(Buffer.from(taken?.body ?? []).toString(), '0');
    client.send('COMMIT', { transaction, receipt: 'r' });
    assert.equal((await client.expectError('lease-lost')).headers.get('receipt-id'), 'r');
    assert.deepEqual(await bodies('to'), []);
    assert.deepEqual(await node.sizes('from'), { ready: 1, scheduled: 0, reserved: 1 });
  });

  it('may be one of several with different ids', async () => {
    await client.ask('BEGIN', { transaction: 'u' });
    await client.ask('SEND', { destination: '/q/N/a', transaction: 'u' }, 'u');
    await client.ask('SEND', { destination: '/q/N/a', transaction }, 't');
    await client.ask('COMMIT', { transaction: 'u' });
    assert.deepEqual(await bodies('a'), ['u']);
    await client.ask('BEGIN', { transaction: 'u' });
    await client.ask('COMMIT', { transaction });
    assert.deepEqual(await bodies('a'), ['t']);
  });

  it('may be empty', async () => {
    await client.ask('COMMIT', { transaction });
  });

  it('is rejected at COMMIT with lease-lost if the subscription of its messages was removed', async () => {
    const [first = ''] = await take(1);
    await client.ask('ACK', { id: first, transaction });
    await client.ask('UNSUBSCRIBE', { id: 's' });
    assert.equal((await node.sizes('from')).ready, 1);
    client.send('COMMIT', { transaction });
    await client.expectError('lease-lost');
  });

  it('is one of at most 16 per session, with at most 1000 frames and four times the body limit', async () => {
    const many = await node.client();
    for (let i = 0; i < 17; i++) many.send('BEGIN', { transaction: i });
    const { headers } = await many.expectError('overloaded');
    // A retry would exceed the limit again.
    assert.equal(headers.get('x-ks-retry'), 'false');
    const long = await node.client();
    await long.ask('BEGIN', { transaction });
    for (let i = 0; i <= 1000; i++) long.send('SEND', { destination: '/q/N/a', transaction }, 'x');
    await long.expectError('overloaded');
    const large = await node.client();
    await large.ask('BEGIN', { transaction });
    for (let i = 0; i < 4; i++) {
      await large.ask('SEND', { destination: '/q/N/a', transaction }, Buffer.alloc(1_048_576, 1));
    }
    large.send('SEND', { destination: '/q/N/a', transaction }, 'x');
    await large.expectError('overloaded');
    assert.deepEqual(await bodies('a'), []);
  });

  it('has an id of at most 1024 bytes, which the session keeps in memory', async () => {
    await client.ask('BEGIN', { transaction: 'i'.repeat(1024) });
    client.send('BEGIN', { transaction: 'i'.repeat(1025) });
    const { headers } = await client.expectError('headers-too-large');
    assert.equal(headers.get('x-ks-parameter'), 'transaction');
  });

  it('has at most as many bytes as an engine stores in one call, even if the body limit is larger', async () => {
    const largest = await StompNode.start({ options: { bodyLimit: LIMITS.maxBodyLimit } });
    try {
      const sender = await largest.client();
      await sender.ask('BEGIN', { transaction });
      const half = 24 * 1_048_576;
      await sender.ask('SEND', { destination: '/q/N/a', transaction }, Buffer.alloc(half, 1));
      sender.send('SEND', { destination: '/q/N/a', transaction }, Buffer.alloc(half + 1, 1));
      await sender.expectError('overloaded');
    } finally {
      await largest.stop();
    }
  });

  it('does not retain the memory blocks that its small bodies share with other data', async () => {
    const before = await memoryInUse();
    for (let i = 0; i < 200; i++) {
      await client.ask('SEND', { destination: '/q/N/a', transaction }, 'x');
      useUpBlock();
    }
    const retained = (await memoryInUse()) - before;
    assert.ok(retained < 200 * 8_192, `200 bodies of a byte retain ${retained} bytes`);
  });

  it('does not retain the heads of its frames for the headers that it keeps', async () => {
    const before = await memoryInUse();
    for (let i = 0; i < 300; i++) {
      await client.ask('SEND', {
        destination: '/q/N/a',
        transaction,
        'content-type': 'application/json; charset=utf-8',
        'x-ks-hdr-kept': 'long enough to be a part of the head',
        'message-id': 'x'.repeat(20_000),
      });
    }
    const retained = (await memoryInUse()) - before;
    assert.ok(retained < 300 * 8_192, `300 small elements retain ${retained} bytes`);
  });

  it('counts the headers of its elements towards its bytes', async () => {
    for (let i = 0; i < 600; i++) {
      client.send('SEND', { destination: '/q/N/a', transaction, 'x-ks-hdr-long': 'x'.repeat(8_000) });
    }
    await client.expectError('overloaded');
  });

  it('frees its share of the limit when it ends', async () => {
    for (let i = 0; i < 6; i++) {
      await client.ask('SEND', { destination: '/q/N/a', transaction }, Buffer.alloc(1_048_576, 1));
      if (i % 2 === 0) await client.ask('COMMIT', { transaction });
      else await client.ask('ABORT', { transaction });
      await client.ask('BEGIN', { transaction });
    }
    assert.equal((await node.sizes('a')).ready, 3);
  });
});
