import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { holdTakes } from '../support/held-takes.ts';
import { until } from '../support/until.ts';
import { type AmqpClient, type TestReceiver, textOf } from './client.ts';
import { AmqpNode } from './node.ts';

/** More deliveries than a session may leave unsettled. */
const COUNT = 2100;

// The ring buffer of rhea must not be the limit that a test reaches.
const ROOMY = { session_buffer_size: 100_000 };

describe('the unsettled capacity of a session', () => {
  let node: AmqpNode;
  let client: AmqpClient;

  beforeEach(async () => {
    node = await AmqpNode.start();
    client = await node.client('test', ROOMY);
  });
  afterEach(() => node.stop());

  const fill = async (queue: string): Promise<void> => {
    const bodies = Array.from({ length: COUNT / 3 }, (_, i) => String(i));
    for (let i = 0; i < 3; i++) await node.insert(queue, ...bodies);
  };

  const receiveAll = async (): Promise<void> => {
    const receiver = await client.receiver('N/many', { credit_window: 100 });
    for (let i = 0; i < COUNT; i++) (await receiver.next()).delivery.accept();
  };

  const sendAll = async (): Promise<void> => {
    const sender = await client.sender('N/many');
    const outcomes = [];
    for (let i = 0; i < COUNT; i++) outcomes.push(await sender.sendable(), sender.send({ body: 'x' }));
    await Promise.all(outcomes);
  };

  it('is available to the other links after one link has settled its deliveries', async () => {
    await fill('many');
    const a = await client.receiver('N/many', {}, 2048);
    const held = [];
    while (held.length < 2048) held.push(await a.next());
    const b = await client.receiver('N/few', {}, 10);
    await node.insert('few', ...'abcde');
    for (const { delivery } of held) delivery.accept();
    for (const body of 'abcde') assert.equal(textOf(await b.next()), body);
  });

  it('is available to a link that was waiting for elements when it was used up', async () => {
    await fill('many');
    const b = await client.receiver('N/few', {}, 1);
    await until(() => node.queue('few').consumers().length === 1);
    const a = await client.receiver('N/many', {}, COUNT);
    const held = [];
    while (held.length < 2048) held.push(await a.next());
    await node.insert('few', 'x');
    assert.equal((await node.sizes('few')).ready, 1);
    held[0]?.delivery.accept();
    assert.equal((await b.next()).message.delivery_count ?? 0, 0);
  });

  it('is available to all links while one delivery stays unsettled, however many come after it', async () => {
    await fill('many');
    await node.insert('few', 'x');
    const held = await (await client.receiver('N/few')).take();
    await receiveAll();
    held.delivery.accept();
    await until(() => node.server.counts.unacknowledged === 0);
    assert.equal((await node.sizes('few')).ready, 0);
  });

  it('goes to its links in turn when it is nearly used up, and no element is taken that has no place', async () => {
    await fill('many');
    const a = await client.receiver('N/many', {}, 2047);
    const held = [];
    while (held.length < 2047) held.push(await a.next());
    const links: TestReceiver[] = [];
    for (let i = 0; i < 20; i++) {
      await node.insert(`q${i}`, 'x', 'y');
      links.push(await client.receiver(`N/q${i}`, {}, 2));
    }
    const received = (): number => links.reduce((sum, { inbox }) => sum + inbox.length, 0);
    for (let count = 1; count <= 40; count++) {
      await until(() => received() === count);
      // The first link may get both of its elements before the others wait.
      if (count === 21) assert.ok(links.every(({ inbox }) => inbox.length > 0));
      held.pop()?.delivery.accept();
    }
    assert.equal(node.broker.namespace('N').meter.operations().get('reserve')?.get('ok'), 2047 + 40);
  });

  it('is left to a drain in progress', async () => {
    await fill('many');
    const a = await client.receiver('N/many', {}, 2047);
    for (let i = 0; i < 2047; i++) await a.next();
    await node.insert('drained', 'x');
    await node.insert('other', 'y');
    const b = await client.receiver('N/drained');
    const c = await client.receiver('N/other');
    const { queues, release } = holdTakes(node.engine.engine.storage, (queue) => queue === 'drained');
    b.link.add_credit(1);
    const drained = b.drain();
    await until(() => queues.includes('drained'));
    c.link.add_credit(1);
    await until(() => node.queue('other').consumers().length === 1 || c.inbox.length === 1);
    release();
    await drained;
    assert.deepEqual([b.inbox.length, c.inbox.length], [1, 0]);
    assert.equal((await node.sizes('other')).ready, 1);
  });

  it('is restored after the client detached a link with unsettled deliveries', async () => {
    await fill('many');
    await node.insert('few', ...'abcdefghij');
    const receiver = await client.receiver('N/few', {}, 10);
    (await receiver.next()).delivery.accept();
    for (let i = 1; i < 10; i++) await receiver.next();
    await receiver.close();
    await receiveAll();
  });

  it('is restored after the server detached a link with unsettled deliveries', async () => {
    await fill('many');
    await node.insert('few', 'x');
    const receiver = await client.receiver('N/few', {}, 2);
    await receiver.next();
    await until(() => node.queue('few').consumers().length === 1);
    node.queue('few').cancel(node.queue('few').consumers()[0]?.tid ?? '', null);
    assert.equal((await receiver.ended())?.condition, 'amqp:link:detach-forced');
    await receiveAll();
  });

  it('is restored after a link was detached for a pre-settled message that was rejected', async () => {
    const sender = await client.sender('N/few', { snd_settle_mode: 1 });
    await sender.sendable();
    sender.link.send({ body: 'x', application_properties: { 'x-delta-t': 'soon' } });
    assert.equal((await sender.ended)?.condition, 'amqp:invalid-field');
    await sendAll();
  });

  it('is restored after a client detached a link before its message was answered', async () => {
    const fields = { rcv_settle_mode: 1, autosettle: false };
    const first = await client.sender('N/few', fields);
    await first.send({ body: 'x' });
    const { asked, release } = node.holdInserts();
    const second = await client.sender('N/few', fields);
    const sending = second.send({ body: 'y' });
    await asked;
    await second.close();
    release();
    assert.equal((await sending).kind, 'accepted');
    await first.close();
    await sendAll();
  });
});
