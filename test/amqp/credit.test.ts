import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it, mock } from 'node:test';
import { AMQP_LIMITS } from '../../src/amqp/limits.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { RETRY_MS } from '../../src/session/client-session.ts';
import { SocketWriter } from '../../src/session/socket-writer.ts';
import { until } from '../support/until.ts';
import { type AmqpClient, socketOf, textOf } from './client.ts';
import { AmqpNode, stalled, TestAuthenticator } from './node.ts';
import { KIND } from './raw-client.ts';
import { AMQP, attachReceiver, begin, frame, NULL, open, plain, SASL, TRUE, uint } from './wire.ts';

describe('credit of a receiving client', () => {
  let node: AmqpNode;
  let client: AmqpClient;

  beforeEach(async () => {
    node = await AmqpNode.start();
    client = await node.client();
  });
  afterEach(() => node.stop());

  const numbers = (count: number): string[] => Array.from({ length: count }, (_, i) => String(i));

  it('limits the number of deliveries that are sent', async () => {
    await node.insert('a', ...numbers(20));
    const receiver = await client.receiver('N/a', {}, 7);
    for (let i = 0; i < 7; i++) assert.equal(textOf(await receiver.next()), String(i));
    assert.deepEqual(await node.sizes('a'), { ready: 13, scheduled: 0, reserved: 7 });
    assert.equal(node.queue('a').consumers().length, 0);
    receiver.link.add_credit(2);
    for (const body of ['7', '8']) assert.equal(textOf(await receiver.next()), body);
    assert.deepEqual(await node.sizes('a'), { ready: 11, scheduled: 0, reserved: 9 });
  });

  it('is listed as the consumer’s window, which shrinks when the client grants less', async () => {
    const window = (): number | null | undefined =>
      node.server.describeSessions().flatMap(({ consumers }) => consumers)[0]?.window;
    await node.insert('a', ...numbers(8));
    const receiver = await client.receiver('N/a', {}, 10);
    const deliveries = [];
    for (let i = 0; i < 8; i++) deliveries.push(await receiver.next());
    assert.equal(window(), 10);
    receiver.link.add_credit(1);
    await node.insert('a', '8', '9', '10');
    for (let i = 0; i < 3; i++) deliveries.push(await receiver.next());
    assert.equal(window(), 10, 'the client holds eleven');
    for (const { delivery } of deliveries) delivery?.accept();
    receiver.link.add_credit(4);
    await until(() => window() === 4);
    assert.equal(node.server.counts.window, 4);
    await node.insert('a', '11');
    await receiver.next();
  });

  it('is no longer listed after the client revokes it', async () => {
    const raw = await node.rawClient(
      frame('begin', [NULL, uint(0), uint(1), uint(2048)]),
      attachReceiver({ name: 'l', handle: 0, address: 'N/a' }),
    );
    await raw.until(KIND.attach);
    for (const credit of [100, 10, 0, 30]) {
      raw.write(frame('flow', [uint(0), uint(2048), uint(0), uint(2048), uint(0), uint(0), uint(credit)]));
      await until(() => node.server.counts.window === credit);
    }
  });

  it('waits in the wait queue of its queue while the queue is empty', async () => {
    const receiver = await client.receiver('N/a', {}, 3);
    await until(() => node.queue('a').consumers().length === 1);
    await node.insert('a', 'x');
    assert.equal(textOf(await receiver.next()), 'x');
    await node.insert('a', 'y', 'z');
    assert.deepEqual([textOf(await receiver.next()), textOf(await receiver.next())], ['y', 'z']);
    assert.equal(node.queue('a').consumers().length, 0);
  });

  it('is used up by a drain after all ready elements are sent', async () => {
    await node.insert('a', '0', '1');
    const receiver = await client.receiver('N/a', {}, 10);
    await receiver.next();
    await receiver.next();
    await until(() => node.queue('a').consumers().length === 1);
    await node.insert('a', '2');
    await receiver.next();
    await receiver.drain();
    assert.equal(receiver.inbox.length, 0);
    await node.insert('a', '3');
    assert.equal((await node.sizes('a')).ready, 1);
    assert.equal(node.queue('a').consumers().length, 0);
    assert.equal(textOf(await receiver.take()), '3');
  });

  it('is used up immediately by a drain on an empty queue', async () => {
    const receiver = await client.receiver('N/a', {}, 10);
    await receiver.drain();
    assert.equal(receiver.link.has_credit(), false);
    assert.equal(node.queue('a').consumers().length, 0);
  });

  it('makes a session hold at most 1 MiB and one message for its window, however many links it has', async () => {
    const count = 40;
    const all = Array.from({ length: count }, (_, i) => i);
    for (const i of all) await node.insert(`w${i}`, { body: Buffer.alloc(400_000) });
    const window = (seen: number): Buffer[] => [uint(seen), uint(count), uint(0), uint(2048)];
    const raw = await node.rawClient(
      frame('begin', [NULL, uint(0), uint(1), uint(2048)]),
      frame('flow', [uint(0), uint(0), uint(0), uint(2048)]),
      ...all.map((i) => attachReceiver({ name: `l${i}`, handle: i, address: `N/w${i}` })),
    );
    for (const _ of all) await raw.until(KIND.attach);
    // The window has room for one frame of each message.
    raw.write(
      frame('flow', window(0)),
      ...all.map((i) => frame('flow', [...window(0), uint(i), uint(0), uint(1)])),
    );
    let frames = 0;
    for (; frames < count; frames++) await raw.until(KIND.transfer);
    await until(() => node.broker.waiting === 0);
    const begun = node.server.counts.messages;
    assert.ok(begun * 400_000 < 16_000_000, `${begun} messages were begun`);
    while (frames < count * 4) {
      raw.write(frame('flow', window(frames)));
      for (let i = 0; i < count && frames < count * 4; i++, frames++) await raw.until(KIND.transfer);
    }
    assert.equal(node.server.counts.messages, count);
  });

  it('is used up by a drain only after all messages have passed the window of the session', async () => {
    await node.insert('a', ...numbers(20));
    const window = (seen: number, size: number): Buffer[] => [uint(seen), uint(size), uint(0), uint(2048)];
    const raw = await node.rawClient(
      frame('begin', [NULL, uint(0), uint(5), uint(2048)]),
      attachReceiver({ address: 'N/a' }),
      frame('flow', [...window(0, 5), uint(0), uint(0), uint(100), NULL, TRUE]),
    );
    const kinds: unknown[] = [];
    let seen = 0;
    do {
      const { kind } = (await raw.next()) ?? {};
      if (kind === KIND.transfer && ++seen % 5 === 0) raw.write(frame('flow', window(seen, 5)));
      if (kind === KIND.transfer || kind === KIND.flow) kinds.push(kind);
    } while (kinds.at(-1) !== KIND.flow);
    assert.equal(kinds.length, 21);
  });

  it('is counted in metrics up to the session’s limit of unsettled deliveries', async () => {
    const receiver = await client.receiver('N/a', {}, 2 ** 32 - 1);
    await until(() => node.queue('a').consumers().length === 1);
    assert.equal(node.server.counts.window, AMQP_LIMITS.unsettled);
    await receiver.close();
  });

  it('sends exactly as many elements as it allows when a drain finds more', async () => {
    await node.insert('a', ...numbers(600));
    const receiver = await client.receiver('N/a', {}, 500);
    await receiver.drain();
    for (let i = 0; i < 500; i++) assert.equal(textOf(await receiver.next()), String(i));
    assert.deepEqual(await node.sizes('a'), { ready: 100, scheduled: 0, reserved: 500 });
  });

  it('is used up by a drain on a paused queue, whose elements stay', async () => {
    await node.insert('a', 'x');
    await node.queue('a').pause();
    const receiver = await client.receiver('N/a', {}, 5);
    await receiver.drain();
    assert.equal((await node.sizes('a')).ready, 1);
    receiver.link.add_credit(1);
    await until(() => node.queue('a').consumers().length === 1);
    await node.queue('a').resume();
    assert.equal(textOf(await receiver.next()), 'x');
  });

  for (const code of ['storage-unavailable', 'overloaded'] as const) {
    it(`drained while the engine fails with ${code} is used up once the engine recovers, and the link stays`, async () => {
      await node.insert('a', 'x');
      const { storage } = node.engine.engine;
      const { take } = storage;
      let failed = 0;
      storage.take = () => {
        failed += 1;
        return Promise.reject(new QuaysideError(code, 'The take failed.'));
      };
      const raw = await node.rawClient(
        begin(),
        attachReceiver({ address: 'N/a' }),
        frame('flow', [uint(0), uint(2048), uint(0), uint(2048), uint(0), uint(0), uint(10), NULL, TRUE]),
      );
      // The link retries, at most once a second.
      for (let times = 1; times <= 3; times += 1) {
        await until(() => failed === times && node.queue('a').consumers().length === 0);
        node.clock.advance(RETRY_MS - 1);
        assert.deepEqual([failed, node.server.counts.links], [times, 1]);
        if (times === 3) storage.take = take;
        node.clock.advance(1);
      }
      const kinds: unknown[] = [];
      while (kinds.at(-1) !== KIND.flow) kinds.push((await raw.next())?.kind);
      assert.deepEqual(kinds, [KIND.begin, KIND.attach, KIND.transfer, KIND.flow]);
      // The next credit without a drain waits as before.
      raw.write(frame('flow', [uint(1), uint(2048), uint(0), uint(2048), uint(0), uint(10), uint(1)]));
      await until(() => node.queue('a').consumers().length === 1);
    });
  }

  const rejected = (): number =>
    node.broker.namespace('N').meter.operations().get('reserve')?.get('too-many-consumers') ?? 0;

  it('of links beyond the limit of consumers is tried until one is rejected, once a second', async () => {
    const links = [];
    for (let i = 0; i < 130; i++) links.push(await client.receiver(`N/q${i}`, {}, 1));
    await until(() => rejected() === 30);
    assert.equal(node.broker.waiting, 100);
    node.clock.advance(RETRY_MS);
    await new Promise(setImmediate);
    assert.equal(rejected(), 31);
    for (const link of links.slice(0, 10)) await link.close();
    assert.equal(node.broker.waiting, 90);
    node.clock.advance(RETRY_MS);
    await until(() => node.broker.waiting === 100);
    assert.equal(rejected(), 32);
    for (const link of links.slice(10, 30)) await link.close();
    node.clock.advance(RETRY_MS);
    await until(() => node.broker.waiting === 100);
    node.clock.advance(RETRY_MS);
    assert.equal(rejected(), 32);
    await node.insert('q129', 'x');
    assert.equal(textOf(await (links.at(-1) as (typeof links)[number]).next()), 'x');
  });

  it('of links beyond the limit of consumers is used in turn, although other links free places and take them again', async () => {
    const links = [];
    for (let i = 0; i < 102; i++) links.push(await client.receiver(`N/q${i}`, {}, 1));
    await until(() => rejected() === 2);
    // Each time, one link frees its place, and wants one again after another link has got that.
    for (const [i, link] of links.slice(0, 2).entries()) {
      await node.insert(`q${i}`, 'x');
      (await link.next()).delivery.accept();
      await until(() => node.broker.waiting === 99);
      node.clock.advance(RETRY_MS);
      await until(() => node.broker.waiting === 100);
      const before = rejected();
      link.link.add_credit(1);
      await until(() => rejected() > before);
    }
    assert.equal(node.queue('q100').consumers().length, 1);
    assert.equal(node.queue('q101').consumers().length, 1);
  });

  it('beyond the session’s limit of unsettled deliveries waits until some are settled', async () => {
    const count = 3000;
    for (let i = 0; i < count; i += 500) await node.insert('a', ...numbers(500));
    const receiver = await client.receiver('N/a', {}, count);
    const first = [];
    for (let i = 0; i < 2048; i++) first.push(await receiver.next());
    assert.equal((await node.sizes('a')).reserved, 2048);
    for (const { delivery } of first) delivery.accept();
    for (let i = 2048; i < count; i++) (await receiver.next()).delivery.accept();
    await until(() => node.server.counts.unacknowledged === 0);
    while ((await node.sizes('a')).reserved > 0);
    assert.equal((await node.sizes('a')).ready, 0);
  });

  it('of two links never exceeds the unsettled limit of their session', async () => {
    await node.insert('a', ...numbers(1000));
    await node.insert('a', ...numbers(1100));
    const b = await client.receiver('N/b', {}, 1);
    await until(() => node.queue('b').consumers().length === 1);
    const a = await client.receiver('N/a', {}, 2100);
    const held = [];
    while (held.length < 2048) held.push(await a.next());
    await node.insert('b', 'x');
    assert.equal((await node.sizes('b')).ready, 1);
    assert.deepEqual([(await node.pop('b'))?.tries, b.inbox.length, node.logged], [0, 0, []]);
  });

  it('of each link applies to its own queue only', async () => {
    await node.insert('a', 'a0', 'a1');
    await node.insert('b', 'b0', 'b1');
    const [a, b] = [await client.receiver('N/a', {}, 1), await client.receiver('N/b', {}, 2)];
    assert.equal(textOf(await a.next()), 'a0');
    assert.deepEqual([textOf(await b.next()), textOf(await b.next())], ['b0', 'b1']);
    assert.equal((await node.sizes('a')).ready, 1);
  });

  it('is used only in part while the client does not read; all messages arrive in order once it reads', async () => {
    const count = 300;
    await node.insert(
      'a',
      ...Array.from({ length: count }, (_, i) => ({ body: Buffer.alloc(40_000, `${i} `) })),
    );
    const receiver = await client.receiver('N/a');
    socketOf(client.connection).pause();
    receiver.link.add_credit(1000);
    await stalled(node, 1);
    assert.ok(node.server.counts.outgoingBytes <= 256 * 1024, `${node.server.counts.outgoingBytes}`);
    socketOf(client.connection).resume();
    for (let i = 0; i < count; i++) {
      const got = await receiver.next();
      assert.ok(textOf(got).startsWith(`${i} `));
      got.delivery.accept();
    }
    await receiver.close();
    while ((await node.sizes('a')).reserved > 0);
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
  });
});

describe('messages of a link that the server detaches while the client does not read', () => {
  it('count a failed try only if they reach the client', async () => {
    const node = await AmqpNode.start();
    try {
      const count = 60;
      await node.insert('a', ...Array.from({ length: count }, () => ({ body: Buffer.alloc(400_000) })));
      const client = await node.client();
      const receiver = await client.receiver('N/a');
      socketOf(client.connection).pause();
      receiver.link.add_credit(count);
      await stalled(node, 1);
      node.renewUsers(() => new TestAuthenticator().userNamed('writer'));
      socketOf(client.connection).resume();
      assert.equal((await receiver.ended())?.condition, 'amqp:unauthorized-access');
      await until(async () => (await node.sizes('a')).ready === count);
      const tries: (number | undefined)[] = [];
      for (let i = 0; i < count; i++) tries.push((await node.pop('a'))?.tries);
      const came = receiver.inbox.length;
      assert.ok(came > 0 && came < count, `${came} came`);
      assert.deepEqual(
        tries,
        tries.map((_, i) => (i < came ? 1 : 0)),
      );
    } finally {
      await node.stop();
    }
  });
});

describe('a message of many frames', () => {
  it('is sent in frames of the client’s max-frame-size, and accepted in such frames', async () => {
    const node = await AmqpNode.start();
    const client = await node.client('test', { max_frame_size: 1000 });
    const body = Buffer.from(Array.from({ length: 300_000 }, (_, i) => i % 251));
    const sender = await client.sender('N/a');
    assert.equal((await sender.send({ body })).kind, 'accepted');
    const { message } = await (await client.receiver('N/a', {}, 1)).next();
    assert.ok(body.equals(message.body as Buffer));
    await client.close();
    await node.stop();
  });

  it('is written to the connection 1 MiB at a time', async () => {
    const node = await AmqpNode.start();
    try {
      const count = 16_000_000;
      await node.insert('a', { body: Buffer.alloc(count) });
      const raw = await node.newConnection();
      raw.write(SASL, plain('test', 'test'));
      await raw.until(KIND.outcome);
      raw.write(AMQP, open(NULL, uint(512)), frame('begin', [NULL, uint(0), uint(count), uint(2048)]));
      raw.write(attachReceiver({ address: 'N/a' }));
      await raw.until(KIND.attach);
      raw.socket.pause();
      raw.write(frame('flow', [uint(0), uint(count), uint(0), uint(2048), uint(0), uint(0), uint(1)]));
      await stalled(node, 1);
      assert.ok(node.server.counts.outgoingBytes <= 1_048_576 + 512, `${node.server.counts.outgoingBytes}`);
      raw.socket.resume();
      for (let bytes = 0; bytes < count; ) {
        const sent = await raw.until(KIND.transfer);
        bytes += sent.length - 13 - (sent[12] ?? 0);
      }
    } finally {
      await node.stop();
    }
  });

  it('is not split into further frames when its connection is cut and another link of the session ends first', async () => {
    const node = await AmqpNode.start();
    try {
      await node.insert('b', { body: Buffer.alloc(8_000_000) });
      const raw = await node.newConnection();
      raw.write(SASL, plain('test', 'test'));
      await raw.until(KIND.outcome);
      raw.write(AMQP, open(NULL, uint(512)), frame('begin', [NULL, uint(0), uint(100_000), uint(2048)]));
      raw.write(attachReceiver({ address: 'N/a' }), attachReceiver({ address: 'N/b', name: 'b', handle: 1 }));
      await raw.until(KIND.attach);
      await raw.until(KIND.attach);
      raw.socket.pause();
      raw.write(frame('flow', [uint(0), uint(100_000), uint(0), uint(2048), uint(1), uint(0), uint(1)]));
      await stalled(node, 1);
      const add = mock.method(SocketWriter.prototype, 'add');
      raw.socket.destroy();
      await until(() => node.server.counts.links === 0);
      assert.equal(add.mock.callCount(), 0);
      await until(async () => (await node.sizes('b')).ready === 1);
      assert.equal((await node.pop('b'))?.tries, 0);
    } finally {
      mock.restoreAll();
      await node.stop();
    }
  });

  it('stays in the queue if it exceeds the client’s max-message-size, which detaches the link', async () => {
    const node = await AmqpNode.start();
    try {
      const client = await node.client();
      // The element after the large one is taken with it, but not yet written when the link ends.
      await node.insert('a', 'first', 'second', { body: Buffer.alloc(10_000) }, 'next');
      const receiver = await client.receiver('N/a', { max_message_size: 5_000 }, 10);
      for (const body of ['first', 'second']) assert.equal(textOf(await receiver.next()), body);
      assert.equal((await receiver.ended())?.condition, 'amqp:link:message-size-exceeded');
      while ((await node.sizes('a')).reserved > 0);
      const tries: (number | undefined)[] = [];
      for (let i = 0; i < 4; i++) tries.push((await node.pop('a'))?.tries);
      assert.deepEqual(tries, [1, 1, 0, 0]);
      await client.close();
    } finally {
      await node.stop();
    }
  });

  it('resumes when the client’s window opens, and leaves no remainder when its link is closed in between', async () => {
    const node = await AmqpNode.start();
    const client = await node.client('test', { max_frame_size: 1000, session_buffer_size: 30 });
    await node.insert('a', { body: Buffer.alloc(20_000, 'a') }, { body: Buffer.alloc(20_000, 'b') });
    const receiver = await client.receiver('N/a', {}, 2);
    const first = await receiver.next();
    assert.equal(textOf(first).length, 20_000);
    first.delivery.accept();
    await receiver.close();
    await node.insert('b', 'after');
    assert.equal(textOf(await (await client.receiver('N/b', {}, 1)).next()), 'after');
    await client.close();
    await until(() => node.server.counts.sessions === 0);
    await node.stop();
  });
});
