import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { MAIN_ENGINES } from '../engines.ts';
import { type Answer, headerOf, jsonOf, queuePath } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { type Harness, sharedHarness, statusOf } from './harness.ts';
import { linesOf, takeFrom, takeMany, textsOf } from './takes.ts';

interface Problem {
  readonly code: string;
  readonly detail: string;
}

async function insertAll(harness: Harness, queue: string, bodies: Iterable<string>, ns = 'N'): Promise<void> {
  const client = harness.client();
  for (const body of bodies) await client.insert(ns, queue, body);
}

/**
 * `http.batchBytes` in tests of all engines. With 16 MiB, a server on a busy machine might exceed the time limit of a
 * call.
 */
const BATCH_BYTES = 2 * 1024 * 1024;

/** Asserts that one take returns as many elements as fit into `maxBytes`, and leaves the last two. */
async function takesUpTo(harness: Harness, maxBytes: number, bodyBytes: number): Promise<void> {
  const queue = harness.queue();
  const client = harness.client();
  const body = Buffer.alloc(bodyBytes, 'x');
  const fitting = Math.floor(maxBytes / bodyBytes);
  for (let i = 0; i < fitting + 2; i++) {
    assert.equal((await client.insert('N', queue, body)).status, 200);
  }
  assert.equal(linesOf(await takeMany(client, queue, { count: 100, to: 0 })).length, fitting);
  assert.equal((await statusOf(harness, queue)).size, 2);
  assert.equal(linesOf(await takeMany(client, queue, { count: 100, min: 50, to: 0 })).length, 2);
}

for (const engine of MAIN_ENGINES) {
  describe(`A batch take: ${engine.name}`, () => {
    const harness = sharedHarness({ engine, http: { batchBytes: BATCH_BYTES } });

    it('pops up to `count` elements in delivery order, one per line', async () => {
      const queue = harness().queue();
      await insertAll(harness(), queue, 'abcd');
      const answer = await takeMany(harness().client(), queue, { count: 3 });
      assert.equal(answer.status, 200);
      assert.equal(headerOf(answer, 'content-type'), 'application/x-ndjson');
      assert.equal(headerOf(answer, 'cache-control'), 'no-store');
      assert.deepEqual(textsOf(answer), ['a', 'b', 'c']);
      assert.deepEqual(
        linesOf(answer).map(({ lease, leaseUntil, tries }) => [lease, leaseUntil, tries]),
        [0, 1, 2].map(() => [null, null, 0]),
      );
      const { size, stats } = await statusOf(harness(), queue);
      assert.deepEqual([size, stats.get], [1, 3]);
    });

    it('reserves each element with its own lease and returns the end of each lease', async () => {
      const queue = harness().queue();
      const client = harness().client();
      await insertAll(harness(), queue, 'abc');
      const now = harness().opened.now();
      const answer = await takeMany(client, queue, { count: 10, reserve: true, lease: 90_000 });
      const lines = linesOf(answer);
      assert.equal(new Set(lines.map(({ lease }) => lease)).size, 3);
      const time = Date.parse(headerOf(answer, 'x-ks-time'));
      for (const { leaseUntil } of lines) {
        const until = Date.parse(leaseUntil ?? '');
        assert.ok(until >= now + 89_000);
        assert.ok(Math.abs(until - time - 90_000) < 5_000, `${until} - ${time}`);
      }
      assert.equal((await statusOf(harness(), queue)).resvSize, 3);
      for (const { id, lease } of lines) {
        assert.equal((await client.commit('N', queue, id, { token: lease ?? '' })).status, 200);
      }
      assert.equal((await statusOf(harness(), queue)).resvSize, 0);
    });

    it('returns ready elements at once, or waits for the first one', async () => {
      const queue = harness().queue();
      const client = harness().client();
      await insertAll(harness(), queue, 'a');
      assert.deepEqual(textsOf(await takeMany(client, queue, { count: 5 })), ['a']);
      const waiting = takeMany(client, queue, { count: 5, to: 60_000 });
      await harness().waiting(1);
      await client.insert('N', queue, 'b');
      assert.deepEqual(textsOf(await waiting), ['b']);
    });

    it('is answered with 504, like a get, if there is no element by `to`', async () => {
      const queue = harness().queue();
      const waiting = takeMany(harness().client(), queue, { count: 5, to: 1000, tid: 'worker' });
      await harness().waiting(1);
      await harness().passTime(1000);
      const answer = await waiting;
      assert.deepEqual([answer.status, answer.reason], [504, 'Queue Pop Timeout']);
      const { timeout, tid } = jsonOf<{ timeout: boolean; tid: string }>(answer);
      assert.deepEqual([timeout, tid], [true, 'worker']);
    });

    it('waits for `min` elements without holding any', async () => {
      const queue = harness().queue();
      const client = harness().client();
      await insertAll(harness(), queue, 'ab');
      const waiting = takeMany(client, queue, { count: 10, min: 4, reserve: true });
      await harness().waiting(1);
      assert.equal((await statusOf(harness(), queue)).size, 2);
      await client.insert('N', queue, 'c');
      assert.equal((await statusOf(harness(), queue)).size, 3);
      await client.insert('N', queue, 'd');
      // Consecutive counts are 20 ms apart.
      await until(async () => {
        await harness().passTime(20);
        return harness().broker.waiting === 0;
      });
      assert.deepEqual(textsOf(await waiting), ['a', 'b', 'c', 'd']);
    });

    it('with `min` returns the available elements at `to`', async () => {
      const queue = harness().queue();
      await insertAll(harness(), queue, 'ab');
      const waiting = takeMany(harness().client(), queue, { count: 10, min: 5, to: 3000 });
      await harness().waiting(1);
      await harness().passTime(3000);
      assert.deepEqual(textsOf(await waiting), ['a', 'b']);
    });

    it('with `min` does not hold back other consumers, and counts elements that mature', async () => {
      const queue = harness().queue();
      const client = harness().client();
      const waiting = takeMany(client, queue, { min: 2 });
      await harness().waiting(1);
      const get = client.get('N', queue);
      await harness().waiting(2);
      await client.insert('N', queue, 'a');
      assert.equal((await get).body.toString('latin1'), 'a');
      await client.insert('N', queue, 'b', { delay: 5 });
      await client.insert('N', queue, 'c', { delay: 5 });
      assert.equal(harness().broker.waiting, 1);
      await until(async () => {
        await harness().passTime(1000);
        return harness().broker.waiting === 0;
      });
      assert.deepEqual(textsOf(await waiting), ['b', 'c']);
    });

    it('leaves elements beyond `http.batchBytes` in the queue', () =>
      takesUpTo(harness(), BATCH_BYTES, 200_000));

    it('of a stream reads as the given group', async () => {
      const queue = harness().queue();
      const client = harness().client();
      await client.insert('events', queue, 'a', { groups: 'g1,g2' });
      const options = { count: 2, group: 'g2', to: 0 };
      assert.deepEqual(textsOf(await takeMany(client, queue, options, 'events')), ['a']);
      assert.equal((await takeMany(client, queue, options, 'events')).status, 504);
    });
  });

  describe(`A take from several queues: ${engine.name}`, () => {
    const harness = sharedHarness({ engine });

    it('in strict order empties the first queue, fills up from the next, and names the queue of each element', async () => {
      const [first, second, third] = [harness().queue(), harness().queue(), harness().queue()];
      await insertAll(harness(), first, 'ab');
      await insertAll(harness(), second, 'cd', 'jobs');
      await insertAll(harness(), third, 'e');
      const answer = await takeFrom(harness().client(), {
        from: [
          { ns: 'N', queue: first },
          { ns: 'jobs', queue: second },
          { ns: 'N', queue: third },
        ],
        count: 3,
      });
      assert.deepEqual(
        linesOf(answer).map(({ ns, queue, text }) => [ns, queue, text]),
        [
          ['N', first, 'a'],
          ['N', first, 'b'],
          ['jobs', second, 'c'],
        ],
      );
      assert.equal((await statusOf(harness(), second, 'jobs')).size, 1);
      assert.equal((await statusOf(harness(), third)).size, 1);
    });

    it('waits in all queues, and takes one element even if all receive one at once', async () => {
      const client = harness().client();
      const queues = [harness().queue(), harness().queue(), harness().queue()];
      const from = queues.map((queue) => ({ ns: 'N', queue }));
      const waiting = takeFrom(client, { from, reserve: true, tid: 'several' });
      await harness().waiting(3);
      for (const queue of queues) {
        const [{ tid } = { tid: '' }] = jsonOf<{ tid: string }[]>(await client.consumers('N', queue));
        assert.equal(tid, 'several');
      }
      await Promise.all(queues.map((queue) => client.insert('N', queue, queue)));
      assert.equal(linesOf(await waiting).length, 1);
      await harness().waiting(0);
      await until(async () => {
        const all = await Promise.all(queues.map((queue) => statusOf(harness(), queue)));
        const [size, reserved] = [
          all.reduce((sum, one) => sum + one.size, 0),
          all.reduce((sum, one) => sum + one.resvSize, 0),
        ];
        return size === 2 && reserved === 1;
      });
    });

    it('waits until all queues together have `min` elements', async () => {
      const client = harness().client();
      const [first, second] = [harness().queue(), harness().queue()];
      const from = [
        { ns: 'N', queue: first },
        { ns: 'jobs', queue: second },
      ];
      const waiting = takeFrom(client, { from, min: 3, count: 3 });
      await harness().waiting(2);
      await client.insert('N', first, 'a');
      await client.insert('jobs', second, 'b');
      await client.insert('jobs', second, 'c');
      await until(async () => {
        await harness().passTime(20);
        return harness().broker.waiting === 0;
      });
      assert.deepEqual(textsOf(await waiting), ['a', 'b', 'c']);
    });

    it('with only one queue is also answered with 504, and is assigned a tid', async () => {
      const from = [{ ns: 'N', queue: harness().queue() }];
      const client = harness().client();
      const atOnce = await takeFrom(client, { from, to: 0 });
      const waiting = takeFrom(client, { from, to: 1000 });
      await harness().waiting(1);
      await harness().passTime(1000);
      for (const answer of [atOnce, await waiting]) {
        assert.equal(answer.status, 504);
        assert.match(jsonOf<{ tid: string }>(answer).tid, /^[\w-]+$/);
      }
    });

    it('is answered with 504 at `to`, and with 410 if it is cancelled in any of its queues', async () => {
      const client = harness().client();
      const [first, second] = [harness().queue(), harness().queue()];
      const from = [first, second].map((queue) => ({ ns: 'N', queue }));
      const late = takeFrom(client, { from, to: 500 });
      await harness().waiting(2);
      await harness().passTime(500);
      assert.equal((await late).status, 504);
      for (const queue of [first, second]) {
        const waiting = takeFrom(client, { from, tid: 'c' });
        await harness().waiting(2);
        await client.cancel('N', queue, 'c');
        assert.equal((await waiting).status, 410);
        await harness().waiting(0);
      }
      assert.equal((await takeFrom(client, { from, to: 0 })).status, 504);
    });
  });
}

describe('The response to a batch take', () => {
  const harness = sharedHarness({ http: { batchBytes: 64 * 1024 * 1024 } });

  it('contains at most 16 MiB of bodies, even if `http.batchBytes` allows more', () =>
    takesUpTo(harness(), 16 * 1024 * 1024, 1_000_000));

  it('has the time at which it is complete, however long it took to build', async (t) => {
    const queue = harness().queue();
    const client = harness().client();
    await insertAll(harness(), queue, 'ab');
    const { opened } = harness();
    const { storage } = opened.engine;
    const { take } = storage;
    let builtAt = Number.NaN;
    t.mock.method(storage, 'take', async (...given: Parameters<typeof take>) => {
      const taken = await take.apply(storage, given);
      const last = taken.deliveries.at(-1) as object;
      // As if the second line took a minute.
      Object.defineProperty(last, 'contentEncoding', {
        get: () => {
          void opened.passTime(60_000);
          builtAt = opened.now();
          return null;
        },
      });
      return taken;
    });
    const answer = await takeMany(client, queue, { count: 2, reserve: true, lease: 600_000 });
    assert.equal(headerOf(answer, 'x-ks-time'), new Date(builtAt).toISOString());
  });

  it('contains everything that a get returns of an element', async () => {
    const queue = harness().queue();
    const client = harness().client();
    await client.insert('N', queue, '{"n": 1.50}', {
      contentType: 'application/json; charset=utf-8',
      headers: { 'x-ks-hdr-color': 'blue', 'content-encoding': 'identity' },
      tries: 2,
    });
    await client.insert('N', queue, Buffer.from([0xff, 0x00]));
    const [json, bytes] = linesOf(await takeMany(client, queue, { count: 2, as: 'json' }));
    assert.deepEqual(json?.json, { n: 1.5 });
    assert.deepEqual(json.headers, { color: 'blue' });
    assert.deepEqual([json.tries, json.contentEncoding], [2, 'identity']);
    assert.equal(json.contentType, 'application/json; charset=utf-8');
    assert.equal(new Date(json.mature).toISOString(), json.mature);
    assert.equal(bytes?.base64, '/wA=');
    assert.equal(bytes.text, undefined);
  });

  it('is multipart/mixed if `Accept` prefers it, with exact bodies and the headers of a get', async () => {
    const queue = harness().queue();
    const client = harness().client();
    const bodies = [Buffer.from([0, 13, 10, 45, 45, 255]), Buffer.from('--text')];
    for (const body of bodies) await client.insert('N', queue, body, { contentType: 'a/b' });
    const path = `${queuePath('N', queue)}/take?count=2`;
    const answer = await client.request('POST', path, { headers: { accept: 'multipart/mixed' } });
    const [, boundary = ''] =
      /^multipart\/mixed; boundary="(.+)"$/.exec(headerOf(answer, 'content-type') ?? '') ?? [];
    const text = answer.body.toString('latin1');
    assert.ok(text.endsWith(`\r\n--${boundary}--\r\n`));
    const parts = text.slice(0, -`--${boundary}--\r\n`.length).split(`--${boundary}\r\n`).slice(1);
    assert.deepEqual(
      parts.map((part) => part.slice(part.indexOf('\r\n\r\n') + 4, -2)),
      bodies.map((body) => body.toString('latin1')),
    );
    for (const part of parts) {
      assert.match(part, /^content-type: a\/b\r\n/m);
      assert.match(part, /^x-ks-id: \S+\r\n/m);
      assert.match(part, /^x-ks-tries: 0\r\n/m);
    }
  });

  it('consists of JSON lines unless `Accept` prefers multipart/mixed', async () => {
    const client = harness().client();
    for (const [accept, isMultipart] of [
      ['*/*', false],
      ['multipart/mixed;q=0.5, application/x-ndjson', false],
      ['application/x-ndjson;q=0.5, Multipart/Mixed', true],
      ['multipart/mixed;q=0', false],
      ['text/html', false],
    ] as const) {
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      const answer = await client.request('POST', `${queuePath('N', queue)}/take`, { headers: { accept } });
      assert.equal(headerOf(answer, 'content-type')?.startsWith('multipart/mixed'), isMultipart, accept);
    }
  });

  it('names the queue of each part of a take from several queues', async () => {
    const client = harness().client();
    const queue = `${harness().queue()} ü`;
    await client.insert('N', queue, 'a');
    const answer = await client.request('POST', '/take', {
      body: JSON.stringify({ from: [{ ns: 'N', queue }] }),
      headers: { accept: 'multipart/mixed' },
    });
    const text = answer.body.toString('latin1');
    assert.match(text, /^x-ks-ns: N\r\n/m);
    assert.ok(text.includes(`x-ks-queue: ${encodeURIComponent(queue)}\r\n`));
  });

  it('is complete even if it is long and sent in chunks', async () => {
    const queue = harness().queue();
    const client = harness().client();
    for (let i = 0; i < 30; i++) await client.insert('N', queue, `${i} ${'ü'.repeat(20_000)}`);
    const answer = await takeMany(client, queue, { count: 1000 });
    assert.equal(Number(headerOf(answer, 'content-length')), answer.body.length);
    assert.deepEqual(
      linesOf(answer).map(({ text }) => Number.parseInt(text ?? '', 10)),
      Array.from({ length: 30 }, (_, i) => i),
    );
  });
});

describe('The options of a batch take', () => {
  const harness = sharedHarness();

  it('may be given in the query or in the body, but not in both', async () => {
    const queue = harness().queue();
    const client = harness().client();
    await insertAll(harness(), queue, 'abc');
    const path = `${queuePath('N', queue)}/take`;
    const mixed = await client.request('POST', `${path}?count=2`, { body: '{"reserve":true}' });
    assert.equal(linesOf(mixed).length, 2);
    assert.equal(typeof linesOf(mixed)[0]?.lease, 'string');
    const twice = await client.request('POST', `${path}?count=2`, { body: '{"count":2}' });
    assert.deepEqual([twice.status, jsonOf<Problem>(twice).code], [400, 'invalid-parameter']);
    assert.equal(linesOf(await client.request('POST', path)).length, 1);
  });

  it('of a take from several queues may also be given in the query, and are not ignored there', async () => {
    const queue = harness().queue();
    const client = harness().client();
    await insertAll(harness(), queue, 'ab');
    const body = JSON.stringify({ from: [{ ns: 'N', queue }] });
    const [line] = linesOf(await client.request('POST', '/take?reserve=1&to=0', { body }));
    assert.equal(typeof line?.lease, 'string', 'it was reserved, not popped');
    assert.equal((await statusOf(harness(), queue)).resvSize, 1);
    const slip = await client.request('POST', '/take?reserv=1', { body });
    assert.match(jsonOf<Problem>(slip).detail, /Did you mean "reserve"\?/);
    const twice = await client.request('POST', '/take?to=0', {
      body: JSON.stringify({ from: [{ ns: 'N', queue }], to: 0 }),
    });
    assert.deepEqual([twice.status, jsonOf<{ parameter: string }>(twice).parameter], [400, 'to']);
  });

  it('are all checked first, so that a rejected request takes nothing', async () => {
    const queue = harness().queue();
    const client = harness().client();
    await insertAll(harness(), queue, 'ab');
    const rejected: readonly (readonly [object | string, RegExp])[] = [
      [{ count: 0 }, /^count must be a count, a whole number from 1 to 1000, not 0\.$/],
      [{ count: 1001 }, /from 1 to 1000/],
      [{ count: 1.5 }, /^count must be .*, not 1\.5\.$/],
      [{ count: '2' }, /^count must be a count, a whole number from 1 to 1000, not "2"/],
      [{ count: true }, /^count must be a count, a whole number/],
      [{ min: 3, count: 2 }, /^min=3 is more than count=2/],
      [{ min: 0 }, /^min must be a count, a whole number from 1/],
      [{ to: -1 }, /^to must be milliseconds, a whole number from 0 to \d+, not -1/],
      [{ to: 1e300 }, /^to must be milliseconds/],
      [{ reserve: 'yes' }, /^reserve must be true or false, not "yes"/],
      [{ lease: 1000 }, /needs reserve/],
      [{ reserve: false, lease: 1000 }, /needs reserve/],
      [{ reserve: true, lease: 0 }, /^lease must be milliseconds, a whole number from 1/],
      [{ tid: '' }, /is empty/],
      [{ tid: 7 }, /^tid must be a string, not 7/],
      [{ group: 'g' }, /has plain queues/],
      [{ as: 'xml' }, /^as must be json, not "xml"/],
      [{ cuont: 2 }, /^Unknown member cuont\. Did you mean "count"\?/],
      [{ from: [] }, /^Unknown member from/],
      ['[]', /^The body must be a JSON object/],
      ['null', /^$/],
      ['{', /^The body is not JSON/],
    ];
    for (const [options, message] of rejected) {
      const body = typeof options === 'string' ? options : JSON.stringify(options);
      const answer = await client.request('POST', `${queuePath('N', queue)}/take`, { body });
      if (body === 'null') {
        assert.equal(linesOf(answer).length, 1, 'null is no options');
        continue;
      }
      assert.equal(answer.status, 400, body);
      assert.match(jsonOf<Problem>(answer).detail, message);
    }
    const long = await client.request('POST', `${queuePath('N', queue)}/take`, { body: ' '.repeat(65_537) });
    assert.equal(long.status, 413);
    assert.equal((await statusOf(harness(), queue)).size, 1);
    const slip = await client.request('POST', `${queuePath('N', queue)}/take?reserv=1`);
    assert.match(jsonOf<Problem>(slip).detail, /Did you mean "reserve"\?/);
  });

  it('of a take from several queues are rejected with the path of the wrong member', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const one = { ns: 'N', queue };
    const rejected: readonly (readonly [object, number, RegExp])[] = [
      [{}, 400, /^from is missing; it must be an array of 1 to 100 queues/],
      [{ from: [] }, 400, /^from must be an array of 1 to 100 queues, not an empty array\.$/],
      [
        { from: Array.from({ length: 101 }, (_, i) => ({ ns: 'N', queue: `q${i}` })) },
        400,
        /^from must be an array of 1 to 100/,
      ],
      [{ from: {} }, 400, /^from must be an array/],
      [{ from: ['q'] }, 400, /^from\[0\] must be a JSON object/],
      [{ from: [one, { ns: 'N' }] }, 400, /^from\[1\]\.queue is missing/],
      [{ from: [{ queue }] }, 400, /^from\[0\]\.ns is missing/],
      [{ from: [{ ...one, ns: 7 }] }, 400, /^from\[0\]\.ns must be a string/],
      [{ from: [{ ...one, wieght: 2 }] }, 400, /^Unknown member from\[0\]\.wieght\. Did you mean "weight"\?/],
      [{ from: [{ ...one, weight: 0 }] }, 400, /^from\[0\]\.weight must be a whole number from 1 to 1000/],
      [
        { from: [{ ...one, group: 'g' }] },
        400,
        /^from\[0\]\.group: group "g" cannot be used: .* has plain queues/,
      ],
      [{ from: [{ ...one, queue: '' }] }, 400, /^The from\[0\]\.queue name "" is empty/],
      [{ from: [one, one] }, 400, /^from\[1\] names the same queue as from\[0\]/],
      [{ from: [one], order: 'random' }, 400, /^order must be "strict" or "fair"/],
      [{ from: [one], group: 'g' }, 400, /^Unknown member group/],
      [{ from: [one, { ns: 'none', queue }] }, 404, /^from\[1\]\.ns: There is no namespace "none"/],
    ];
    for (const [options, status, message] of rejected) {
      const answer = await takeFrom(client, options);
      assert.equal(answer.status, status, JSON.stringify(options).slice(0, 100));
      assert.match(jsonOf<Problem>(answer).detail, message);
    }
    const body = JSON.stringify({ from: [one] });
    for (const name of ['group', 'grup', 'Group']) {
      const inQuery = await client.request('POST', `/take?${name}=g`, { body });
      assert.equal(inQuery.status, 400);
      const { detail } = jsonOf<Problem>(inQuery);
      assert.match(detail, new RegExp(`^"${name}" is not a parameter .* from\\[0\\]\\.group\\.$`));
    }
    const all = jsonOf<Record<string, unknown>>(await client.request('GET', '/q/N'));
    assert.equal(queue in all, false, 'a request that was rejected creates no queue');
  });

  it('of a take from several queues may set a fair order, in which the weight decides which queue comes first', async () => {
    const client = harness().client();
    const [heavy, light] = [harness().queue(), harness().queue()];
    for (const queue of [heavy, light]) await insertAll(harness(), queue, 'x'.repeat(20));
    const from = [
      { ns: 'N', queue: light, weight: 1 },
      { ns: 'N', queue: heavy, weight: 1000 },
    ];
    const answer = await takeFrom(client, { from, order: 'fair' });
    // The random numbers of this harness are constant, so only the weight decides.
    assert.equal(linesOf(answer)[0]?.queue, heavy);
    assert.equal(linesOf(await takeFrom(client, { from, order: 'strict' }))[0]?.queue, light);
  });
});

describe('Rights of takes from several queues', () => {
  const users = [
    { name: 'test1', password: 'test1', rights: null },
    { name: 'reader', password: 'reader', rights: { N: ['read'], jobs: ['write'] } },
  ] as const;
  const harness = sharedHarness({ users: users as never });

  it('require read in every namespace, and treat a hidden namespace like one that does not exist', async () => {
    const reader = harness().client('reader:reader');
    const queue = harness().queue();
    await insertAll(harness(), queue, 'a');
    await insertAll(harness(), queue, 'secret', 'hidden');
    const from = (...namespaces: string[]): object => ({
      from: namespaces.map((ns) => ({ ns, queue })),
      to: 0,
    });
    assert.equal((await takeFrom(reader, from('N', 'jobs'))).status, 403);
    const hidden = await takeFrom(reader, from('N', 'hidden'));
    const unknown = await takeFrom(reader, from('N', 'nothing'));
    assert.deepEqual([hidden.status, unknown.status], [404, 404]);
    assert.equal(
      hidden.body.toString('utf8').replaceAll('hidden', '*'),
      unknown.body.toString('utf8').replaceAll('nothing', '*'),
    );
    assert.deepEqual(textsOf(await takeFrom(reader, from('N'))), ['a']);
    assert.equal((await harness().client(null).request('POST', '/take')).status, 401);
  });
});

describe('Batch takes that wait', () => {
  const harness = sharedHarness();

  it('count as one waiting call per queue, all of which end with the take', async () => {
    const queues = [harness().queue(), harness().queue(), harness().queue()];
    const waiting = takeFrom(harness().client(), {
      from: queues.map((queue) => ({ ns: 'N', queue })),
      tid: 't',
    });
    await harness().waiting(3);
    await harness()
      .client()
      .cancel('N', queues[1] ?? '', 't');
    assert.equal((await waiting).status, 410);
    assert.equal(harness().broker.waiting, 0);
  });

  it('take nothing from a paused queue, and are served from the others', async () => {
    const client = harness().client();
    const [paused, open] = [harness().queue(), harness().queue()];
    await insertAll(harness(), paused, 'a');
    await client.request('PATCH', `${queuePath('N', paused)}/pause`);
    const from = [paused, open].map((queue) => ({ ns: 'N', queue }));
    const waiting = takeFrom(client, { from });
    await harness().waiting(2);
    await client.insert('N', open, 'b');
    assert.deepEqual(textsOf(await waiting), ['b']);
    const again = takeFrom(client, { from });
    await harness().waiting(2);
    await client.request('PATCH', `${queuePath('N', paused)}/resume`);
    assert.deepEqual(textsOf(await again), ['a']);
    await client.request('PATCH', `${queuePath('N', paused)}/pause`);
    const enough = takeMany(client, paused, { min: 2 });
    await harness().waiting(1);
    await insertAll(harness(), paused, 'cd');
    await harness().passTime(1000);
    assert.equal(harness().broker.waiting, 1);
    await client.request('PATCH', `${queuePath('N', paused)}/resume`);
    await until(async () => {
      await harness().passTime(20);
      return harness().broker.waiting === 0;
    });
    assert.deepEqual(textsOf(await enough), ['c', 'd']);
  });
});

describe('A reservation made by a batch take', () => {
  const harness = sharedHarness();

  const takes: readonly (readonly [string, (queue: string, options: object) => Promise<Answer>])[] = [
    ['of one queue', (queue, options) => takeMany(harness().client(), queue, { ...options, count: 2 })],
    [
      'of one queue with min',
      (queue, options) => takeMany(harness().client(), queue, { ...options, min: 2 }),
    ],
    [
      'of several queues',
      (queue, options) =>
        takeFrom(harness().client(), {
          ...options,
          from: [queue, `${queue} empty`].map((name) => ({ ns: 'N', queue: name })),
        }),
    ],
  ];

  for (const [what, take] of takes) {
    for (const tid of ['worker 7', null]) {
      it(`${what} has the tid that the call gave: ${tid}`, async () => {
        const options = { reserve: true, ...(tid !== null && { tid }) };
        const holderIn = async (queue: string): Promise<string | null | undefined> => {
          const page = await harness()
            .client()
            .request('GET', `${queuePath('N', queue)}/elements?state=reserved`);
          return jsonOf<{ elements: { holder: { tid: string | null } }[] }>(page).elements[0]?.holder.tid;
        };
        const ready = harness().queue();
        await insertAll(harness(), ready, ['a', 'b']);
        linesOf(await take(ready, options));
        assert.equal(await holderIn(ready), tid);
        const empty = harness().queue();
        const waiting = take(empty, options);
        await until(() => harness().broker.waiting > 0);
        await insertAll(harness(), empty, ['a', 'b']);
        // With min, the next count of elements follows some time after the last one.
        await harness().passTime(100);
        linesOf(await waiting);
        assert.equal(await holderIn(empty), tid);
      });
    }
  }
});
