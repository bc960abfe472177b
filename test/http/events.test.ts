import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { connect as connectTls } from 'node:tls';
import { gunzipSync } from 'node:zlib';
import { readAccounts } from '../../src/access/account.ts';
import { alarms, type Picture, type PictureSource } from '../../src/events/pictures.ts';
import { plain } from '../support/broker.ts';
import { makeCertificate } from '../support/certificate.ts';
import { newElement } from '../support/elements.ts';
import { EventClient, type EventClientOptions } from '../support/event-client.ts';
import { jsonOf } from '../support/http-client.ts';
import { codeOf } from './exchange-fixture.ts';
import { Harness, type HarnessOptions } from './harness.ts';
import { AUTHORIZATION, RawConnection, rawRequest } from './raw.ts';

const USERS = [
  { name: 'test1', password: 'test1', rights: null },
  { name: 'reader', password: 'pw', rights: { N: ['read'] } },
  { name: 'writer', password: 'pw', rights: { N: ['write'] } },
];

/** Runs a test with a harness and event clients, all of which are closed afterwards. */
async function withEvents(
  test: (events: EventsUnderTest) => Promise<void>,
  options: HarnessOptions = {},
): Promise<void> {
  const harness = await Harness.start({ users: USERS, watches: true, ...options });
  const events = new EventsUnderTest(harness);
  try {
    await test(events);
    assert.deepEqual(harness.faults(), []);
  } finally {
    events.close();
    await harness.close();
  }
}

class EventsUnderTest {
  readonly harness: Harness;
  readonly #clients: EventClient[] = [];

  constructor(harness: Harness) {
    this.harness = harness;
  }

  listen(options: Partial<EventClientOptions> = {}): EventClient {
    const client = new EventClient({ url: `http://127.0.0.1:${this.harness.port}`, ...options });
    this.#clients.push(client);
    return client;
  }

  /** Subscribes and resolves once the full picture has arrived. */
  async complete(options: Partial<EventClientOptions> = {}): Promise<EventClient> {
    const client = this.listen(options);
    await this.until(() => client.isComplete);
    return client;
  }

  /** Advances time in steps until `holds` returns true. Returns the time that passed, ms. */
  async until(holds: () => boolean, stepMs = 50): Promise<number> {
    for (let ms = 0; ms < 7_200_000; ms += stepMs) {
      for (let i = 0; i < 10; i += 1) {
        if (holds()) return ms;
        await turn();
        await this.harness.watch.idle();
      }
      await this.harness.passTime(stepMs);
    }
    throw new Error('It did not come about within two hours.');
  }

  async rest(): Promise<void> {
    for (let i = 0; i < 50; i += 1) await turn();
  }

  close(): void {
    for (const client of this.#clients) client.close();
  }
}

/** A picture of a bulk operation with the id 1. */
function operation(json: string): Picture {
  return {
    kind: 'operations',
    key: '1',
    places: [],
    state: json,
    isFor: () => true,
    json: () => json,
    goneJson: () => '{"id":"1","gone":true}',
  };
}

const DEAD_LETTERS = [
  plain('N', { deadLetter: { maxTries: 1, queue: 'dead' } }),
  plain('hidden', { deadLetter: { maxTries: 1, queue: 'dead' } }),
];

describe('GET /events', () => {
  it('starts with a full picture and then sends changes', () =>
    withEvents(async (events) => {
      const client = events.harness.client();
      await client.insert('N', 'orders', 'a');
      await client.insert('N', 'orders', 'b', { delay: 60 });
      const listener = await events.complete();
      const response = await listener.opened;
      assert.equal(response.statusCode, 200);
      assert.equal(response.headers['content-type'], 'text/event-stream; charset=utf-8');
      assert.equal(response.headers['x-accel-buffering'], 'no');
      assert.equal(response.headers['cache-control'], 'no-store, no-transform');
      assert.equal(listener.events[0]?.event, 'start');
      assert.deepEqual(JSON.parse(listener.events[0]?.data ?? ''), { full: true });
      assert.ok((listener.retryMs ?? 0) >= 2_000);
      const { next_mature_t, ...shown } = listener.queue('N', 'orders') ?? {};
      assert.match(String(next_mature_t), /^2026-01-01T/);
      assert.deepEqual(shown, {
        ns: 'N',
        queue: 'orders',
        totalSize: 2,
        size: 1,
        schedSize: 1,
        resvSize: 0,
        paused: false,
        stats: { put: 2, get: 0, reserve: 0, commit: 0, rollback: 0, deadletter: 0 },
      });
      await client.get('N', 'orders');
      const ms = await events.until(() => listener.queue('N', 'orders')?.size === 0);
      assert.ok(ms <= 600, `${ms} ms until a change of this node was sent`);
      await client.pause('N', 'orders');
      await events.until(() => listener.queue('N', 'orders')?.paused === true);
      assert.match(listener.lastEventId, /^[\w.-]+-\d+$/);
    }));

  it('sends a client that accepts gzip the same events at once, in a tenth of the bytes, and ends the compressed stream', () =>
    withEvents(async (events) => {
      const client = events.harness.client();
      for (let i = 0; i < 300; i += 1) await client.insert('N', `queue-${i}`, 'a');
      const plainly = await events.complete();
      const gzipped = await events.complete({ headers: { 'accept-encoding': 'deflate, gzip' } });
      assert.equal((await plainly.opened).headers['content-encoding'], undefined);
      assert.equal((await gzipped.opened).headers['content-encoding'], 'gzip');
      assert.equal(gzipped.of('queues').length, 300);
      assert.deepEqual(gzipped.of('queues'), plainly.of('queues'));
      assert.ok(gzipped.receivedBytes < plainly.receivedBytes / 10, `${gzipped.receivedBytes} bytes`);
      await client.insert('N', 'queue-7', 'b');
      await events.until(() => gzipped.queue('N', 'queue-7')?.size === 2);
      events.harness.server.drain();
      await events.until(() => gzipped.isClosed);
      await events.until(() => gzipped.events.at(-1)?.event === 'end');
      assert.equal(gzipped.decodingError, null);
    }));

  it('sends no gzip to a client that excludes it', () =>
    withEvents(async (events) => {
      const listener = await events.complete({ headers: { 'accept-encoding': 'gzip;q=0, identity' } });
      assert.equal((await listener.opened).headers['content-encoding'], undefined);
    }));

  it('sends the full picture as soon as every queue has been read, before the next update is due', () =>
    withEvents(async (events) => {
      await events.harness.client().insert('N', 'orders', 'a');
      const listener = events.listen();
      // Nodes and exchanges are sent at once. The queues are read later, but must not wait for the next update.
      const ms = await events.until(() => listener.isComplete, 10);
      assert.ok(ms < 100, `${ms} ms of the server's clock until the picture was full`);
      assert.equal(listener.queue('N', 'orders')?.size, 1);
    }));

  it('sends a queue that keeps changing at most twice a second, with its latest counts', () =>
    withEvents(async (events) => {
      const client = events.harness.client();
      const listener = await events.complete();
      const before = listener.count('queues');
      for (let ms = 0; ms < 5_000; ms += 100) {
        await client.insert('N', 'busy', 'a');
        await events.rest();
        await events.harness.watch.idle();
        await events.harness.passTime(100);
      }
      await events.until(() => listener.queue('N', 'busy')?.size === 50);
      const updates = listener.count('queues') - before;
      assert.ok(updates >= 4 && updates <= 12, `${updates} updates in five seconds`);
    }));

  it('sends exchanges and nodes, including the deletion of an exchange', () =>
    withEvents(async (events) => {
      const client = events.harness.client();
      const listener = await events.complete();
      assert.equal(listener.of('nodes').length, 1);
      assert.equal(listener.of('nodes')[0]?.isSelf, true);
      const body = JSON.stringify({
        src: { ns: 'N', queue: 'in' },
        dst: [{ ns: 'jobs', queue: 'out' }],
        consumer: {},
      });
      await client.request('PUT', '/x/copy', { body });
      await events.until(() => listener.of('exchanges').length === 1);
      assert.deepEqual(listener.of('exchanges')[0], {
        id: 'copy',
        src: { q: 'in', ns: 'N' },
        stopped: false,
        lastError: null,
        dst: [{ q: 'out', ns: 'jobs' }],
        stats: { no_route: 0, too_many_hops: 0, put_back: 0, dst: [{ matched: 0, skipped: 0, failed: 0 }] },
      });
      await client.request('POST', '/x/copy/stop');
      await events.until(() => listener.of('exchanges')[0]?.stopped === true);
      await client.request('DELETE', '/x/copy');
      await events.until(() => listener.of('exchanges').length === 0);
    }));

  it('sends bulk operations to users who may manage their source, and the queues that they change', () =>
    withEvents(async (events) => {
      const client = events.harness.client();
      for (let i = 0; i < 5; i += 1) await client.insert('N', 'many', 'a');
      const listener = await events.complete();
      const reader = await events.complete({ credentials: 'reader:pw' });
      const body = JSON.stringify({ action: 'delete', source: { ns: 'N', queue: 'many' }, limit: 3 });
      const started = await client.request('POST', '/operations', { body });
      assert.equal(started.status, 202);
      await events.until(() => listener.of('operations')[0]?.state === 'done');
      const { id, changed, action, by, samples } = listener.of('operations')[0] ?? {};
      assert.equal(started.headers.location, `/operations/${String(id)}`);
      assert.deepEqual([changed, action, by, samples], [3, 'delete', 'test1', undefined]);
      await events.until(() => reader.queue('N', 'many')?.size === 2);
      assert.deepEqual(reader.of('operations'), []);
      await client.request('DELETE', '/q/N/many/elements');
      assert.ok((await events.until(() => reader.queue('N', 'many')?.size === 0)) <= 600);
    }));

  it('sends only what the user may see', () =>
    withEvents(async (events) => {
      const client = events.harness.client();
      for (const ns of ['N', 'hidden']) await client.insert(ns, 'secret', 'a');
      const declare = (id: string, from: string, to: string) =>
        client.request('PUT', `/x/${id}`, {
          body: JSON.stringify({
            src: { ns: from, queue: 'in' },
            dst: [
              { ns: to, queue: 'treasure' },
              { ns: 'N', queue: 'open', selector: 'env => true' },
            ],
            consumer: {},
          }),
        });
      await declare('visible', 'N', 'hidden');
      await declare('invisible', 'hidden', 'hidden');
      const all = await events.complete();
      const reader = await events.complete({ credentials: 'reader:pw' });
      const writer = await events.complete({ credentials: 'writer:pw' });
      assert.ok(all.queue('hidden', 'secret'));
      assert.deepEqual(
        all
          .of('exchanges')
          .map(({ id }) => id)
          .sort(),
        ['invisible', 'visible'],
      );
      await client.insert('N', 'in', 'a');
      await events.until(() => all.queue('hidden', 'treasure')?.size === 1);
      const moved = (one: Readonly<Record<string, unknown>>): boolean =>
        one.id === 'visible' && JSON.stringify(one.stats).includes('"matched":1');
      await events.until(() => all.of('exchanges').some(moved));
      await events.until(() => reader.queue('N', 'open')?.size === 1);
      assert.ok(reader.queue('N', 'secret'));
      assert.deepEqual(reader.of('exchanges'), [
        {
          id: 'visible',
          src: { q: 'in', ns: 'N' },
          stopped: false,
          lastError: null,
          stats: { no_route: 0, too_many_hops: 0, put_back: 0 },
          dst: [
            { q: '', ns: '', hidden: true },
            { q: 'open', ns: 'N' },
          ],
        },
      ]);
      assert.equal(reader.count('exchanges'), 1, 'changes at a hidden destination cause no update');
      assert.deepEqual(writer.of('queues'), [], 'counts require the right read');
      assert.deepEqual(writer.of('nodes')[0]?.namespaces, ['N']);
      for (const listener of [reader, writer]) {
        const sent = listener.events.map(({ data }) => data).join();
        assert.doesNotMatch(sent, /"hidden"(?!:true)|treasure|invisible/);
      }
    }));

  it('can be filtered by namespace, queue and kind', () =>
    withEvents(async (events) => {
      const client = events.harness.client();
      for (const [ns, queue] of [
        ['N', 'a'],
        ['N', 'b'],
        ['jobs', 'a'],
      ] as const)
        await client.insert(ns, queue, 'x');
      const names = (listener: EventClient) =>
        listener
          .of('queues')
          .map(({ ns, queue }) => `${ns}/${queue}`)
          .sort();
      assert.deepEqual(names(await events.complete({ query: 'ns=N' })), ['N/a', 'N/b']);
      assert.deepEqual(names(await events.complete({ query: 'ns=N&queue=b' })), ['N/b']);
      const nodes = await events.complete({ query: 'kinds=nodes,alarms' });
      assert.deepEqual([...nodes.pictures.keys()], ['nodes']);
    }));

  it('ignores malformed node signals of other programs or versions', () =>
    withEvents(async (events) => {
      const listener = await events.complete();
      const { signaller } = events.harness.opened.engine;
      const node = { id: 'x', host: 'h', pid: 1, version: '9', startedAt: 'today' };
      for (const other of [node, { ...node, host: null }, { startedAt: 0 }, [], null]) {
        signaller.publish('N', { kind: 'node', ns: 'N', from: 'x', node: other, first: false });
      }
      await turn();
      await events.harness.passTime(4_000);
      await events.harness.client().insert('N', 'a', 'x');
      await events.until(() => listener.queue('N', 'a')?.size === 1);
      assert.equal(listener.of('nodes').length, 1);
      const response = await events.harness.client().request('GET', '/nodes');
      assert.deepEqual([response.status, jsonOf<unknown[]>(response).length], [200, 1]);
    }));

  it('continues after the last event id, or restarts with a full picture if the id is unknown', () =>
    withEvents(async (events) => {
      const client = events.harness.client();
      for (const queue of ['a', 'b']) await client.insert('N', queue, 'x');
      const first = await events.complete();
      first.close();
      await client.insert('N', 'b', 'y');
      await events.until(() => first.isClosed);
      const second = await events.complete({ lastEventId: first.lastEventId });
      assert.deepEqual(JSON.parse(second.events[0]?.data ?? ''), { full: false });
      await events.until(() => second.queue('N', 'b')?.size === 2);
      assert.equal(second.queue('N', 'a'), undefined, 'an unchanged queue is not sent again');
      for (const lastEventId of ['unknown', `${first.lastEventId}0`, '']) {
        const other = await events.complete({ lastEventId });
        assert.deepEqual(JSON.parse(other.events[0]?.data ?? ''), { full: true }, lastEventId);
        assert.ok(other.queue('N', 'a'));
      }
    }));

  it('restarts with a full picture if the last event id belongs to another filter or other rights', () =>
    withEvents(async (events) => {
      await events.harness.client().insert('N', 'a', 'x');
      const nodesOnly = await events.complete({ query: 'kinds=nodes' });
      const reader = await events.complete({ credentials: 'reader:pw' });
      for (const { lastEventId } of [nodesOnly, reader]) {
        assert.notEqual(lastEventId, '');
        const other = await events.complete({ lastEventId });
        assert.deepEqual(JSON.parse(other.events[0]?.data ?? ''), { full: true });
        assert.ok(other.queue('N', 'a'));
      }
    }));

  it('reads no queues while there is no subscriber', () =>
    withEvents(async (events) => {
      const client = events.harness.client();
      await client.insert('N', 'a', 'x');
      const first = await events.complete();
      first.close();
      await events.until(() => events.harness.events.counts.subscribers === 0);
      await events.harness.passTime(10_001);
      await events.rest();
      const { storage } = events.harness.opened.engine;
      const counts = storage.counts.bind(storage);
      let asked = 0;
      storage.counts = (queue, group) => {
        asked += 1;
        return counts(queue, group);
      };
      await events.harness.passTime(5_000);
      await events.rest();
      assert.ok(asked <= 1, `${asked} reads within five seconds`);
      storage.counts = counts;
      const second = await events.complete({ lastEventId: first.lastEventId });
      assert.deepEqual(JSON.parse(second.events[0]?.data ?? ''), { full: true });
    }));

  it('sends a comment, and an event for clients that cannot see comments, within 15 s if nothing changes', () =>
    withEvents(async (events) => {
      const listener = await events.complete();
      const isAlive = (): boolean => listener.events.at(-1)?.event === 'alive';
      const ms = await events.until(() => listener.comments.length === 1 && isAlive(), 500);
      assert.ok(ms >= 10_000 && ms <= 15_000, `${ms} ms`);
      assert.equal(listener.events.at(-1)?.data, '{}');
    }));

  it('is never silent for longer than 15 s, whenever the last change occurred', () =>
    withEvents(async (events) => {
      const client = events.harness.client();
      const listener = await events.complete();
      const inserts = new Set([7_000, 29_500, 58_000, 76_500]);
      const gaps: number[] = [];
      let silentMs = 0;
      for (let ms = 500; ms <= 120_000; ms += 500) {
        const { bytes } = listener;
        if (inserts.has(ms)) await client.insert('N', 'q', 'a');
        await events.harness.passTime(500);
        await events.rest();
        silentMs += 500;
        if (listener.bytes === bytes) continue;
        gaps.push(silentMs);
        silentMs = 0;
      }
      assert.ok(Math.max(silentMs, ...gaps) <= 15_000, `${gaps}`);
      assert.ok(listener.count('queues') >= inserts.size && listener.count('alive') >= 4, `${gaps}`);
    }));

  it('ends after an hour, so that credentials are checked again', () =>
    withEvents(async (events) => {
      const listener = await events.complete();
      const ms = await events.until(() => listener.isClosed, 20_000);
      assert.ok(ms >= 3_500_000 && ms <= 3_700_000, `${ms} ms`);
      assert.deepEqual(JSON.parse(listener.events.at(-1)?.data ?? ''), { reason: 'login-expired' });
    }));

  it('ends when the server drains, which then rejects new subscribers', () =>
    withEvents(async (events) => {
      const listener = await events.complete();
      events.harness.server.drain();
      await events.until(() => listener.isClosed);
      assert.deepEqual(listener.events.at(-1), {
        event: 'end',
        data: '{"reason":"shutting-down"}',
        id: listener.lastEventId,
      });
      const late = await events.harness.client().request('GET', '/events');
      assert.deepEqual([late.status, codeOf(late)], [503, 'shutting-down']);
    }));

  it('is limited per user and in total, where a user without a stream always gets one', () =>
    withEvents(
      async (events) => {
        const own = [await events.complete(), await events.complete()];
        const rejected = await events.harness.client().request('GET', '/events');
        assert.deepEqual([rejected.status, codeOf(rejected)], [429, 'too-many-subscribers']);
        assert.equal(rejected.headers['retry-after'], '5');
        await events.complete({ credentials: 'reader:pw' });
        const beyond = await events.harness.client('reader:pw').request('GET', '/events');
        assert.deepEqual([beyond.status, codeOf(beyond)], [429, 'too-many-subscribers']);
        const first = await events.complete({ credentials: 'writer:pw' });
        own[0]?.close();
        first.close();
        await events.until(() => events.harness.events.counts.subscribers === 2);
        await events.complete();
      },
      { maxSubscribers: { total: 3, perUser: 2 } },
    ));

  it('ends for users who were removed or whose rights changed, and continues for others', () =>
    withEvents(async (events) => {
      const [kept, changed, gone] = [
        await events.complete(),
        await events.complete({ credentials: 'reader:pw' }),
        await events.complete({ credentials: 'writer:pw' }),
      ];
      const now = readAccounts(
        USERS.map((user) => (user.name === 'reader' ? { ...user, rights: { N: ['write'] } } : user)),
        ['N'],
      );
      events.harness.events.renewUsers({
        renew: ({ name }) => (name === 'writer' ? null : (now.get(name)?.user ?? null)),
      });
      await events.until(() => (gone?.isClosed ?? false) && (changed?.isClosed ?? false));
      assert.equal(gone?.events.at(-1)?.data, '{"reason":"login-lost"}');
      assert.equal(changed?.events.at(-1)?.data, '{"reason":"rights-changed"}');
      await events.harness.client().insert('N', 'q', 'a');
      await events.until(() => kept?.queue('N', 'q')?.size === 1);
    }));

  it('sends nothing to a client that does not read, and the current state once it reads again', () => {
    let round = 0;
    const shown = (): string => JSON.stringify({ id: '1', round, text: 'x'.repeat(1_000_000) });
    const source: PictureSource = { kind: 'operations', read: () => [operation(shown())] };
    return withEvents(
      async (events) => {
        const quick = await events.complete();
        const slow = await events.complete();
        (await slow.opened).pause();
        const before = events.harness.events.counts.bytes;
        for (round = 1; round <= 20; round += 1) {
          await events.until(() => quick.of('operations')[0]?.round === round, 500);
        }
        round = 20;
        const toBoth = events.harness.events.counts.bytes - before;
        assert.ok(toBoth < 35_000_000, `${toBoth} bytes for 20 updates of 1 MB`);
        (await slow.opened).resume();
        await events.until(() => slow.of('operations')[0]?.round === 20);
        assert.ok(slow.count('operations') < 15, `${slow.count('operations')} updates`);
      },
      { eventSources: () => [source] },
    );
  });

  it('ends when the client closes its sending side, as proxies do for a client that disconnected', () =>
    withEvents(async (events) => {
      const { port } = events.harness;
      const connection = await RawConnection.open(port);
      connection.send(rawRequest(['GET /events HTTP/1.1', 'Host: test', AUTHORIZATION]));
      await events.until(() => events.harness.events.counts.subscribers === 1);
      connection.socket.end();
      // Streams end after an hour anyway, so the end must come earlier.
      const ms = await events.until(() => events.harness.events.counts.subscribers === 0);
      assert.ok(ms < 3_600_000, `${ms} ms of the server's clock until it ended`);
      await connection.untilClosed();
      assert.match(connection.received, /^HTTP\/1\.1 200 [\s\S]*event: start/);
    }));

  it('ends its compressed stream when the client closes its sending side', () =>
    withEvents(async (events) => {
      const connection = await RawConnection.open(events.harness.port);
      const request = ['GET /events HTTP/1.1', 'Host: test', AUTHORIZATION, 'Accept-Encoding: gzip'];
      connection.send(rawRequest(request));
      await events.until(() => events.harness.events.counts.subscribers === 1);
      connection.socket.end();
      await connection.untilClosed();
      const body = connection.received.slice(connection.received.indexOf('\r\n\r\n') + 4);
      assert.match(gunzipSync(Buffer.from(body, 'latin1')).toString(), /^retry: \d+\nevent: start\n/);
    }));

  it('is rejected if the bytes behind its request are not a request', () =>
    withEvents(async (events) => {
      const connection = await RawConnection.open(events.harness.port);
      const request = ['GET /q/N/none HTTP/1.1', 'Host: test', AUTHORIZATION];
      const pipelined = ['GET /events HTTP/1.1', 'Host: test', AUTHORIZATION];
      const notRequest = 'no request\r\n\r\n';
      connection.send(Buffer.concat([rawRequest(request), rawRequest(pipelined, notRequest)]));
      const [, answer] = await connection.untilClosed();
      assert.equal(answer?.status, 400);
      assert.match(JSON.parse(answer.body).detail, /bytes behind this request are not a request/);
      assert.equal(events.harness.events.counts.subscribers, 0);
    }));

  it('is cut off if its client reads nothing for the request timeout', () => {
    const source: PictureSource = {
      kind: 'operations',
      // More than the kernel buffers for a client that does not read.
      read: () => [operation(JSON.stringify({ id: '1', text: 'x'.repeat(20_000_000) }))],
    };
    return withEvents(
      async (events) => {
        const connection = await RawConnection.open(events.harness.port);
        connection.socket.pause();
        connection.send(rawRequest(['GET /events HTTP/1.1', 'Host: test', AUTHORIZATION]));
        await events.until(() => events.harness.events.counts.subscribers === 1);
        while (events.harness.events.counts.subscribers > 0) {
          await events.harness.passTime(10);
          await turn();
        }
        assert.equal(events.harness.events.counts.subscribers, 0);
        connection.destroy();
      },
      { eventSources: () => [source], http: { requestTimeoutMs: 100, headersTimeoutMs: 100 } },
    );
  });

  it('works over TLS', async () => {
    const tls = makeCertificate();
    await withEvents(
      async (events) => {
        const { port } = events.harness;
        const socket = connectTls({ port, host: '127.0.0.1', ca: tls.cert });
        let text = '';
        socket.setEncoding('utf8').on('data', (chunk: string) => {
          text += chunk;
        });
        socket.write(rawRequest(['GET /events HTTP/1.1', 'Host: test', AUTHORIZATION]));
        await events.until(() => text.includes('event: complete'));
        await events.harness.broker
          .namespace('N')
          .queue('q')
          .insert([newElement({ body: 'a' })]);
        await events.until(() => /event: queues[\s\S]*"queue":"q"/.test(text));
        socket.destroy();
      },
      { http: { tls } },
    );
  });

  it('is counted in the metrics', () =>
    withEvents(async (events) => {
      await events.complete();
      const text = (await events.harness.client().request('GET', '/metrics')).body.toString();
      assert.match(text, /^quayside_event_subscribers 1$/m);
      assert.match(text, /^quayside_event_bytes_total [1-9]\d*$/m);
    }));

  it('is open to pages of allowed origins only, with CORS headers', () =>
    withEvents(
      async (events) => {
        const origin = 'https://jobs.example';
        const listener = await events.complete({ headers: { origin, 'sec-fetch-site': 'cross-site' } });
        const { headers } = await listener.opened;
        assert.equal(headers['access-control-allow-origin'], origin);
        const other = { origin: 'https://evil.example' };
        const rejected = await events.harness.client().request('GET', '/events', { headers: other });
        assert.deepEqual([rejected.status, codeOf(rejected)], [403, 'forbidden-origin']);
        const nobody = await events.harness.client(null).request('GET', '/events');
        assert.equal(nobody.status, 401);
      },
      { http: { allowedOrigins: ['https://jobs.example'] } },
    ));

  it('rejects unknown parameters, kinds and namespaces, and queues that the user may not read', () =>
    withEvents(async (events) => {
      const client = events.harness.client();
      for (const [query, status, code] of [
        ['ns=absent', 404, 'namespace-not-found'],
        ['queue=q', 400, 'invalid-parameter'],
        ['kinds=queus', 400, 'invalid-parameter'],
        ['kinds=', 400, 'invalid-parameter'],
        ['kind=queues', 400, 'invalid-parameter'],
      ] as const) {
        const answer = await client.request('GET', `/events?${query}`);
        assert.deepEqual([answer.status, codeOf(answer)], [status, code], query);
      }
      const hidden = await events.harness.client('reader:pw').request('GET', '/events?ns=hidden');
      assert.deepEqual([hidden.status, codeOf(hidden)], [404, 'namespace-not-found']);
      const unreadable = await events.harness.client('writer:pw').request('GET', '/events?ns=N&queue=q');
      assert.deepEqual([unreadable.status, codeOf(unreadable)], [403, 'forbidden']);
      assert.equal((await client.request('HEAD', '/events')).status, 405);
    }));
});

describe('alarms', () => {
  it('report recent dead letters to users who may read them', () =>
    withEvents(
      async (events) => {
        const client = events.harness.client();
        const all = await events.complete({ query: 'kinds=alarms' });
        const reader = await events.complete({ credentials: 'reader:pw', query: 'kinds=alarms' });
        for (const ns of ['N', 'hidden']) {
          await client.insert(ns, 'q', 'a');
          const taken = await client.reserve(ns, 'q');
          await client.rollback(ns, 'q', String(taken.headers['x-ks-id']));
        }
        await events.until(() => all.of('alarms').length === 2 && reader.of('alarms').length === 1);
        const { since, ...alarm } = reader.of('alarms')[0] ?? {};
        assert.match(String(since), /^2026-/);
        assert.deepEqual(alarm, { alarm: 'dead-letters-grew', ns: 'N', queue: 'dead', totalSize: 1 });
        const ms = await events.until(() => all.of('alarms').length === 0, 5_000);
        assert.ok(ms >= 250_000 && ms <= 330_000, `${ms} ms`);
      },
      {
        namespaces: DEAD_LETTERS,
        eventSources: (broker, { clock }) => [
          alarms({ namespaces: broker.namespaces(), engines: async () => [], clock }),
        ],
      },
    ));

  it('cover dead-letter queues that are named only in the options of a queue', () =>
    withEvents(
      async (events) => {
        const client = events.harness.client();
        const body = JSON.stringify({ deadLetter: { maxTries: 1, queue: 'own' } });
        const headers = { 'content-type': 'application/json' };
        const set = await client.request('PUT', '/q/N/q/options', { body, headers });
        assert.equal(set.status, 200, set.body.toString());
        const listener = await events.complete({ query: 'kinds=alarms' });
        await client.insert('N', 'q', 'a');
        const taken = await client.reserve('N', 'q');
        await client.rollback('N', 'q', String(taken.headers['x-ks-id']));
        await events.until(() => listener.of('alarms')[0]?.queue === 'own');
      },
      {
        eventSources: (broker, { clock }) => [
          alarms({ namespaces: broker.namespaces(), engines: async () => [], clock }),
        ],
      },
    ));

  it('report since when an engine has been unavailable or a disk nearly full', () => {
    let check = 'ok';
    let freeBytes = 100;
    return withEvents(
      async (events) => {
        const listener = await events.complete({ query: 'kinds=alarms&ns=N' });
        const stranger = await events.complete({ credentials: 'writer:pw' });
        assert.deepEqual(listener.of('alarms'), []);
        check = 'away';
        freeBytes = 99;
        await events.until(() => listener.of('alarms').length === 2);
        const since = new Date(events.harness.opened.clock.now()).toISOString().slice(0, 16);
        const alarms = new Map(listener.of('alarms').map((one) => [one.alarm, one]));
        const { since: at, ...unavailable } = alarms.get('engine-unavailable') ?? {};
        assert.ok(String(at).startsWith(since));
        const engine = 'sqlite:test';
        assert.deepEqual(unavailable, {
          alarm: 'engine-unavailable',
          engine,
          detail: 'away',
          namespaces: ['N', 'jobs', 'events', 'hidden'],
        });
        assert.equal(alarms.get('disk-nearly-full')?.engine, engine);
        await events.until(() => stranger.of('alarms').length === 2);
        for (const one of stranger.of('alarms')) assert.deepEqual(one.namespaces, ['N']);
        check = 'ok';
        freeBytes = 100;
        await events.until(() => listener.of('alarms').length === 0);
      },
      {
        eventSources: (broker, { clock }) => [
          alarms({
            namespaces: broker.namespaces(),
            engines: async () => [
              {
                engine: 'sqlite:test',
                type: 'sqlite',
                state: check === 'ok' ? 'healthy' : 'unavailable',
                check,
                pingMs: null,
                disk: { fileBytes: 0, freeBytes, minFreeBytes: 100 },
              },
              {
                engine: 'redis:elsewhere',
                type: 'redis',
                state: 'unavailable',
                check: 'away',
                pingMs: null,
                disk: null,
              },
            ],
            clock,
          }),
        ],
      },
    );
  });
});

describe('A source of events', () => {
  it('is read every two seconds while there are subscribers, and its previous pictures stay if reading fails', () => {
    let text = 'first';
    let fails = false;
    let reads = 0;
    const source: PictureSource = {
      kind: 'operations',
      read: async () => {
        reads += 1;
        if (fails) throw new Error('planted');
        return [operation(JSON.stringify({ id: '1', text }))];
      },
    };
    return withEvents(
      async (events) => {
        const listener = await events.complete({ query: 'kinds=operations' });
        assert.equal(listener.of('operations')[0]?.text, 'first');
        fails = true;
        await events.harness.passTime(2_000);
        await events.rest();
        fails = false;
        assert.equal(listener.of('operations')[0]?.text, 'first');
        text = 'second';
        assert.ok((await events.until(() => listener.of('operations')[0]?.text === 'second')) <= 2_600);
        listener.close();
        await events.until(() => events.harness.events.counts.subscribers === 0);
        await events.harness.passTime(10_001);
        const before = reads;
        await events.harness.passTime(4_000);
        assert.equal(reads, before, 'it rests');
      },
      { eventSources: () => [source] },
    );
  });
});
