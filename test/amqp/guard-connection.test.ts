import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { EventContext } from 'rhea';
import { until } from '../support/session-node.ts';
import { conditionOf, KIND, type RawClient, type Said } from './guard-client.ts';
import { GuardNode } from './guard-node.ts';
import {
  AMQP,
  attachReceiver,
  attachSender,
  begin,
  close,
  credit,
  dataSection,
  described,
  detach,
  disposition,
  end,
  frame,
  furtherTransfer,
  HEART_BEAT,
  list8,
  open,
  plain,
  rawFrame,
  SASL,
  str,
  transfer,
} from './guard-wire.ts';

const BODY = dataSection('body');
const SENDING = [begin(), attachSender()];

function kinds(said: readonly Said[]): Said['kind'][] {
  return said.map(({ kind }) => kind);
}

/** The condition of the `close` that the server says last. */
async function closed(client: RawClient): Promise<string | null> {
  const last = (await client.rest()).at(-1);
  assert.equal(last?.kind, KIND.close);
  return conditionOf(last.bytes);
}

describe('The guard before rhea', () => {
  let node: GuardNode;

  beforeEach(async () => {
    node = await GuardNode.start();
  });
  afterEach(() => node.stop());

  it('brings messages as the bytes of their sections', async () => {
    const client = await node.client(...SENDING);
    await client.until(KIND.flow);
    client.write(transfer(BODY, { id: 0 }), transfer(BODY, { id: 1, more: true }));
    client.write(furtherTransfer(BODY, true), furtherTransfer(BODY, false));
    await node.until(() => node.last.messages.length === 2);
    assert.deepEqual(node.last.messages, [BODY, Buffer.concat([BODY, BODY, BODY])]);
  });

  it('brings a message that is too large cut, but longer than it may be', async () => {
    const client = await node.client(...SENDING);
    await client.until(KIND.flow);
    const part = Buffer.alloc(40_000, 'x');
    client.write(transfer(part, { more: true }), furtherTransfer(part, true), furtherTransfer(part, false));
    client.write(transfer(BODY, { id: 1 }));
    await node.until(() => node.last.messages.length === 2);
    const [first, second] = node.last.messages;
    assert.ok(Buffer.isBuffer(first) && first.length === 65_537);
    assert.deepEqual(second, BODY);
  });

  it('lets a sender and a receiver have the same name', async () => {
    const client = await node.client(begin(), attachSender({ name: 'q' }));
    client.write(attachReceiver({ name: 'q', handle: 1 }));
    for (const _ of [1, 2]) {
      const attached = await client.until(KIND.attach);
      assert.ok(attached.includes(str('q')) || attached.includes(Buffer.from([0, 0, 0, 1, 0x71])));
    }
    assert.deepEqual(node.last.events, ['connection_open', 'session_open', 'receiver_open', 'sender_open']);
  });

  it('lets a link be called like what objects inherit', async () => {
    const client = await node.client(begin());
    for (const [handle, name] of ['__proto__', 'constructor', 'toString'].entries()) {
      client.write(attachSender({ name, handle }));
      await client.until(KIND.attach);
    }
    assert.equal(node.last.events.filter((name) => name === 'receiver_open').length, 3);
  });

  it('lets a name, a handle and a channel be used again at once', async () => {
    const client = await node.client(...SENDING, detach(), attachSender(), end(), begin(), attachSender());
    const said: Said['kind'][] = [];
    while (said.filter((kind) => kind === KIND.attach).length < 3)
      said.push((await client.next())?.kind ?? null);
    assert.deepEqual(
      said.filter((kind) => kind !== KIND.flow),
      [KIND.begin, KIND.attach, KIND.detach, KIND.attach, KIND.end, KIND.begin, KIND.attach],
    );
  });

  it('lets others have their turn, however much a client says at once', async () => {
    const client = await node.client(...SENDING);
    await client.until(KIND.flow);
    const turns: number[] = [];
    let turn = 0;
    const count = (): void => {
      turn += 1;
      if (node.last.messages.length === 0) setImmediate(count);
    };
    node.last.guard.stream.on('data', () => turns.push(turn));
    setImmediate(count);
    client.write(...Array<Buffer>(8_000).fill(HEART_BEAT), transfer(BODY));
    await client.until(KIND.disposition);
    assert.ok(new Set(turns).size > 3, `${new Set(turns).size} turns`);
  });

  it('answers a close with a close, and closes', async () => {
    const client = await node.client(begin(), close());
    assert.deepEqual(kinds(await client.rest()), [KIND.begin, KIND.close]);
    client.socket.end();
    await node.until(() => node.last.isGone);
    assert.deepEqual(node.last.refusals, []);
  });

  it('lets heart-beats pass', async () => {
    const client = await node.client(HEART_BEAT, begin());
    await client.until(KIND.begin);
  });

  const breaches: Readonly<Record<string, [readonly Buffer[], string]>> = {
    'a frame of 7 bytes': [[Buffer.from([0, 0, 0, 7, 2, 0, 0])], 'amqp:connection:framing-error'],
    'a frame of 0 bytes': [[Buffer.alloc(8)], 'amqp:connection:framing-error'],
    'a frame of 2^31 bytes': [[Buffer.from([0x80, 0, 0, 0])], 'amqp:connection:framing-error'],
    'a frame of 2^32-1 bytes': [[Buffer.alloc(4, 0xff)], 'amqp:connection:framing-error'],
    'a frame of one byte too many': [[Buffer.from([0, 2, 0, 1])], 'amqp:connection:framing-error'],
    'a frame of SASL': [[rawFrame(1, 0, described(0x41, list8()))], 'amqp:connection:framing-error'],
    'a list that is none': [[rawFrame(0, 0, described(0x11, str('x')))], 'amqp:decode-error'],
    'a second open': [[open()], 'amqp:illegal-state'],
    'a link without a session': [[attachSender()], 'amqp:connection:framing-error'],
    'a disposition of 2^32 deliveries': [[begin(), disposition(0, 2 ** 32 - 1)], 'amqp:invalid-field'],
    'a transfer before the answers': [[...SENDING, transfer(BODY)], 'amqp:session:window-violation'],
  };
  for (const [what, [frames, condition]] of Object.entries(breaches)) {
    it(`answers ${what} with a close that says ${condition}`, async () => {
      const client = await node.client(...frames);
      assert.equal(await closed(client), condition);
      assert.deepEqual(
        node.last.refusals.map((refusal) => refusal.condition),
        [condition],
      );
      assert.equal(node.last.events.at(-1), 'disconnected');
      assert.equal(node.counts.errors, 1);
    });
  }

  it('executes what came before a protocol error, and reports it before it closes', async () => {
    const client = await node.client(...SENDING);
    await client.until(KIND.flow);
    client.write(transfer(BODY), Buffer.alloc(8));
    assert.deepEqual(kinds(await client.rest()), [KIND.disposition, KIND.close]);
    assert.deepEqual(node.last.messages, [BODY]);
  });

  it('opens before it closes, where the open of the client is what is wrong', async () => {
    const client = await node.stranger();
    client.write(SASL, plain('test', 'test'), AMQP, frame('open', []));
    const said = kinds(await client.rest());
    assert.deepEqual(said, ['SASL', KIND.mechanisms, KIND.outcome, 'AMQP', KIND.open, KIND.close]);
  });

  it('hears nothing behind a breach', async () => {
    const client = await node.client(Buffer.alloc(8), begin());
    await client.rest();
    client.write(begin());
    assert.ok(!node.last.events.includes('session_open'));
  });

  it('cuts a client that does not close after a breach', async () => {
    const client = await node.client(Buffer.alloc(8));
    await closed(client);
    assert.equal(node.last.isGone, false);
    node.clock.advance(2_000);
    await node.until(() => node.last.isGone);
    assert.equal(node.clock.pending, 0);
  });

  it('cuts a client that does not answer a close of this side', async () => {
    const client = await node.client();
    node.last.rhea?.close({ condition: 'amqp:connection:forced', description: 'bye' });
    assert.equal(conditionOf(await client.until(KIND.close)), 'amqp:connection:forced');
    const { frames } = node.counts;
    client.write(HEART_BEAT);
    await until(() => node.counts.frames > frames);
    node.clock.advance(2_000);
    await node.until(() => node.last.isGone);
  });

  it('tells its owner why, in words', async () => {
    const client = await node.client(Buffer.alloc(8));
    await closed(client);
    const description = 'A frame has 0 bytes, less than its header.';
    assert.deepEqual(node.last.refusals, [{ condition: 'amqp:connection:framing-error', description }]);
  });

  it('ends a connection for whoever owns it, with the reason that they give', async () => {
    const client = await node.client(begin());
    node.last.guard.close({ condition: 'amqp:internal-error', description: 'it broke' });
    assert.equal(await closed(client), 'amqp:internal-error');
  });

  it('ends a login for whoever owns it, with an outcome', async () => {
    const client = await node.stranger();
    client.write(SASL);
    await client.until(KIND.mechanisms);
    node.last.guard.close({ condition: 'amqp:connection:forced', description: 'shutting down' });
    assert.deepEqual(kinds(await client.rest()), [KIND.outcome]);
  });

  it('tells rhea when the client is gone, and says so last', async () => {
    const client = await node.client(begin());
    await client.until(KIND.begin);
    client.socket.destroy();
    await node.until(() => node.last.isGone);
    assert.equal(node.last.events.at(-1), 'disconnected');
  });

  it('does what a client said that closes its side behind it', async () => {
    const client = await node.client(...SENDING);
    await client.until(KIND.flow);
    client.write(transfer(BODY));
    client.socket.end();
    await node.until(() => node.last.isGone);
    assert.deepEqual(node.last.messages, [BODY]);
  });

  it('reads nothing while it is held', async () => {
    const client = await node.client(...SENDING);
    await client.until(KIND.flow);
    node.last.guard.hold(true);
    client.write(transfer(BODY));
    const other = await node.client();
    await other.socket.end();
    await node.until(() => node.last.isGone);
    assert.deepEqual(node.seen[0]?.messages, []);
    node.seen[0]?.guard.hold(false);
    await client.until(KIND.disposition);
    assert.deepEqual(node.seen[0]?.messages, [BODY]);
  });
});

describe('The cargo of the guard', () => {
  let node: GuardNode;
  let heard: string[];

  beforeEach(async () => {
    node = await GuardNode.start();
    heard = [];
  });
  afterEach(() => node.stop());

  /** Sends that many messages of that size when there is credit, each with cargo. */
  const sends = (count: number, bytes: number): void => {
    node.onSendable = ({ sender, session }: EventContext, { guard }) => {
      node.onSendable = () => {};
      for (let i = 0; i < count; i++) {
        const delivery = sender?.send(dataSection(Buffer.alloc(bytes)), `t${i}`, 0);
        const { channel } = (session as unknown as { local: { channel: number } }).local;
        guard.carry(channel, (delivery as unknown as { id: number }).id, {
          written: () => heard.push(`written ${i}`),
          lost: () => heard.push(`lost ${i}`),
        });
      }
    };
  };
  const receives = [begin(), attachReceiver(), credit(0, 100)];

  it('hears that it was written', async () => {
    sends(2, 10);
    const client = await node.client(...receives);
    await client.until(KIND.transfer);
    await client.until(KIND.transfer);
    assert.deepEqual(heard, ['written 0', 'written 1']);
  });

  it('hears so when the last part of a delivery was written', async () => {
    sends(1, 300_000);
    const client = await node.client(...receives);
    for (const _ of [1, 2, 3]) await client.until(KIND.transfer);
    assert.deepEqual(heard, ['written 0']);
    assert.equal(node.counts.outgoingBytes, 0);
  });

  it('hears that it is lost, where the client takes nothing and goes away', async () => {
    sends(40, 1_000_000);
    const client = await node.stranger();
    client.write(SASL, plain('test', 'test'));
    await client.until(KIND.outcome);
    client.socket.pause();
    client.write(AMQP, open(), ...receives);
    await node.until(() => node.last.events.includes('sendable'));
    await new Promise(setImmediate);
    await new Promise(setImmediate);
    assert.ok(node.last.guard.bytes > 10_000_000);
    assert.ok(node.last.guard.room <= 0);
    assert.equal(node.counts.stalled, 1);
    client.socket.destroy();
    await node.until(() => node.last.isGone);
    const lost = heard.filter((what) => what.startsWith('lost'));
    assert.ok(lost.length > 10 && lost.length >= 40 - heard.length + lost.length);
    assert.equal(new Set(heard).size, heard.length);
    assert.ok(heard.includes('lost 39'));
    assert.equal(node.counts.outgoingBytes, 0);
    assert.equal(node.counts.stalled, 0);
  });

  it('hears that it is lost, where it waits behind a breach', async () => {
    sends(40, 1_000_000);
    const client = await node.stranger();
    client.write(SASL, plain('test', 'test'));
    await client.until(KIND.outcome);
    client.socket.pause();
    client.write(AMQP, open(), ...receives, Buffer.alloc(8));
    await node.until(() => node.last.events.includes('disconnected'));
    assert.ok(heard.includes('lost 39'));
    client.socket.resume();
    assert.equal(await closed(client), 'amqp:connection:framing-error');
  });

  it('hears that it is lost, where there was never credit for it', async () => {
    sends(3, 10);
    const client = await node.client(begin(), attachReceiver(), credit(0, 1));
    await client.until(KIND.transfer);
    client.socket.destroy();
    await node.until(() => node.last.isGone);
    assert.deepEqual(heard, ['written 0', 'lost 1', 'lost 2']);
  });

  it('cuts a client that takes nothing for too long', async () => {
    sends(40, 1_000_000);
    const client = await node.stranger();
    client.write(SASL, plain('test', 'test'));
    await client.until(KIND.outcome);
    client.socket.pause();
    client.write(AMQP, open(), ...receives);
    await node.until(() => node.last.events.includes('sendable'));
    await new Promise(setImmediate);
    await new Promise(setImmediate);
    // What its kernel still took is seen at the first look.
    node.clock.advance(180_000);
    await node.until(() => node.last.isGone);
  });

  it('is lost at once on a connection that is over', async () => {
    const client = await node.client();
    client.socket.destroy();
    await node.until(() => node.last.isGone);
    node.last.guard.carry(0, 0, { written: () => heard.push('written'), lost: () => heard.push('lost') });
    assert.deepEqual(heard, ['lost']);
  });
});
