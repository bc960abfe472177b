import assert from 'node:assert/strict';
import { getEventListeners, once } from 'node:events';
import { createServer as createHttpServer } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import { type AddressInfo, createServer } from 'node:net';
import { after, before, describe, it } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import type { StandardSchema } from '../../src/client/codec.ts';
import {
  ConnectionError,
  LeaseLostError,
  Quayside,
  QuaysideError,
  type Queue,
  type Reservation,
  StoppedError,
  TimeoutError,
  ValidationError,
  Worker,
} from '../../src/client/index.ts';
import type { ClientOptions } from '../../src/client/options.ts';
import { makeCertificate } from '../support/certificate.ts';
import { ServerInProcess } from '../support/server-in-process.ts';
import { until } from '../support/until.ts';
import { AUTH, CLIENT_ENGINES, clientConfig, WatchedClient } from './server.ts';
import { FakeTracing } from './tracing.ts';

/** A lease that expires before the next call of a test. */
const SHORT_LEASE_MS = 1;
/** Longer than any test here. */
const PATIENCE_MS = 60_000;

for (const engine of CLIENT_ENGINES) {
  describe(`The client on ${engine.name}`, () => {
    let server: ServerInProcess;
    let watched: WatchedClient;
    let client: Quayside;
    before(async () => {
      server = await ServerInProcess.start({ config: clientConfig(await engine.url()) });
      watched = new WatchedClient(server.url);
      client = watched.client;
    });
    after(async () => {
      await client?.close();
      await server?.dispose();
    });

    it('returns data, content type, headers and bytes as they were inserted', async () => {
      const queue = client.queue('N/round trip/ä');
      const data = { order: 1, text: 'a "quoted"\nline', more: [null, 1.5, 'ü'] };
      const { id } = await queue.insert(data, { headers: { Customer: 'jörg' } });
      const bytes = Uint8Array.from({ length: 256 }, (_, i) => i);
      await queue.insert(bytes);
      const first = await queue.pop();
      assert.equal(first?.id, id);
      assert.deepEqual(first?.data, data);
      assert.deepEqual(JSON.parse(new TextDecoder().decode(first?.body)), data);
      assert.equal(first?.contentType, 'application/json');
      assert.deepEqual({ ...first?.headers }, { customer: 'jörg' });
      assert.equal(first?.tries, 0);
      const second = await queue.pop();
      assert.deepEqual(second?.data, bytes);
      assert.deepEqual(second?.body, bytes);
      assert.equal(second?.contentType, 'application/octet-stream');
      assert.equal(await queue.pop(), undefined);
    });

    it('sends concurrent inserts or settlements in one request, and applies them once if its response is lost', async () => {
      const queue = client.queue('N/gathered');
      watched.requests.length = 0;
      watched.loseResponses(1);
      const inserted = await Promise.all(Array.from({ length: 64 }, (_, i) => queue.insert(i)));
      assert.equal(new Set(inserted.map(({ id }) => id)).size, 64);
      assert.deepEqual(watched.requests, Array(2).fill('POST /q/N/gathered/elements'));
      const jobs = await queue.reserveMany(100);
      assert.deepEqual(
        jobs.map(({ data }) => data),
        Array.from({ length: 64 }, (_, i) => i),
      );
      watched.requests.length = 0;
      watched.loseResponses(1);
      await Promise.all(jobs.map((job) => job.commit()));
      assert.deepEqual(watched.requests, Array(2).fill('POST /q/N/gathered/settle'));
      assert.equal((await queue.status()).total, 0);
    });

    it('rolls back, buries, extends and commits', async () => {
      const queue = client.queue('N/settled');
      await queue.insertMany(['a', 'b', 'c', 'd']);
      const [a, b, c, d] = await queue.reserveMany(4, { leaseMs: 30_000 });
      const until = await a?.extend(PATIENCE_MS);
      assert.ok(a !== undefined && until !== undefined && until.getTime() > (b?.leaseUntil.getTime() ?? 0));
      assert.deepEqual(a.leaseUntil, until);
      await a.commit();
      await assert.rejects(a.commit(), { code: 'already-settled' });
      await b?.rollback({ delayMs: PATIENCE_MS, reason: 'no answer' });
      await c?.bury('cannot be parsed');
      await d?.[Symbol.asyncDispose]();
      const { ready, scheduled, reserved } = await queue.status();
      assert.deepEqual({ ready, scheduled, reserved }, { ready: 1, scheduled: 1, reserved: 0 });
      const seen = await collect(queue.browse());
      assert.deepEqual(
        seen.map(({ data, state, tries, reason }) => ({ data, state, tries, reason })),
        [
          { data: 'd', state: 'ready', tries: 1, reason: null },
          { data: 'b', state: 'scheduled', tries: 1, reason: 'no answer' },
        ],
      );
      const [dead] = await collect(client.queue('N/__deadletter__').browse());
      assert.equal(dead?.data, 'c');
    });

    it('says whether a rollback or a burial returned the element or dead-lettered it', async () => {
      const queue = client.queue('N/states');
      await queue.insert('x');
      const dead = client.queue('N/__deadletter__');
      // The third try is the last one.
      const states: string[] = [];
      for (let job = await queue.reserve(); job !== undefined; job = await queue.reserve())
        states.push(await job.rollback());
      assert.deepEqual(states, ['waiting', 'waiting', 'dead-lettered']);
      await queue.insert('y');
      assert.equal(await (await queue.reserve())?.bury('of no use'), 'dead-lettered');
      // In the dead-letter queue itself, a burial is a rollback.
      assert.equal(await (await dead.reserve())?.bury('again'), 'waiting');
      while ((await dead.pop()) !== undefined);
    });

    it('says that the state is unknown if the response to the first attempt of a rollback was lost', async () => {
      const queue = client.queue('N/unknown states');
      await queue.insert('x');
      const job = await queue.reserve();
      watched.loseResponses(1);
      assert.equal(await job?.rollback(), 'unknown');
      assert.equal((await queue.pop())?.tries, 1);
    });

    it('says which inserts were repeats of their keys, but not if only the request was repeated', async () => {
      const queue = client.queue('N/repeats');
      const first = await queue.insert('x', { idempotencyKey: 'one' });
      assert.deepEqual(await queue.insert('x', { idempotencyKey: 'one' }), { ...first, isRepeat: true });
      assert.equal(first.isRepeat, false);
      watched.loseResponses(1);
      assert.equal((await queue.insert('y')).isRepeat, false);
      watched.loseResponses(1);
      assert.deepEqual((await queue.insertMany(['y', 'z'])).repeated, []);
      assert.deepEqual((await queue.insertMany(['a'], { idempotencyKey: 'many' })).repeated, []);
      assert.deepEqual((await queue.insertMany(['a', 'b'], { idempotencyKey: 'many' })).repeated, [0]);
    });

    it('rejects options that a call does not have, which JavaScript callers may misspell', async () => {
      const queue = client.queue('N/misspelt');
      await queue.insert('x');
      const job = await queue.reserve();
      const calls: readonly [name: string, call: (options: never) => unknown][] = [
        ['delay', async (options) => queue.insert('y', options)],
        ['idempotencykey', async (options) => queue.insertMany(['y'], options)],
        ['wait', async (options) => queue.pop(options)],
        ['lease', async (options) => queue.reserve(options)],
        ['delay', async (options) => job?.rollback(options)],
      ];
      for (const [name, call] of calls) {
        await assert.rejects(async () => call({ [name]: 1 } as never), {
          code: 'invalid-data',
          message: `There is no option "${name}".`,
        });
      }
      const waitMs = Number.NaN;
      await assert.rejects(client.request('GET', '/q', { waitMs }), {
        message: /^waitMs is NaN\. Allowed: milliseconds/,
      });
      assert.equal(await job?.rollback(), 'waiting');
      assert.equal((await queue.status()).total, 1);
    });

    it('shows when a browsed element expires', async () => {
      const queue = client.queue('N/expiring');
      await queue.insert('never');
      await queue.insert('later', { ttlMs: PATIENCE_MS });
      const [never, later] = await collect(queue.browse());
      assert.equal(never?.expiresAt, null);
      const { text } = await client.request('GET', '/q/N/expiring/elements');
      assert.equal(later?.expiresAt?.toISOString(), JSON.parse(text).elements[1].expiresAt);
    });

    it('reports a lost lease by the error of a settlement and by the abort signal', async () => {
      const queue = client.queue('N/lost');
      await queue.insert('x');
      const first = await queue.reserve({ leaseMs: SHORT_LEASE_MS });
      assert.ok(first !== undefined);
      const second = await queue.reserve({ waitMs: PATIENCE_MS });
      assert.equal(second?.tries, 1);
      await assert.rejects(first.commit(), LeaseLostError);
      assert.ok(first.signal.aborted && first.signal.reason instanceof LeaseLostError);
      await assert.rejects(first.extend(), LeaseLostError);
      await second?.commit();
    });
  });
}

const TAKEN = {
  id: '1',
  tries: 0,
  mature: new Date(0).toISOString(),
  contentType: 'application/json',
  contentEncoding: null,
  headers: {},
  text: '1',
  lease: 'token',
  leaseUntil: new Date(0).toISOString(),
};
const GONE = { results: [{ outcome: 'not-found' }] };

describe('The client', () => {
  let server: ServerInProcess;
  before(async () => {
    server = await ServerInProcess.start({
      config: {
        http: { users: { test1: 'test1', ünal: 'pass:wörd' } },
        namespaces: {
          N: { url: 'sqlite::memory:' },
          events: { url: 'sqlite::memory:', variant: 'stream', groups: ['a', 'b'], maxGroups: 1 },
        },
      },
    });
  });
  after(() => server?.dispose());

  /** A client that is closed when the test ends. */
  const open = (): WatchedClient & AsyncDisposable => {
    const watched = new WatchedClient(server.url, { retry: { attempts: 3, minMs: 1 } });
    return Object.assign(watched, { [Symbol.asyncDispose]: () => watched.client.close() });
  };

  it('rejects an invalid insert, and stores the others of its request', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/one bad');
    const results = await Promise.allSettled([
      queue.insert(1),
      queue.insert(2, { headers: { 'x-ks-hdr-a': 'no prefix here' } }),
      queue.insert(3),
      queue.insert(4, { idempotencyKey: 'k' }),
      queue.insert(5, { idempotencyKey: 'k' }),
    ]);
    assert.deepEqual(
      results.map(({ status }) => status),
      ['fulfilled', 'rejected', 'fulfilled', 'fulfilled', 'rejected'],
    );
    assert.equal((results[1] as PromiseRejectedResult).reason.code, 'invalid-parameter');
    assert.equal((results[4] as PromiseRejectedResult).reason.code, 'idempotency-mismatch');
    assert.equal((await queue.status()).total, 3);
  });

  it('sends few inserts again, however many of a request are invalid', async () => {
    let sent = 0;
    await using client = new Quayside({
      url: 'http://x',
      auth: AUTH,
      fetch: async (_, init) => {
        const lines = String(init?.body).trimEnd().split('\n');
        sent += lines.length;
        const line = lines.indexOf('{"json":"bad"}') + 1;
        return line > 0 ? problem(400, 'invalid-header', { line }) : Response.json({ ids: lines });
      },
    });
    const queue = client.queue('N/mostly bad');
    const given = Array.from({ length: 64 }, (_, i) => (i % 9 === 0 ? i : 'bad'));
    const results = await Promise.allSettled(given.map((data) => queue.insert(data)));
    assert.deepEqual(
      results.map((result) => (result.status === 'rejected' ? result.reason.code : result.value.id)),
      given.map((data) => (data === 'bad' ? 'invalid-header' : `{"json":${data}}`)),
    );
    // Without the halves, each of the 56 that are invalid would have all later ones sent again.
    assert.ok(sent < 64 * 8, `${sent} were sent`);
  });

  it('rejects an insert that exceeds the maxGroups of a stream, and stores the others of its request', async () => {
    await using watched = open();
    const queue = watched.client.queue('events/one group too many');
    const inserts = [['a'], ['a', 'c'], ['d', 'e'], ['b'], ['f', 'g']].map((groups) =>
      queue.insert(groups, { groups }),
    );
    const results = await Promise.allSettled([...inserts, queue.insert('plain')]);
    assert.deepEqual(
      results.map((result) => (result.status === 'rejected' ? result.reason.code : 'stored')),
      ['stored', 'stored', 'too-many-groups', 'stored', 'too-many-groups', 'stored'],
    );
    assert.equal((await queue.status()).total, 4);
  });

  it('splits a request of several inserts that a proxy rejects as too large', async () => {
    const requests: number[] = [];
    await using client = new Quayside({
      url: 'http://x',
      auth: AUTH,
      fetch: async (_, init) => {
        const lines = String(init?.body).trimEnd().split('\n');
        requests.push(lines.length);
        if (lines.length > 2 || lines.includes('{"json":"large"}')) return new Response('', { status: 413 });
        return Response.json({ ids: lines });
      },
    });
    const queue = client.queue('N/behind a proxy');
    const results = await Promise.allSettled([1, 2, 'large', 4, 5].map((data) => queue.insert(data)));
    assert.deepEqual(
      results.map((result) => (result.status === 'rejected' ? result.reason.status : result.value.id)),
      ['{"json":1}', '{"json":2}', 413, '{"json":4}', '{"json":5}'],
    );
    assert.deepEqual(requests, [5, 2, 3, 1, 2]);
  });

  it('splits requests of inserts and settlements that exceed the batchCount of the server', async (t) => {
    const { http, ...rest } = clientConfig('sqlite:N.db');
    const small = await ServerInProcess.start({
      config: { ...rest, http: { ...(http as object), batchCount: 3 } },
    });
    t.after(() => small.dispose());
    await using client = new Quayside({ url: small.url, auth: AUTH });
    const queue = client.queue('N/few at once');
    const numbers = [0, 1, 2, 3, 4, 5, 6, 7];
    await Promise.all(numbers.map((number) => queue.insert(number)));
    const jobs = await queue.reserveMany(8);
    assert.deepEqual(
      jobs.map(({ data }) => data),
      numbers,
    );
    await Promise.all(jobs.map((job, i) => (i % 2 === 0 ? job.commit() : job.rollback({ reason: 'odd' }))));
    const { ready, total } = await queue.status();
    assert.deepEqual([ready, total], [4, 4]);
  });

  it('rejects an invalid settlement, and applies the others of its request', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/one bad settlement');
    for (const settle of [
      (job: Reservation<unknown>) => job.rollback({ delayMs: Number.NaN }),
      (job: Reservation<unknown>) => job.rollback({ delayMs: -1 }),
      (job: Reservation<unknown>) => job.rollback({ delayMs: 2 ** 50 }),
      (job: Reservation<unknown>) => job.extend(0),
    ]) {
      await queue.insertMany([1, 2, 3]);
      const [first, second, third] = await queue.reserveMany(3);
      assert.ok(first && second && third);
      const results = await Promise.allSettled([first.commit(), settle(second), third.commit()]);
      assert.deepEqual(
        results.map(({ status }) => status),
        ['fulfilled', 'rejected', 'fulfilled'],
      );
      assert.ok((results[1] as PromiseRejectedResult).reason instanceof ValidationError);
      await second.commit();
    }
    assert.equal((await queue.status()).total, 0);
  });

  it('accepts a reason of any type, and applies the other settlements of its request', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/reasons');
    const unprintable = Object.create(null);
    for (const reason of [7, null, new Error('why'), unprintable, '\ud800', 'x'.repeat(10_000)] as string[]) {
      await queue.insertMany([1, 2, 3]);
      const [first, second, third] = await queue.reserveMany(3);
      await Promise.all([first?.commit(), second?.rollback({ reason }), third?.bury(reason)]);
      for (const job of await queue.reserveMany(3)) await job.commit();
    }
    assert.equal((await queue.status()).total, 0);
  });

  it('rejects durations and moments that are not a number, and stores nothing', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/not a number');
    const never = new Date('not a date');
    for (const options of [{ delayMs: Number.NaN }, { ttlMs: Number.NaN }, { at: never }]) {
      const [name] = Object.keys(options);
      await assert.rejects(queue.insert(1, options), {
        code: 'invalid-data',
        message: RegExp(`^${name} is `),
      });
      await assert.rejects(queue.insertMany([1], options), ValidationError);
    }
    await assert.rejects(queue.pop({ waitMs: Number.NaN }), ValidationError);
    await assert.rejects(queue.reserve({ leaseMs: Number.NaN }), ValidationError);
    assert.equal((await queue.status()).total, 0);
    assert.equal(await queue.pop({ waitMs: -1 }), undefined);
  });

  it('rejects arguments of a wrong type, as a program in JavaScript may pass them', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/untyped');
    const never = (value: unknown): never => value as never;
    await assert.rejects(queue.insert(1, { idempotencyKey: never(17) }), {
      code: 'invalid-data',
      message: 'idempotencyKey is 17. Allowed: a string, or false.',
    });
    await assert.rejects(queue.insertMany([1], { idempotencyKey: never(17) }), ValidationError);
    await assert.rejects(queue.insert(1, { at: never('2030-01-01') }), {
      code: 'invalid-data',
      message: 'at is 2030-01-01. Allowed: a Date with a time.',
    });
    assert.equal((await queue.status()).total, 0);
    // Without the check, both would be clients of the default address, and of the user that the environment names.
    assert.throws(() => new Quayside(never(server.url)), ValidationError);
    assert.throws(() => new Quayside({ auth: never({ username: 'ann', password: 'p' }) }), ValidationError);
    assert.throws(() => new Worker(queue, never(undefined)), ValidationError);
    assert.throws(() => new Worker(never('N/untyped'), () => {}), {
      code: 'invalid-data',
      message: /^The queue is "N\/untyped"\. Allowed: /,
    });
  });

  it('rejects a codec that returns neither text nor bytes, and stores no empty element', async () => {
    await using watched = open();
    const bytes = Uint8Array.of(1, 2);
    for (const encoded of [Promise.resolve('x'), bytes.buffer, new DataView(bytes.buffer), 17, undefined]) {
      const codec = { contentType: 'text/plain', encode: () => encoded as never, decode: () => null };
      const queue = watched.client.queue('N/wrongly encoded', { codec });
      await assert.rejects(queue.insert(null), {
        code: 'invalid-data',
        message: /^The codec returned ".+"\. Allowed: /,
      });
      assert.equal((await queue.status()).total, 0);
    }
  });

  it('takes nothing with a timeoutMs that is not a number', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/no limit');
    await queue.insert(1);
    const options = { timeoutMs: Number.NaN };
    for (const take of [() => queue.pop(options), () => queue.reserve(options)])
      await assert.rejects(take, { code: 'timeout', message: /NaN/, outcome: 'nothing-changed' });
    assert.equal((await queue.status()).ready, 1);
  });

  it('names no line number in the error of a rejected insert', async () => {
    await using watched = open();
    await assert.rejects(watched.client.queue('N/no line').insert(1, { headers: { 'a b': 'c' } }), {
      code: 'invalid-header',
      message: /^Header "a b"/,
    });
  });

  it('sends an ArrayBuffer as its bytes, not as an empty JSON object', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/buffers');
    const bytes = Uint8Array.of(0, 128, 255);
    await queue.insert(bytes.buffer);
    assert.deepEqual((await queue.pop())?.data, bytes);
  });

  it('rejects data that cannot be written as JSON', async () => {
    await using watched = open();
    const loop: unknown[] = [];
    loop.push(loop);
    for (const data of [1n, loop, undefined]) {
      await assert.rejects(watched.client.queue('N/no JSON').insert(data), ValidationError);
    }
  });

  it('rejects an invalid URL or path with an error that quotes it without the password', async () => {
    for (const url of ['localhost:3444', 'quayside', 'ftp://127.0.0.1', '']) {
      assert.throws(() => new Quayside({ url }), {
        code: 'invalid-data',
        message: `The url is "${url}". Allowed: such as "http://127.0.0.1:3444".`,
      });
    }
    assert.throws(() => new Quayside({ url: 'http://ann:secret@a b' }), {
      message: /^The url is "\*\*\*@a b"\. /,
    });
    await using watched = open();
    await assert.rejects(watched.client.request('GET', 'q'), {
      message: 'The path "q" does not begin with "/".',
    });
  });

  it('stores all elements of insertMany or none', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/all or none');
    const { ids } = await queue.insertMany(['a', 'b'], { idempotencyKey: 'once' });
    assert.equal(ids.length, 2);
    assert.deepEqual((await queue.insertMany(['a', 'b'], { idempotencyKey: 'once' })).ids, ids);
    await assert.rejects(queue.insertMany(['c', 'other'], { idempotencyKey: 'once' }), {
      code: 'idempotency-mismatch',
      outcome: 'nothing-changed',
    });
    assert.equal((await queue.status()).total, 2);
    assert.deepEqual(await queue.insertMany([]), { ids: [], repeated: [] });
  });

  it('sends one key for the inserts of a request, the same in each attempt, unless the caller gave keys', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/keys');
    watched.loseResponses(2);
    const ids = await Promise.all(['a', 'b'].map(async (data) => (await queue.insert(data)).id));
    assert.equal(watched.keys.length, 3);
    assert.equal(new Set(watched.keys).size, 1);
    watched.loseResponses(1);
    ids.push(...(await queue.insertMany(['c', 'd'])).ids);
    const [own, none] = [{ idempotencyKey: 'own' }, { idempotencyKey: false }] as const;
    for (const options of [own, own, none]) ids.push((await queue.insert('e', options)).id);
    assert.equal(ids[4], ids[5]);
    const [first, , , many, again, ...others] = watched.keys;
    assert.ok(first && many && first !== many && again === many);
    assert.deepEqual(others, [null, null, null]);
    const stored = await queue.reserveMany(9);
    assert.deepEqual(
      stored.map(({ id }) => id),
      [...new Set(ids)],
    );
  });

  it('does not repeat an insert without a key, or a pop, if its outcome is unknown', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/once');
    watched.loseResponses(1);
    await assert.rejects(queue.insert('x', { idempotencyKey: false }), (error: unknown) => {
      assert.ok(error instanceof ConnectionError);
      assert.equal(error.outcome, 'unknown');
      return true;
    });
    watched.loseResponses(1);
    await assert.rejects(queue.pop(), { code: 'connection-failed', outcome: 'unknown' });
    assert.equal(await queue.pop(), undefined);
    assert.equal(watched.requests.filter((request) => request.endsWith('/elements')).length, 1);
  });

  it('does not report a commit or burial as done if its request was lost and another worker has the element', async () => {
    await using watched = open();
    const settle = {
      commit: (job) => job.commit(),
      bury: (job) => job.bury('never'),
    } satisfies Record<string, (job: Reservation<unknown>) => Promise<unknown>>;
    for (const [name, done] of Object.entries(settle)) {
      const queue = watched.client.queue(`N/no ${name}`);
      await queue.insert('x');
      const first = await queue.reserve({ leaseMs: SHORT_LEASE_MS });
      const second = await queue.reserve({ waitMs: PATIENCE_MS });
      assert.ok(first && second);
      watched.loseRequests(1);
      await assert.rejects(done(first), LeaseLostError, name);
      watched.loseResponses(1);
      await second.commit();
    }
  });

  it('does not report a reservation as lost if it was committed while its lease was renewed', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/renewed');
    await queue.insertMany([1, 2]);
    for (const job of await queue.reserveMany(2)) {
      const { signal } = job;
      const [committed, extended] = await Promise.allSettled([job.commit(), job.extend()]);
      assert.equal(committed.status, 'fulfilled');
      assert.equal(extended.status === 'rejected' && extended.reason.code, 'already-settled');
      assert.equal(signal.aborted, false);
      await assert.rejects(job.commit(), { code: 'already-settled' });
    }
  });

  it('ends a lease of unknown length by the clock of the server that holds it, which may differ from others by hours', async (t) => {
    const timeouts = t.mock.method(globalThis, 'setTimeout');
    const at = Date.UTC(2000, 0, 1);
    const date = new Date(at + 3_600_000).toUTCString();
    const ends = (ms: number): string => new Date(at + ms).toISOString();
    await using client = new Quayside({
      url: 'http://x',
      auth: AUTH,
      fetch: async (input) =>
        String(input).endsWith('/take')
          ? new Response(JSON.stringify({ ...TAKEN, leaseUntil: ends(120_000) }), {
              headers: { date, 'x-ks-time': ends(0) },
            })
          : Response.json({ results: [{ outcome: 'done', until: ends(150_000) }] }, { headers: { date } }),
    });
    const job = await client.queue('N/skewed').reserve();
    assert.equal(job?.signal.aborted, false);
    const left = (): number => Math.round(Number(timeouts.mock.calls.at(-1)?.arguments[1]) / 1000);
    assert.equal(left(), 120);
    await job?.extend();
    assert.equal(left(), 150);
    await job?.extend(7_000);
    assert.equal(left(), 7);
  });

  it('has an aborted signal once its lease has ended, also if the program has let no timer fire since', async (t) => {
    let now = 0;
    t.mock.method(performance, 'now', () => now);
    const { client } = clientAnsweredBy(() => Response.json(TAKEN));
    const unread = await client.queue('N/busy').reserve({ leaseMs: 30_000 });
    const read = await client.queue('N/busy').reserve({ leaseMs: 30_000 });
    assert.equal(read?.signal.aborted, false);
    now = 30_000;
    for (const job of [unread, read]) {
      assert.equal(job?.signal.aborted, true);
      assert.ok(job.signal.reason instanceof LeaseLostError);
    }
  });

  it('has a signal that is not aborted before the end of a lease that is longer than any timer', async (t) => {
    let now = 0;
    t.mock.method(performance, 'now', () => now);
    t.mock.timers.enable({ apis: ['setTimeout'] });
    const { client } = clientAnsweredBy(() => Response.json(TAKEN));
    const day = 86_400_000;
    const job = await client.queue('N/long').reserve({ leaseMs: 60 * day });
    assert.ok(job);
    const { signal } = job;
    for (const wasAborted of [false, false, true]) {
      now += 25 * day;
      t.mock.timers.tick(25 * day);
      assert.equal(signal.aborted, wasAborted);
    }
  });

  it('counts a lease from the start of its response, however long the rest takes to arrive', async (t) => {
    let now = 0;
    t.mock.method(performance, 'now', () => now);
    const timeouts = t.mock.method(globalThis, 'setTimeout');
    const { client } = clientAnsweredBy(() => {
      const response = Response.json(TAKEN);
      const slowly = async (): Promise<string> => {
        now += 7_000;
        return Response.prototype.text.call(response);
      };
      return Object.assign(response, { text: slowly });
    });
    const job = await client.queue('N/slow').reserve({ leaseMs: 30_000 });
    assert.equal(job?.signal.aborted, false);
    assert.equal(timeouts.mock.calls.at(-1)?.arguments[1], 23_000);
  });

  it('leaves no listeners of a call on signals that outlive it', async (t) => {
    // In Node 20, the signal that it returns stays in memory as long as the signals that it follows.
    const any = t.mock.method(AbortSignal, 'any');
    await using watched = open();
    const { signal } = new AbortController();
    const add = t.mock.method(signal, 'addEventListener');
    const remove = t.mock.method(signal, 'removeEventListener');
    const queue = watched.client.queue('N/kept');
    await queue.insert('x', { signal });
    await (await queue.reserve({ signal }))?.commit({ signal });
    assert.equal(any.mock.callCount(), 0);
    assert.ok(add.mock.callCount() > 0);
    assert.equal(add.mock.callCount(), remove.mock.callCount());
  });

  it('leaves no listeners of a call that was aborted between two attempts', async (t) => {
    const controller = new AbortController();
    const added: EventTarget[] = [];
    const { addEventListener } = EventTarget.prototype;
    t.mock.method(EventTarget.prototype, 'addEventListener', function (this: EventTarget, ...given: []) {
      added.push(this);
      return Reflect.apply(addEventListener, this, given);
    });
    const busy = (): Response => problem(503, 'overloaded');
    const retry = { minMs: PATIENCE_MS, maxMs: PATIENCE_MS };
    await using client = new Quayside({ url: 'http://x', auth: AUTH, retry, fetch: async () => busy() });
    const status = client.queue('N/kept').status({ signal: controller.signal });
    // Once by the attempt, and once by the delay after it.
    await until(() => added.filter((signal) => signal === controller.signal).length === 2);
    controller.abort(new Error('enough'));
    await assert.rejects(status, /enough/);
    // Signals of the client; those of the call are aborted, and are collected together with it.
    const outliving = added.filter((signal) => !(signal as AbortSignal).aborted);
    assert.ok(outliving.length > 0);
    for (const signal of [controller.signal, ...outliving])
      assert.equal(getEventListeners(signal, 'abort').length, 0);
  });

  it('sends any other request of the HTTP interface', async () => {
    await using watched = open();
    const { status, text } = await watched.client.request('GET', '/q');
    assert.deepEqual([status, JSON.parse(text)], [200, ['N', 'events']]);
    const response = await watched.client.stream('GET', '/q/N/streamed/export');
    assert.equal(await response.text(), '');
    await assert.rejects(watched.client.stream('GET', '/q/no/streamed/export'), {
      code: 'namespace-not-found',
    });
  });

  it('rejects a response that is not from the server, and repeats the request only if that is safe', async () => {
    const page = '<html>a page</html>';
    const calls = {
      insert: (queue) => queue.insert('x'),
      insertMany: (queue) => queue.insertMany(['x']),
      pop: (queue) => queue.pop(),
      status: (queue) => queue.status(),
      browse: (queue) => collect(queue.browse()),
    } satisfies Record<string, (queue: Queue<unknown>) => Promise<unknown>>;
    for (const [name, call] of Object.entries(calls)) {
      for (const text of [page, '{"welcome":true}', 'null', '']) {
        const { client, requests } = clientAnsweredBy(() => new Response(text));
        const expected = { code: 'unexpected-response', outcome: 'unknown', message: /answered "/ };
        await assert.rejects(call(client.queue('N/page')), expected, `${name}: ${text}`);
        assert.equal(requests.length, 1);
      }
      const { client, requests } = clientAnsweredBy(() => new Response(page, { status: 413 }));
      const rejected = { code: 'unexpected-response', outcome: 'nothing-changed', status: 413 };
      await assert.rejects(call(client.queue('N/page')), rejected, name);
      assert.equal(requests.length, 1);
    }
    const limited = new Response(page, { status: 429, headers: { 'retry-after': '0.001' } });
    const [busy, gone] = [
      clientAnsweredBy(() => limited.clone()),
      clientAnsweredBy(() => new Response(page, { status: 502 })),
    ];
    await assert.rejects(busy.client.queue('N/busy').pop(), {
      code: 'overloaded',
      outcome: 'nothing-changed',
      retryAfterMs: 1,
    });
    assert.equal(busy.requests.length, 3);
    await assert.rejects(gone.client.queue('N/gone').pop(), { name: 'ConnectionError', outcome: 'unknown' });
    await assert.rejects(gone.client.queue('N/gone').status(), { code: 'connection-failed', status: 502 });
    assert.equal(gone.requests.length, 4);
  });

  it('distinguishes errors of a gateway from those of the server, even if they have a code or are a problem document', async () => {
    for (const response of [
      Response.json({ code: 'GATEWAY_TIMEOUT' }, { status: 504 }),
      new Response('{"title":"Gateway Timeout"}', {
        status: 504,
        headers: { 'content-type': 'application/problem+json' },
      }),
    ]) {
      const { client, requests } = clientAnsweredBy(() => response.clone());
      const expected = { code: 'connection-failed', outcome: 'unknown', status: 504 };
      await assert.rejects(client.queue('N/gateway').insert('x'), expected);
      assert.equal(requests.length, 3);
    }
  });

  it('repeats a call that was answered with 408', async () => {
    for (const late of [problem(408, 'request-timeout'), new Response('<html>', { status: 408 })]) {
      const { client, requests } = clientAnsweredBy(() => late.clone());
      await assert.rejects(client.queue('N/late').pop(), {
        code: 'request-timeout',
        outcome: 'nothing-changed',
      });
      assert.equal(requests.length, 3);
    }
  });

  it('does not repeat a GET that takes an element if its outcome is unknown', async () => {
    const paths = { '/q/N/x': 1, '/q/N/x?to=0': 1, '/q/N/x/status': 3, '/q/N': 3, '/x/copy/it': 3 };
    for (const [path, count] of Object.entries(paths)) {
      const { client, requests } = clientAnsweredBy(() => new Response('', { status: 502 }));
      await assert.rejects(client.request('GET', path), ConnectionError);
      assert.equal(requests.length, count, path);
    }
  });

  it('allows a large body more time to arrive, in both directions', async (t) => {
    const timeouts = t.mock.method(globalThis, 'setTimeout');
    const lengths = (): number[] => timeouts.mock.calls.map((call) => Math.round(Number(call.arguments[1])));
    const headers: Record<string, string> = {};
    const { client } = clientAnsweredBy(() => Response.json({ ids: ['1'] }, { headers }));
    await client.queue('N/large').insertMany(['x']);
    assert.deepEqual(lengths(), [20_000, 20_000]);
    await client.queue('N/large').insertMany(['x'.repeat(4_194_304)]);
    // At 64 kB/s.
    assert.deepEqual(lengths().slice(2), [85_536, 20_000]);
    headers['content-length'] = '4194304';
    await client.queue('N/large').insertMany(['x']);
    assert.deepEqual(lengths().slice(4), [20_000, 85_536]);
  });

  it('allows a request of the caller as long to be answered as its server may wait', async (t) => {
    const timeouts = t.mock.method(globalThis, 'setTimeout');
    const { client } = clientAnsweredBy(() => new Response('{}'));
    await client.request('POST', '/take', { body: '{"from": [], "to": 60000}', waitMs: 60_000 });
    assert.equal(Math.round(Number(timeouts.mock.calls[0]?.arguments[1])), 80_000);
  });

  it('reports a redirect, and does not follow it', async () => {
    const redirecting = createHttpServer((_, response) => {
      response.writeHead(301, { location: server.url }).end();
    }).listen(0, '127.0.0.1');
    await once(redirecting, 'listening');
    const { port } = redirecting.address() as AddressInfo;
    await using client = new Quayside({ url: `http://127.0.0.1:${port}`, auth: AUTH });
    const expected = { code: 'unexpected-response', outcome: 'nothing-changed', status: 301 };
    await assert.rejects(client.queue('N/moved').insert('x'), expected);
    redirecting.closeAllConnections();
    redirecting.close();
  });

  it('gives up after ten attempts by default', async () => {
    const over = new AbortController();
    const { client, requests } = clientAnsweredBy(
      () => {
        if (requests.length > 10) over.abort();
        return new Response('', { status: 502 });
      },
      { retry: { attempts: undefined, minMs: 1, maxMs: 1 } as object },
    );
    await assert.rejects(client.queue('N/x').status({ signal: over.signal }), ConnectionError);
    assert.equal(requests.length, 10);
  });

  it('repeats a call for as long as the server is unavailable if it may make any number of attempts', async () => {
    const { client, requests } = clientAnsweredBy(
      () => (requests.length <= 50 ? new Response('', { status: 502 }) : Response.json(TAKEN)),
      { retry: { attempts: Number.POSITIVE_INFINITY, minMs: 1, maxMs: 1 } },
    );
    assert.equal((await client.queue('N/x').reserve())?.id, TAKEN.id);
    assert.equal(requests.length, 51);
  });

  it('reports an unknown outcome after its last attempt', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/given up');
    watched.loseResponses(3);
    await assert.rejects(queue.insert('x'), { code: 'connection-failed', outcome: 'unknown' });
    assert.equal((await queue.status()).total, 1);
  });

  it('reports nothing-changed if the server cannot be reached', async () => {
    const listener = createServer().listen(0, '127.0.0.1');
    await once(listener, 'listening');
    const { port } = listener.address() as AddressInfo;
    await new Promise((resolve) => listener.close(resolve));
    await using client = new Quayside({ url: `http://127.0.0.1:${port}`, auth: AUTH, retry: false });
    await assert.rejects(client.queue('N/nowhere').insert('x'), {
      name: 'ConnectionError',
      outcome: 'nothing-changed',
    });
  });

  it('reports nothing-changed for the connection errors of Deno and Bun as well', async () => {
    const refused = {
      Deno: new TypeError('fetch failed', {
        cause: new Error(
          'error sending request for url (http://x/): client error (Connect): Connection refused',
        ),
      }),
      Bun: Object.assign(new TypeError('Unable to connect.'), { code: 'ECONNREFUSED' }),
      'Node with a port that fetch blocks': new TypeError('fetch failed', { cause: new Error('bad port') }),
      'Node without a free port': new TypeError('fetch failed', {
        cause: Object.assign(new Error('connect EADDRNOTAVAIL 10.0.0.1:80'), { code: 'EADDRNOTAVAIL' }),
      }),
    };
    for (const [runtime, error] of Object.entries(refused)) {
      const fails = async (): Promise<never> => {
        throw error;
      };
      await using client = new Quayside({ url: 'http://x', auth: AUTH, retry: false, fetch: fails });
      const expected = { name: 'ConnectionError', outcome: 'nothing-changed' };
      await assert.rejects(client.queue('N/nowhere').insert('x'), expected, runtime);
    }
  });

  it('waits for an element, and stops waiting when it is aborted or times out', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/waiting');
    const popped = queue.pop({ waitMs: PATIENCE_MS });
    await queue.insert('at last');
    assert.equal((await popped)?.data, 'at last');
    const controller = new AbortController();
    const aborted = queue.reserve({ waitMs: PATIENCE_MS, signal: controller.signal });
    controller.abort(new Error('enough'));
    await assert.rejects(aborted, /enough/);
    await assert.rejects(queue.reserve({ waitMs: PATIENCE_MS, timeoutMs: 1 }), TimeoutError);
    assert.equal(await queue.reserve({ waitMs: 1 }), undefined);
  });

  it('waits no longer than timeoutMs of the whole call, however many requests it needs', async () => {
    let requests = 0;
    const answersNothing = async (): Promise<Response> => {
      requests += 1;
      await delay(5);
      return problem(504, 'pop-timeout');
    };
    await using client = new Quayside({ url: 'http://x', auth: AUTH, retry: false, fetch: answersNothing });
    const queue = client.queue('N/never');
    await assert.rejects(queue.pop({ waitMs: PATIENCE_MS, timeoutMs: 20 }), TimeoutError);
    assert.ok(requests > 0);
    const waits = ({ signal }: RequestInit): Promise<Response> =>
      new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason)));
    await using other = new Quayside({
      url: 'http://x',
      auth: AUTH,
      fetch: (_, init = {}) => waits(init),
    });
    const streamed = other.stream('GET', '/q/N/never/export', { timeoutMs: 1 });
    await assert.rejects(streamed, { code: 'timeout', outcome: 'unknown' });
  });

  it('reports nothing-changed for a call that timed out before its request was sent', async () => {
    const { promise: sent, resolve: send } = Promise.withResolvers<void>();
    const { promise, resolve } = Promise.withResolvers<Response>();
    let requests = 0;
    await using client = new Quayside({
      url: 'http://x',
      auth: AUTH,
      fetch: async () => {
        requests += 1;
        if (requests === 2) send();
        return (await promise).clone();
      },
    });
    const queue = client.queue('N/busy');
    const insert = (timeoutMs?: number): Promise<{ id: string }> => queue.insert('x', { timeoutMs });
    const first = insert();
    await until(() => requests === 1);
    const second = insert();
    await sent;
    // Two requests are in flight, so that this one waits.
    await assert.rejects(insert(1), { code: 'timeout', outcome: 'nothing-changed' });
    resolve(Response.json({ ids: ['1'] }));
    await Promise.allSettled([first, second]);
    assert.equal(requests, 2);
  });

  it('treats a commit repeated after an unknown outcome as done if the element is gone', async () => {
    for (const again of ['commit', 'rollback'] as const) {
      const replies = [Response.json(TAKEN), null, Response.json(GONE)];
      await using client = new Quayside({
        url: 'http://x',
        auth: AUTH,
        retry: false,
        fetch: async () => {
          const reply = replies.shift();
          if (reply) return reply;
          throw new TypeError('fetch failed', { cause: new Error('other side closed') });
        },
      });
      const job = await client.queue('N/gone').reserve();
      await assert.rejects(async () => job?.commit(), { name: 'ConnectionError', outcome: 'unknown' });
      if (again === 'commit') await job?.commit();
      else await assert.rejects(async () => job?.rollback(), LeaseLostError);
    }
  });

  it('treats a commit repeated after it was aborted in flight as done if the element is gone', async () => {
    const replies = [Response.json(TAKEN), null, Response.json(GONE)];
    const controller = new AbortController();
    await using client = new Quayside({
      url: 'http://x',
      auth: AUTH,
      fetch: async () => {
        const reply = replies.shift();
        if (reply) return reply;
        controller.abort();
        return new Promise<Response>(() => {});
      },
    });
    const job = await client.queue('N/gone').reserve();
    await assert.rejects(async () => job?.commit({ signal: controller.signal }), { name: 'AbortError' });
    await job?.commit();
  });

  it('does not split a batch after an attempt that may have stored it', async () => {
    let calls = 0;
    await using client = new Quayside({
      url: 'http://x',
      auth: AUTH,
      retry: { minMs: 1 },
      fetch: async () => {
        calls += 1;
        if (calls === 1) throw new TypeError('fetch failed', { cause: new Error('other side closed') });
        return new Response('too large', { status: 413 });
      },
    });
    const queue = client.queue('N/halves');
    const results = await Promise.allSettled([queue.insert(1), queue.insert(2)]);
    for (const result of results) {
      assert.equal(result.status, 'rejected');
      assert.equal((result.reason as QuaysideError).outcome, 'unknown');
    }
    assert.equal(calls, 2);
  });

  it('does not mistake the name of a queue in an error message for a reason why nothing was sent', async () => {
    let calls = 0;
    await using client = new Quayside({
      url: 'http://x',
      auth: AUTH,
      retry: { minMs: 1 },
      fetch: async (input) => {
        calls += 1;
        const cause = new Error(
          `error sending request for url (${input}): client error (SendRequest): connection closed before message completed`,
        );
        throw new TypeError('fetch failed', { cause });
      },
    });
    await assert.rejects(client.queue('N/CERTIFICATES').pop(), {
      name: 'ConnectionError',
      outcome: 'unknown',
    });
    assert.equal(calls, 1);
  });

  it('stores a repeated insert with the same key once, although each call has its own span', async () => {
    await using client = new Quayside({ url: server.url, auth: AUTH, tracing: new FakeTracing() });
    const queue = client.queue('N/traced');
    const insert = (data: string) => queue.insert(data, { idempotencyKey: 'order-4', headers: { a: 'b' } });
    const { id } = await insert('x');
    assert.equal((await insert('x')).id, id);
    await assert.rejects(insert('y'), { code: 'idempotency-mismatch' });
    assert.equal((await queue.status()).total, 1);
  });

  it('does not treat a repeated commit as done if the first call was never sent and the element is gone', async () => {
    const replies = [Response.json(TAKEN), Response.json(GONE)];
    let asked = 0;
    await using client = new Quayside({
      url: 'http://x',
      auth: () => {
        asked += 1;
        if (asked === 2) throw new Error('no credentials now');
        return 'Bearer x';
      },
      fetch: async () => replies.shift() ?? Response.error(),
    });
    const job = await client.queue('N/gone').reserve();
    await assert.rejects(async () => job?.commit(), /no credentials now/);
    await assert.rejects(async () => job?.commit({ signal: AbortSignal.abort() }), { name: 'AbortError' });
    await assert.rejects(async () => job?.commit(), LeaseLostError);
  });

  it('returns the content encoding of an element, and parses JSON after a byte order mark', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/encoded');
    await watched.client.request('PUT', '/q/N/encoded', {
      body: '\ufeff{"a":1}',
      contentType: 'application/json',
    });
    const line = JSON.stringify({ text: 'x', contentEncoding: 'aes128gcm' });
    const contentType = 'application/x-ndjson';
    await watched.client.request('POST', '/q/N/encoded/elements', { body: `${line}\n`, contentType });
    const browsed = await collect(queue.browse());
    assert.deepEqual(
      browsed.map(({ contentEncoding }) => contentEncoding),
      [null, 'aes128gcm'],
    );
    assert.deepEqual((await queue.pop())?.data, { a: 1 });
    assert.equal((await queue.reserve())?.contentEncoding, 'aes128gcm');
  });

  it('iterates over elements, and rolls back the one at which the loop is left', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/iterated');
    await queue.insertMany([1, 2, 3]);
    const seen: unknown[] = [];
    for await (const job of queue.elements()) {
      seen.push(job.data);
      if (job.data === 3) break;
      await job.commit();
    }
    assert.deepEqual(seen, [1, 2, 3]);
    assert.deepEqual(
      (await collect(queue.browse())).map(({ data, tries }) => [data, tries]),
      [[3, 1]],
    );
  });

  it('ends an iteration when no element arrived within waitMs', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/iterated to its end');
    await queue.insertMany([1, 2]);
    for (const waitMs of [0, 1]) {
      for await (const job of queue.elements({ waitMs })) await job.commit();
    }
    assert.equal((await queue.status()).total, 0);
  });

  it('consumes a stream by groups', async () => {
    await using watched = open();
    const queue = watched.client.queue('events/all');
    await queue.insert('for both', { groups: ['a', 'b'] });
    const a = await queue.reserve({ group: 'a' });
    await a?.commit();
    assert.equal(await queue.reserve({ group: 'a' }), undefined);
    assert.equal((await queue.pop({ group: 'b' }))?.data, 'for both');
  });

  it('validates data with a schema, before an insert and when they are read', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/checked', { schema: ORDER });
    await queue.insert({ number: '7' });
    await assert.rejects(queue.insert({ number: 'seven' }), (error: unknown) => {
      assert.ok(error instanceof ValidationError);
      assert.deepEqual(error.issues, [{ message: 'must be digits', path: ['number'] }]);
      return true;
    });
    await watched.client.queue('N/checked').insert({ number: 'unchecked' });
    const [good, bad] = await queue.reserveMany(2);
    assert.deepEqual(good?.data, { number: 7 });
    assert.throws(() => bad?.data, ValidationError);
    await bad?.bury('not an order');
  });

  it('rejects a schema of a library that does not implement Standard Schema when the queue is named', async () => {
    await using watched = open();
    const schema = { parse: (value: unknown) => value } as unknown as StandardSchema;
    assert.throws(
      () => watched.client.queue('N/unchecked', { schema }),
      (error) => error instanceof ValidationError && error.message.includes('Standard Schema'),
    );
  });

  it('encodes and decodes with a codec', async () => {
    await using watched = open();
    const queue = watched.client.queue<Date>('N/coded', {
      codec: {
        contentType: 'text/x-date',
        encode: (date) => date.toISOString(),
        decode: (body) => new Date(new TextDecoder().decode(body)),
      },
    });
    const at = new Date('2026-01-31T12:00:00.000Z');
    await queue.insert(at);
    assert.deepEqual((await queue.pop())?.data, at);
  });

  it('delays and expires elements, by a duration or until a moment', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/timed');
    const at = new Date('2999-01-31T12:00:00.500Z');
    await queue.insert('at', { at });
    await queue.insert('delayed', { delayMs: PATIENCE_MS });
    await queue.insert('short', { ttlMs: 1 });
    const { scheduled, nextMature } = await queue.status();
    assert.equal(scheduled, 2);
    assert.ok(nextMature !== null && nextMature < at);
    const [, last] = await collect(queue.browse({ state: 'scheduled' }));
    assert.deepEqual(last?.mature, at);
  });

  it('releases a reservation without a failed try', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/released');
    await queue.insert('x');
    const job = await queue.reserve();
    watched.loseResponses(1);
    await job?.release();
    const again = await queue.reserve();
    assert.deepEqual([again?.data, again?.tries], ['x', 0]);
    await again?.commit();
    await assert.rejects(async () => again?.release(), { code: 'already-settled' });
  });

  it('pauses and resumes a queue', async () => {
    await using watched = open();
    const queue = watched.client.queue('N/paused');
    await queue.insert('x');
    await queue.pause();
    assert.equal((await queue.status()).isPaused, true);
    assert.equal(await queue.pop(), undefined);
    await queue.resume();
    assert.equal((await queue.pop())?.data, 'x');
  });

  it('takes credentials from its options, from the URL, and from a function', async () => {
    const url = new URL(server.url);
    url.username = 'ünal';
    url.password = 'pass:wörd';
    await using byUrl = new Quayside({ url });
    await byUrl.queue('N/who').status();
    const header = `Basic ${btoa('test1:test1')}`;
    for (const auth of [() => header, async () => header]) {
      await using byFunction = new Quayside({ url: server.url, auth });
      await byFunction.queue('N/who').status();
    }
    await using wrong = new Quayside({ url: server.url, auth: { user: 'test1', password: 'no' } });
    await assert.rejects(wrong.queue('N/who').status(), { code: 'unauthorized', status: 401 });
  });

  it('reads a percent sign that starts no escape literally in the credentials of a URL', async () => {
    const sent: unknown[] = [];
    const fetches = async (_: unknown, init: RequestInit = {}): Promise<Response> => {
      sent.push(new Headers(init.headers).get('authorization'));
      return problem(403, 'forbidden');
    };
    for (const [part, password] of [
      ['50%', '50%'],
      ['%C3%A4+%26&%zz', 'ä+&&%zz'],
    ]) {
      await using client = new Quayside({ url: `http://u%20:${part}@x`, fetch: fetches });
      await assert.rejects(client.queue('N/x').status(), { code: 'forbidden' });
      assert.equal(sent.pop(), `Basic ${Buffer.from(`u :${password}`).toString('base64')}`);
    }
  });

  it('rejects a token with characters that a header cannot have, without showing it', async () => {
    for (const token of ['secret\nx: y', 'secret…', 'secret\0']) {
      const { client, requests } = clientAnsweredBy(() => new Response(''), { auth: { token } });
      await assert.rejects(client.queue('N/x').status(), (error: Error) => {
        assert.ok(error instanceof ValidationError);
        assert.doesNotMatch(error.message, /secret/);
        return true;
      });
      assert.equal(requests.length, 0);
    }
    const { client, requests } = clientAnsweredBy(() => Response.json({ stats: {} }), {
      auth: { token: 'read\n' },
    });
    await client.request('GET', '/q');
    assert.equal(requests.length, 1);
  });

  it('reports failures of TLS that last at once, with nothing-changed', async () => {
    let attempts = 0;
    const counted: typeof fetch = (...given) => {
      attempts += 1;
      return fetch(...given);
    };
    const https = createHttpsServer(makeCertificate(), (_, response) => response.end());
    await once(https.listen(0, '127.0.0.1'), 'listening');
    const { port } = https.address() as AddressInfo;
    for (const [host, message] of [
      [`127.0.0.1:${port}`, /^The server cannot be reached \(https:.*\): .*certificate/],
      [new URL(server.url).host, /^The server cannot be reached \(https:.*\): .*wrong version number/],
    ] as const) {
      await using client = new Quayside({ url: `https://${host}`, auth: AUTH, fetch: counted });
      attempts = 0;
      await assert.rejects(client.queue('N/x').insert('x'), {
        name: 'ConnectionError',
        code: 'tls-failed',
        outcome: 'nothing-changed',
        message,
      });
      assert.equal(attempts, 1);
    }
    https.close();
    https.closeAllConnections();
  });

  it('reports failures of certificates in the words of Bun and Deno at once', async () => {
    for (const failure of [
      Object.assign(new Error('unable to verify the first certificate'), {
        code: 'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
      }),
      new TypeError('error sending request for url (https://x/)', {
        cause: new Error(
          'error sending request for url (https://x/): client error (Connect): invalid peer certificate: UnknownIssuer',
        ),
      }),
    ]) {
      await using client = new Quayside({
        url: 'https://x',
        auth: AUTH,
        fetch: () => Promise.reject(failure),
      });
      await assert.rejects(client.queue('N/x').pop(), { code: 'tls-failed', outcome: 'nothing-changed' });
    }
  });

  it('rejects with the error of the credentials function, and sends nothing', async () => {
    const noToken = new Error('no token');
    let requests = 0;
    await using client = new Quayside({
      url: server.url,
      auth: () => Promise.reject(noToken),
      fetch: (...given) => {
        requests += 1;
        return fetch(...given);
      },
    });
    await assert.rejects(client.queue('N/who').status(), noToken);
    await assert.rejects(client.queue('N/who').pop(), noToken);
    await assert.rejects(client.stream('GET', '/q/N/who/export'), noToken);
    assert.equal(requests, 0);
  });

  it('can time out, abort and close calls whose credentials function never returns', async () => {
    const client = new Quayside({ url: server.url, auth: () => new Promise(() => {}) });
    const queue = client.queue('N/who');
    await assert.rejects(queue.status({ timeoutMs: 1 }), TimeoutError);
    const controller = new AbortController();
    const aborted = queue.pop({ signal: controller.signal });
    controller.abort(new Error('enough'));
    await assert.rejects(aborted, /enough/);
    const popped = assert.rejects(queue.pop(), StoppedError);
    await client.close();
    await popped;
  });

  it('rejects with the value that the credentials function throws, even if it is not an Error', async () => {
    for (const thrown of ['no token', undefined]) {
      await using client = new Quayside({ url: server.url, auth: () => Promise.reject(thrown) });
      const results = await Promise.allSettled([
        client.queue('N/who').insert(1),
        client.queue('N/who').pop(),
      ]);
      assert.deepEqual(
        results,
        results.map(() => ({ status: 'rejected', reason: thrown })),
      );
    }
  });

  it('takes an API token from its options, and from the environment unless credentials are given', async (t) => {
    await using owner = new Quayside({ url: server.url, auth: AUTH });
    const { text } = await owner.request('POST', '/tokens', { body: '{"name":"test"}' });
    const { token } = JSON.parse(text) as { token: string };
    await using byToken = new Quayside({ url: server.url, auth: { token } });
    await byToken.queue('N/who').status();
    t.after(() => delete process.env.QUAYSIDE_TOKEN);
    process.env.QUAYSIDE_TOKEN = token;
    await using byEnvironment = new Quayside({ url: server.url });
    await byEnvironment.queue('N/who').status();
    process.env.QUAYSIDE_TOKEN = 'qs_wrong';
    await using wrong = new Quayside({ url: server.url });
    await assert.rejects(wrong.queue('N/who').status(), { code: 'unauthorized', status: 401 });
    await using given = new Quayside({ url: server.url, auth: AUTH });
    await given.queue('N/who').status();
  });

  it('rejects an invalid queue name', () => {
    const client = new Quayside({ url: server.url });
    for (const name of ['N/', '/q', 'N/..', './q', 'N/\ud800'] as const) {
      assert.throws(
        () => client.queue(name),
        (error: unknown) => error instanceof QuaysideError && error.code === 'invalid-name',
      );
    }
  });

  it('completes inserts when it is closed, and ends waiting calls', async () => {
    const watched = open();
    const queue = watched.client.queue('N/closed');
    const waiting = watched.client.queue('N/other').pop({ waitMs: PATIENCE_MS });
    const ended = assert.rejects(waiting, StoppedError);
    const inserted = queue.insert('x');
    await watched.client.close();
    assert.ok((await inserted).id);
    await ended;
    await assert.rejects(queue.insert('y'), StoppedError);
  });

  it('completes inserts of every queue when it is closed, however many queues it has', async () => {
    const { client } = open();
    const first = client.queue('N/first of many');
    for (let i = 0; i < 2_000; i += 1) client.queue(`N/many ${i}`);
    const inserted = first.insert('x');
    await client.close();
    assert.ok((await inserted).id);
  });

  it('rejects calls after it was closed with nothing-changed', async () => {
    const { client } = open();
    const queue = client.queue('N/after the end');
    await queue.insert('x');
    const job = await queue.reserve();
    await Promise.all([client.close(), client.close()]);
    const calls = [job?.commit(), queue.status(), queue.pop(), queue.insert('y'), client.stream('GET', '/q')];
    for (const result of await Promise.allSettled(calls)) {
      const { reason } = result as PromiseRejectedResult;
      assert.ok(reason instanceof StoppedError);
      assert.equal(reason.outcome, 'nothing-changed');
    }
  });
});

/** An error as the server responds with it. */
function problem(status: number, code: string, details: object = {}): Response {
  return Response.json(
    { code, ...details },
    { status, headers: { 'content-type': 'application/problem+json' } },
  );
}

/** A client whose requests are answered by `answer`, with the requests that it sent. */
function clientAnsweredBy(
  answer: () => Response,
  options: ClientOptions = {},
): { client: Quayside; requests: unknown[] } {
  const requests: unknown[] = [];
  const client = new Quayside({
    url: 'http://x',
    auth: AUTH,
    retry: { attempts: 3, minMs: 1 },
    fetch: async (input) => {
      requests.push(input);
      return answer();
    },
    ...options,
  });
  return { client, requests };
}

async function collect<T>(iterable: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const one of iterable) all.push(one);
  return all;
}

/** A schema as libraries create them: it accepts digits, and converts them to a number. */
const ORDER: StandardSchema<{ number: string }, { number: number }> = {
  '~standard': {
    version: 1,
    vendor: 'test',
    validate(value) {
      const { number } = value as { number: string };
      if (/^\d+$/.test(number)) return { value: { number: Number(number) } };
      return { issues: [{ message: 'must be digits', path: ['number'] }] };
    },
  },
};
