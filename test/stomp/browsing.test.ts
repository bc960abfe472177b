import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { holdScans } from '../support/held-takes.ts';
import { until } from '../support/until.ts';
import type { StompClient } from './client.ts';
import { StompNode, stalled } from './node.ts';

describe('A SUBSCRIBE with browser:true', () => {
  let node: StompNode;

  beforeEach(async () => {
    node = await StompNode.start();
  });
  afterEach(() => node.stop());

  /** Subscribes as a browser; returns the bodies that come before `browser:end`. */
  const browse = async (
    client: StompClient,
    { id = 's', ...headers }: { readonly id?: string } & Readonly<Record<string, string>>,
  ): Promise<string[]> => {
    client.send('SUBSCRIBE', { destination: '/q/N/a', id, browser: 'true', ...headers });
    const bodies: string[] = [];
    for (;;) {
      const { headers: got, body } = await client.expect('MESSAGE');
      assert.equal(got.get('subscription'), id);
      if (got.get('browser') === 'end') {
        assert.deepEqual([got.get('message-id'), body.length], ['', 0]);
        return bodies;
      }
      assert.equal(got.has('ack'), false);
      bodies.push(body.toString());
    }
  };

  it('receives the ready elements in order, then browser:end, and changes nothing', async () => {
    await node.insert('a', 'x', { body: Buffer.from('y'), tries: 3 }, 'z');
    await node.insert('a', { body: Buffer.from('later'), delayMs: 60_000 }, 'held');
    for (let i = 0; i < 4; i++) await node.reserve('a');
    await node.insert('a', 'new');
    const client = await node.client();
    assert.deepEqual(await browse(client, {}), ['new']);
    const other = await node.client();
    await node.insert('b', 'x', 'y');
    for (const ack of ['auto', 'client', 'client-individual']) {
      assert.deepEqual(await browse(other, { destination: '/q/N/b', id: ack, ack }), ['x', 'y']);
    }
    assert.deepEqual(await node.sizes('a'), { ready: 1, scheduled: 1, reserved: 4 });
    assert.deepEqual(await node.sizes('b'), { ready: 2, scheduled: 0, reserved: 0 });
    assert.equal(node.server.counts.unacknowledged, 0);
  });

  it('receives nothing from a queue that does not exist, and does not create it, even if the namespace has maxQueues queues', async () => {
    const { maxQueues } = node.broker.namespace('N').setup;
    await Promise.all(Array.from({ length: maxQueues }, (_, i) => node.insert(`q${i}`, 'x')));
    const client = await node.client();
    assert.deepEqual(await browse(client, {}), []);
    assert.equal(node.broker.namespace('N').knownNames.has('a'), false);
    client.send('SEND', { destination: '/q/N/a' }, 'x');
    await client.expectError('too-many-queues');
  });

  it('reads at most about 4 MiB of large elements at once, in total over all sessions of its user', async () => {
    await node.insert('a', { body: Buffer.alloc(1_000_000, 'x') });
    const clients = await Promise.all(Array.from({ length: 10 }, () => node.client()));
    const held = holdScans(node.engine.engine.storage, () => true);
    const browsing = clients.map((client) => browse(client, {}));
    await until(() => held.queues.length >= 5);
    // These round trips give the server time to read the frames before them.
    const other = await node.client();
    for (let i = 0; i < 20; i += 1) await other.ask('SEND', { destination: '/q/N/b' }, 'x');
    const atOnce = held.queues.length;
    held.release();
    // The limit is 4 MiB, and the last read may exceed it.
    assert.equal(atOnce, 5);
    assert.deepEqual(
      (await Promise.all(browsing)).map(([body]) => body?.length),
      Array(10).fill(1_000_000),
    );
  });

  it('reads one page at a time per session, in turn with the other browsers of the session', async () => {
    const count = 600;
    await node.insert('a', ...Array.from({ length: count }, (_, i) => String(i)));
    const { storage } = node.engine.engine;
    const { scan } = storage;
    let [reading, maxReading] = [0, 0];
    storage.scan = async (...given) => {
      reading += 1;
      maxReading = Math.max(maxReading, reading);
      try {
        return await scan.apply(storage, given);
      } finally {
        reading -= 1;
      }
    };
    const client = await node.client();
    const ids = ['s1', 's2', 's3', 'gone'];
    for (const id of ids) client.send('SUBSCRIBE', { destination: '/q/N/a', id, browser: 'true' });
    client.send('UNSUBSCRIBE', { id: 'gone' });
    const shown = new Map(ids.map((id) => [id, 0]));
    for (let ended = 0; ended < 3; ) {
      const { headers } = await client.expect('MESSAGE');
      const id = headers.get('subscription') ?? '';
      if (headers.get('browser') === 'end') {
        ended += 1;
        for (const other of ['s1', 's2', 's3']) assert.ok((shown.get(other) ?? 0) > 0, 'they take turns');
      } else shown.set(id, (shown.get(id) ?? 0) + 1);
    }
    storage.scan = scan;
    assert.deepEqual([...shown.values()], [count, count, count, 0]);
    assert.equal(maxReading, 1);
  });

  it('receives no browser:end if the server stops before all elements were written', async () => {
    await node.insert('filler', ...Array.from({ length: 400 }, () => ({ body: Buffer.alloc(60_000) })));
    await node.insert('a', 'x', 'y', 'z');
    // The first page has one element, since the size of elements is not known before.
    const held = holdScans(node.engine.engine.storage, () => held.queues.length > 1);
    const { counts } = node.server;
    const client = await node.client();
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 'browser', browser: 'true' });
    await until(() => held.queues.length === 2);
    client.socket.pause();
    client.send('SUBSCRIBE', { destination: '/q/N/filler', id: 'filler' });
    await stalled(node, 1);
    const before = counts.messages;
    held.release();
    await until(() => counts.messages === before + 2);
    void node.server.stop();
    await until(() => counts.subscriptions === 0);
    client.socket.resume();
    const shown: string[] = [];
    for (;;) {
      const frame = await client.nextOrEnd();
      if (frame === null) break;
      if (frame.headers.get('subscription') === 'browser') {
        shown.push(frame.headers.get('browser') ?? frame.body.toString());
      }
    }
    assert.deepEqual(shown, ['x']);
  });

  it('receives elements with their headers, and an ACK of one is an error', async () => {
    const [id = ''] = await node.insert('a', {
      body: Buffer.from('x'),
      contentType: 'text/plain',
      headers: ['colour', 'blue', 'browser', 'end'],
      tries: 2,
    });
    const client = await node.client();
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', browser: 'true', receipt: 'r' });
    assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'r');
    const { headers } = await client.expect('MESSAGE');
    const names = ['message-id', 'content-type', 'colour', 'x-tries', 'browser', 'x-ks-hdr-browser'];
    assert.deepEqual(
      names.map((name) => headers.get(name)),
      [id, 'text/plain', 'blue', '2', undefined, 'end'],
    );
    assert.equal((await client.expect('MESSAGE')).headers.get('browser'), 'end');
    client.send('ACK', { id });
    await client.expectError('element-not-found');
    assert.equal((await node.sizes('a')).ready, 1);
  });

  it('ends at once for an empty queue, and reads many elements over many pages', async () => {
    const client = await node.client();
    assert.deepEqual(await browse(client, { id: 'none' }), []);
    const numbers = Array.from({ length: 1000 }, (_, i) => String(i));
    await node.insert('a', ...numbers);
    assert.deepEqual(await browse(client, {}), numbers);
  });

  for (const [name, value] of [
    ['browser', 'True'],
    ['browser', '1'],
    ['browser', ''],
    ['Browser', 'yes'],
    ['activemq.browser', 'true'],
  ] as const) {
    it(`may be written with ${name}:${value}`, async () => {
      await node.insert('a', 'x');
      const client = await node.client();
      assert.deepEqual(await browse(client, { browser: 'false', [name]: value }), ['x']);
      assert.equal((await node.sizes('a')).ready, 1);
    });
  }

  it('consumes like any other SUBSCRIBE if the value is false or no', async () => {
    await node.insert('a', 'x', 'y');
    const client = await node.client();
    for (const value of ['false', 'No']) {
      await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: value, browser: value, 'x-wsize': 1 });
      await client.expect('MESSAGE');
      await client.ask('UNSUBSCRIBE', { id: value });
    }
    await until(() => node.server.counts.subscriptions === 0);
    assert.equal((await node.sizes('a')).ready, 0);
  });

  it('needs the right browse or read, and receives empty bodies if the user may not see bodies', async () => {
    await node.insert('a', 'secret');
    const open = async (user: string): Promise<StompClient> => {
      const client = await node.client('1.2', { login: user, passcode: user });
      return client;
    };
    assert.deepEqual(await browse(await open('browser'), {}), ['secret']);
    assert.deepEqual(await browse(await open('reader'), {}), ['secret']);
    assert.deepEqual(await browse(await open('masked'), {}), ['']);
    const writer = await open('writer');
    writer.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', browser: 'true' });
    await writer.expectError('forbidden');
    const consumer = await open('browser');
    consumer.send('SUBSCRIBE', { destination: '/q/N/a', id: 's' });
    await consumer.expectError('forbidden');
  });

  it('receives only the elements of its group', async () => {
    await node.insertInto('S', 'a', { body: Buffer.from('one'), groups: ['G1'] });
    await node.insertInto('S', 'a', { body: Buffer.from('both'), groups: ['G1', 'G2'] });
    const client = await node.client();
    const shown = await browse(client, { destination: '/q/S/a', 'x-ks-group': 'G2' });
    assert.deepEqual(shown, ['both']);
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 't', browser: 'true', 'x-ks-group': 'G2' });
    await client.expectError('invalid-parameter');
  });

  it('stops reading the queue while its client does not read', async () => {
    const body = Buffer.alloc(200_000);
    await node.insert('a', ...Array.from({ length: 100 }, () => ({ body })));
    const client = await node.client();
    client.socket.pause();
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', browser: 'true' });
    await stalled(node, 1);
    assert.ok(node.server.counts.messages < 100);
    assert.ok(node.server.counts.outgoingBytes < 1_048_576);
    client.socket.resume();
    for (let i = 0; i < 100; i++) assert.equal((await client.expect('MESSAGE')).body.length, 200_000);
    assert.equal((await client.expect('MESSAGE')).headers.get('browser'), 'end');
  });

  it('keeps its id in use until UNSUBSCRIBE', async () => {
    await node.insert('a', 'x');
    const client = await node.client();
    await browse(client, {});
    await client.ask('UNSUBSCRIBE', { id: 's' });
    assert.equal(node.server.counts.subscriptions, 0);
    assert.deepEqual(await browse(client, {}), ['x']);
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's' });
    await client.expectError('malformed-request');
  });
});
