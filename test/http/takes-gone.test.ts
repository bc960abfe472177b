import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { jsonOf, queuePath } from '../support/http-client.ts';
import { memoryInUse } from '../support/memory.ts';
import { until } from '../support/until.ts';
import { Harness, type Status, sharedHarness, statusOf } from './harness.ts';
import { AUTHORIZATION, lastRequest, RawConnection, rawRequest } from './raw.ts';
import { linesOf, takeFrom, takeMany } from './takes.ts';

const MIB = 1_048_576;

function post(path: string, body: object, version = '1.1'): Buffer {
  const text = JSON.stringify(body);
  return rawRequest(
    [`POST ${path} HTTP/${version}`, 'Host: test', AUTHORIZATION, `Content-Length: ${text.length}`],
    text,
  );
}

async function sendTo(harness: Harness, ...requests: Buffer[]): Promise<RawConnection> {
  const connection = await RawConnection.open(harness.port);
  connection.send(Buffer.concat(requests));
  return connection;
}

describe('A client that disconnects from a batch take', () => {
  const harness = sharedHarness();

  for (const [what, count, optionsFor] of [
    ['if it waits for the first element', 1, () => ({ count: 10 })],
    ['if it waits for several elements', 1, () => ({ count: 10, min: 2 })],
    [
      'if it waits in several queues',
      2,
      (queue: string) => ({ from: [queue, `${queue}b`].map((q) => ({ ns: 'N', queue: q })) }),
    ],
  ] as const) {
    for (const leave of ['destroy', 'resetAndDestroy', 'end'] as const) {
      it(`takes nothing ${what} (${leave})`, async () => {
        const queue = harness().queue();
        const path = count === 1 ? `${queuePath('N', queue)}/take` : '/take';
        const connection = await sendTo(harness(), post(path, optionsFor(queue)));
        await harness().waiting(count);
        connection.socket[leave]();
        await harness().waiting(0);
        for (const body of ['a', 'b']) await harness().client().insert('N', queue, body);
        await harness().passTime(100);
        assert.equal((await statusOf(harness(), queue)).size, 2);
        assert.deepEqual(jsonOf(await harness().client().consumers('N', queue)), []);
        if (leave === 'end') assert.equal((await connection.untilClosed())[0]?.status, 400);
      });
    }
  }

  for (const reserve of [false, true]) {
    it(`returns all ${reserve ? 'reservations' : 'pops'} to their places, uncounted, if it has not read the whole response`, async () => {
      const client = harness().client();
      const queue = harness().queue();
      const other = harness().queue();
      const ids: string[] = [];
      for (const name of [queue, other]) {
        // As Base64 they are more than the kernel buffers for a client that does not read.
        for (let i = 0; i < 8; i++) {
          const { id } = jsonOf<{ id: string }>(await client.insert('N', name, Buffer.alloc(MIB, 0xff)));
          ids.push(id);
        }
      }
      const from = [queue, other].map((name) => ({ ns: 'N', queue: name }));
      const connection = await sendTo(harness(), post('/take', { from, count: 100, reserve }));
      connection.socket.pause();
      const totals = async (): Promise<Status[]> =>
        Promise.all([queue, other].map((name) => statusOf(harness(), name)));
      await until(async () =>
        (await totals()).every(({ stats, size }) => stats.get + stats.reserve === 8 && size === 0),
      );
      connection.destroy();
      await until(async () => (await totals()).every(({ size }) => size === 8));
      for (const { stats, resvSize } of await totals()) {
        assert.deepEqual([stats.get, stats.reserve, stats.rollback, resvSize], [0, 0, 0, 0]);
      }
      const again = linesOf(await takeFrom(client, { from, count: 100 }));
      assert.deepEqual(
        again.map(({ id, tries }) => [id, tries]),
        ids.map((id) => [id, 0]),
      );
    });
  }

  it('keeps its elements if it has read the whole response', async () => {
    const queue = harness().queue();
    await harness().client().insert('N', queue, 'a');
    const connection = await sendTo(harness(), post(`${queuePath('N', queue)}/take`, { count: 5 }));
    const [answer] = await connection.answers(1);
    assert.match(answer?.body ?? '', /"text":"a"/);
    connection.socket.resetAndDestroy();
    assert.equal((await statusOf(harness(), queue)).size, 0);
  });

  it('holds only the elements of the first take if it pipelines takes and does not read', async () => {
    const client = harness().client();
    const queue = harness().queue();
    for (let i = 0; i < 15; i++) await client.insert('N', queue, Buffer.alloc(MIB, 0xff));
    for (let i = 0; i < 5; i++) await client.insert('N', queue, 'small');
    const take = post(`${queuePath('N', queue)}/take`, { count: 15 });
    const last = lastRequest('GET', `${queuePath('N', queue)}?to=0`);
    const connection = await sendTo(harness(), take, take, last);
    connection.socket.pause();
    await until(async () => (await statusOf(harness(), queue)).stats.get === 15);
    assert.equal((await takeMany(client, queue)).status, 200, 'others are served');
    assert.equal((await statusOf(harness(), queue)).size, 4);
    connection.socket.resume();
    const [first, second, third] = await connection.untilClosed();
    assert.equal(first?.body.split('\n').length, 16);
    assert.equal(second?.body.split('\n').length, 5);
    assert.equal(third?.status, 504);
  });

  it('may use HTTP/1.0, where the response has a length', async () => {
    const queue = harness().queue();
    await harness().client().insert('N', queue, 'a');
    const connection = await sendTo(harness(), post(`${queuePath('N', queue)}/take`, {}, '1.0'));
    const [answer] = await connection.untilClosed();
    assert.equal(answer?.status, 200);
    assert.equal(Number(answer?.headers.get('content-length')), answer?.body.length);
  });
});

describe('A client that does not read what it reserved', () => {
  const harness = sharedHarness();

  it('makes the server hold the response alone, and the elements return with their bodies if it disconnects', async () => {
    const queue = harness().queue();
    const client = harness().client();
    const count = 15;
    for (let i = 0; i < count; i += 1) await client.insert('N', queue, 'x'.repeat(MIB - 100));
    const before = await memoryInUse();
    const connection = await sendTo(
      harness(),
      post(`${queuePath('N', queue)}/take`, { count, reserve: true }),
    );
    await connection.next('data');
    connection.socket.pause();
    const held = (await memoryInUse()) - before;
    assert.ok(held < 1.3 * count * MIB, `${Math.round(held / MIB)} MiB`);
    connection.socket.resetAndDestroy();
    await until(async () => (await statusOf(harness(), queue)).size === count);
    const { body } = await client.get('N', queue);
    assert.equal(body.length, MIB - 100);
  });
});

describe('A batch take while the server stops', () => {
  it('is answered with 503', async () => {
    const harness = await Harness.start();
    try {
      const queues = ['a', 'b'].map((queue) => ({ ns: 'N', queue }));
      const answers = [
        takeFrom(harness.client(), { from: queues }),
        takeMany(harness.client(), 'a', { min: 2 }),
        takeMany(harness.client(), 'b', { count: 7 }),
      ];
      await harness.waiting(4);
      harness.server.drain();
      harness.broker.drain();
      for (const answer of await Promise.all(answers)) {
        assert.equal(answer.status, 503);
        assert.equal(jsonOf<{ code: string }>(answer).code, 'shutting-down');
      }
      assert.equal((await takeFrom(harness.client(), { from: queues })).status, 503);
    } finally {
      await harness.close();
    }
  });
});
