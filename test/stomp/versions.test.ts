import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { StompClient, StompVersion } from './client.ts';
import { StompNode } from './node.ts';

describe('Older versions of STOMP', () => {
  // How STOMP 1.0 and 1.1 differ from 1.2.

  let node: StompNode;
  before(async () => {
    node = await StompNode.start();
  });
  after(() => node.stop());

  let queues = 0;
  function fresh(): string {
    queues += 1;
    return `versions-${queues}`;
  }

  async function subscribed(
    version: StompVersion,
    ack: string,
    ...bodies: string[]
  ): Promise<{ client: StompClient; queue: string }> {
    const queue = fresh();
    await node.insert(queue, ...bodies);
    const client = await node.client(version);
    await client.ask('SUBSCRIBE', { destination: `/q/N/${queue}`, id: 's', ack });
    return { client, queue };
  }

  describe('STOMP 1.1', () => {
    it('has escapes for line feed, colon and backslash, and none for carriage return', async () => {
      const client = await node.client('1.1');
      client.write('BEGIN\ntransaction:t\nreceipt:a\\cb\\nc\\\\d\n\n\0');
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'a:b\nc\\d');
      client.write('ABORT\ntransaction:t\nreceipt:\\r\n\n\0');
      await client.expectError('malformed-request');
    });

    it('treats a CR before the LF as part of the value', async () => {
      const client = await node.client('1.1');
      client.write('BEGIN\ntransaction:t\r\nreceipt:r\n\n\0');
      await client.receipt('r');
      client.send('ABORT', { transaction: 't' });
      await client.expectError('malformed-request');
    });

    it('requires message-id and subscription in ACK', async () => {
      const { client, queue } = await subscribed('1.1', 'client-individual', 'a', 'b');
      const { headers } = await client.expect('MESSAGE');
      assert.equal(headers.has('ack'), false);
      await client.ask('ACK', { 'message-id': headers.get('message-id') ?? '', subscription: 's' });
      assert.deepEqual(await node.sizes(queue), { ready: 0, scheduled: 0, reserved: 1 });
      const second = await client.expect('MESSAGE');
      client.send('ACK', { 'message-id': second.headers.get('message-id') ?? '' });
      await client.expectError('malformed-request');
    });

    it('rejects an ACK that names another subscription', async () => {
      const { client } = await subscribed('1.1', 'client', 'a');
      const { headers } = await client.expect('MESSAGE');
      await client.ask('SUBSCRIBE', { destination: '/q/N/other', id: 'other', ack: 'client' });
      client.send('ACK', { 'message-id': headers.get('message-id') ?? '', subscription: 'other' });
      await client.expectError('element-not-found');
    });

    it('has NACK, with the same headers as ACK', async () => {
      const { client, queue } = await subscribed('1.1', 'client', 'a', 'b');
      await client.expect('MESSAGE');
      const second = await client.expect('MESSAGE');
      await client.ask('NACK', {
        'message-id': second.headers.get('message-id') ?? '',
        subscription: 's',
        'x-delta-t': 0,
      });
      assert.equal((await node.sizes(queue)).scheduled, 0);
      const again = await client.expect('MESSAGE');
      assert.equal(again.headers.get('x-tries'), '1');
    });

    it('requires an id in SUBSCRIBE and UNSUBSCRIBE', async () => {
      const subscribing = await node.client('1.1');
      subscribing.send('SUBSCRIBE', { destination: '/q/N/a' });
      await subscribing.expectError('malformed-request');
      const { client } = await subscribed('1.1', 'auto');
      client.send('UNSUBSCRIBE', { destination: '/q/N/a' });
      await client.expectError('malformed-request');
    });
  });

  describe('STOMP 1.0', () => {
    it('allows any bytes in headers, but the destination must be UTF-8', async () => {
      const client = await node.client('1.0');
      client.write(Buffer.from('SEND\ndestination:/q/N/\xe4\n\n\0', 'latin1'));
      await client.expectError('invalid-parameter');
    });

    it('has no escapes', async () => {
      const client = await node.client('1.0');
      client.write('SEND\ndestination:/q/N/plain\nx-ks-hdr-a:b\\c\\n:d\nreceipt:a:b\\n\n\nx\0');
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'a:b\\n');
      assert.deepEqual((await node.pop('plain'))?.headers, ['a', 'b\\c\\n:d']);
    });

    it('trims spaces around header values, which its own examples have', async () => {
      const client = await node.stranger();
      client.version = '1.0';
      client.write('CONNECT\nlogin: test\npasscode: test \nheart-beat: 0,0\n\n\0\n');
      await client.expect('CONNECTED');
      client.write('SEND\ndestination: /q/N/padded\nreceipt: r\n\nhello\0\n');
      await client.receipt('r');
      assert.equal(Buffer.from((await node.pop('padded'))?.body ?? []).toString(), 'hello');
    });

    it('identifies a subscription by its destination, and sends no subscription header in MESSAGE', async () => {
      const queue = fresh();
      await node.insert(queue, 'a');
      const client = await node.client('1.0');
      await client.ask('SUBSCRIBE', { destination: `/q/N/${queue}` });
      const { headers } = await client.expect('MESSAGE');
      assert.equal(headers.has('subscription'), false);
      assert.equal(headers.get('destination'), `/q/N/${queue}`);
      await client.ask('UNSUBSCRIBE', { destination: `/q/N/${queue}` });
      await node.insert(queue, 'b');
      assert.equal((await node.sizes(queue)).ready, 1);
    });

    it('identifies a subscription by its id if it has one', async () => {
      const { client } = await subscribed('1.0', 'auto', 'a');
      assert.equal((await client.expect('MESSAGE')).headers.get('subscription'), 's');
      await client.ask('UNSUBSCRIBE', { id: 's' });
    });

    it('requires only message-id in ACK', async () => {
      const { client, queue } = await subscribed('1.0', 'client', 'a', 'b');
      await client.expect('MESSAGE');
      const { headers } = await client.expect('MESSAGE');
      assert.equal(headers.has('ack'), false);
      await client.ask('ACK', { 'message-id': headers.get('message-id') ?? '' });
      assert.deepEqual(await node.sizes(queue), { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('has no NACK', async () => {
      const { client } = await subscribed('1.0', 'client', 'a');
      const { headers } = await client.expect('MESSAGE');
      client.send('NACK', { 'message-id': headers.get('message-id') ?? '' });
      await client.expectError('malformed-request');
    });

    it('has transactions', async () => {
      const queue = fresh();
      const client = await node.client('1.0');
      await client.ask('BEGIN', { transaction: 't' });
      client.send('SEND', { destination: `/q/N/${queue}`, transaction: 't' }, 'x');
      await client.ask('COMMIT', { transaction: 't' });
      assert.equal((await node.sizes(queue)).ready, 1);
    });

    it('accepts header bytes that are not UTF-8', async () => {
      const client = await node.client('1.0');
      client.write(Buffer.from('SEND\ndestination:/q/N/latin\nx-ks-hdr-a:\xfc\nreceipt:r\n\nx\0', 'latin1'));
      await client.receipt('r');
      assert.deepEqual((await node.pop('latin'))?.headers, ['a', '\xfc']);
    });
  });
});
