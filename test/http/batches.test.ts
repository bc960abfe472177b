import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { MAIN_ENGINES } from '../engines.ts';
import { type Answer, elementHeadersOf, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { sharedHarness } from './harness.ts';
import { AUTHORIZATION, RawConnection, rawRequest } from './raw.ts';
import { linesOf, takeMany } from './takes.ts';

interface Inserted {
  readonly ids: readonly string[];
  readonly repeated?: readonly number[];
}

interface Settled {
  readonly id: string;
  readonly action: string;
  readonly outcome: string;
  readonly until?: string;
}

interface Problem {
  readonly code: string;
  readonly detail: string;
  readonly parameter?: string;
  readonly line?: number;
  readonly part?: number;
  readonly limit?: number;
}

function inserted(answer: Answer): Inserted {
  assert.equal(answer.status, 200, answer.body.toString());
  return jsonOf<Inserted>(answer);
}

function settled(answer: Answer): readonly Settled[] {
  assert.equal(answer.status, 200, answer.body.toString());
  return jsonOf<{ results: Settled[] }>(answer).results;
}

function problem(answer: Answer, status: number): Problem {
  assert.equal(answer.status, status, answer.body.toString());
  return jsonOf<Problem>(answer);
}

async function sizes(client: QueueClient, ns: string, queue: string): Promise<Record<string, number>> {
  const record = jsonOf<Record<string, number>>(await client.status(ns, queue));
  return {
    size: record.size ?? -1,
    schedSize: record.schedSize ?? -1,
    resvSize: record.resvSize ?? -1,
  };
}

/** Reserves `count` elements, in queue order. */
async function reserve(client: QueueClient, ns: string, queue: string, count: number) {
  const taken: { id: string; token: string; body: string }[] = [];
  for (let i = 0; i < count; i += 1) {
    const answer = await client.reserve(ns, queue, { to: 0 });
    const id = headerOf(answer, 'x-ks-id');
    taken.push({ id, token: headerOf(answer, 'x-ks-lease'), body: answer.body.toString() });
  }
  return taken;
}

/** Pops all elements of the queue and returns their bodies. */
async function drain(client: QueueClient, ns: string, queue: string): Promise<string[]> {
  const bodies: string[] = [];
  for (;;) {
    const answer = await client.get(ns, queue, { to: 0 });
    if (answer.status !== 200) return bodies;
    bodies.push(answer.body.toString());
  }
}

const BOUNDARY = 'a b=c';
const TYPE = `multipart/mixed; boundary="${BOUNDARY}"`;

/** A multipart body. Each part is its header lines, as written, and its content. */
function multipart(...parts: readonly (readonly [string, string | Buffer])[]): Buffer {
  const chunks: Buffer[] = [];
  for (const [headers, content] of parts) {
    chunks.push(
      Buffer.from(`--${BOUNDARY}\r\n${headers}\r\n`, 'latin1'),
      Buffer.from(content),
      Buffer.from('\r\n'),
    );
  }
  return Buffer.concat([...chunks, Buffer.from(`--${BOUNDARY}--\r\n`)]);
}

for (const engine of MAIN_ENGINES) {
  describe(`Batch requests over HTTP: ${engine.name}`, () => {
    const harness = sharedHarness({ engine });

    it('lines are stored in order and answered with their ids', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const lines = Array.from({ length: 100 }, (_, i) => ({ json: { i } }));
      const { ids } = inserted(await client.insertLines('N', queue, lines));
      assert.equal(new Set(ids).size, 100);
      const taken = await reserve(client, 'N', queue, 100);
      assert.deepEqual(
        taken.map(({ id }) => id),
        ids,
      );
      assert.deepEqual(
        taken.map(({ body }) => body),
        lines.map(({ json }) => JSON.stringify(json)),
      );
    });

    it('a batch may contain 10,000 elements', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const lines = Array.from(
        { length: 10_000 },
        (_, i) => `{"json":{"number":${i},"text":"some content"}}`,
      );
      const { ids } = inserted(await client.insertLines('N', queue, lines));
      assert.equal(new Set(ids).size, 10_000);
      assert.deepEqual(await sizes(client, 'N', queue), { size: 10_000, schedSize: 0, resvSize: 0 });
      assert.equal(
        (await client.get('N', queue, { to: 0 })).body.toString(),
        '{"number":0,"text":"some content"}',
      );
    });

    it('a batch may have 16 MiB', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const text = 'x'.repeat(1_000_000);
      const lines = Array.from({ length: 16 }, (_, i) => ({ text: `${i}${text}`, key: `k${i}` }));
      // Replicas on a busy machine may take longer than the engine waits for them: a client then repeats its request.
      let answer = await client.insertLines('N', queue, lines);
      while (answer.status === 503 && jsonOf<Problem>(answer).code === 'outcome-unknown') {
        answer = await client.insertLines('N', queue, lines);
      }
      assert.equal(inserted(answer).ids.length, 16);
      const first = await client.get('N', queue, { to: 0 });
      assert.equal(first.body.length, 1_000_001);
    });

    it('each line has its own timing, tries, type and headers', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const lines = [
        { text: 'later', delay: 60 },
        { text: 'now', tries: 2, contentType: 'text/plain; charset=utf-8', headers: { A: 'ä', b: '' } },
        { base64: Buffer.from([0, 255]).toString('base64'), contentEncoding: 'gzip' },
        { text: 'long ago', mature: 1 },
      ];
      inserted(await client.insertLines('N', queue, lines));
      assert.deepEqual(await sizes(client, 'N', queue), { size: 3, schedSize: 1, resvSize: 0 });
      const oldest = await client.get('N', queue, { to: 0 });
      assert.equal(oldest.body.toString(), 'long ago');
      assert.equal(headerOf(oldest, 'x-ks-mature'), '1970-01-01T00:00:01.000Z');
      const now = await client.get('N', queue, { to: 0 });
      assert.equal(headerOf(now, 'content-type'), 'text/plain; charset=utf-8');
      assert.equal(headerOf(now, 'x-ks-tries'), '2');
      assert.deepEqual(
        [...elementHeadersOf(now)],
        [
          ['a', Buffer.from('ä').toString('latin1')],
          ['b', ''],
        ],
      );
      const bytes = await client.get('N', queue, { to: 0 });
      assert.deepEqual(bytes.body, Buffer.from([0, 255]));
      assert.equal(headerOf(bytes, 'content-encoding'), 'gzip');
      assert.equal(headerOf(bytes, 'content-type'), 'application/octet-stream');
    });

    it('a line that repeats a key stores nothing and is answered with the first id', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const first = inserted(await client.insertLines('N', queue, [{ text: 'a', key: 'k1' }, { text: 'b' }]));
      assert.equal(first.repeated, undefined);
      const second = inserted(
        await client.insertLines('N', queue, [
          { text: 'c' },
          { text: 'a', key: 'k1' },
          { text: 'd', key: 'k2' },
          { text: 'd', key: 'k2' },
        ]),
      );
      assert.deepEqual(second.repeated, [1, 3]);
      assert.equal(second.ids[1], first.ids[0]);
      assert.equal(second.ids[3], second.ids[2]);
      assert.deepEqual(await drain(client, 'N', queue), ['a', 'b', 'c', 'd']);
    });

    it('the key of a line is equivalent to the Idempotency-Key of a single insert', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const { ids } = inserted(await client.insertLines('N', queue, [{ text: 'a', key: 'ké' }]));
      const headers = { 'idempotency-key': Buffer.from('ké').toString('latin1') };
      const single = await client.insert('N', queue, 'a', { headers });
      assert.deepEqual(jsonOf<{ id: string }>(single).id, ids[0]);
      assert.equal(headerOf(single, 'x-ks-repeated'), 'true');
    });

    it('a line that reuses a key with other content is named in the error, and nothing is stored', async () => {
      const client = harness().client();
      const queue = harness().queue();
      inserted(await client.insertLines('N', queue, [{ text: 'a', key: 'k' }]));
      const bad = [{ text: 'b', key: 'other' }, { text: 'c' }, '', { text: 'd', key: 'k' }, { text: 'e' }];
      const { code, line } = problem(await client.insertLines('N', queue, bad), 422);
      assert.deepEqual([code, line], ['idempotency-mismatch', 4]);
      const twice = [{ text: 'f' }, { text: 'g', key: 'new' }, { text: 'h', key: 'new' }];
      assert.equal(problem(await client.insertLines('N', queue, twice), 422).line, 3);
      assert.deepEqual(await drain(client, 'N', queue), ['a']);
      // The keys of rejected requests are not stored either.
      const again = inserted(
        await client.insertLines('N', queue, [
          { text: 'i', key: 'other' },
          { text: 'j', key: 'new' },
        ]),
      );
      assert.equal(again.repeated, undefined);
      assert.deepEqual(await drain(client, 'N', queue), ['i', 'j']);
    });

    it('a request with a key is stored once, and a repeat returns the same ids', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const headers = { 'idempotency-key': 'import 17' };
      const lines = [
        { json: { a: 1 } },
        { text: 'b', delay: 0.001 },
        { base64: 'Yw==', headers: { x: 'y' } },
      ];
      const first = await client.insertLines('N', queue, lines, { headers });
      assert.deepEqual([first.headers['x-ks-repeated'], inserted(first).repeated], [undefined, undefined]);
      // The same elements in a different notation.
      const again = await client.insertLines(
        'N',
        queue,
        ['', '{ "json": {"a":1}}', '{"delay":0.001,"text":"b"}', '{"headers":{"X":"y"},"base64":"Yw=="}'],
        { headers },
      );
      assert.deepEqual(inserted(again), { ids: inserted(first).ids, repeated: [0, 1, 2] });
      assert.equal(headerOf(again, 'x-ks-repeated'), 'true');
      assert.equal(jsonOf<{ stats: { put: number } }>(await client.status('N', queue)).stats.put, 3);
      await harness().passTime(2);
      assert.deepEqual((await drain(client, 'N', queue)).sort(), ['b', 'c', '{"a":1}']);
    });

    it('a request that reuses a request key with other content is rejected and stores nothing', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const headers = { 'idempotency-key': 'k' };
      const lines = [{ text: 'ab' }, { text: 'c', headers: { x: '1' } }];
      inserted(await client.insertLines('N', queue, lines, { headers }));
      const others = [
        [{ text: 'a' }, { text: 'bc', headers: { x: '1' } }],
        [{ text: 'ab' }],
        [...lines, { text: 'd' }],
        [...lines].reverse(),
        [{ text: 'ab' }, { text: 'c', headers: { x: '2' } }],
        [{ text: 'ab' }, { text: 'c', headers: { x: '1' }, tries: 1 }],
        [{ text: 'ab' }, { text: 'c', headers: { x: '1' }, ttl: 60 }],
      ];
      for (const other of others) {
        const { code, detail, line } = problem(await client.insertLines('N', queue, other, { headers }), 422);
        assert.deepEqual([code, line], ['idempotency-mismatch', undefined], JSON.stringify(other));
        assert.match(detail, /^The request's key "k" was used before/);
      }
      const query = { delay: 60 };
      assert.equal((await client.insertLines('N', queue, lines, { headers, query })).status, 422);
      assert.deepEqual(await drain(client, 'N', queue), ['ab', 'c']);
    });

    it('a request that reuses a request key is rejected if one property of one element differs', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const headers = { 'idempotency-key': 'k' };
      const lines = ['a', 'b', 'c'].map((text) => ({ text }));
      inserted(await client.insertLines('N', queue, lines, { headers }));
      const differences = [
        { contentType: 'text/plain' },
        { contentEncoding: 'gzip' },
        { headers: { x: '1' } },
        { mature: 1 },
        { delay: 1 },
        { tries: 1 },
        { ttl: 60 },
      ];
      for (const difference of differences) {
        const other = lines.map((line) => (line.text === 'b' ? { ...line, ...difference } : line));
        const { code } = problem(await client.insertLines('N', queue, other, { headers }), 422);
        assert.equal(code, 'idempotency-mismatch', JSON.stringify(difference));
      }
      assert.deepEqual(await drain(client, 'N', queue), ['a', 'b', 'c']);
    });

    it('a request key is independent of element keys and of other queues', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const headers = { 'idempotency-key': 'k' };
      inserted(await client.insertLines('N', queue, [{ text: 'a' }], { headers }));
      assert.equal((await client.insert('N', queue, 'b', { headers })).status, 200);
      assert.equal(problem(await client.insertLines('N', queue, [{ text: 'x', key: 'k' }]), 422).line, 1);
      inserted(await client.insertLines('N', queue, [{ text: 'c', key: 'other' }]));
      const elsewhere = await client.insertLines('N', harness().queue(), [{ text: 'd' }], { headers });
      assert.equal(inserted(elsewhere).repeated, undefined);
      assert.deepEqual(await drain(client, 'N', queue), ['a', 'b', 'c']);
    });

    it('a multipart request can have a request key, too', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const headers = { 'idempotency-key': 'k' };
      const insert = (content: string) =>
        client.insertMany('N', queue, multipart(['', 'a'], ['x-ks-hdr-a: 1\r\n', content]), TYPE, {
          headers,
        });
      const { ids } = inserted(await insert('b'));
      assert.deepEqual(inserted(await insert('b')), { ids, repeated: [0, 1] });
      problem(await insert('c'), 422);
      assert.deepEqual(await drain(client, 'N', queue), ['a', 'b']);
    });

    it('one call can use every kind of settlement and reports the outcome of each item', async () => {
      const client = harness().client();
      const queue = harness().queue();
      inserted(
        await client.insertLines(
          'jobs',
          queue,
          ['a', 'b', 'c', 'd', 'e', 'f', 'g'].map((text) => ({ text })),
        ),
      );
      const [a, b, c, d, e, f] = await reserve(client, 'jobs', queue, 6);
      const waiting = inserted(await client.insertLines('jobs', queue, [{ text: 'w' }])).ids[0];
      const results = settled(
        await client.settleMany('jobs', queue, {
          rollback: [
            { id: b?.id, delay: 60_000, reason: 'busy' },
            { id: c?.id, token: c?.token },
          ],
          commit: [a?.id, { id: 'nobody' }, { id: waiting }, { id: e?.id, token: 'of-another-reservation' }],
          release: [{ id: f?.id, token: f?.token }, 'nobody'],
          extend: [{ id: e?.id, token: e?.token, lease: 600_000 }],
          bury: [{ id: d?.id, reason: 'hopeless' }],
        }),
      );
      assert.deepEqual(
        results.map(({ id, action, outcome }) => [id, action, outcome]),
        [
          [b?.id, 'rollback', 'done'],
          [c?.id, 'rollback', 'done'],
          [a?.id, 'commit', 'done'],
          ['nobody', 'commit', 'not-found'],
          [waiting, 'commit', 'not-reserved'],
          [e?.id, 'commit', 'lease-lost'],
          [f?.id, 'release', 'done'],
          ['nobody', 'release', 'not-found'],
          [e?.id, 'extend', 'done'],
          [d?.id, 'bury', 'dead-lettered'],
        ],
      );
      const { until = '' } = results[8] as Settled;
      assert.ok(Date.parse(until) > harness().opened.now() + 500_000, until);
      assert.deepEqual(await sizes(client, 'jobs', queue), { size: 4, schedSize: 1, resvSize: 1 });
      const dead = await client.get('jobs', '__deadletter__', { to: 10_000 });
      assert.equal(dead.body.toString(), 'd');
      assert.equal(elementHeadersOf(dead).get('x-dl-reason'), 'hopeless');
      assert.equal(elementHeadersOf(dead).get('x-dl-tries'), '1');
    });

    it('10,000 reservations are settled by one call', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const lines = Array.from({ length: 10_000 }, (_, i) => `{"text":"${i}"}`);
      inserted(await client.insertLines('N', queue, lines));
      const namespace = harness().broker.namespace('N');
      const ids: string[] = [];
      while (ids.length < 10_000) {
        const taken = await namespace.storage.take(
          { ns: 'N', name: queue },
          { group: namespace.defaultGroup, count: 1000, leaseMs: 600_000, owner: 'test1' },
        );
        for (const { id } of taken.deliveries) ids.push(id);
      }
      const commit = ids.filter((_, i) => i % 2 === 0);
      const rollback = ids.filter((_, i) => i % 2 === 1);
      const results = settled(await client.settleMany('N', queue, { commit, rollback }));
      assert.deepEqual(
        results.map(({ id }) => id),
        [...commit, ...rollback],
      );
      assert.ok(results.every(({ outcome }) => outcome === 'done'));
      assert.deepEqual(await sizes(client, 'N', queue), { size: 5000, schedSize: 0, resvSize: 0 });
    });

    it('a batch into a stream that would have more than 100,000 deliveries is rejected as a whole', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const groups = Array.from({ length: 64 }, (_, i) => `G${i}`);
      const lines = Array.from({ length: 1563 }, () => ({ text: '', groups }));
      const { code, detail } = problem(await client.insertLines('events', queue, lines), 413);
      assert.equal(code, 'body-too-large');
      assert.match(detail, /^Line 1563: .* more than 100000 deliveries together/);
      assert.equal((await client.get('events', queue, { group: 'G0', to: 0 })).status, 504);
      assert.equal(inserted(await client.insertLines('events', queue, lines.slice(0, 20))).ids.length, 20);
    });

    it('a line names the groups of a stream in an array, and each group settles its own delivery', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const lines = [{ text: 'a', groups: ['G1', 'G2'] }, { text: 'b', groups: ['G2'] }, { text: 'c' }];
      const { ids } = inserted(await client.insertLines('events', queue, lines));
      for (const group of ['G1', 'G2', 'G2']) await client.reserve('events', queue, { to: 0, group });
      const results = settled(
        await client.settleMany('events', queue, {
          commit: [
            { id: ids[0], group: 'G1' },
            { id: ids[0], group: 'G2' },
            { id: ids[1], group: 'G1' },
            { id: ids[1], group: 'G2' },
          ],
        }),
      );
      assert.deepEqual(
        results.map(({ outcome }) => outcome),
        ['done', 'done', 'not-found', 'done'],
      );
      assert.equal((await client.get('events', queue, { to: 0 })).body.toString(), 'c');
    });

    it('a batch insert serves waiting consumers', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const waiting = Array.from({ length: 3 }, () => client.get('N', queue, { to: 60_000 }));
      await harness().waiting(3);
      inserted(
        await client.insertLines(
          'N',
          queue,
          ['a', 'b', 'c', 'd'].map((text) => ({ text })),
        ),
      );
      const bodies = (await Promise.all(waiting)).map(({ body }) => body.toString());
      assert.deepEqual(bodies.sort(), ['a', 'b', 'c']);
      assert.deepEqual(await drain(client, 'N', queue), ['d']);
    });
  });
}

describe('Insert many: request bodies', () => {
  const harness = sharedHarness({
    http: { batchCount: 20, batchBytes: 65_536, bodyLimit: 1000, logsAccess: true },
  });

  /** Asserts that a request is rejected and stores nothing; returns its problem. */
  async function rejected(send: (client: QueueClient, queue: string) => Promise<Answer>, status = 400) {
    const client = harness().client();
    const queue = harness().queue();
    const answer = problem(await send(client, queue), status);
    assert.deepEqual(await sizes(client, 'N', queue), { size: 0, schedSize: 0, resvSize: 0 });
    return answer;
  }

  const line = (given: object | string, status = 400) =>
    rejected(
      (client, queue) => client.insertLines('N', queue, [{ text: 'good' }, given, { text: 'good' }]),
      status,
    );

  it('an error names the bad line, its member and what is allowed', async () => {
    const rows: readonly (readonly [object | string, string, string | undefined, RegExp])[] = [
      ['{"text":', 'invalid-body', undefined, /^Line 2: It is not JSON: /],
      ['"text"', 'invalid-body', undefined, /^Line 2: It is "text", not a JSON object\.$/],
      [[], 'invalid-body', undefined, /an empty array, not a JSON object/],
      ['null', 'invalid-body', undefined, /null, not a JSON object/],
      [{}, 'invalid-parameter', 'json', /^Line 2: There is no body\. Give one of json, text and base64\.$/],
      [{ text: null }, 'invalid-parameter', 'json', /There is no body/],
      [{ text: 'a', json: null }, 'invalid-parameter', 'json', /more than one body/],
      [{ text: 1 }, 'invalid-parameter', 'text', /text must be a string .*, not 1\.$/],
      ['{"text":"\\ud800"}', 'invalid-parameter', 'text', /well-formed/],
      [{ base64: 'a' }, 'invalid-parameter', 'base64', /padding/],
      [{ base64: 'a-_=' }, 'invalid-parameter', 'base64', /padding/],
      [
        { text: 'a', dealy: 1 },
        'invalid-parameter',
        'dealy',
        /Unknown member dealy\. Did you mean "delay"\?/,
      ],
      [
        { text: 'a', delay: -1 },
        'invalid-parameter',
        'delay',
        /seconds, a number from 0 to 315360000, not -1/,
      ],
      [{ text: 'a', delay: '1' }, 'invalid-parameter', 'delay', /not "1"/],
      [{ text: 'a', delay: 315_360_001 }, 'invalid-parameter', 'delay', /315360001/],
      ['{"text":"a","delay":1e999}', 'invalid-parameter', 'delay', /Infinity/],
      [{ text: 'a', mature: 1_800_000_000_000 }, 'invalid-parameter', 'mature', /may be milliseconds/],
      [{ text: 'a', mature: true }, 'invalid-parameter', 'mature', /unix time in seconds/],
      [{ text: 'a', ttl: 0 }, 'invalid-parameter', 'ttl', /from 0\.001/],
      [{ text: 'a', tries: 1.5 }, 'invalid-parameter', 'tries', /whole number from 0 to 1000000/],
      [{ text: 'a', tries: 1_000_001 }, 'invalid-parameter', 'tries', /1000001/],
      [{ text: 'a', groups: 'G1' }, 'invalid-parameter', 'groups', /an array of 1 to 64 names/],
      [{ text: 'a', groups: [] }, 'invalid-parameter', 'groups', /an array of 1 to 64 names/],
      [{ text: 'a', groups: ['a,b'] }, 'invalid-parameter', 'groups[0]', /not a valid consumer group name/],
      // A lone surrogate has no UTF-8 form: after a restart its elements would belong to another group.
      [{ text: 'a', groups: ['\ud800'] }, 'invalid-parameter', 'groups[0]', /well-formed/],
      [{ text: 'a', groups: [1] }, 'invalid-parameter', 'groups[0]', /a string/],
      [{ text: 'a', groups: ['G1'] }, 'invalid-parameter', 'groups', /plain queues/],
      [{ text: 'a', headers: [] }, 'invalid-parameter', 'headers', /a JSON object/],
      [{ text: 'a', headers: { a: 1 } }, 'invalid-parameter', 'headers.a', /a string, not 1/],
      [{ text: 'a', headers: { 'a b': 'x' } }, 'invalid-header', 'headers["a b"]', /lower-case HTTP token/],
      [{ text: 'a', headers: { 'A b': 'x' } }, 'invalid-header', 'headers["A b"]', /lower-case HTTP token/],
      [{ text: 'a', headers: { a: 'x\ny' } }, 'invalid-header', 'headers.a', /control character/],
      [{ text: 'a', headers: { a: '1', A: '2' } }, 'invalid-parameter', 'headers.A', /given twice/],
      [{ text: 'a', headers: { 'X-KS-HDR-a': '1' } }, 'invalid-parameter', 'headers["X-KS-HDR-a"]', /prefix/],
      [{ text: 'a', contentType: 7 }, 'invalid-parameter', 'contentType', /a string/],
      [{ text: 'a', contentType: 'x'.repeat(256) }, 'invalid-header', 'contentType', /at most 255/],
      [{ text: 'a', contentEncoding: 'a\nb' }, 'invalid-header', 'contentEncoding', /control character/],
      [{ text: 'a', key: '' }, 'invalid-parameter', 'key', /1 to 255 bytes/],
      [{ text: 'a', key: 'a\0b' }, 'invalid-parameter', 'key', /control characters/],
      [{ text: 'a', key: 'x'.repeat(256) }, 'invalid-parameter', 'key', /1 to 255 bytes/],
    ];
    for (const [given, code, parameter, detail] of rows) {
      const what = JSON.stringify(given);
      const answer = await line(given);
      assert.deepEqual([answer.code, answer.line, answer.parameter], [code, 2, parameter], what);
      assert.match(answer.detail, /^Line 2: /, what);
      assert.match(answer.detail, detail, what);
    }
  });

  it('a line that is not UTF-8 is rejected', async () => {
    const body = Buffer.concat([
      Buffer.from('{"text":"a"}\n{"text":"'),
      Buffer.from([0xff]),
      Buffer.from('"}\n'),
    ]);
    const answer = await rejected((client, queue) =>
      client.insertMany('N', queue, body, 'application/x-ndjson'),
    );
    assert.deepEqual(
      [answer.code, answer.line, answer.detail],
      ['invalid-body', 2, 'Line 2: It is not UTF-8.'],
    );
  });

  it('blank lines count in the line number of an error', async () => {
    const blank = ' \r\n\t\n\n'.repeat(1_000);
    const body = `${blank}  {"text":"a"} \r\n${blank} {`;
    const answer = await rejected((client, queue) =>
      client.insertMany('N', queue, body, 'application/x-ndjson'),
    );
    assert.deepEqual([answer.code, answer.line], ['invalid-body', 6_002]);
  });

  it('an element body over bodyLimit is rejected with its line number', async () => {
    const answer = await line({ text: 'x'.repeat(1001) }, 413);
    assert.deepEqual([answer.code, answer.line, answer.limit], ['body-too-large', 2, 1000]);
  });

  it('a batch with one element or one byte too many is rejected', async () => {
    const lines = Array.from({ length: 21 }, () => ({ text: 'a' }));
    const count = await rejected((client, queue) => client.insertLines('N', queue, lines), 413);
    assert.deepEqual([count.code, count.line, count.limit], ['body-too-large', 21, 20]);
    const large = await rejected(
      (client, queue) => client.insertLines('N', queue, ['x'.repeat(65_536)]),
      413,
    );
    assert.deepEqual([large.code, large.limit], ['body-too-large', 65_536]);
  });

  it('lines may end with CRLF and may be empty, and the last needs no line end', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const body = '{"text":"a"}\r\n\n  \n{"text":"b"}';
    const { ids } = inserted(
      await client.insertMany('N', queue, body, 'application/x-ndjson; charset=utf-8'),
    );
    assert.equal(ids.length, 2);
    const bad = '\n\n{"text":"a","tries":-1}\n';
    assert.equal(problem(await client.insertMany('N', queue, bad, 'application/x-ndjson'), 400).line, 3);
  });

  it('an empty body inserts nothing', async () => {
    const client = harness().client();
    assert.deepEqual(inserted(await client.insertMany('N', harness().queue(), '', 'application/x-ndjson')), {
      ids: [],
    });
  });

  it('json is stored exactly as written in the line', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const bodies = [
      '{"n": 12345678901234567890.50, "a":[1,2 , {"b":"}\\"]"}],"\\ud83d":"\\\\"}',
      '"a \\" b"',
      '-1.0e+2',
      'null',
      '[ ]',
      '"☃"',
    ];
    const lines = bodies.map((json, i) =>
      i % 2 === 0 ? `{"json":${json},"tries":1}` : `{ "key" : "\\\\\\"k${i}", "\\u006ason"  :  ${json} }`,
    );
    inserted(await client.insertLines('N', queue, lines));
    const first = await client.get('N', queue, { to: 0 });
    assert.equal(first.body.toString(), bodies[0]);
    assert.equal(headerOf(first, 'content-type'), 'application/json');
    assert.deepEqual(await drain(client, 'N', queue), bodies.slice(1));
  });

  it('the last of duplicate members of a line wins', async () => {
    const client = harness().client();
    const queue = harness().queue();
    inserted(await client.insertLines('N', queue, ['{"json":1,"json":[2]}']));
    assert.deepEqual(await drain(client, 'N', queue), ['[2]']);
  });

  it('query parameters are the defaults of lines and parts', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const query = { mature: 4_000_000_000, tries: 3 };
    const lines = [{ text: 'a' }, { text: 'b', delay: 0, tries: 0 }, { text: 'c', mature: 0 }];
    inserted(await client.insertLines('N', queue, lines, { query }));
    inserted(await client.insertMany('N', queue, multipart(['', 'd']), TYPE, { query: { delay: 1.5 } }));
    assert.deepEqual(await sizes(client, 'N', queue), { size: 2, schedSize: 2, resvSize: 0 });
    const [c, b] = [await client.get('N', queue, { to: 0 }), await client.get('N', queue, { to: 0 })];
    assert.deepEqual([c.body.toString(), headerOf(c, 'x-ks-tries')], ['c', '3']);
    assert.deepEqual([b.body.toString(), headerOf(b, 'x-ks-tries')], ['b', '0']);
  });

  it('elements with a time to live expire', async () => {
    const client = harness().client();
    const queue = harness().queue();
    inserted(await client.insertLines('N', queue, [{ text: 'short', ttl: 1 }, { text: 'long' }]));
    await harness().passTime(1001);
    assert.deepEqual(await drain(client, 'N', queue), ['long']);
  });

  it('headers of a single element and unusable content types are rejected on the request', async () => {
    const rows = [
      [{ 'idempotency-key': 'k'.repeat(256) }, 'idempotency-key'],
      [{ 'x-ks-hdr-a': '1' }, 'x-ks-hdr-*'],
      [{ 'content-encoding': 'gzip' }, 'content-encoding'],
      [{ 'content-type': 'application/json' }, 'content-type'],
      [{ 'content-type': 'multipart/mixed' }, 'content-type'],
      [{ 'content-type': `multipart/mixed; boundary=${'x'.repeat(71)}` }, 'content-type'],
    ] as const;
    for (const [headers, parameter] of rows) {
      const answer = await rejected((client, queue) =>
        client.insertLines('N', queue, [{ text: 'a' }], { headers }),
      );
      assert.deepEqual([answer.code, answer.parameter], ['invalid-header', parameter]);
    }
  });

  it('a request key cannot be combined with element keys', async () => {
    const headers = { 'idempotency-key': 'k' };
    const line = await rejected((client, queue) =>
      client.insertLines('N', queue, [{ text: 'a' }, { text: 'b', key: 'own' }], { headers }),
    );
    assert.deepEqual([line.code, line.parameter, line.line], ['invalid-parameter', 'key', 2]);
    assert.match(line.detail, /^Line 2: key "own" cannot be given in addition/);
    const body = multipart(['idempotency-key: own\r\n', 'a']);
    const part = await rejected((client, queue) => client.insertMany('N', queue, body, TYPE, { headers }));
    assert.deepEqual([part.code, part.parameter, part.part], ['invalid-parameter', 'idempotency-key', 1]);
  });

  it('parts are stored byte for byte, with the headers of a single insert', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const bytes = Buffer.from([0, 13, 10, 45, 45, 97, 255]);
    const body = multipart(
      ['Content-Type: image/png\r\nX-KS-HDR-A: é \r\nx-ks-hdr-a: 2\r\nIdempotency-Key: k\r\n', bytes],
      ['', ''],
      [`content-length: 2\r\nContent-Transfer-Encoding: Binary\r\ncontent-encoding: br\r\n`, '\r\n'],
    );
    const preamble = Buffer.from('this is left out\r\n');
    const whole = Buffer.concat([preamble, body, Buffer.from('and this')]);
    const { ids } = inserted(await client.insertMany('N', queue, whole, TYPE));
    assert.equal(ids.length, 3);
    const png = await client.get('N', queue, { to: 0 });
    assert.deepEqual(png.body, bytes);
    assert.equal(headerOf(png, 'content-type'), 'image/png');
    assert.deepEqual([...elementHeadersOf(png)], [['a', 'é, 2']]);
    const empty = await client.get('N', queue, { to: 0 });
    assert.deepEqual([empty.body.length, headerOf(empty, 'content-type')], [0, 'application/octet-stream']);
    const last = await client.get('N', queue, { to: 0 });
    assert.deepEqual([last.body.toString(), headerOf(last, 'content-encoding')], ['\r\n', 'br']);
    const again = inserted(await client.insertMany('N', queue, body, TYPE));
    assert.deepEqual([again.repeated, again.ids[0]], [[0], ids[0]]);
  });

  it('an error names the bad part by its number', async () => {
    const rows: readonly (readonly [string, RegExp])[] = [
      ['content-type text/plain\r\n', /^Part 2: "content-type text\/plain" is not a header\.$/],
      [' folded: x\r\n', /is not a header/],
      ['x-ks-hdr-a: x\0y\r\n', /is not a header/],
      ['content-transfer-encoding: base64\r\n', /byte for byte/],
      ['content-length: 5\r\n', /Content-Length is "5", and the part has 1 bytes/],
      [`x-ks-hdr-a: ${'x'.repeat(17_000)}\r\n`, /No empty line ends its headers within 16384 bytes/],
      [`content-type: ${'x'.repeat(256)}\r\n`, /at most 255/],
      [`idempotency-key: ${'x'.repeat(256)}\r\n`, /1 to 255/],
    ];
    for (const [headers, detail] of rows) {
      const body = multipart(['', 'a'], [headers, 'b']);
      const answer = await rejected((client, queue) => client.insertMany('N', queue, body, TYPE));
      assert.equal(answer.part, 2, headers);
      assert.match(answer.detail, detail);
    }
  });

  it('a multipart body without a final boundary, or with a malformed boundary, is rejected', async () => {
    const whole = multipart(['', 'a'], ['', 'b']).toString();
    const bodies = [
      '',
      'no boundary',
      whole.slice(0, -6),
      whole.replace(`\r\n--${BOUNDARY}\r\n\r\nb`, `\r\n--${BOUNDARY}x\r\n\r\nb`),
      whole.replaceAll('\r\n', '\n'),
    ];
    for (const body of bodies) {
      const answer = await rejected((client, queue) => client.insertMany('N', queue, body, TYPE));
      assert.equal(answer.code, 'invalid-body', JSON.stringify(body));
    }
  });

  it('a multipart body whose lines end with LF is rejected with an error that says so', async () => {
    const body = multipart(['', 'a']).toString().replaceAll('\r\n', '\n');
    const answer = await rejected((client, queue) => client.insertMany('N', queue, body, TYPE));
    assert.equal(answer.detail, 'Part 1: Its lines end with LF alone. Use CRLF (RFC 2046).');
  });

  it('a client that disconnects before the end of its body stores nothing', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const connection = await RawConnection.open(harness().port);
    const head = [
      `POST /q/N/${queue}/elements HTTP/1.1`,
      'Host: test',
      AUTHORIZATION,
      'Content-Length: 2000',
    ];
    connection.socket.write(rawRequest([...head, 'Content-Type: application/x-ndjson'], '{"text":"a"}\n'));
    connection.socket.write('{"text":"b"}\n');
    await client.status('N', queue);
    connection.socket.destroy();
    const path = `/q/N/${queue}/elements`;
    await until(() => harness().log.some(({ fields }) => fields.event === 'access' && fields.path === path));
    assert.deepEqual(await sizes(client, 'N', queue), { size: 0, schedSize: 0, resvSize: 0 });
  });
});

describe('Settle many: request bodies', () => {
  const users = ['test1', 'ben'].map((name) => ({ name, password: name, rights: null }));
  const harness = sharedHarness({ users, http: { batchCount: 20 } });

  it('a malformed body is rejected with the path of the bad member, and nothing is settled', async () => {
    const client = harness().client();
    const queue = harness().queue();
    inserted(await client.insertLines('N', queue, [{ text: 'a' }]));
    const [a] = await reserve(client, 'N', queue, 1);
    const rows: readonly (readonly [object, string, RegExp])[] = [
      [[], '', /^The body must be a JSON object/],
      [{ comit: [] }, 'comit', /Did you mean "commit"\?/],
      [{ rollback: {} }, 'rollback', /an array, not an empty object/],
      [{ rollback: null }, 'rollback', /an array, not null/],
      [{ rollback: [7] }, 'rollback[0]', /a JSON object, not 7/],
      [{ rollback: [{}] }, 'rollback[0].id', /is missing/],
      [{ rollback: [{ id: 7 }] }, 'rollback[0].id', /a string, not 7/],
      [{ rollback: ['x', { id: 'x', tokn: 'y' }] }, 'rollback[1].tokn', /Did you mean "token"\?/],
      [{ rollback: [{ id: 'x', token: 7 }] }, 'rollback[0].token', /a string/],
      [{ rollback: [{ id: 'x', group: 7 }] }, 'rollback[0].group', /a string/],
      [{ rollback: [{ id: 'x', reason: 7 }] }, 'rollback[0].reason', /a string/],
      [{ rollback: [{ id: 'x', delay: -1 }] }, 'rollback[0].delay', /milliseconds, a whole number from 0/],
      [{ rollback: [{ id: 'x', delay: 1.5 }] }, 'rollback[0].delay', /1\.5/],
      [{ extend: [{ id: 'x', lease: 0 }] }, 'extend[0].lease', /from 1 to/],
      [{ extend: [{ id: 'x', delay: 1 }] }, 'extend[0].delay', /Unknown member/],
      [{ release: [{ id: 'x', delay: 1 }] }, 'release[0].delay', /Unknown member/],
      [{ bury: [{ id: 'x', delay: 1 }] }, 'bury[0].delay', /Unknown member/],
    ];
    for (const [body, parameter, detail] of rows) {
      const given = Array.isArray(body) ? body : { commit: [a?.id], ...body };
      const answer = problem(await client.settleMany('N', queue, given), 400);
      const what = JSON.stringify(body);
      assert.deepEqual([answer.code, answer.parameter], ['invalid-parameter', parameter], what);
      assert.match(answer.detail, detail, what);
    }
    const path = `/q/N/${queue}/settle`;
    assert.equal(
      problem(await client.request('POST', path, { body: '{"commit":' }), 400).code,
      'invalid-body',
    );
    const tooMany = { commit: [a?.id], rollback: Array.from({ length: 20 }, () => 'x') };
    assert.equal(problem(await client.settleMany('N', queue, tooMany), 413).limit, 20);
    const tooLarge = JSON.stringify({ commit: ['x'.repeat(5_000_000)] });
    assert.equal(problem(await client.request('POST', path, { body: tooLarge }), 413).code, 'body-too-large');
    // 4 MiB of these would take the parser up to a second.
    const members = JSON.stringify(Object.fromEntries(Array.from({ length: 200 }, (_, i) => [`m${i}`, 1])));
    for (const costly of [`{"commit":${'['.repeat(200)}${']'.repeat(200)}}`, members]) {
      const answer = problem(await client.request('POST', path, { body: costly }), 413);
      assert.deepEqual([answer.code, answer.limit], ['body-too-large', 20]);
      assert.match(answer.detail, /more JSON values than 20 items can have/);
    }
    assert.deepEqual(await sizes(client, 'N', queue), { size: 0, schedSize: 0, resvSize: 1 });
  });

  it('as many items as are allowed may have all of their members, with any punctuation in their reasons', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const reason = '[{,"\\'.repeat(40);
    const item = { id: 'x', token: null, group: null, delay: 1, reason };
    const results = settled(
      await client.settleMany('N', queue, { rollback: Array.from({ length: 20 }, () => item) }),
    );
    assert.equal(results.length, 20);
  });

  it('impossible ids, groups and tokens are reported as outcomes of their items', async () => {
    const client = harness().client();
    const queue = harness().queue();
    inserted(await client.insertLines('N', queue, [{ text: 'a' }, { text: 'b' }]));
    const [a, b] = await reserve(client, 'N', queue, 2);
    const results = settled(
      await client.settleMany('N', queue, {
        commit: [
          '',
          'a b',
          'x'.repeat(65),
          { id: a?.id, group: 'a,b' },
          { id: a?.id, group: 'G1' },
          { id: a?.id, token: '☃' },
          { id: a?.id, token: null, group: null },
        ],
        rollback: [{ id: b?.id, reason: 'x'.repeat(5000) }],
      }),
    );
    assert.deepEqual(
      results.map(({ outcome }) => outcome),
      ['not-found', 'not-found', 'not-found', 'not-found', 'not-found', 'lease-lost', 'done', 'done'],
    );
  });

  it('an element named twice is settled once', async () => {
    const client = harness().client();
    const queue = harness().queue();
    inserted(await client.insertLines('N', queue, [{ text: 'a' }]));
    const [a] = await reserve(client, 'N', queue, 1);
    const results = settled(
      await client.settleMany('N', queue, { commit: [a?.id, a?.id], rollback: [a?.id] }),
    );
    assert.deepEqual(
      results.map(({ outcome }) => outcome),
      ['done', 'not-found', 'not-found'],
    );
  });

  it('an element that another user reserved requires its token', async () => {
    const client = harness().client();
    const ben = harness().client('ben:ben');
    const queue = harness().queue();
    inserted(await client.insertLines('N', queue, [{ text: 'a' }, { text: 'b' }]));
    const [a, b] = await reserve(client, 'N', queue, 2);
    const body = { commit: [a?.id, { id: b?.id, token: b?.token }] };
    const outcomes = settled(await ben.settleMany('N', queue, body)).map(({ outcome }) => outcome);
    assert.deepEqual(outcomes, ['token-required', 'done']);
  });

  it('an empty settlement is not an error', async () => {
    const client = harness().client();
    assert.deepEqual(settled(await client.settleMany('N', harness().queue(), {})), []);
    assert.deepEqual(settled(await client.settleMany('N', harness().queue(), { bury: [] })), []);
  });

  it('without a dead-letter queue a buried element is rolled back', async () => {
    const client = harness().client();
    const queue = harness().queue();
    inserted(await client.insertLines('N', queue, [{ text: 'a' }]));
    const [a] = await reserve(client, 'N', queue, 1);
    assert.equal(settled(await client.settleMany('N', queue, { bury: [a?.id] }))[0]?.outcome, 'done');
    const again = await client.get('N', queue, { to: 0 });
    assert.deepEqual([again.body.toString(), headerOf(again, 'x-ks-tries')], ['a', '1']);
  });

  it('without a dead-letter queue a buried element waits for the retry delay', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.setOptions('N', queue, { retryDelay: { first: 60 } });
    inserted(await client.insertLines('N', queue, [{ text: 'a' }]));
    const [a] = await reserve(client, 'N', queue, 1);
    const bury = [{ id: a?.id, reason: 'no amount' }];
    assert.equal(settled(await client.settleMany('N', queue, { bury }))[0]?.outcome, 'done');
    const { size, schedSize } = jsonOf<Record<string, number>>(await client.status('N', queue));
    assert.deepEqual([size, schedSize], [0, 1]);
  });

  it('the metrics count each kind of settlement by outcome', async () => {
    const client = harness().client();
    const queue = harness().queue();
    inserted(
      await client.insertLines(
        'jobs',
        queue,
        ['a', 'b', 'c', 'd'].map((text) => ({ text })),
      ),
    );
    const [a, b, c, d] = await reserve(client, 'jobs', queue, 4);
    const before = await counts(client);
    const body = { commit: [a?.id, 'nobody'], rollback: [b?.id], extend: [c?.id], bury: [d?.id] };
    assert.equal(settled(await client.settleMany('jobs', queue, body)).length, 5);
    const after = await counts(client);
    const grown = [...after].flatMap(([name, value]) =>
      value === (before.get(name) ?? 0) ? [] : [[name, value - (before.get(name) ?? 0)]],
    );
    assert.deepEqual(Object.fromEntries(grown), {
      'commit ok': 1,
      'commit element-not-found': 1,
      'rollback ok': 2,
      'extend ok': 1,
    });
  });

  it('the statistics of a queue count each element of a batch take and of a batch settlement', async () => {
    const client = harness().client();
    const queue = harness().queue();
    inserted(
      await client.insertLines(
        'N',
        queue,
        ['a', 'b', 'c', 'd', 'e'].map((text) => ({ text })),
      ),
    );
    const taken = await takeMany(client, queue, { reserve: true, count: 5, to: 0 });
    const [a, b, c, d, e] = linesOf(taken).map(({ id }) => id);
    const body = { commit: [a, 'nobody', b, c], rollback: [d, e] };
    assert.equal(settled(await client.settleMany('N', queue, body)).length, 6);
    const { stats } = jsonOf<{ stats: unknown }>(await client.status('N', queue));
    assert.deepEqual(stats, { put: 5, get: 0, reserve: 5, commit: 3, rollback: 2, deadletter: 0 });
  });

  async function counts(client: QueueClient): Promise<Map<string, number>> {
    // Metrics are collected at most once a second.
    await harness().passTime(1001);
    const text = (await client.request('GET', '/metrics')).body.toString();
    const found = new Map<string, number>();
    for (const [, labels = '', value] of text.matchAll(/^quayside_operations_total\{([^}]*)\} (\d+)$/gm)) {
      const label = (name: string): string => new RegExp(`${name}="([^"]*)"`).exec(labels)?.[1] ?? '';
      if (label('namespace') === 'jobs' && /commit|rollback|extend/.test(label('operation'))) {
        found.set(`${label('operation')} ${label('outcome')}`, Number(value));
      }
    }
    return found;
  }
});
