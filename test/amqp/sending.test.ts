import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import rhea from 'rhea';
import { type ErrorCode, QuaysideError } from '../../src/model/errors.ts';
import { until } from '../support/until.ts';
import { type AmqpClient, type TestSender, textOf } from './client.ts';
import { AmqpNode } from './node.ts';
import { KIND } from './raw-client.ts';
import { attachSender, begin, dataSection, transfer } from './wire.ts';

describe('a message that a client sends', () => {
  let node: AmqpNode;
  let client: AmqpClient;
  let sender: TestSender;

  beforeEach(async () => {
    node = await AmqpNode.start({ options: { bodyLimit: 100_000 } });
    client = await node.client();
    sender = await client.sender('N/a');
  });
  afterEach(() => node.stop());

  /**
   * Makes every insert fail with this code, until the returned function is called.
   * @param stores whether the insert takes effect nevertheless
   */
  const breakEngine = (code: ErrorCode, stores = false): (() => void) => {
    const { storage } = node.engine.engine;
    const { insert } = storage;
    storage.insert = async (...given) => {
      if (stores) await insert.apply(storage, given);
      throw new QuaysideError(code, 'The engine is broken by the test.');
    };
    return () => {
      storage.insert = insert;
    };
  };

  it('is accepted only once the engine has stored it', async () => {
    const { asked, release } = node.holdInserts();
    let isAnswered = false;
    const sending = sender.send({ body: 'x' }).then((outcome) => {
      isAnswered = true;
      return outcome;
    });
    await asked;
    for (let i = 0; i < 50; i++) await new Promise(setImmediate);
    assert.equal(isAnswered, false);
    release();
    assert.equal((await sending).kind, 'accepted');
  });

  it('is released if the engine did not store it, and may be sent again', async () => {
    for (const code of ['storage-unavailable', 'storage-full', 'overloaded'] as const) {
      const mend = breakEngine(code);
      assert.equal((await sender.send({ body: 'x' })).kind, 'released', code);
      mend();
      assert.equal((await sender.send({ body: 'x' })).kind, 'accepted', code);
    }
    assert.equal((await node.sizes('a')).ready, 3);
  });

  it('is never accepted if its outcome is unknown: the link is detached', async () => {
    const mend = breakEngine('outcome-unknown', true);
    let outcome: unknown = null;
    void sender.send({ body: 'x' }).then((one) => {
      outcome = one;
    });
    const ended = await sender.ended;
    assert.deepEqual([ended?.condition, ended?.info.code], ['amqp:internal-error', 'outcome-unknown']);
    mend();
    await (await client.sender('N/b')).send({ body: 'the connection continues' });
    assert.equal(outcome, null);
  });

  it('detaches the link if an internal error occurs, which is logged', async () => {
    const { storage } = node.engine.engine;
    const { insert } = storage;
    storage.insert = () => Promise.reject(new TypeError('a bug'));
    for (let i = 0; i < 5; i++) void sender.send({ body: 'secret' });
    const ended = await sender.ended;
    storage.insert = insert;
    assert.equal(ended?.condition, 'amqp:internal-error');
    assert.doesNotMatch(ended?.message ?? '', /a bug/);
    const lines = node.logged.filter(({ message }) => message === 'a session failed');
    assert.deepEqual(
      lines.map(({ fields }) => 'err' in fields && String(fields.err)),
      ['TypeError: a bug'],
    );
    assert.ok(!JSON.stringify(node.logged).includes('secret'));
  });

  it('detaches the link if it was sent settled and cannot be stored', async () => {
    const settled = await client.sender('N/a', { snd_settle_mode: 1 });
    await settled.sendable();
    settled.link.send({ body: 'fine' });
    await until(() => node.queue('a') !== undefined);
    settled.link.send({ body: 'x', application_properties: { 'x-delta-t': 'soon' } });
    assert.equal((await settled.ended)?.condition, 'amqp:invalid-field');
    while ((await node.sizes('a')).ready < 1);
  });

  it('is rejected if its body exceeds the limit, and accepted if it has exactly that size', async () => {
    const sizes: [number, string][] = [
      [100_000, 'accepted'],
      [100_001, 'rejected'],
      [400_000, 'rejected'],
    ];
    for (const [size, expected] of sizes) {
      const { kind, error } = await sender.send({ body: Buffer.alloc(size) });
      assert.equal(kind, expected, String(size));
      if (kind === 'rejected') assert.equal(error?.condition, 'amqp:link:message-size-exceeded');
    }
    assert.equal((await node.sizes('a')).ready, 1);
  });

  it('is stored in order with thousands of others, for which new credit is granted', async () => {
    const count = 3000;
    const outcomes = [];
    for (let i = 0; i < count; i++) {
      await sender.sendable();
      outcomes.push(sender.send({ body: String(i) }));
    }
    for (const { kind } of await Promise.all(outcomes)) assert.equal(kind, 'accepted');
    for (let i = 0; i < count; i++) {
      assert.equal(Buffer.from((await node.pop('a'))?.body ?? []).toString(), String(i));
    }
  });

  it('beyond the capacity of its queue is released, while those before it are stored', async () => {
    await node.queue('a').storeOptions({ maxElements: 3 });
    const outcomes = await Promise.all(
      Array.from({ length: 10 }, (_, i) => sender.send({ body: String(i) })),
    );
    assert.deepEqual(
      outcomes.map(({ kind }) => kind),
      [...Array<string>(3).fill('accepted'), ...Array<string>(7).fill('released')],
    );
    for (let i = 0; i < 3; i++) {
      assert.equal(Buffer.from((await node.pop('a'))?.body ?? []).toString(), String(i));
    }
    assert.equal(await node.pop('a'), null);
  });

  it('is settled by the server first, even if the client requests rcv-settle-mode second and never settles', async () => {
    const second = await client.sender('N/a', { rcv_settle_mode: 1, autosettle: false });
    assert.equal(second.link.rcv_settle_mode, 0);
    second.link.on('accepted', ({ delivery }) => {
      assert.equal(delivery?.remote_settled, true);
      // Settled in rhea only, to make room in its ring for further deliveries.
      Object.assign(delivery ?? {}, { settled: true });
    });
    const outcomes = [];
    for (let i = 0; i < 3000; i++) outcomes.push(await second.sendable(), second.send({ body: 'x' }));
    await Promise.all(outcomes);
    while ((await node.sizes('a')).ready < 3000);
  });

  it('may be delayed as Qpid JMS does it, with the capability and a timestamp', async () => {
    assert.ok([client.connection.offered_capabilities].flat().includes('DELAYED_DELIVERY'));
    const delayed = await client.sender('N/a', { desired_capabilities: ['DELAYED_DELIVERY'] });
    assert.deepEqual([delayed.link.offered_capabilities].flat(), ['DELAYED_DELIVERY']);
    const at = rhea.types.wrap_timestamp(node.clock.now() + 5000);
    await delayed.send({ body: 'x', message_annotations: { 'x-opt-delivery-time': at } });
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 1, reserved: 0 });
  });

  it('is answered although its client has half-closed the connection after sending it', async () => {
    const { asked, release } = node.holdInserts();
    const message = transfer(dataSection('x'));
    const raw = await node.rawClient(begin(), attachSender({ address: 'N/a' }), message);
    raw.socket.end();
    await asked;
    await until(() => node.server.describeSessions().length === 1);
    release();
    await raw.until(KIND.disposition);
    assert.deepEqual(await raw.readToEnd(), []);
  });

  it('is delivered to a client that is already waiting', async () => {
    const receiver = await client.receiver('N/a', {}, 1);
    await until(() => node.queue('a').consumers().length === 1);
    await sender.send({ body: 'x' });
    (await receiver.next()).delivery.accept();
  });

  it('is not delivered earlier for its priority', async () => {
    await sender.send({ body: 'first' });
    await sender.send({ body: 'second', priority: 9 });
    const receiver = await client.receiver('N/a', {}, 2);
    assert.deepEqual([textOf(await receiver.next()), textOf(await receiver.next())], ['first', 'second']);
  });
});
