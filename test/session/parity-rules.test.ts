import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, afterEach, before, describe, it } from 'node:test';
import { elementHeadersOf, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { type Consume, DRIVERS, type SentParts, type SessionClient, type SessionDriver } from './drivers.ts';
import { BODY_LIMIT, ParityNode } from './parity-node.ts';

// The tests cover rows of docs/protocols/parity.md: the name of a test begins with the name of its row. Rows about the
// content of an element, and rules that differ too much, are in the files parity.test.ts of STOMP and AMQP.

/** How each protocol stores the reason of a rollback, and reports a full queue. */
const RULES: Readonly<Record<string, { reason(given: string): string; readonly full: string }>> = {
  STOMP: { reason: (given) => given, full: 'queue-full' },
  AMQP: { reason: (given) => `app:bad: ${given}`, full: 'released' },
};

for (const driver of DRIVERS) if (!driver.isOverWebSocket) paritySuite(driver, RULES[driver.name]);

function paritySuite(driver: SessionDriver, rules = RULES.STOMP): void {
  describe(`HTTP and ${driver.name} agree on`, () => {
    let node: ParityNode;
    let http: QueueClient;
    let client: SessionClient;
    let queue: string;

    const clients: SessionClient[] = [];
    const connect = async (user = 'test1'): Promise<SessionClient> => {
      const connected = await driver.connect({ port: node.portOf(driver.name) }, user);
      clients.push(connected);
      return connected;
    };

    before(async () => {
      node = await ParityNode.start();
      http = node.http;
      client = await connect();
    });
    afterEach(async () => {
      for (const { socket } of clients.splice(1)) socket.destroy();
      await node.harness.waiting(0);
    });
    after(async () => {
      client.socket.destroy();
      await node.stop();
    });

    const fresh = (): void => {
      queue = node.harness.queue();
    };
    const insert = (body = 'x', ns = 'N'): Promise<unknown> => http.insert(ns, queue, body);
    const send = (parts: SentParts = {}): Promise<void> => client.send(queue, 'x', parts);
    const sizes = async (ns = 'N'): Promise<[unknown, unknown, unknown]> => {
      const { size, schedSize, resvSize } = jsonOf<Record<string, unknown>>(await http.status(ns, queue));
      return [size, schedSize, resvSize];
    };
    const sizesAre = (...expected: number[]): Promise<void> =>
      until(async () => JSON.stringify(await sizes()) === JSON.stringify(expected));
    /** A separate client that consumes with a window of 1, and its first message. */
    const holding = async (options: Consume = {}, from = queue) => {
      const holder = await connect();
      const consumer = await holder.consume(from, { window: 1, ...options });
      return { holder, consumer, taken: await consumer.next() };
    };
    const leave = async (leaving: SessionClient): Promise<void> => {
      leaving.leave();
      assert.equal(await leaving.ended, null);
    };
    /** `done`, or the code of the error that a request of the client fails with. */
    const outcome = (request: Promise<unknown>): Promise<string> =>
      request.then(
        () => 'done',
        (error: unknown) => (error as Error).message,
      );

    it('many at once: a take of many and a window deliver elements in the same order, and no element twice', async () => {
      fresh();
      for (const body of ['a', 'b', 'c', 'd', 'e']) await insert(body);
      const path = `/q/N/${encodeURIComponent(queue)}/take`;
      const { body } = await http.request('POST', path, { body: '{"count":3,"reserve":true}' });
      const lines = body.toString().trim().split('\n');
      assert.deepEqual(
        lines.map((line) => (JSON.parse(line) as { text: string }).text),
        ['a', 'b', 'c'],
      );
      const { holder, consumer, taken } = await holding({ window: 10 });
      const both = [taken, await consumer.next()];
      assert.deepEqual(
        both.map((one) => one.body),
        ['d', 'e'],
      );
      assert.deepEqual(await sizes(), [0, 0, 5]);
      for (const one of both) one.accept();
      await sizesAre(0, 0, 3);
      await leave(holder);
    });

    it('queue: a name with special characters is the same queue', async () => {
      for (const name of ['a/b', '%2F', 'ü ☃', '..', 'a:b', 'a\\b', '__proto__', 'a?b']) {
        await client.send(name, name);
        assert.equal((await http.get('N', name, { to: 0 })).body.toString(), name);
        await http.insert('N', name, 'back');
        const { holder, taken } = await holding({}, name);
        assert.equal(taken.body, 'back');
        taken.accept();
        await leave(holder);
      }
    });

    it('delay: HTTP takes seconds, the other milliseconds', async () => {
      fresh();
      await send({ delayMs: 1500 });
      await http.insert('N', queue, 'x', { delay: 1.5 });
      const due = new Date(node.harness.opened.now() + 1500).toISOString();
      assert.deepEqual(await sizes(), [0, 2, 0]);
      assert.equal(jsonOf<{ next_mature_t: string }>(await http.status('N', queue)).next_mature_t, due);
      await node.harness.passTime(1500);
      assert.equal(headerOf(await http.get('N', queue, { to: 0 }), 'x-ks-mature'), due);
      const { holder, taken } = await holding();
      assert.equal(taken.mature, due);
      await leave(holder);
    });

    it('time to live: HTTP takes seconds, the other milliseconds', async () => {
      fresh();
      await send({ ttlMs: 1500 });
      await http.insert('N', queue, 'x', { query: { ttl: '1.5' } });
      await node.harness.passTime(1499);
      assert.deepEqual(await sizes(), [2, 0, 0]);
      await node.harness.passTime(1);
      assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
    });

    it('reason: the reason of a rollback in one protocol is readable in the dead letter over the other', async () => {
      const reason = 'schlüssel "7" fehlt';
      fresh();
      await http.insert('jobs', queue, 'x', { tries: 1 });
      const { holder, taken } = await holding({ ns: 'jobs' });
      taken.reject(reason);
      await leave(holder);
      const dead = await http.get('jobs', '__deadletter__');
      const bytes = elementHeadersOf(dead).get('x-dl-reason') ?? '';
      assert.equal(Buffer.from(bytes, 'latin1').toString(), rules?.reason(reason));
      await http.insert('jobs', queue, 'x', { tries: 1 });
      const id = headerOf(await http.reserve('jobs', queue, { to: 0 }), 'x-ks-id');
      await http.rollback('jobs', queue, id, { query: { reason } });
      const deadLetter = await holding({ ns: 'jobs', isPop: true }, '__deadletter__');
      assert.equal(deadLetter.taken.header('x-dl-reason'), reason);
      await leave(deadLetter.holder);
    });

    it('holder: has the tid of the get over HTTP, or one that begins with the session of the client', async () => {
      fresh();
      await insert();
      await insert();
      await http.reserve('N', queue, { to: 0, tid: 'w1' });
      const { holder, taken } = await holding();
      const answer = await http.request('GET', `/q/N/${queue}/elements`);
      const { elements } = jsonOf<{ elements: { holder: { tid: string; user: string } }[] }>(answer);
      const [first, second] = elements.map((element) => element.holder);
      assert.equal(first?.tid, 'w1');
      assert.equal(second?.user, first?.user);
      assert.ok(second?.tid.startsWith(`${holder.name}.`), second?.tid);
      taken.accept();
      await leave(holder);
    });

    it('pop: an element popped over one protocol is gone for the other', async () => {
      fresh();
      await insert();
      const { holder, consumer } = await holding({ isPop: true, window: 2 });
      assert.deepEqual(await sizes(), [0, 0, 0]);
      await send();
      assert.equal((await consumer.next()).body, 'x');
      assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
      await leave(holder);
    });

    it('reserve: an element reserved over one protocol is not delivered over the other until it is returned', async () => {
      fresh();
      await insert();
      const { holder } = await holding();
      assert.deepEqual(await sizes(), [0, 0, 1]);
      assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
      await leave(holder);
      await sizesAre(1, 0, 0);
      assert.equal((await http.get('N', queue, { to: 0 })).status, 200);
    });

    it('commit: removes the element', async () => {
      fresh();
      await insert();
      const { holder, taken } = await holding();
      taken.accept();
      await leave(holder);
      await sizesAre(0, 0, 0);
      assert.equal((await http.commit('N', queue, taken.id)).status, 404);
    });

    it('lease: an expired lease counts a failed try for both', async () => {
      fresh();
      await insert();
      const { holder } = await holding({ leaseMs: 5000 });
      await node.harness.passTime(5001);
      const taken = await http.reserve('N', queue, { to: 0, lease: 3000 });
      assert.equal(headerOf(taken, 'x-ks-tries'), '1');
      await leave(holder);
      await node.harness.passTime(3001);
      const again = await holding();
      assert.equal(again.taken.tries, 2);
      const token = headerOf(taken, 'x-ks-lease');
      assert.equal((await http.extend('N', queue, again.taken.id, { token })).status, 409);
      await leave(again.holder);
    });

    it('dead letter: failed tries over both protocols are counted together', async () => {
      fresh();
      await send({ ns: 'jobs', headers: { colour: 'blue' } });
      const reserved = await http.reserve('jobs', queue, { to: 0 });
      await http.rollback('jobs', queue, headerOf(reserved, 'x-ks-id'));
      const { holder, taken } = await holding({ ns: 'jobs' });
      taken.reject();
      await leave(holder);
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
      const deadLetter = await holding({ ns: 'jobs', isPop: true }, '__deadletter__');
      assert.deepEqual(['x-dl-from-queue', 'x-dl-tries', 'x-ks-origin-id'].map(deadLetter.taken.header), [
        queue,
        '2',
        first,
      ]);
      await leave(deadLetter.holder);
    });

    it('options of a queue: apply to both', async () => {
      fresh();
      const options = { maxElements: 1, ttl: 60, lease: 5, retryDelay: { first: 7 } };
      await http.setOptions('N', queue, options);
      await send();
      assert.equal((await http.insert('N', queue, 'x')).status, 507);
      assert.equal(await outcome((await connect()).send(queue, 'x')), rules?.full);
      const { holder, consumer, taken } = await holding();
      taken.reject();
      await sizesAre(0, 1, 0);
      await node.harness.passTime(6999);
      await sizesAre(0, 1, 0);
      await node.harness.passTime(1);
      (await consumer.next()).accept();
      await leave(holder);
      await sizesAre(0, 0, 0);
      await node.harness.passTime(1000);
      await send();
      await node.harness.passTime(60_000);
      assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
    });

    it('pause: stops deliveries of both, but not inserts', async () => {
      fresh();
      await http.pause('N', queue);
      await send();
      const paused = await connect();
      const consumer = await paused.consume(queue, { window: 1 });
      assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
      assert.deepEqual(await sizes(), [1, 0, 0]);
      await http.resume('N', queue);
      assert.equal((await consumer.next()).body, 'x');
      await leave(paused);
    });

    it('consumers: of the client are listed and cancelled over HTTP', async () => {
      fresh();
      const consumer = await (await connect()).consume(queue, { window: 1 });
      const list = async (): Promise<{ tid: string; callback: string }[]> =>
        jsonOf(await http.consumers('N', queue));
      await until(async () => (await list()).length === 1);
      const [listed] = await list();
      assert.equal(listed?.callback, 'set');
      assert.equal((await http.cancel('N', queue, listed?.tid ?? '')).status, 200);
      assert.equal(await consumer.ended, 'pop-cancelled');
      assert.deepEqual(await list(), []);
    });

    it('rights: allow the same user the same operations', async () => {
      for (const [name, statuses, outcomes] of [
        ['reader', [403, 200], ['forbidden', 'done']],
        ['writer', [200, 403], ['done', 'forbidden']],
      ] as const) {
        fresh();
        await insert();
        const own = node.harness.client(`${name}:${name}`);
        const answers = [await own.insert('N', queue, 'x'), await own.get('N', queue, { to: 0 })];
        assert.deepEqual(
          answers.map(({ status }) => status),
          statuses,
        );
        assert.deepEqual(
          [
            await outcome((await connect(name)).send(queue, 'x')),
            await outcome((await connect(name)).consume(queue)),
          ],
          outcomes,
        );
      }
    });

    it('owner of a reservation: an element held by the client can be settled over HTTP without a token by the same user only', async () => {
      fresh();
      await insert();
      const { holder, consumer, taken } = await holding();
      assert.equal((await node.harness.client('reader:reader').commit('N', queue, taken.id)).status, 409);
      assert.equal((await http.extend('N', queue, taken.id)).status, 200);
      taken.accept();
      await sizesAre(0, 0, 0);
      await insert();
      assert.equal((await http.commit('N', queue, (await consumer.next()).id)).status, 200);
      await sizesAre(0, 0, 0);
      await leave(holder);
    });

    it('settled: an element held by the client may be settled over HTTP; its later settlement is rejected', async () => {
      fresh();
      await insert();
      const { consumer, taken } = await holding();
      assert.equal((await http.commit('N', queue, taken.id)).status, 200);
      taken.accept();
      assert.equal(await consumer.ended, 'element-not-found');
    });

    it('limits: apply the same body limit to both', async () => {
      for (const [length, fits] of [
        [BODY_LIMIT, true],
        [BODY_LIMIT + 1, false],
      ] as const) {
        fresh();
        const body = Buffer.alloc(length, 1);
        assert.equal((await http.insert('N', queue, body)).status, fits ? 200 : 413);
        assert.equal(await outcome((await connect()).send(queue, body)), fits ? 'done' : 'body-too-large');
        assert.deepEqual(await sizes(), [fits ? 2 : 0, 0, 0]);
      }
    });

    it('a client that goes: its unsettled elements are available to the other protocol', async () => {
      fresh();
      await insert();
      const { holder } = await holding();
      holder.socket.resetAndDestroy();
      await sizesAre(1, 0, 0);
      assert.equal(headerOf(await http.get('N', queue, { to: 0 }), 'x-ks-tries'), '1');
      const gone = new AbortController();
      const blocked = http.get('N', queue, { signal: gone.signal });
      await node.harness.waiting(1);
      gone.abort();
      await assert.rejects(blocked);
      await node.harness.waiting(0);
      await send();
      const second = await holding({ isPop: true });
      assert.equal(second.taken.tries, 0);
      await leave(second.holder);
    });

    it('browse: both show the same elements and change nothing', async () => {
      fresh();
      for (const body of ['x', 'y']) await insert(body);
      const browser = await connect();
      const { elements } = jsonOf<{ elements: { id: string; text: string }[] }>(
        await http.request('GET', `/q/N/${encodeURIComponent(queue)}/elements`),
      );
      assert.equal(elements.length, 2);
      assert.deepEqual(
        await browser.browse(queue),
        elements.map(({ id, text }) => [id, text]),
      );
      assert.deepEqual(await sizes(), [2, 0, 0]);
      await leave(browser);
    });

    it('repeated inserts: an idempotency key stores once, but everything that the client sends is stored', async () => {
      fresh();
      const headers = { 'idempotency-key': 'once' };
      await http.insert('N', queue, 'x', { headers });
      await http.insert('N', queue, 'x', { headers });
      await send({ messageId: 'once' });
      await send({ messageId: 'once' });
      assert.deepEqual(await sizes(), [3, 0, 0]);
    });
  });
}

describe('docs/protocols/parity.md', () => {
  it('has a test of STOMP and of AMQP for each of its rows', () => {
    const page = readFileSync(new URL('../../docs/protocols/parity.md', import.meta.url), 'utf8');
    const rows = [...page.matchAll(/^\| ([^|`]+?) \|.*$/gm)];
    assert.match(rows[0]?.[0] ?? '', /\| what \| HTTP \| STOMP \| AMQP 1\.0 \|/);
    assert.ok(rows.length > 20);
    for (const protocol of ['stomp', 'amqp']) {
      const files = ['parity-rules.test.ts', `../${protocol}/parity.test.ts`];
      const tests = files.flatMap((file) =>
        [...readFileSync(new URL(file, import.meta.url), 'utf8').matchAll(/\bit\('([^:']+):/g)].flatMap(
          ([, named]) => named?.split(', '),
        ),
      );
      for (const [, row] of rows.slice(1))
        assert.ok(tests.includes(row), `no test of ${row} over ${protocol}`);
    }
  });
});
