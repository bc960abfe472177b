import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Storage } from '../../src/engine/storage.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { FINISH_MS } from '../../src/session/client-session.ts';
import { STALL_TIMEOUT_MS } from '../../src/session/socket-writer.ts';
import { until } from '../support/until.ts';
import type { StompClient } from './client.ts';
import { StompNode, stalled } from './node.ts';

/** Makes all further calls of this kind fail. */
function failCalls(storage: Storage, verb: 'insert' | 'settle'): void {
  Object.assign(storage, {
    [verb]: () => Promise.reject(new QuaysideError('storage-unavailable', `${verb} failed.`)),
  });
}

describe('a DISCONNECT after other frames', () => {
  let node: StompNode;
  let client: StompClient;
  let storage: Storage;

  beforeEach(async () => {
    node = await StompNode.start();
    ({ storage } = node.engine.engine);
    client = await node.client();
  });
  afterEach(() => node.stop());

  const disconnectFrame = (): Buffer => client.frame('DISCONNECT', { receipt: 'last' });

  it('is answered with the ERROR of a SEND that was not stored, not with its receipt', async () => {
    failCalls(storage, 'insert');
    client.write(Buffer.concat([client.frame('SEND', { destination: '/q/N/a' }, 'x'), disconnectFrame()]));
    await client.expectError('storage-unavailable');
    assert.equal(node.server.counts.errors, 1);
  });

  it('is answered with the ERROR of a SEND that fails later, with the receipt-id of that SEND', async () => {
    const held = Promise.withResolvers<void>();
    const insert = storage.insert.bind(storage);
    storage.insert = async (queue, ...given) => {
      if (queue.name === 'a') return insert(queue, ...given);
      await held.promise;
      throw new QuaysideError('storage-full', 'The disk is full.');
    };
    client.write(
      Buffer.concat([
        client.frame('SEND', { destination: '/q/N/b', receipt: 'second' }, 'x'),
        client.frame('SEND', { destination: '/q/N/a', receipt: 'first' }, 'x'),
        disconnectFrame(),
      ]),
    );
    assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'first');
    held.resolve();
    const { headers } = await client.expectError('storage-full');
    assert.equal(headers.get('receipt-id'), 'second');
  });

  it('is answered with the ERROR of an ACK that failed', async () => {
    await node.insert('a', 'x');
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client-individual' });
    const { headers } = await client.expect('MESSAGE');
    const real = storage.settle.bind(storage);
    storage.settle = (items) =>
      items.some(({ action }) => action.kind === 'finish')
        ? Promise.reject(new QuaysideError('storage-unavailable', 'settle failed.'))
        : real(items);
    client.write(Buffer.concat([client.frame('ACK', { id: headers.get('ack') ?? '' }), disconnectFrame()]));
    await client.expectError('storage-unavailable');
  });

  it('is answered with the ERROR of a COMMIT that failed', async () => {
    failCalls(storage, 'insert');
    const transaction = 't';
    client.write(
      Buffer.concat([
        client.frame('BEGIN', { transaction }),
        client.frame('SEND', { destination: '/q/N/a', transaction }, 'x'),
        client.frame('COMMIT', { transaction, receipt: 'commit' }),
        disconnectFrame(),
      ]),
    );
    const { headers } = await client.expectError('storage-unavailable');
    assert.equal(headers.get('receipt-id'), 'commit');
  });

  it('is answered with outcome-unknown if the engine takes too long to reply', async () => {
    const { asked, release } = node.holdInserts();
    client.write(Buffer.concat([client.frame('SEND', { destination: '/q/N/a' }, 'x'), disconnectFrame()]));
    await asked;
    node.clock.advance(FINISH_MS);
    const { command, headers } = await client.next();
    release();
    assert.deepEqual(
      [command, headers.get('message'), headers.get('receipt-id')],
      ['ERROR', 'outcome-unknown', 'last'],
    );
    await client.expectClose();
  });

  it('is answered with its receipt if only the return of unacknowledged messages takes too long', async () => {
    await node.insert('a', 'x');
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
    await client.expect('MESSAGE');
    const asked = Promise.withResolvers<void>();
    const held = Promise.withResolvers<void>();
    const settle = storage.settle.bind(storage);
    storage.settle = async (...given) => {
      asked.resolve();
      await held.promise;
      return settle(...given);
    };
    client.write(disconnectFrame());
    await asked.promise;
    node.clock.advance(FINISH_MS);
    const { command, headers } = await client.next();
    held.resolve();
    assert.deepEqual([command, headers.get('receipt-id')], ['RECEIPT', 'last']);
    await client.expectClose();
    await until(async () => (await node.sizes('a')).ready === 1);
  });

  it('has outcome-unknown as the last frame, even if the engine replies before the client has read it', async () => {
    await node.insert('large', ...Array.from({ length: 400 }, () => ({ body: Buffer.alloc(60_000) })));
    client.socket.pause();
    client.send('SUBSCRIBE', { destination: '/q/N/large', id: 's', ack: 'client' });
    await stalled(node, 1);
    const { asked, release } = node.holdInserts();
    const { frames } = node.server.counts;
    client.send('SEND', { destination: '/q/N/a', receipt: 'sent' }, 'x');
    client.write(disconnectFrame());
    await asked;
    await until(() => node.server.counts.frames === frames + 2);
    node.clock.advance(FINISH_MS);
    release();
    await until(async () => (await node.sizes('a')).ready === 1);
    client.socket.resume();
    let frame = await client.next();
    while (frame.command === 'MESSAGE') frame = await client.next();
    assert.equal(frame.headers.get('message'), 'outcome-unknown');
    await client.expectClose();
  });

  for (const stops of [false, true]) {
    it(`is confirmed to a client that reads slowly${stops ? ', but does not keep the server from stopping' : ', however long that takes'}`, async () => {
      await node.insert('large', ...Array.from({ length: 400 }, () => ({ body: Buffer.alloc(60_000) })));
      client.socket.pause();
      client.send('SUBSCRIBE', { destination: '/q/N/large', id: 's', ack: 'client' });
      await stalled(node, 1);
      client.write(disconnectFrame());
      await until(() => node.server.describeSessions().length === 0);
      // The client's messages are back in the engine, and the receipt waits behind the pending write.
      await until(async () => (await node.sizes('large')).reserved === 0);
      node.clock.advance(STALL_TIMEOUT_MS - 1);
      if (stops) {
        const stopped = node.server.stop();
        node.clock.advance(2_000);
        await stopped;
        return;
      }
      client.socket.resume();
      let frame = await client.next();
      while (frame.command === 'MESSAGE') frame = await client.next();
      assert.equal(frame.headers.get('receipt-id'), 'last');
      await client.expectClose();
    });
  }

  it('is confirmed if only the bytes after it are malformed', async () => {
    client.write(Buffer.concat([disconnectFrame(), Buffer.from('nonsense')]));
    assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'last');
    await client.expectClose();
  });

  it('is confirmed if the server stops while the DISCONNECT waits for earlier frames', async () => {
    const { asked, release } = node.holdInserts();
    client.write(Buffer.concat([client.frame('SEND', { destination: '/q/N/a' }, 'x'), disconnectFrame()]));
    await asked;
    const stopped = node.server.stop();
    release();
    assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'last');
    await client.expectClose();
    await stopped;
  });
});

describe('a client that half-closes the connection after a SEND that fails', () => {
  it('receives the ERROR', async () => {
    const node = await StompNode.start();
    try {
      failCalls(node.engine.engine.storage, 'insert');
      const client = await node.client();
      client.send('SEND', { destination: '/q/N/a' }, 'x');
      client.socket.end();
      await client.expectError('storage-unavailable');
    } finally {
      await node.stop();
    }
  });
});
