import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { LIMITS } from '../../src/model/limits.ts';
import { plain } from '../support/broker.ts';
import { memoryInUse } from '../support/memory.ts';
import { until } from '../support/until.ts';
import { StompNode } from './node.ts';

describe('frames of a STOMP client', () => {
  let node: StompNode;
  afterEach(() => node.stop());

  it('are stored in several engine calls if their elements have very many groups in total', async () => {
    const groups = Array.from({ length: LIMITS.groups }, (_, i) => `g${i}`);
    node = await StompNode.start({ policies: [plain('N', { groups })] });
    const client = await node.client();
    const { storage } = node.engine.engine;
    const { insert } = storage;
    const calls: { readonly deliveries: number; readonly bodies: string[] }[] = [];
    storage.insert = async (_, elements) => {
      calls.push({
        deliveries: elements.reduce((sum, element) => sum + element.groups.length, 0),
        bodies: elements.map(({ body }) => Buffer.from(body).toString()),
      });
      return elements.map((_, i) => `${i}`);
    };
    // Small enough for one read of the socket: one turn executes all of them.
    const count = Math.floor(LIMITS.insertDeliveries / LIMITS.groups) + 1;
    const destination = '/q/N/a';
    const frames = Array.from({ length: count - 1 }, (_, i) => client.frame('SEND', { destination }, `${i}`));
    const last = client.frame('SEND', { destination, receipt: 'last' }, `${count - 1}`);
    client.write(Buffer.concat([...frames, last]));
    await client.receipt('last');
    await until(() => calls.reduce((sum, { bodies }) => sum + bodies.length, 0) === count);
    storage.insert = insert;
    const maxDeliveries = Math.max(...calls.map(({ deliveries }) => deliveries));
    assert.ok(maxDeliveries <= LIMITS.insertDeliveries, `one call has ${maxDeliveries} deliveries`);
    assert.deepEqual(
      calls.flatMap(({ bodies }) => bodies),
      Array.from({ length: count }, (_, i) => `${i}`),
    );
  });

  it('retain no other bytes received with a small body while the engine does not reply', async () => {
    node = await StompNode.start();
    const client = await node.client();
    const { storage } = node.engine.engine;
    const { insert } = storage;
    const held = Promise.withResolvers<void>();
    let pending = 0;
    storage.insert = async (...given) => {
      pending += given[1].length;
      await held.promise;
      return insert.apply(storage, given);
    };
    const heartBeats = Buffer.alloc(60_000, '\n');
    const frame = client.frame('SEND', { destination: '/q/N/a' }, 'small');
    const before = await memoryInUse();
    for (let sent = 1; sent <= 200; sent++) {
      client.write(Buffer.concat([heartBeats, frame]));
      await until(() => pending === sent);
    }
    const retained = (await memoryInUse()) - before;
    held.resolve();
    await until(async () => (await node.sizes('a')).ready === 200);
    storage.insert = insert;
    assert.ok(retained < 200 * 20_000, `200 bodies of 5 bytes retain ${retained} bytes`);
  });

  it('retain no other bytes received with the start of a frame while the rest is missing', async () => {
    node = await StompNode.start();
    const clients = await Promise.all(Array.from({ length: 50 }, () => node.client()));
    const heartBeats = Buffer.alloc(60_000, '\n');
    const before = await memoryInUse();
    const expected = node.server.counts.receivedBytes + clients.length * 60_005;
    for (const client of clients) client.write(Buffer.concat([heartBeats, Buffer.from('SEND\n')]));
    await until(() => node.server.counts.receivedBytes === expected);
    const retained = (await memoryInUse()) - before;
    assert.ok(retained < 50 * 20_000, `50 starts of frames retain ${retained} bytes`);
  });

  it('are confirmed with receipts that do not retain the heads of the frames while the client does not read', async () => {
    node = await StompNode.start();
    const client = await node.client();
    client.socket.pause();
    const { counts } = node.server;
    const long = 'x'.repeat(20_000);
    let sent = counts.receivedBytes;
    const send = async (): Promise<void> => {
      const frames = ['BEGIN', 'ABORT'].map((command, i) =>
        client.frame(command, { transaction: 't', receipt: `${i}`.padStart(1000, '-'), long }),
      );
      client.write(Buffer.concat(frames));
      sent += Buffer.concat(frames).length;
      await until(() => counts.receivedBytes === sent);
    };
    // The socket buffers of the kernels take the first receipts.
    while (counts.outgoingBytes < 20_000) await send();
    const before = await memoryInUse();
    while (counts.outgoingBytes < 1_000_000) await send();
    const retained = (await memoryInUse()) - before;
    assert.ok(retained < 5_000_000, `a megabyte of receipts retains ${retained} bytes`);
  });

  it('create subscriptions that do not retain the heads of the frames', async () => {
    node = await StompNode.start();
    const client = await node.client();
    const before = await memoryInUse();
    const long = 'x'.repeat(20_000);
    for (let i = 0; i < 90; i++) {
      const id = `a subscription with a long name ${i}`;
      const group = `a-long-name-of-a-group-${i}`;
      await client.ask('SUBSCRIBE', {
        destination: `/q/S/a-long-name-of-a-queue-${i}`,
        id,
        'x-ks-group': group,
        long,
      });
    }
    const retained = (await memoryInUse()) - before;
    assert.ok(retained < 90 * 12_000, `90 subscriptions retain ${retained} bytes`);
  });
});
