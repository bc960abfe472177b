import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { QuaysideError } from '../../src/model/errors.ts';
import type { TestEngine } from '../engines.ts';
import { declare, ExchangeNode, openEngine } from '../exchange/node.ts';
import { sharedHarness } from '../http/harness.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { plain } from '../support/broker.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { type Answer, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { REDIS_LIST } from './redis.ts';

interface Refused {
  readonly what: string;
  /** The methods that the path still allows. */
  readonly allow: string;
  /** What the list does not support, if the operation itself is. */
  readonly parameter?: string;
  readonly call: (client: QueueClient) => Promise<Answer>;
}

/** Calls that a list does not support. */
const REFUSED: readonly Refused[] = [
  {
    what: 'insert with a delay',
    allow: 'GET, DELETE',
    parameter: 'delay',
    call: (client) => client.insert('N', 'q', 'a', { delay: 5 }),
  },
  {
    what: 'insert with a maturity',
    allow: 'GET, DELETE',
    parameter: 'mature',
    call: (client) => client.insert('N', 'q', 'a', { mature: 4e9 }),
  },
  {
    what: 'insert with a time to live',
    allow: 'GET, DELETE',
    parameter: 'ttl',
    call: (client) => client.request('PUT', '/q/N/q?ttl=5', { body: 'a' }),
  },
  {
    what: 'reserve',
    allow: 'PUT, POST, DELETE',
    parameter: 'reserve',
    call: (client) => client.reserve('N', 'q', { to: 0 }),
  },
  { what: 'commit', allow: '', call: (client) => client.commit('N', 'q', 'any') },
  { what: 'rollback', allow: '', call: (client) => client.rollback('N', 'q', 'any') },
  { what: 'extend', allow: '', call: (client) => client.extend('N', 'q', 'any', { lease: 1000 }) },
  { what: 'remove', allow: '', call: (client) => client.remove('N', 'q', 'any') },
];

describe('HTTP over the list variant of Redis', () => {
  const harness = sharedHarness({ engine: REDIS_LIST, namespaces: [plain('N')] });

  it('returns an element as it was inserted, with its headers and tries', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const headers = { 'x-ks-hdr-colour': 'red' };
    const options = { contentType: 'text/odd', headers, tries: 2 };
    const inserted = jsonOf<{ id: string }>(await client.insert('N', queue, 'bytes', options));
    const answer = await client.get('N', queue, { to: 0 });
    assert.equal(answer.status, 200);
    assert.equal(answer.body.toString(), 'bytes');
    assert.equal(headerOf(answer, 'content-type'), 'text/odd');
    assert.equal(headerOf(answer, 'x-ks-hdr-colour'), 'red');
    assert.equal(headerOf(answer, 'x-ks-tries'), '2');
    assert.equal(headerOf(answer, 'x-ks-id'), inserted.id);
  });

  it('can be browsed with a selector, in pages, but not by id', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const ids: string[] = [];
    for (let n = 0; n < 5; n += 1) {
      const options = { contentType: 'text/plain', headers: { 'x-ks-hdr-n': String(n) } };
      const inserted = await client.insert('N', queue, String(n), options);
      ids.push(jsonOf<{ id: string }>(inserted).id);
    }
    const page = async (query: Record<string, string | number>) => {
      const answer = await client.request('GET', `/q/N/${queue}/elements`, { query });
      assert.equal(answer.status, 200, answer.body.toString());
      return jsonOf<{ elements: { id: string; text: string; state: string }[]; next: string | null }>(answer);
    };
    const first = await page({ where: 'env.msg.hdrs.n > 0', limit: 2 });
    assert.deepEqual(
      first.elements.map(({ id, text, state }) => [id, text, state]),
      [1, 2].map((n) => [ids[n], String(n), 'ready']),
    );
    const second = await page({ where: 'env.msg.payload != 3', limit: 2, after: first.next ?? '' });
    assert.deepEqual(
      second.elements.map(({ text }) => text),
      ['4'],
    );
    assert.deepEqual((await page({ state: 'reserved' })).elements, []);
    const one = await client.request('GET', `/q/N/${queue}/elements/${ids[0]}`);
    const { code, detail } = jsonOf<{ code: string; detail: string }>(one);
    assert.deepEqual(
      [code, detail],
      ['not-supported', 'Queues of namespace N do not support reading elements by id.'],
    );
    const size = jsonOf<{ size: number }>(await client.status('N', queue)).size;
    assert.equal(size, 5, 'nothing was taken');
  });

  it('stores an element with a past maturity behind earlier elements, whichever way it is inserted', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const path = `/q/N/${queue}/elements`;
    const lines = (line: object, query = {}) =>
      client.request('POST', path, {
        body: `${JSON.stringify(line)}\n`,
        headers: { 'content-type': 'application/x-ndjson' },
        query,
      });
    for (const answer of [
      await client.insert('N', queue, 'a'),
      await client.insert('N', queue, 'b', { mature: 0 }),
      await lines({ text: 'c', mature: 1.5 }),
      await lines({ text: 'd' }, { mature: 0 }),
    ])
      assert.equal(answer.status, 200, answer.body.toString());
    const later = await lines({ text: 'later', mature: 4e9 });
    assert.match(
      jsonOf<{ detail: string }>(later).detail,
      /Queues of namespace N do not support a maturity in the future\./,
    );
    const bodies = [];
    for (let left = 4; left > 0; left -= 1)
      bodies.push((await client.get('N', queue, { to: 0 })).body.toString());
    assert.deepEqual(bodies, ['a', 'b', 'c', 'd']);
  });

  it('wakes a blocked get', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const blocked = client.get('N', queue);
    await harness().waiting(1);
    await client.insert('N', queue, 'woken');
    assert.equal((await blocked).body.toString(), 'woken');
  });

  it('bounds a queue by maxElements, and rejects options that a list does not support', async () => {
    const client = harness().client();
    const queue = harness().queue();
    for (const options of [
      { lease: 5 },
      { ttl: 5 },
      { retryDelay: { first: 1 } },
      { deadLetter: { maxTries: 1 } },
    ]) {
      const answer = await client.setOptions('N', queue, options);
      assert.deepEqual([answer.status, jsonOf<{ code: string }>(answer).code], [405, 'not-supported']);
    }
    assert.equal((await client.setOptions('N', queue, { maxElements: 1 })).status, 200);
    assert.equal((await client.insert('N', queue, 'a')).status, 200);
    assert.equal((await client.insert('N', queue, 'b')).status, 507);
    assert.equal((await client.removeOptions('N', queue)).status, 204);
    assert.equal((await client.insert('N', queue, 'b')).status, 200);
  });

  for (const { what, allow, parameter, call } of REFUSED) {
    it(`rejects ${what} with 405 not-supported, and changes nothing`, async () => {
      const client = harness().client();
      const answer = await call(client);
      assert.equal(answer.status, 405);
      assert.equal(headerOf(answer, 'allow'), allow);
      const problem = jsonOf<{ code: string; parameter?: string }>(answer);
      assert.equal(problem.code, 'not-supported');
      assert.equal(problem.parameter, parameter);
      assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', 'q')).totalSize, 0);
    });
  }

  it('counts and purges a queue, and deletes an empty one', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const start = (request: object) =>
      client.request('POST', '/operations', {
        body: JSON.stringify({ source: { ns: 'N', queue }, ...request }),
        headers: { 'content-type': 'application/json' },
      });
    const path = `/q/N/${queue}`;
    for (const body of ['a', 'b', 'c']) await client.insert('N', queue, body);
    const { location = '' } = (await start({ action: 'count' })).headers;
    const counted = async () =>
      jsonOf<{ state: string; matched: number }>(await client.request('GET', location));
    await until(async () => (await counted()).state === 'done');
    assert.equal((await counted()).matched, 3);
    for (const request of [
      { action: 'delete' },
      { action: 'release' },
      { action: 'move', to: { ns: 'N', queue: 'r' } },
      { action: 'count', where: { ids: ['x'] } },
    ]) {
      const answer = await start(request);
      assert.deepEqual([answer.status, jsonOf<{ code: string }>(answer).code], [405, 'not-supported']);
    }
    assert.equal((await client.request('DELETE', path)).status, 409);
    const purged = await client.request('DELETE', `${path}/elements`);
    assert.deepEqual(jsonOf(purged), { removed: 3 });
    assert.equal((await client.request('DELETE', path)).status, 204);
    assert.ok(!(queue in jsonOf<object>(await client.queues('N'))));
  });

  it('lists unsupported features in the capabilities of a status', async () => {
    const status = await harness().client().status('N', harness().queue());
    const { capabilities } = jsonOf<{ capabilities: object }>(status);
    assert.deepEqual(capabilities, {
      sched: false,
      reserve: false,
      pipeline: false,
      tape: false,
      remove: false,
    });
  });

  it('rejects an exchange that would reserve from a list, naming field and namespace', async () => {
    const client = harness().client();
    const declaration = {
      src: { ns: 'N', queue: 'q' },
      dst: [{ ns: 'N', queue: 'r' }],
      consumer: { reserve: true },
    };
    const answer = await client.request('PUT', '/x/reserving', { body: JSON.stringify(declaration) });
    assert.equal(answer.status, 400);
    const { code, parameter, detail } = jsonOf<Record<string, string>>(answer);
    assert.deepEqual([code, parameter], ['invalid-parameter', 'consumer.reserve']);
    assert.match(detail ?? '', /namespace N do not support reservations/);
    assert.equal((await client.request('GET', '/x/reserving')).status, 404);
  });
});

describe('Exchanges over the list variant of Redis', () => {
  const sandbox = sharedSandbox();
  let lists: TestEngine;
  let others: Awaited<ReturnType<typeof openEngine>>;
  let node: ExchangeNode;

  before(async () => {
    await sandbox.start();
    const policy = plain('L');
    lists = await REDIS_LIST.open({ namespaces: [policy] });
    others = await openEngine('N');
    const namespaces = [{ policy, engine: lists.engine }, ...others.namespaces];
    node = await new ExchangeNode(namespaces, others.clock, sandbox).start();
  });

  after(async () => {
    await node.stop();
    await sandbox.stop();
    await lists.close();
    await others.close();
  });

  for (const [from, to] of [
    ['L', 'L'],
    ['L', 'N'],
    ['N', 'L'],
  ] as const) {
    it(`forward from ${from} to ${to}, in order, and to another destination as well`, async () => {
      const [src, dst] = [`src-${from}${to}`, `dst-${from}${to}`];
      await node.exchanges.create(dst, declare(`${from}/${src}`, [`${to}/${dst}`, [`L/${src}-too`, 'true']]));
      await node.insert(from, src, '1', '2', '3');
      for (const queue of [`${to}/${dst}`, `L/${src}-too`]) {
        const [ns = '', name = ''] = queue.split('/');
        assert.deepEqual((await node.popMany(ns, name, 3)).map(bodyText), ['1', '2', '3']);
      }
      assert.equal(await node.total(from, src), 0);
    });
  }

  for (const result of ['({ delay: 60 })', '({ mature: 4e9 })']) {
    it(`count the selector result ${result} for a list as failed, record the error, and undo its changes`, async () => {
      const id = `late ${result.length}`;
      const selector = `env => { env.msg.hdrs.changed = "1"; return ${result} }`;
      const declaration = declare(`N/${id}`, [[`L/${id}`, selector], `N/${id}-too`]);
      await node.exchanges.create(id, declaration);
      await node.insert('N', id, 'late');
      const copy = await node.pop('N', `${id}-too`);
      assert.equal(bodyText(copy), 'late');
      assert.ok(!copy.headers.includes('changed'), copy.headers.join());
      const { stats, errors } = node.exchanges.record(id);
      assert.deepEqual(stats.dst[0], { matched: 0, skipped: 0, failed: 1 });
      assert.equal(stats.put_back, 0);
      assert.equal(errors[0]?.destination, 0);
      assert.match(errors[0]?.message ?? '', /namespace L do not support a maturity/);
      assert.equal(await node.total('L', id), 0);
      const sample = { ...newElement({ body: 'late' }), id: 'sample', matureAt: 0 };
      const { dst } = await node.exchanges.dryRun(id, sample, null);
      assert.deepEqual(
        dst.map(({ accepted }) => accepted),
        [false, true],
      );
    });
  }

  it('return elements that a destination rejected to the list in their order, and record the error', async () => {
    const { storage } = others.engine;
    const insert = storage.insert;
    storage.insert = () => Promise.reject(new QuaysideError('storage-full', 'planted'));
    try {
      await node.insert('L', 'again', '1', '2', '3');
      await node.exchanges.create('again', declare('L/again', ['N/again']));
      await until(() => node.exchanges.record('again').stats.put_back >= 3);
      assert.equal(node.exchanges.record('again').errors[0]?.message, 'storage-full: planted');
    } finally {
      storage.insert = insert;
    }
    while ((await node.total('N', 'again')) < 3) await others.passTime(5_000);
    assert.deepEqual((await node.popMany('N', 'again', 3)).map(bodyText), ['1', '2', '3']);
    assert.equal(await node.total('L', 'again'), 0);
  });

  it('move an element that would only go to lists, delayed, to __no_route__', async () => {
    await node.exchanges.create('leftover', declare('L/leftover', [['L/nowhere', '({ delay: 1 })']]));
    await node.insert('L', 'leftover', 'late');
    assert.equal(bodyText(await node.pop('L', '__no_route__')), 'late');
  });
});
