import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { BODY_LIMIT, destination, ParityNode } from '../session/parity-node.ts';
import { elementHeadersOf, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import type { Headers, ServerFrame, StompClient } from './client.ts';

// Rows of docs/protocols/parity.md: the name of a test starts with that of its row. The rows about the parts of an
// element are in parity.test.ts.

describe('HTTP and STOMP alike', () => {
  let node: ParityNode;
  let http: QueueClient;
  let stomp: StompClient;
  let queue: string;

  before(async () => {
    node = await ParityNode.start();
    http = node.http;
    stomp = await node.stompClient();
  });
  after(() => node.stop());

  const fresh = (): string => {
    queue = node.harness.queue();
    return queue;
  };
  const insert = (body = 'x', ns = 'N'): Promise<unknown> => http.insert(ns, queue, body);
  const send = (headers: Headers = {}, ns = 'N'): Promise<void> =>
    stomp.ask('SEND', { destination: destination(queue, ns), ...headers }, 'x');
  const sizes = async (ns = 'N'): Promise<[unknown, unknown, unknown]> => {
    const { size, schedSize, resvSize } = jsonOf<Record<string, unknown>>(await http.status(ns, queue));
    return [size, schedSize, resvSize];
  };
  /** Subscribes with a new client; returns it and its first message. */
  const subscribed = async (
    ack: string,
    headers: Headers = {},
    ns = 'N',
  ): Promise<[StompClient, ServerFrame]> => {
    const client = await node.stompClient();
    await client.ask('SUBSCRIBE', {
      destination: destination(queue, ns),
      id: 's',
      ack,
      'x-wsize': 1,
      ...headers,
    });
    return [client, await client.expect('MESSAGE')];
  };
  const ackOf = ({ headers }: ServerFrame): Headers => ({ id: headers.get('ack') ?? '' });

  it('queue: a name with special characters is the same queue', async () => {
    for (const name of ['a/b', '%2F', 'ü ☃', '..', 'a:b', 'a\\b', '__proto__']) {
      await stomp.ask('SEND', { destination: destination(name) }, name);
      assert.equal((await http.get('N', name, { to: 0 })).body.toString(), name);
      await http.insert('N', name, 'back');
      await stomp.ask('SUBSCRIBE', { destination: destination(name), id: name });
      assert.equal((await stomp.expect('MESSAGE')).body.toString(), 'back');
      await stomp.ask('UNSUBSCRIBE', { id: name });
    }
  });

  it('delay: HTTP takes seconds, STOMP milliseconds', async () => {
    fresh();
    await send({ 'x-delta-t': 1500 });
    await http.insert('N', queue, 'x', { delay: 1.5 });
    const due = new Date(node.harness.opened.now() + 1500).toISOString();
    assert.deepEqual(await sizes(), [0, 2, 0]);
    assert.equal(jsonOf<{ next_mature_t: string }>(await http.status('N', queue)).next_mature_t, due);
    await node.harness.passTime(1500);
    assert.equal(headerOf(await http.get('N', queue, { to: 0 }), 'x-ks-mature'), due);
    const [client, message] = await subscribed('auto');
    assert.equal(message.headers.get('x-mature'), due);
    await client.disconnect();
  });

  it('time to live: HTTP takes seconds, STOMP milliseconds', async () => {
    fresh();
    await send({ 'x-ks-ttl': 1500 });
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
    const [client, message] = await subscribed('client', {}, 'jobs');
    await client.ask('NACK', { ...ackOf(message), 'x-ks-reason': reason });
    await client.disconnect();
    const dead = await http.get('jobs', '__deadletter__', { to: 0 });
    const bytes = elementHeadersOf(dead).get('x-dl-reason') ?? '';
    assert.equal(Buffer.from(bytes, 'latin1').toString(), reason);
    await http.insert('jobs', queue, 'x', { tries: 1 });
    const id = headerOf(await http.reserve('jobs', queue, { to: 0 }), 'x-ks-id');
    await http.rollback('jobs', queue, id, { query: { reason } });
    await stomp.ask('SUBSCRIBE', { destination: destination('__deadletter__', 'jobs'), id: 'dead' });
    const { headers } = await stomp.expect('MESSAGE');
    assert.equal(headers.get('x-dl-reason'), reason);
    await stomp.ask('UNSUBSCRIBE', { id: 'dead' });
  });

  it('holder: has the tid of the get over HTTP, or one that begins with the session over STOMP', async () => {
    fresh();
    await insert();
    await insert();
    await http.reserve('N', queue, { to: 0, tid: 'w1' });
    const client = await node.stompClient();
    await client.ask('SUBSCRIBE', { destination: destination(queue), id: 's', ack: 'client' });
    await client.expect('MESSAGE');
    const answer = await http.request('GET', `/q/N/${queue}/elements`);
    const { elements } = jsonOf<{ elements: { holder: { tid: string; user: string } }[] }>(answer);
    const [first, second] = elements.map(({ holder }) => holder);
    assert.equal(first?.tid, 'w1');
    assert.equal(second?.user, first?.user);
    assert.ok(second?.tid.startsWith(`${client.session}.`), second?.tid);
    await client.disconnect();
  });

  it('pop: an element popped over one protocol is gone for the other', async () => {
    fresh();
    await insert();
    const [client] = await subscribed('auto');
    assert.deepEqual(await sizes(), [0, 0, 0]);
    await send();
    assert.equal((await client.expect('MESSAGE')).body.toString(), 'x');
    assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
    await client.disconnect();
  });

  it('reserve: an element reserved over STOMP is not delivered over HTTP until it is returned', async () => {
    for (const mode of ['client', 'client-individual']) {
      fresh();
      await insert();
      const [client] = await subscribed(mode);
      assert.deepEqual(await sizes(), [0, 0, 1]);
      assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
      await client.disconnect();
      assert.equal((await http.get('N', queue, { to: 0 })).status, 200);
    }
  });

  it('commit: removes the element', async () => {
    fresh();
    await insert();
    const [client, message] = await subscribed('client');
    await client.ask('ACK', ackOf(message));
    await client.disconnect();
    assert.deepEqual(await sizes(), [0, 0, 0]);
    const id = message.headers.get('message-id') ?? '';
    assert.equal((await http.commit('N', queue, id)).status, 404);
  });

  it('rollback: counts a failed try, and delays the element', async () => {
    fresh();
    await insert();
    const [client, message] = await subscribed('client-individual');
    await client.ask('NACK', { ...ackOf(message), 'x-delta-t': 2000 });
    assert.deepEqual(await sizes(), [0, 1, 0]);
    await client.disconnect();
    await node.harness.passTime(2000);
    const reserved = await http.reserve('N', queue, { to: 0 });
    assert.equal(headerOf(reserved, 'x-ks-tries'), '1');
    await http.rollback('N', queue, headerOf(reserved, 'x-ks-id'));
    const [second, again] = await subscribed('client');
    assert.equal(again.headers.get('x-tries'), '2');
    await second.ask('NACK', ackOf(again));
    assert.deepEqual(await sizes(), [0, 1, 0]);
    await second.disconnect();
  });

  it('lease: an expired lease counts a failed try for both', async () => {
    fresh();
    await insert();
    const [client] = await subscribed('client', { 'x-lease': 5000 });
    await node.harness.passTime(5001);
    const taken = await http.reserve('N', queue, { to: 0, lease: 3000 });
    assert.equal(headerOf(taken, 'x-ks-tries'), '1');
    await client.disconnect();
    await node.harness.passTime(3001);
    const [second, again] = await subscribed('client');
    assert.equal(again.headers.get('x-tries'), '2');
    const id = again.headers.get('message-id') ?? '';
    const token = headerOf(taken, 'x-ks-lease');
    assert.equal((await http.extend('N', queue, id, { token })).status, 409);
    await second.disconnect();
  });

  it('dead letter: failed tries over both protocols are counted together', async () => {
    fresh();
    await send({ 'x-ks-hdr-colour': 'blue' }, 'jobs');
    const reserved = await http.reserve('jobs', queue, { to: 0 });
    await http.rollback('jobs', queue, headerOf(reserved, 'x-ks-id'));
    const [client, message] = await subscribed('client', {}, 'jobs');
    await client.ask('NACK', ackOf(message));
    await client.disconnect();
    assert.deepEqual(await sizes('jobs'), [0, 0, 0]);
    const dead = await http.reserve('jobs', '__deadletter__', { to: 0 });
    const own = elementHeadersOf(dead);
    const first = headerOf(reserved, 'x-ks-id');
    assert.equal(headerOf(dead, 'x-ks-origin-id'), first);
    assert.deepEqual(
      ['colour', 'x-dl-from-queue', 'x-dl-tries'].map((name) => own.get(name)),
      ['blue', queue, '2'],
    );
    await http.rollback('jobs', '__deadletter__', headerOf(dead, 'x-ks-id'));
    await stomp.ask('SUBSCRIBE', { destination: destination('__deadletter__', 'jobs'), id: 'dead' });
    const { headers } = await stomp.expect('MESSAGE');
    assert.equal(headers.get('x-ks-hdr-x-dl-from-queue'), queue);
    assert.equal(headers.get('x-dl-tries'), '2');
    assert.equal(headers.get('x-ks-origin-id'), first);
    await stomp.ask('UNSUBSCRIBE', { id: 'dead' });
  });

  it('options of a queue: apply to both', async () => {
    fresh();
    const options = { maxElements: 1, ttl: 60, lease: 5, retryDelay: { first: 7 } };
    await http.setOptions('N', queue, options);
    await send();
    assert.equal((await http.insert('N', queue, 'x')).status, 507);
    const sender = await node.stompClient();
    sender.send('SEND', { destination: destination(queue), receipt: 'r' }, 'x');
    assert.equal((await sender.expect('ERROR')).headers.get('message'), 'queue-full');
    const [client, message] = await subscribed('client-individual');
    await client.ask('NACK', ackOf(message));
    await node.harness.passTime(6999);
    assert.deepEqual(await sizes(), [0, 1, 0]);
    await node.harness.passTime(1);
    await client.ask('ACK', ackOf(await client.expect('MESSAGE')));
    await client.disconnect();
    await node.harness.passTime(1000);
    await send();
    await node.harness.passTime(60_000);
    assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
  });

  it('pause: stops deliveries of both, but not inserts', async () => {
    fresh();
    await http.pause('N', queue);
    await send();
    const client = await node.stompClient();
    await client.ask('SUBSCRIBE', { destination: destination(queue), id: 's' });
    assert.equal((await http.get('N', queue, { to: 0 })).status, 504);
    assert.deepEqual(await sizes(), [1, 0, 0]);
    await http.resume('N', queue);
    assert.equal((await client.expect('MESSAGE')).body.toString(), 'x');
    await client.disconnect();
  });

  it('rights: allow the same user the same operations', async () => {
    fresh();
    await insert();
    for (const [name, may] of [
      ['reader', [403, 200]],
      ['writer', [200, 403]],
    ] as const) {
      const http = node.harness.client(`${name}:${name}`);
      const answers = [await http.insert('N', queue, 'x'), await http.get('N', queue, { to: 0 })];
      assert.deepEqual(
        answers.map(({ status }) => status),
        may,
      );
      for (const [i, command] of ['SEND', 'SUBSCRIBE'].entries()) {
        const client = await node.stompClient(name);
        const headers = { destination: destination(fresh()), ...(command === 'SUBSCRIBE' && { id: 's' }) };
        if (may[i] === 200) {
          await client.ask(command, headers);
          await client.disconnect();
        } else {
          client.send(command, headers);
          await client.expectError('forbidden');
        }
      }
    }
  });

  it('owner of a reservation: an element held over STOMP can be settled over HTTP without a token by the same user only', async () => {
    fresh();
    await insert();
    const [client, message] = await subscribed('client-individual');
    const id = message.headers.get('message-id') ?? '';
    assert.equal((await node.harness.client('reader:reader').commit('N', queue, id)).status, 409);
    assert.equal((await http.extend('N', queue, id)).status, 200);
    await client.ask('ACK', ackOf(message));
    assert.deepEqual(await sizes(), [0, 0, 0]);
    await client.disconnect();
  });

  it('limits: apply the same body limit to both', async () => {
    for (const [length, fits] of [
      [BODY_LIMIT, true],
      [BODY_LIMIT + 1, false],
    ] as const) {
      fresh();
      const body = Buffer.alloc(length, 1);
      assert.equal((await http.insert('N', queue, body)).status, fits ? 200 : 413);
      const client = await node.stompClient();
      if (fits) await client.ask('SEND', { destination: destination(queue) }, body);
      else {
        client.send('SEND', { destination: destination(queue) }, body);
        await client.expectError('body-too-large');
      }
      assert.deepEqual(await sizes(), [fits ? 2 : 0, 0, 0]);
    }
  });

  it('a client that goes: its unsettled elements are available to the other protocol', async () => {
    fresh();
    await insert();
    const [client] = await subscribed('client');
    await client.vanish();
    await until(async () => (await sizes())[0] === 1);
    assert.equal(headerOf(await http.get('N', queue, { to: 0 }), 'x-ks-tries'), '1');
    const gone = new AbortController();
    const blocked = http.get('N', queue, { signal: gone.signal });
    await node.harness.waiting(1);
    gone.abort();
    await assert.rejects(blocked);
    await node.harness.waiting(0);
    await send();
    const [second, message] = await subscribed('auto');
    assert.equal(message.headers.get('x-tries'), '0');
    await second.disconnect();
  });

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
    const [client, first] = await subscribed('client', { 'x-wsize': null, 'prefetch-count': 10 });
    assert.deepEqual([first.body.toString(), (await client.expect('MESSAGE')).body.toString()], ['d', 'e']);
    assert.deepEqual(await sizes(), [0, 0, 5]);
    await client.disconnect();
  });

  it('browse: both show the same elements and change nothing', async () => {
    fresh();
    for (const body of ['x', 'y']) await insert(body);
    const client = await node.stompClient();
    client.send('SUBSCRIBE', { destination: destination(queue), id: 's', browser: 'true' });
    const { elements } = jsonOf<{ elements: { id: string; text: string }[] }>(
      await http.request('GET', `/q/N/${encodeURIComponent(queue)}/elements`),
    );
    assert.equal(elements.length, 2);
    for (const { id, text } of elements) {
      const { headers, body } = await client.expect('MESSAGE');
      assert.deepEqual([headers.get('message-id'), body.toString()], [id, text]);
    }
    assert.equal((await client.expect('MESSAGE')).headers.get('browser'), 'end');
    assert.deepEqual(await sizes(), [2, 0, 0]);
    await client.disconnect();
  });

  it('repeated inserts: an idempotency key stores once, but every SEND is stored', async () => {
    fresh();
    const headers = { 'idempotency-key': 'once' };
    await http.insert('N', queue, 'x', { headers });
    await http.insert('N', queue, 'x', { headers });
    await send();
    await send();
    assert.deepEqual(await sizes(), [3, 0, 0]);
  });
});

describe('docs/protocols/parity.md', () => {
  it('has a test for each of its rows', () => {
    const folder = new URL('.', import.meta.url);
    const files = readdirSync(folder).filter((name) => /^parity.*\.test\.ts$/.test(name));
    const tests = files.flatMap((file) =>
      [...readFileSync(new URL(file, folder), 'utf8').matchAll(/\bit\('([^:']+):/g)].flatMap(([, rows]) =>
        rows?.split(', '),
      ),
    );
    const page = readFileSync(new URL('../../docs/protocols/parity.md', import.meta.url), 'utf8');
    const rows = [...page.matchAll(/^\| ([^|`]+?) \|/gm)].map(([, row]) => row);
    assert.deepEqual(rows[0], 'what');
    assert.ok(rows.length > 20);
    for (const row of rows.slice(1)) assert.ok(tests.includes(row), `no test of ${row}`);
  });
});
