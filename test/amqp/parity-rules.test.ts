import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { addressOf, BODY_LIMIT, ParityNode } from '../session/parity-node.ts';
import { elementHeadersOf, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { type AmqpClient, Ended, type Got, type TestReceiver, textOf } from './client.ts';

// The tests cover rows of docs/protocols/parity.md: the name of a test begins with the name of its row. Rows about the
// content of an element are in parity.test.ts.

describe('HTTP and AMQP agree on', () => {
  let node: ParityNode;
  let http: QueueClient;
  let amqp: AmqpClient;
  let queue: string;

  before(async () => {
    node = await ParityNode.start();
    http = node.http;
    amqp = await node.amqpClient();
  });
  after(() => node.stop());

  const fresh = (): string => {
    queue = node.harness.queue();
    return queue;
  };
  const insert = (body = 'x', ns = 'N'): Promise<unknown> => http.insert(ns, queue, body);
  const send = async (fields: object = {}, ns = 'N'): Promise<void> => {
    const sender = await amqp.sender(addressOf(queue, ns));
    assert.equal((await sender.send({ body: 'x', ...fields })).kind, 'accepted');
    await sender.close();
  };
  const sizes = async (ns = 'N'): Promise<[unknown, unknown, unknown]> => {
    const { size, schedSize, resvSize } = jsonOf<Record<string, unknown>>(await http.status(ns, queue));
    return [size, schedSize, resvSize];
  };
  const sizesAre = (...expected: number[]): Promise<void> =>
    until(async () => JSON.stringify(await sizes()) === JSON.stringify(expected));
  /** A separate client that holds the next message unsettled. */
  const holding = async (
    address = addressOf(queue),
    fields: object = {},
  ): Promise<{ client: AmqpClient; receiver: TestReceiver; got: Got }> => {
    const client = await node.amqpClient();
    const receiver = await client.receiver(address, fields, 1);
    return { client, receiver, got: await receiver.next() };
  };

  it('many at once: a take of many and credit deliver the same elements, and no element twice', async () => {
    fresh();
    for (const body of ['a', 'b', 'c', 'd', 'e']) await insert(body);
    const path = `/q/N/${queue}/take`;
    const answer = await http.request('POST', path, { body: '{"count":3,"reserve":true}' });
    const lines = answer.body.toString('utf8').trim().split('\n');
    assert.deepEqual(
      lines.map((line) => (JSON.parse(line) as { text: string }).text),
      ['a', 'b', 'c'],
    );
    const client = await node.amqpClient();
    const receiver = await client.receiver(addressOf(queue), {}, 10);
    for (const body of ['d', 'e']) {
      const { message, delivery } = await receiver.next();
      assert.equal(String((message.body as { content: Buffer }).content), body);
      delivery.accept();
    }
    await sizesAre(0, 0, 3);
    await client.close();
  });

  it('queue: a name with special characters is the same queue', async () => {
    for (const name of ['a/b', '%2F', 'ü ☃', '..', 'a:b', 'a\\b', '__proto__', 'a?b']) {
      queue = name;
      await send();
      assert.equal((await http.get('N', name, { to: 0 })).body.toString(), 'x');
      await http.insert('N', name, 'back');
      const { client, got } = await holding();
      got.delivery.accept();
      await client.close();
    }
  });

  it('delay: HTTP takes seconds, AMQP milliseconds', async () => {
    fresh();
    await send({ message_annotations: { 'x-opt-delivery-delay': 1500 } });
    await send({ application_properties: { 'x-delta-t': 1500 } });
    await http.insert('N', queue, 'x', { delay: 1.5 });
    const at = node.harness.opened.now() + 1500;
    const due = new Date(at).toISOString();
    assert.deepEqual(await sizes(), [0, 3, 0]);
    assert.equal(jsonOf<{ next_mature_t: string }>(await http.status('N', queue)).next_mature_t, due);
    await node.harness.passTime(1500);
    assert.equal(headerOf(await http.get('N', queue, { to: 0 }), 'x-ks-mature'), due);
    const { client, got } = await holding();
    assert.deepEqual(got.message.message_annotations?.['x-opt-ks-mature'], new Date(at));
    await client.close();
  });

  it('time to live: HTTP takes seconds, AMQP milliseconds', async () => {
    fresh();
    await send({ ttl: 1500 });
    await send({ absolute_expiry_time: new Date(node.harness.opened.now() + 1500) });
    await http.insert('N', queue, 'x', { query: { ttl: '1.5' } });
    await node.harness.passTime(1499);
    assert.deepEqual(await sizes(), [3, 0, 0]);
    await node.harness.passTime(1);
    assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
  });

  it('reason: the reason of a rollback in one protocol is readable in the dead letter over the other', async () => {
    const reason = 'schlüssel "7" fehlt';
    fresh();
    await http.insert('jobs', queue, 'x', { tries: 1 });
    const { client, got } = await holding(addressOf(queue, 'jobs'));
    got.delivery.reject({ condition: 'app:bad', description: reason });
    await client.close();
    const dead = await http.get('jobs', '__deadletter__');
    const bytes = elementHeadersOf(dead).get('x-dl-reason') ?? '';
    assert.equal(Buffer.from(bytes, 'latin1').toString(), `app:bad: ${reason}`);
    await http.insert('jobs', queue, 'x', { tries: 1 });
    const id = headerOf(await http.reserve('jobs', queue, { to: 0 }), 'x-ks-id');
    await http.rollback('jobs', queue, id, { query: { reason } });
    const deadLetter = await holding(addressOf('__deadletter__', 'jobs'), { snd_settle_mode: 1 });
    assert.equal(deadLetter.got.message.application_properties?.['x-dl-reason'], reason);
    await deadLetter.client.close();
  });

  it('pop: an element popped over one protocol is gone for the other', async () => {
    fresh();
    await insert();
    const { client, receiver } = await holding(addressOf(queue), { snd_settle_mode: 1 });
    assert.deepEqual(await sizes(), [0, 0, 0]);
    await send();
    await receiver.take();
    assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
    await client.close();
  });

  it('reserve: an element reserved over one protocol is not delivered over the other', async () => {
    fresh();
    await insert();
    const { client } = await holding();
    assert.deepEqual(await sizes(), [0, 0, 1]);
    assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
    await client.close();
    await sizesAre(1, 0, 0);
    assert.equal((await http.get('N', queue, { to: 0 })).status, 200);
  });

  it('commit: removes the element', async () => {
    fresh();
    await insert();
    const { client, got } = await holding();
    got.delivery.accept();
    await client.close();
    await sizesAre(0, 0, 0);
    const id = String(got.message.message_annotations?.['x-opt-ks-id']);
    assert.equal((await http.commit('N', queue, id)).status, 404);
  });

  it('rollback: counts a failed try, with the same delays; released counts none', async () => {
    fresh();
    await insert();
    const { client, got, receiver } = await holding();
    got.delivery.release();
    (await receiver.take()).delivery.modified({ delivery_failed: true });
    await sizesAre(1, 0, 0);
    const reserved = await http.reserve('N', queue, { to: 0 });
    assert.equal(headerOf(reserved, 'x-ks-tries'), '1');
    await http.rollback('N', queue, headerOf(reserved, 'x-ks-id'));
    const again = await receiver.take();
    assert.equal(again.message.delivery_count, 2);
    again.delivery.reject();
    await sizesAre(0, 1, 0);
    await node.harness.passTime((2 * 2 * 3 + 2 * 3 + 3) * 1000);
    assert.equal(headerOf(await http.get('N', queue, { to: 0 }), 'x-ks-tries'), '3');
    await client.close();
  });

  it('lease: an expired lease counts a failed try for both', async () => {
    fresh();
    await insert();
    const { client } = await holding(`${addressOf(queue)}?lease=5000`);
    await node.harness.passTime(5001);
    const taken = await http.reserve('N', queue, { to: 0, lease: 3000 });
    assert.equal(headerOf(taken, 'x-ks-tries'), '1');
    await client.close();
    await node.harness.passTime(3001);
    const { client: second, got } = await holding();
    assert.equal(got.message.delivery_count, 2);
    const id = String(got.message.message_annotations?.['x-opt-ks-id']);
    const token = headerOf(taken, 'x-ks-lease');
    assert.equal((await http.extend('N', queue, id, { token })).status, 409);
    await second.close();
  });

  it('dead letter: failed tries over both protocols are counted together', async () => {
    fresh();
    await send({ application_properties: { colour: 'blue' } }, 'jobs');
    const reserved = await http.reserve('jobs', queue, { to: 0 });
    await http.rollback('jobs', queue, headerOf(reserved, 'x-ks-id'));
    const { client, got } = await holding(addressOf(queue, 'jobs'));
    got.delivery.reject();
    await client.close();
    await until(async () => JSON.stringify(await sizes('jobs')) === '[0,0,0]');
    const dead = await http.reserve('jobs', '__deadletter__', { to: 0 });
    const own = elementHeadersOf(dead);
    const first = headerOf(reserved, 'x-ks-id');
    assert.equal(headerOf(dead, 'x-ks-origin-id'), first);
    assert.deepEqual(
      ['colour', 'x-dl-from-queue', 'x-dl-tries'].map((name) => own.get(name)),
      ['blue', queue, '2'],
    );
    await http.rollback('jobs', '__deadletter__', headerOf(dead, 'x-ks-id'));
    const deadLetter = await holding(addressOf('__deadletter__', 'jobs'), { snd_settle_mode: 1 });
    const { 'x-dl-from-queue': from, 'x-dl-tries': tries } =
      deadLetter.got.message.application_properties ?? {};
    assert.deepEqual([from, tries], [queue, '2']);
    assert.equal(deadLetter.got.message.application_properties?.['x-ks-origin-id'], first);
    await deadLetter.client.close();
  });

  it('options of a queue: apply to both', async () => {
    fresh();
    await http.setOptions('N', queue, { maxElements: 1, ttl: 60, retryDelay: { first: 7 } });
    await insert();
    const sender = await amqp.sender(addressOf(queue));
    const { kind } = await sender.send({ body: 'x' });
    assert.equal(kind, 'released');
    const { client, got, receiver } = await holding();
    got.delivery.reject();
    await sizesAre(0, 1, 0);
    await node.harness.passTime(6999);
    await sizesAre(0, 1, 0);
    await node.harness.passTime(1);
    (await receiver.take()).delivery.accept();
    await sizesAre(0, 0, 0);
    await node.harness.passTime(1000);
    await send();
    await client.close();
    await node.harness.passTime(60_000);
    assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
  });

  it('pause: stops deliveries of both, but not inserts', async () => {
    fresh();
    await http.pause('N', queue);
    await send();
    const client = await node.amqpClient();
    const receiver = await client.receiver(addressOf(queue), {}, 1);
    assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
    assert.deepEqual(await sizes(), [1, 0, 0]);
    await http.resume('N', queue);
    (await receiver.next()).delivery.accept();
    await client.close();
  });

  it('holder: has the tid of the get over HTTP, or one that begins with the container-id over AMQP', async () => {
    fresh();
    await insert();
    await insert();
    await http.reserve('N', queue, { to: 0, tid: 'w1' });
    const { client, got } = await holding();
    const answer = await http.request('GET', `/q/N/${queue}/elements`);
    const { elements } = jsonOf<{ elements: { holder: { tid: string; user: string } }[] }>(answer);
    const [first, second] = elements.map(({ holder }) => holder);
    assert.equal(first?.tid, 'w1');
    assert.equal(second?.user, first?.user);
    const name = client.connection.container_id.replace(/^quayside-/, '');
    assert.ok(second?.tid.startsWith(`${name}.`), second?.tid);
    got.delivery.accept();
    await client.close();
  });

  it('consumers: of AMQP are listed and cancelled over HTTP', async () => {
    fresh();
    const client = await node.amqpClient();
    const receiver = await client.receiver(addressOf(queue), {}, 1);
    const list = async (): Promise<{ tid: string; callback: string }[]> =>
      jsonOf(await http.consumers('N', queue));
    await until(async () => (await list()).length === 1);
    const [listed] = await list();
    assert.equal(listed?.callback, 'set');
    assert.equal((await http.cancel('N', queue, listed?.tid ?? '')).status, 200);
    assert.equal((await receiver.ended())?.info.code, 'pop-cancelled');
    assert.deepEqual(await list(), []);
    await client.close();
  });

  it('rights: allow the same user the same operations', async () => {
    for (const [name, may] of [
      ['reader', [403, 200]],
      ['writer', [200, 403]],
    ] as const) {
      fresh();
      await insert();
      const own = node.harness.client(`${name}:${name}`);
      const answers = [await own.insert('N', queue, 'x'), await own.get('N', queue, { to: 0 })];
      assert.deepEqual(
        answers.map(({ status }) => status),
        may,
      );
      const client = await node.amqpClient(name);
      for (const [i, side] of (['sender', 'receiver'] as const).entries()) {
        const attaching = client[side](addressOf(queue)).then(
          () => 200,
          (error: unknown) => (error instanceof Ended && error.info.code === 'forbidden' ? 403 : 0),
        );
        assert.equal(await attaching, may[i]);
      }
      await client.close();
    }
  });

  it('limits: apply the same body limit to both', async () => {
    for (const [length, fits] of [
      [BODY_LIMIT, true],
      [BODY_LIMIT + 1, false],
    ] as const) {
      fresh();
      const body = Buffer.alloc(length, 1);
      assert.equal((await http.insert('N', queue, body)).status, fits ? 200 : 413);
      const sender = await amqp.sender(addressOf(queue));
      assert.equal((await sender.send({ body })).kind, fits ? 'accepted' : 'rejected');
      await sender.close();
      assert.deepEqual(await sizes(), [fits ? 2 : 0, 0, 0]);
    }
  });

  it('a client that goes: its unsettled elements are available to the other protocol', async () => {
    fresh();
    await insert();
    const { client } = await holding();
    client.cut();
    await sizesAre(1, 0, 0);
    assert.equal(headerOf(await http.get('N', queue, { to: 0 }), 'x-ks-tries'), '1');
  });

  it('owner of a reservation: an element held over AMQP can be settled over HTTP without a token by the same user only', async () => {
    fresh();
    await insert();
    const { client, got } = await holding();
    const id = String(got.message.message_annotations?.['x-opt-ks-id']);
    assert.equal((await node.harness.client('reader:reader').commit('N', queue, id)).status, 409);
    assert.equal((await http.commit('N', queue, id)).status, 200);
    await client.close();
  });

  it('repeated inserts: an idempotency key stores once, but every message is stored', async () => {
    fresh();
    const headers = { 'idempotency-key': 'once' };
    await http.insert('N', queue, 'x', { headers });
    await http.insert('N', queue, 'x', { headers });
    await send({ message_id: 'once' });
    await send({ message_id: 'once' });
    assert.deepEqual(await sizes(), [3, 0, 0]);
  });

  it('browse: both show the same elements and change nothing', async () => {
    fresh();
    for (const body of ['x', 'y']) await insert(body);
    const client = await node.amqpClient();
    const receiver = await client.receiver({ address: addressOf(queue), distribution_mode: 'copy' });
    receiver.link.add_credit(5);
    await receiver.drain();
    const { elements } = jsonOf<{ elements: { id: string; text: string }[] }>(
      await http.request('GET', `/q/N/${encodeURIComponent(queue)}/elements`),
    );
    assert.deepEqual(
      receiver.inbox.map((got) => [String(got.message.message_annotations?.['x-opt-ks-id']), textOf(got)]),
      elements.map(({ id, text }) => [id, text]),
    );
    assert.equal(elements.length, 2);
    assert.deepEqual(await sizes(), [2, 0, 0]);
    await client.close();
  });

  it('settled: an element held over AMQP may be settled over HTTP; the later outcome over AMQP is rejected', async () => {
    fresh();
    await insert();
    const { client, receiver, got } = await holding();
    const id = String(got.message.message_annotations?.['x-opt-ks-id']);
    assert.equal((await http.commit('N', queue, id)).status, 200);
    got.delivery.accept();
    assert.equal((await receiver.ended())?.info.code, 'element-not-found');
    await client.close();
  });
});

describe('docs/protocols/parity.md', () => {
  it('has an AMQP test for each of its rows', () => {
    const folder = new URL('.', import.meta.url);
    const files = readdirSync(folder).filter((name) => /^parity.*\.test\.ts$/.test(name));
    const tests = files.flatMap((file) =>
      [...readFileSync(new URL(file, folder), 'utf8').matchAll(/\bit\('([^:']+):/g)].flatMap(([, rows]) =>
        rows?.split(', '),
      ),
    );
    const page = readFileSync(new URL('../../docs/protocols/parity.md', import.meta.url), 'utf8');
    const rows = [...page.matchAll(/^\| ([^|`]+?) \|.*$/gm)];
    assert.match(rows[0]?.[0] ?? '', /\| what \| HTTP \| STOMP \| AMQP 1\.0 \|/);
    assert.ok(rows.length > 20);
    for (const [, row] of rows.slice(1)) assert.ok(tests.includes(row), `no test of ${row}`);
  });
});
