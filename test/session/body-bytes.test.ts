import assert from 'node:assert/strict';
import { type EventEmitter, once } from 'node:events';
import { createRequire } from 'node:module';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { MAX_PLACE_WAIT_MS } from '../../src/access/body-limit.ts';
import type { SessionServer } from '../../src/session/server.ts';
import { AmqpNode } from '../amqp/node.ts';
import { KIND } from '../amqp/raw-client.ts';
import { attachSender, begin, dataSection, furtherTransfer, transfer } from '../amqp/wire.ts';
import { StompClient } from '../stomp/client.ts';
import { StompNode } from '../stomp/node.ts';
import type { SessionNode } from '../support/session-node.ts';
import { until } from '../support/until.ts';

interface WebSocketClient extends EventEmitter {
  send(data: Buffer | string, options?: { readonly fin: boolean }): void;
  terminate(): void;
}

const { WebSocket } = createRequire(import.meta.url)('ws') as {
  readonly WebSocket: new (url: string, protocols: readonly string[]) => WebSocketClient;
};

const MIB = 1_048_576;
/** Four bodies of this size are all that one user may have. */
const LARGEST = 32 * MIB;
const SENT = 256 * 1024;

/** Lets the server read whatever it reads. */
async function untilQuiet({ server }: SessionNode<SessionServer>): Promise<void> {
  let [before, quiet] = [-1, 0];
  while (quiet < 50) {
    await turn();
    quiet = before === server.counts.receivedBytes ? quiet + 1 : 0;
    before = server.counts.receivedBytes;
  }
}

describe('While bodies of one user occupy 128 MiB', () => {
  let node: StompNode;
  /** Clients that have sent only the start of a body. */
  let slow: StompClient[] = [];

  const tcpClient = (user: string): Promise<StompClient> =>
    StompClient.login(node.server.address.port, '1.2', { login: user, passcode: user });

  const occupy = async (overWebSocket = false): Promise<void> => {
    node = await StompNode.start({ options: { bodyLimit: LARGEST }, overWebSocket });
    slow = await Promise.all(Array.from({ length: 4 }, () => tcpClient('test')));
    const head = `SEND\ndestination:/q/N/slow\ncontent-length:${LARGEST}\n\n`;
    for (const client of slow) client.write(Buffer.concat([Buffer.from(head), Buffer.alloc(SENT, 'x')]));
    await until(() => node.server.counts.receivedBytes > 4 * SENT);
  };

  afterEach(async () => {
    for (const { socket } of slow) socket.destroy();
    await node.stop();
  });

  it('a further STOMP body waits unread until one has ended, and that of another user does not', async () => {
    await occupy();
    const late = await node.client();
    const other = await node.client('1.2', { login: 'writer', passcode: 'writer' });
    const before = node.server.counts.receivedBytes;
    const stored = late.ask('SEND', { destination: '/q/N/late' }, Buffer.alloc(MIB, 'y'));
    await untilQuiet(node);
    assert.ok(node.server.counts.receivedBytes - before < SENT, 'the server went on reading');
    await other.ask('SEND', { destination: '/q/N/other' }, Buffer.alloc(MIB, 'z'));
    assert.deepEqual(await node.sizes('late'), { ready: 0, scheduled: 0, reserved: 0 });
    slow[0]?.socket.destroy();
    await stored;
    assert.equal((await node.pop('late'))?.body.byteLength, MIB);
  });

  it('a STOMP session with 64 KiB on their way to the engine is not read from', async () => {
    await occupy();
    const busy = await node.client();
    const held = node.holdInserts();
    const { frames } = node.server.counts;
    for (let i = 0; i < 400; i += 1) busy.send('SEND', { destination: '/q/N/busy' }, 'x'.repeat(10_000));
    await held.asked;
    await untilQuiet(node);
    assert.ok(node.server.counts.frames - frames < 40, `${node.server.counts.frames - frames} were read`);
    held.release();
    await busy.ask('BEGIN', { transaction: 't' });
    assert.equal((await node.sizes('busy')).ready, 400);
  });

  it('no transaction of the user may grow beyond 64 KiB', async () => {
    await occupy();
    const client = await node.client();
    await client.ask('BEGIN', { transaction: 't' });
    const send = { destination: '/q/N/a', transaction: 't' };
    await client.ask('SEND', send, 'x'.repeat(60_000));
    client.send('SEND', send, 'x'.repeat(10_000));
    const { headers } = await client.expectError('overloaded');
    assert.equal(headers.get('x-ks-retry'), 'true');
  });

  it('a WebSocket message of the user waits, too, once 64 KiB of it have arrived', async () => {
    await occupy(true);
    const webSocket = new WebSocket(`ws://127.0.0.1:${node.port}/stomp`, ['v12.stomp']);
    await once(webSocket, 'open');
    webSocket.send('CONNECT\naccept-version:1.2\nhost:h\nlogin:test\npasscode:test\n\n\0');
    const [connected] = (await once(webSocket, 'message')) as [Buffer];
    assert.match(connected.toString(), /^CONNECTED/);
    const part = Buffer.alloc(50_000, 'y');
    webSocket.send('SEND\ndestination:/q/N/late\nreceipt:r\n\n', { fin: false });
    for (let i = 0; i < 20; i += 1) webSocket.send(part, { fin: false });
    webSocket.send('\0');
    const other = await tcpClient('writer');
    for (let i = 0; i < 5; i += 1) {
      await other.ask('SEND', { destination: '/q/N/other' }, Buffer.alloc(MIB, 'z'));
    }
    assert.deepEqual(await node.sizes('late'), { ready: 0, scheduled: 0, reserved: 0 });
    slow[0]?.socket.destroy();
    const [receipt] = (await once(webSocket, 'message')) as [Buffer];
    assert.match(receipt.toString(), /^RECEIPT/);
    assert.equal((await node.pop('late'))?.body.byteLength, 20 * part.length);
    webSocket.terminate();
  });

  it('a session that waits for 60 s gets an ERROR, and the elements that it holds return', async () => {
    await occupy();
    const late = await node.client();
    await node.insert('held', 'x');
    late.send('SUBSCRIBE', { destination: '/q/N/held', id: 'held', ack: 'client-individual' });
    await late.expect('MESSAGE');
    late.send('SEND', { destination: '/q/N/late' }, Buffer.alloc(MIB, 'y'));
    await untilQuiet(node);
    node.clock.advance(MAX_PLACE_WAIT_MS - 1);
    await untilQuiet(node);
    assert.deepEqual(await node.sizes('held'), { ready: 0, scheduled: 0, reserved: 1 });
    node.clock.advance(1);
    await until(async () => (await node.sizes('held')).ready === 1);
    const { headers } = await late.expectError('overloaded');
    assert.equal(headers.get('x-ks-retry'), 'true');
  });

  describe('of which some are in transactions,', () => {
    let late: StompClient;
    let committing: StompClient;
    let other: StompClient;
    let stored: Promise<void>;
    /** How many bytes the server has read since all was occupied. */
    let received: () => number;

    beforeEach(async () => {
      node = await StompNode.start({ options: { bodyLimit: LARGEST } });
      const clients = await Promise.all(Array.from({ length: 5 }, () => node.client()));
      const [last, unfinished, ...holding] = clients as [StompClient, StompClient, ...StompClient[]];
      [committing, other] = holding as [StompClient, StompClient];
      for (const client of holding) {
        await client.ask('BEGIN', { transaction: 't' });
        await client.ask('SEND', { destination: '/q/N/a', transaction: 't' }, Buffer.alloc(LARGEST, 1));
      }
      const before = node.server.counts.receivedBytes;
      received = () => node.server.counts.receivedBytes - before;
      const head = `SEND\ndestination:/q/N/slow\ncontent-length:${LARGEST}\n\n`;
      slow = [unfinished];
      unfinished.write(Buffer.concat([Buffer.from(head), Buffer.alloc(SENT, 'x')]));
      await until(() => received() > SENT);
      late = last;
      stored = late.ask('SEND', { destination: '/q/N/late' }, Buffer.alloc(MIB, 'y'));
      await untilQuiet(node);
    });

    it('a body waits in a session without an open one, and not in one that has one', async () => {
      assert.ok(received() < 2 * SENT, 'the server went on reading');
      committing.send('SEND', { destination: '/q/N/a' }, Buffer.alloc(MIB, 'y'));
      await committing.expectError('overloaded');
      await stored;
      await other.ask('ABORT', { transaction: 't' });
    });

    it('a body waits until the engine has one that is committed', async () => {
      const held = node.holdInserts();
      committing.send('COMMIT', { transaction: 't' });
      await held.asked;
      await untilQuiet(node);
      const waiting = received();
      held.release();
      assert.ok(waiting < 2 * SENT, 'the server went on reading');
      await stored;
    });
  });
});

describe('An AMQP connection', () => {
  it('is not read from while the bodies of its user occupy 128 MiB, and it has received 64 KiB of one', async () => {
    const node = await AmqpNode.start({ options: { bodyLimit: LARGEST } });
    try {
      const part = Buffer.alloc(100_000, 'x');
      const opened = () => node.rawClient(begin(), attachSender({ address: 'N/late' }));
      const clients = await Promise.all(Array.from({ length: 5 }, opened));
      for (const client of clients) await client.until(KIND.flow);
      const [late, ...slow] = clients;
      const body = dataSection(Buffer.alloc(20 * part.length, 'x'));
      const start = transfer(body.subarray(0, part.length), { more: true });
      for (const client of slow) client.write(start);
      await until(() => node.server.counts.receivedBytes > 4 * part.length);
      const before = node.server.counts.receivedBytes;
      late?.write(start);
      for (let at = part.length; at < body.length; at += part.length) {
        const end = at + part.length;
        late?.write(furtherTransfer(body.subarray(at, end), end < body.length));
      }
      await untilQuiet(node);
      assert.ok(node.server.counts.receivedBytes - before < 500_000, 'the server went on reading');
      slow[0]?.socket.destroy();
      await late?.until(KIND.disposition);
      assert.equal((await node.pop('late'))?.body.byteLength, 20 * part.length);
    } finally {
      await node.stop();
    }
  });
});
