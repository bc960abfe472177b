import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Connection, Delivery, Sender, Session } from 'rhea';
import { RheaStream } from '../../src/amqp/guard/rhea-stream.ts';
import {
  acceptConnection,
  forgetLink,
  hasRoom,
  mendSender,
  mendSession,
  sendable,
  sendBytes,
  unsent,
} from '../../src/amqp/rhea.ts';
import { type AmqpClient, textOf } from './client.ts';
import { AmqpNode, until } from './node.ts';

// What src/amqp/rhea.ts uses of rhea beyond its public face, and mends: another version of rhea must do the same.

interface Inside {
  readonly outgoing: {
    readonly deliveries: { by_id(id: number): Delivery | undefined; readonly size: number };
    readonly next_delivery_id: number;
    readonly next_pending_delivery: number;
    transfer_window(): number;
    on_begin(fields: object): void;
    on_flow(fields: object): void;
    process(): void;
  };
  on_begin(frame: object): void;
  on_flow(frame: object): void;
  on_attach(frame: object): void;
}

describe('rhea, as the server uses it', () => {
  let connection: Connection;
  let session: Session & Inside;
  let written: Buffer[];

  beforeEach(() => {
    written = [];
    const stream = new RheaStream({
      write: (bytes) => void written.push(bytes),
      end: () => {},
      destroy: () => {},
    });
    connection = acceptConnection(stream, {
      containerId: 'test',
      version: '0',
      frameBytes: 4096,
      channelMax: 7,
      idleTimeoutMs: 0,
      unsettled: 4,
    });
    for (const event of ['session_open', 'sender_open', 'sender_flow', 'disconnected'])
      connection.on(event, () => {});
    const inner = connection as unknown as {
      on_open(frame: object): void;
      create_session(size: number): Session & Inside;
    };
    inner.on_open({ performative: { container_id: 'peer', max_frame_size: 4096 } });
    session = inner.create_session(4);
    mendSession(session, () => {});
    session.on_begin({
      channel: 0,
      performative: { next_outgoing_id: 0, incoming_window: 3, outgoing_window: 10 },
    });
  });
  afterEach(async () => {
    await new Promise(setImmediate);
    connection.removeAllListeners('disconnected');
  });

  const attach = (name: string): Sender => {
    session.on_attach({ performative: { name, handle: name === 'a' ? 0 : 1, role: true } });
    const link = session.find_sender((one: Sender) => one.name === name);
    assert.ok(link !== undefined);
    mendSender(link);
    return link;
  };
  const flow = (handle: number, credit: number, window = 3): void => {
    session.on_flow({
      performative: {
        next_incoming_id: 0,
        incoming_window: window,
        next_outgoing_id: 0,
        outgoing_window: 10,
        handle,
        delivery_count: 0,
        link_credit: credit,
      },
    });
  };
  const send = (link: Sender, dropped = (): void => {}): Delivery =>
    sendBytes(link, Buffer.from('x'), Buffer.from('t'), dropped);

  it('says how many messages may leave at once: credit, what may be unsettled, the peer’s window', () => {
    const link = attach('a');
    assert.equal(sendable(link), 0);
    flow(0, 10);
    assert.equal(sendable(link), 3);
    flow(0, 2);
    assert.equal(sendable(link), 2);
    send(link);
    assert.deepEqual([sendable(link), unsent(link)], [1, 1]);
    session.outgoing.process();
    assert.deepEqual([sendable(link), unsent(link)], [1, 0]);
    flow(0, 100, 100);
    assert.equal(sendable(link), 3);
  });

  it('finds no delivery by the number of one that is settled already', () => {
    const link = attach('a');
    flow(0, 100, 100);
    for (let i = 0; i < 4; i++) {
      const delivery = send(link);
      session.outgoing.process();
      Object.assign(delivery, { settled: true, remote_settled: true });
      session.outgoing.process();
    }
    const fifth = send(link);
    assert.equal(session.outgoing.deliveries.by_id(fifth.id), fifth);
    for (let id = 0; id < fifth.id; id++) assert.equal(session.outgoing.deliveries.by_id(id), undefined);
  });

  it('leaves out what waits for the window when its link is closed, and sends what is behind it', () => {
    const [a, b] = [attach('a'), attach('b')];
    flow(0, 10, 1);
    flow(1, 10, 1);
    const dropped: string[] = [];
    send(a);
    send(a, () => dropped.push('a'));
    send(b, () => dropped.push('b'));
    session.outgoing.process();
    assert.equal(unsent(a), 2);
    a.close();
    flow(1, 10, 100);
    session.outgoing.process();
    assert.deepEqual([dropped, unsent(b)], [['a'], 0]);
  });

  it('has room for what all links of a session leave unsettled, and again when one of them is forgotten', () => {
    const [a, b] = [attach('a'), attach('b')];
    flow(0, 10, 100);
    flow(1, 10, 100);
    for (const link of [a, b, a]) send(link);
    assert.equal(hasRoom(b), true);
    const waiting = send(b);
    assert.equal(hasRoom(a), false);
    assert.throws(() => send(a), /overflow/);
    session.outgoing.process();
    forgetLink(a);
    assert.deepEqual([session.outgoing.deliveries.size, hasRoom(b)], [3, true]);
    forgetLink(b);
    assert.deepEqual([session.outgoing.deliveries.size, waiting.settled], [0, true]);
  });

  it('writes what is given to it as it is given', () => {
    const link = attach('a');
    flow(0, 10);
    send(link);
    session.outgoing.process();
    // A frame for the delivery comes last: its bytes are at the end, as they were given.
    assert.ok(written.at(-1)?.subarray(-1).equals(Buffer.from('x')));
  });
});

describe('rhea’s client', () => {
  it('connects again by itself, and goes on with its links', async () => {
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

  it('is kept by empty frames, and noticed when it sends none', async () => {
    const node = await AmqpNode.start({ options: { idleTimeoutMs: 600 } });
    const client = await node.client('test', { idle_time_out: 1000 });
    const { frames } = node.server.counts;
    await until(() => node.server.counts.frames >= frames + 4);
    assert.equal(node.server.counts.sessions, 1);
    // It does not answer any more: rhea's own timers of the client are stopped with its stream.
    const inner = client.connection as unknown as { _write_frame(): void };
    inner._write_frame = () => {};
    const told = await client.closed;
    assert.equal(told?.condition, 'amqp:resource-limit-exceeded');
    await node.stop();
  });

  it('is not taken for silent while this server does not read, and is afterwards', async (t) => {
    t.mock.timers.enable({ apis: ['setTimeout'] });
    const idleTimeoutMs = 10_000;
    const node = await AmqpNode.start({ options: { idleTimeoutMs } });
    const client = await node.client();
    const pass = (ms: number): void => {
      node.clock.advance(ms);
      t.mock.timers.tick(ms);
    };
    const { letGo } = node.holdInserts();
    const sender = await client.sender('N/a');
    await sender.sendable();
    // More than a client may have under way in the engine.
    const sending = Array.from({ length: 8 }, () => sender.send({ body: Buffer.alloc(1_000_000) }));
    await until(() => node.server.counts.receivedBytes > 5_000_000);
    for (let i = 0; i < 10; i++) pass(idleTimeoutMs / 2);
    assert.equal(client.connection.is_open(), true);
    letGo();
    for (const { kind } of await Promise.all(sending)) assert.equal(kind, 'accepted');
    (client.connection as unknown as { _write_frame(): void })._write_frame = () => {};
    for (let i = 0; i < 4; i++) pass(idleTimeoutMs / 2);
    assert.equal((await client.closed)?.condition, 'amqp:resource-limit-exceeded');
    await node.stop();
  });
});
