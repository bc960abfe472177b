import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { until } from '../support/until.ts';
import type { StompClient } from './client.ts';
import { StompNode, stalled } from './node.ts';

describe('heart-beats', () => {
  let node: StompNode;
  beforeEach(async () => {
    node = await StompNode.start();
  });
  afterEach(() => node.stop());

  const withBeats = (beats: string): Promise<StompClient> => node.client('1.2', { 'heart-beat': beats });
  /** A round trip, after which everything that either side sent before has arrived. */
  const roundTrip = async (client: StompClient): Promise<void> => {
    await client.ask('BEGIN', { transaction: 'x' });
    await client.ask('ABORT', { transaction: 'x' });
  };

  it('are offered in CONNECTED, in every version', async () => {
    for (const accepts of ['1.0', '1.1', '1.2']) {
      const client = await node.stranger();
      client.send('CONNECT', { 'accept-version': accepts, host: 'h', login: 'test', passcode: 'test' });
      assert.equal((await client.expect('CONNECTED')).headers.get('heart-beat'), '1000,10000');
    }
  });

  it('are neither sent to a client that wants none, nor expected from one that sends none', async () => {
    for (const client of [await node.client(), await withBeats('0,0')]) {
      const before = client.received.length;
      node.clock.advance(3_600_000);
      await roundTrip(client);
      assert.equal(client.beats, 0);
      assert.ok(client.received.length > before);
    }
  });

  it('are line ends that the server sends at the longer interval of what the client wants and the server offers', async () => {
    const slow = await withBeats('0,20000');
    const quick = await withBeats('0,10');
    for (let i = 0; i < 20; i++) {
      const { beats } = quick;
      node.clock.advance(1_000);
      await until(() => quick.beats > beats);
    }
    await roundTrip(slow);
    await roundTrip(quick);
    assert.ok(slow.beats >= 1 && slow.beats <= 2, `${slow.beats}`);
    // One per second is due; the server sends after three quarters of the interval, and no sooner.
    assert.ok(quick.beats >= 20 && quick.beats <= 27, `${quick.beats}`);
  });

  it('are sent with no gap longer than the agreed interval', async () => {
    const client = await withBeats('0,2000');
    for (let i = 0; i < 10; i++) {
      const { beats } = client;
      node.clock.advance(2_000);
      await until(() => client.beats > beats);
    }
  });

  it('that a client fails to send end its session after twice the interval', async () => {
    const client = await withBeats('5000,0');
    node.clock.advance(19_999);
    await roundTrip(client);
    // The round trip was a sign of life.
    node.clock.advance(19_999);
    assert.equal(node.server.counts.errors, 0);
    node.clock.advance(1);
    await client.expectError('request-timeout');
    await until(() => node.server.counts.sessions === 0);
  });

  it('of a client count as soon as they have arrived, even if the process was paused and has not read them yet', async () => {
    const client = await withBeats('5000,0');
    // Leave the phase of the event loop that reads sockets, as timers run outside of it.
    await new Promise(setImmediate);
    client.write('\n');
    node.clock.advance(20_000);
    await roundTrip(client);
    node.clock.advance(20_000);
    await client.expectError('request-timeout');
  });

  it('of a client are expected at the longer interval of the two sides', async () => {
    const client = await withBeats('60000,0');
    node.clock.advance(119_999);
    assert.equal(node.server.counts.errors, 0);
    node.clock.advance(1);
    await client.expectError('request-timeout');
  });

  it('of a client may be any bytes that it sends', async () => {
    const client = await withBeats('10000,0');
    const send = ['\n', '\r\n', 'SEND\ndestination:', '/q/N/a\n\nhalf a ', 'body', '\0', '\n'];
    for (const bytes of send) {
      node.clock.advance(15_000);
      const { receivedBytes } = node.server.counts;
      client.write(bytes);
      await until(() => node.server.counts.receivedBytes === receivedBytes + bytes.length);
    }
    assert.equal(node.server.counts.errors, 0);
    assert.equal(node.server.counts.sessions, 1);
  });

  it('of a client are not required while the server does not read, but again afterwards', async () => {
    const { release } = node.holdInserts();
    const client = await withBeats('10000,0');
    // More than a client may have in flight in the engine.
    for (let i = 0; i < 8; i++) client.send('SEND', { destination: '/q/N/a' }, Buffer.alloc(1_000_000, 'x'));
    await until(() => node.server.counts.receivedBytes > 5_000_000);
    for (let i = 0; i < 10; i++) {
      client.write('\n');
      node.clock.advance(10_000);
    }
    assert.equal(node.server.counts.errors, 0);
    release();
    await roundTrip(client);
    assert.equal((await node.sizes('a')).ready, 8);
    node.clock.advance(20_000);
    await client.expectError('request-timeout');
  });

  it('do not accumulate for a client that reads nothing', async () => {
    await node.insert('a', ...Array.from({ length: 400 }, () => ({ body: Buffer.alloc(60_000, 1) })));
    const client = await withBeats('0,1000');
    client.socket.pause();
    client.send('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
    await stalled(node, 1);
    const before = node.server.counts.outgoingBytes;
    node.clock.advance(60_000);
    assert.equal(node.server.counts.outgoingBytes, before);
  });
});
