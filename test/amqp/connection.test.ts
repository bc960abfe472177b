import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { until } from '../support/until.ts';
import { AmqpNode } from './node.ts';
import { conditionOf, KIND, type RawClient, type ServerFrame } from './raw-client.ts';
import {
  AMQP,
  attachReceiver,
  attachSender,
  begin,
  bin,
  bytes,
  close,
  credit,
  dataSection,
  described,
  detach,
  disposition,
  end,
  FALSE,
  frame,
  furtherTransfer,
  HEART_BEAT,
  list8,
  NULL,
  open,
  plain,
  rawFrame,
  SASL,
  str,
  sym,
  TRUE,
  transfer,
  uint,
  uint32,
} from './wire.ts';

const BODY = dataSection('body');
const SENDING = [begin(), attachSender()];

function kinds(frames: readonly ServerFrame[]): ServerFrame['kind'][] {
  return frames.map(({ kind }) => kind);
}

/** The condition of the `close`, which must be the last frame from the server. */
async function closed(client: RawClient): Promise<string | null> {
  const last = (await client.readToEnd()).at(-1);
  assert.equal(last?.kind, KIND.close);
  return conditionOf(last.bytes);
}

describe('An AMQP connection', () => {
  let node: AmqpNode;

  beforeEach(async () => {
    node = await AmqpNode.start();
  });
  afterEach(() => node.stop());

  const gone = (): Promise<void> => until(() => node.server.counts.sessions === 0);
  const bodyOf = async (name = 'q'): Promise<string> =>
    Buffer.from((await node.pop(name))?.body ?? []).toString();

  it('accepts messages of one transfer and of several', async () => {
    const client = await node.rawClient(...SENDING);
    await client.until(KIND.flow);
    client.write(transfer(BODY, { id: 0 }), transfer(BODY, { id: 1, more: true }));
    client.write(furtherTransfer(BODY, true), furtherTransfer(BODY, false));
    await client.until(KIND.disposition);
    while ((await node.sizes('q')).ready < 2);
    assert.deepEqual([await bodyOf(), await bodyOf()], ['body', 'bodybodybody']);
  });

  it('rejects links of transaction controllers and keeps the other links', async () => {
    const client = await node.rawClient(...SENDING);
    await client.until(KIND.flow);
    const coordinator = described(0x30, list8(sym('amqp:local-transactions')));
    for (const role of [FALSE, TRUE]) {
      const fields = [str('t'), uint(1), role, NULL, NULL, NULL, coordinator, NULL, NULL, uint(0)];
      client.write(frame('attach', fields));
      assert.equal(conditionOf(await client.until(KIND.detach)), 'amqp:not-implemented');
      client.write(detach(1));
    }
    client.write(transfer(BODY));
    await client.until(KIND.disposition);
    assert.equal(await bodyOf(), 'body');
  });

  it('allows a name, a handle and a channel to be reused without waiting for answers', async () => {
    const client = await node.rawClient(...SENDING, detach(), attachSender(), end(), begin(), attachSender());
    const received: ServerFrame['kind'][] = [];
    while (received.filter((kind) => kind === KIND.attach).length < 3)
      received.push((await client.next())?.kind ?? null);
    assert.deepEqual(
      received.filter((kind) => kind !== KIND.flow),
      [KIND.begin, KIND.attach, KIND.detach, KIND.attach, KIND.end, KIND.begin, KIND.attach],
    );
  });

  it('detaches a link when another one takes its name, and returns its unsettled deliveries to the queue', async () => {
    await node.insert('q', 'x');
    const client = await node.rawClient(begin(), attachReceiver(), credit(0, 1));
    await client.until(KIND.transfer);
    client.write(attachReceiver({ handle: 1 }), credit(1, 1));
    assert.equal(conditionOf(await client.until(KIND.detach)), 'amqp:link:stolen');
    await client.until(KIND.transfer);
    assert.deepEqual([node.server.counts.links, node.server.counts.unacknowledged], [1, 1]);
  });

  it('accepts pipelined frames, from the SASL header to the close', async () => {
    const client = await node.newConnection();
    client.write(SASL, plain('test', 'test'), AMQP, open(), ...SENDING, transfer(BODY), close());
    const received = kinds(await client.readToEnd());
    const answers = [KIND.open, KIND.begin, KIND.attach, KIND.flow, KIND.disposition, KIND.close];
    assert.deepEqual(received, ['SASL', KIND.mechanisms, KIND.outcome, 'AMQP', ...answers]);
    assert.equal(await bodyOf(), 'body');
  });

  it('drops an aborted delivery and accepts the next one', async () => {
    const client = await node.rawClient(...SENDING);
    await client.until(KIND.flow);
    client.write(transfer(dataSection('part'), { id: 0, more: true }));
    client.write(
      frame('transfer', [uint(0), ...Array<undefined>(8), bytes(0x41)]),
      transfer(BODY, { id: 1 }),
    );
    await client.until(KIND.disposition);
    assert.deepEqual([await bodyOf(), await node.pop('q')], ['body', null]);
  });

  it('answers a close with a close, then ends', async () => {
    const client = await node.rawClient(begin(), close());
    assert.deepEqual(kinds(await client.readToEnd()), [KIND.begin, KIND.close]);
    client.socket.end();
    await gone();
    assert.deepEqual(node.endReasons, []);
  });

  it('ignores heart-beats', async () => {
    const client = await node.rawClient(HEART_BEAT, begin());
    await client.until(KIND.begin);
  });

  it('sends empty frames at three quarters of the client’s idle-time-out', async () => {
    const client = await node.newConnection();
    client.write(SASL, plain('test', 'test'), AMQP, open(NULL, NULL, NULL, uint32(10_000)));
    await client.until(KIND.open);
    node.clock.advance(7_500);
    const beat = await client.next();
    assert.deepEqual(beat?.bytes, HEART_BEAT);
  });

  it('is closed if the client is silent for twice the server’s idle-time-out', async () => {
    await node.stop();
    node = await AmqpNode.start({ options: { idleTimeoutMs: 30_000 } });
    const client = await node.rawClient();
    node.clock.advance(59_999);
    assert.equal(node.server.counts.errors, 0);
    node.clock.advance(1);
    // The client requested no heart-beats, so none precede the close.
    assert.equal(await closed(client), 'amqp:resource-limit-exceeded');
  });

  const errors: Readonly<Record<string, [readonly Buffer[], string]>> = {
    'a frame of 7 bytes': [[Buffer.from([0, 0, 0, 7, 2, 0, 0])], 'amqp:connection:framing-error'],
    'a frame of 0 bytes': [[Buffer.alloc(8)], 'amqp:connection:framing-error'],
    'a frame of 2^31 bytes': [[Buffer.from([0x80, 0, 0, 0])], 'amqp:connection:framing-error'],
    'a frame of 2^32-1 bytes': [[Buffer.alloc(4, 0xff)], 'amqp:connection:framing-error'],
    'a frame one byte larger than allowed': [[Buffer.from([0, 2, 0, 1])], 'amqp:connection:framing-error'],
    'a SASL frame': [[rawFrame(1, 0, described(0x41, list8()))], 'amqp:connection:framing-error'],
    'a performative that is not a list': [[rawFrame(0, 0, described(0x11, str('x')))], 'amqp:decode-error'],
    'a second open': [[open()], 'amqp:illegal-state'],
    'a link without a session': [[attachSender()], 'amqp:connection:framing-error'],
    'a disposition of 2^32 deliveries': [[begin(), disposition(0, 2 ** 32 - 1)], 'amqp:invalid-field'],
    'a delivery without a tag': [
      [...SENDING, frame('transfer', [uint(0), uint(0)], { payload: BODY })],
      'amqp:invalid-field',
    ],
    'a delivery with a transactional state': [
      [
        ...SENDING,
        frame(
          'transfer',
          [uint(0), uint(0), bin('t'), NULL, NULL, NULL, NULL, described(0x34, list8(bin('x')))],
          { payload: BODY },
        ),
      ],
      'amqp:not-implemented',
    ],
  };
  for (const [what, [frames, condition]] of Object.entries(errors)) {
    it(`answers ${what} with a close of condition ${condition}`, async () => {
      const client = await node.rawClient(...frames);
      assert.equal(await closed(client), condition);
      assert.deepEqual(node.endReasons, [condition]);
      assert.equal(node.server.counts.errors, 1);
    });
  }

  it('executes and answers frames that precede a protocol error, then closes', async () => {
    const client = await node.rawClient(...SENDING);
    await client.until(KIND.flow);
    client.write(transfer(BODY), Buffer.alloc(8));
    assert.deepEqual(kinds(await client.readToEnd()), [KIND.disposition, KIND.close]);
    assert.equal(await bodyOf(), 'body');
  });

  it('sends an open before its close if the client’s open is invalid', async () => {
    const client = await node.newConnection();
    client.write(SASL, plain('test', 'test'), AMQP, frame('open', []));
    const received = kinds(await client.readToEnd());
    assert.deepEqual(received, ['SASL', KIND.mechanisms, KIND.outcome, 'AMQP', KIND.open, KIND.close]);
  });

  it('ignores frames that follow a protocol error', async () => {
    const client = await node.rawClient(...SENDING, Buffer.alloc(8), transfer(BODY));
    await client.readToEnd();
    client.write(transfer(BODY));
    assert.equal((await node.sizes('q')).ready, 0);
  });

  it('is cut if the client does not close after a protocol error', async () => {
    const client = await node.rawClient(Buffer.alloc(8));
    await closed(client);
    assert.equal(node.server.counts.sessions, 1);
    node.clock.advance(2_000);
    await gone();
  });

  it('logs a description of the protocol error', async () => {
    const client = await node.rawClient(Buffer.alloc(8));
    await closed(client);
    const { fields } = node.logged[0] ?? assert.fail();
    assert.equal(
      (fields as { description?: string }).description,
      'A frame has 0 bytes, less than its header.',
    );
  });

  it('answers a login in progress with an outcome when the server stops', async () => {
    const client = await node.newConnection();
    client.write(SASL);
    await client.until(KIND.mechanisms);
    node.renewUsers((user) => user);
    const stopped = node.server.stop();
    assert.deepEqual(kinds(await client.readToEnd()), [KIND.outcome]);
    client.socket.end();
    await stopped;
  });

  it('executes frames that were sent before the client half-closed the socket', async () => {
    const client = await node.rawClient(...SENDING);
    await client.until(KIND.flow);
    client.write(transfer(BODY));
    client.socket.end();
    await gone();
    assert.equal(await bodyOf(), 'body');
  });

  it('stops reading while too many bytes are in flight to the engine', async () => {
    const { asked, release } = node.holdInserts();
    const client = await node.rawClient(...SENDING);
    await client.until(KIND.flow);
    const large = dataSection(Buffer.alloc(100_000));
    for (let id = 0; id < 100; id++) client.write(transfer(large, { id }));
    await asked;
    const other = await node.rawClient();
    other.socket.end();
    await until(() => node.server.counts.sessions === 1);
    const { receivedBytes } = node.server.counts;
    assert.ok(receivedBytes < 9_000_000, `${receivedBytes}`);
    release();
    while ((await node.sizes('q')).ready < 100);
  });

  it('survives an internal error during attach: the link is detached and the error is logged', async () => {
    const fault = new TypeError('a bug');
    const client = await node.rawClient(begin());
    const { broker } = node;
    const { namespace } = broker;
    broker.namespace = () => {
      throw fault;
    };
    client.write(attachSender());
    assert.equal(conditionOf(await client.until(KIND.detach)), 'amqp:internal-error');
    broker.namespace = namespace;
    assert.ok(node.logged.some(({ fields }) => (fields as { err?: unknown }).err === fault));
  });

  it('sends, receives and settles across the wrap of ids at 2^32', async () => {
    await node.stop();
    node = await AmqpNode.start({ firstId: 2 ** 32 - 5 });
    const count = 20;
    await node.insert('q', ...Array.from({ length: count }, (_, i) => String(i)));
    const client = await node.rawClient(begin(), attachReceiver());
    await client.until(KIND.attach);
    client.write(
      frame('flow', [uint(2 ** 32 - 5), uint(2048), uint(0), uint(2048), uint(0), uint(0), uint(count)]),
    );
    for (let i = 0; i < count; i++) {
      const id = (2 ** 32 - 5 + i) % 2 ** 32;
      assert.equal((await client.until(KIND.transfer)).readUInt32BE(20), id);
    }
    client.write(disposition(2 ** 32 - 5, 14));
    await until(() => node.server.counts.unacknowledged === 0);
    while ((await node.sizes('q')).reserved > 0);
    assert.deepEqual(await node.sizes('q'), { ready: 0, scheduled: 0, reserved: 0 });
    // The ids of the client's transfers wrap as well.
    client.write(attachSender({ name: 's', handle: 1, address: 'N/p' }));
    await client.until(KIND.flow);
    for (let i = 0; i < count; i++) {
      client.write(transfer(BODY, { handle: 1, id: (2 ** 32 - 5 + i) % 2 ** 32 }));
    }
    while ((await node.sizes('p')).ready < count);
    assert.equal(node.server.counts.sessions, 1);
  });
});
