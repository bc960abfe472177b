import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { unavailable } from '../../src/engine/calls.ts';
import { plain } from '../support/broker.ts';
import { type Answer, jsonOf, type Query, type QueueClient } from '../support/http-client.ts';
import { sharedHarness } from './harness.ts';

const NAMES = ['10', '9', 'A', 'a', 'a b', 'b/c', 'ü', '☃', '__proto__', 'x@y'].toSorted();

/** Follows the link of each page to the next and returns the bodies of all pages. */
async function pages<T>(client: QueueClient, path: string, query: Query): Promise<T[]> {
  const found: T[] = [];
  let answer = await client.request('GET', path, { query });
  for (;;) {
    assert.equal(answer.status, 200, answer.body.toString());
    found.push(jsonOf<T>(answer));
    assert.ok(found.length < 50, 'the pages come to an end');
    const next = nextOf(answer);
    if (next === null) return found;
    answer = await client.request('GET', new URL(next, `http://h${path}`).pathname + next);
  }
}

function nextOf({ headers }: Answer): string | null {
  const { link } = headers;
  if (link === undefined) return null;
  const found = /^<(\?[^>]+)>; rel="next"$/.exec(link);
  assert.ok(found, link);
  return found[1] ?? null;
}

describe('A listing in pages', () => {
  const users = [
    { name: 'test1', password: 'test1', rights: null },
    { name: 'maker', password: 'pw', rights: { N: ['read', 'exchange', 'write'] } },
  ] as const;
  const harness = sharedHarness({ users });

  it('contains each queue once, ordered by name, whatever the page size', async () => {
    const client = harness().client();
    for (const name of NAMES) await client.insert('N', name, 'a');
    for (const limit of [1, 3, NAMES.length - 1, NAMES.length, 1000]) {
      const plain = await pages<object>(client, '/q/N', { limit });
      assert.deepEqual(plain.flatMap((page) => Object.keys(page)).toSorted(), NAMES);
      assert.equal(plain.length, Math.ceil(NAMES.length / limit));
      const arrays = await pages<{ data: { id: string }[] }>(client, '/q/N', { limit, array: 1 });
      assert.deepEqual(
        arrays.flatMap(({ data }) => data.map(({ id }) => id)),
        NAMES.map((name) => `${name}@N`),
      );
    }
  });

  it('fails if all engines do, one of them only when records are read', async (t) => {
    const client = harness().client();
    await client.insert('jobs', 'one@two', 'a');
    const { storage } = harness().opened.engine;
    const { queues, counts } = storage;
    const away = unavailable('The store is not reachable now.', new Error('no answer'));
    t.mock.method(storage, 'queues', async (ns: string) => {
      if (ns !== 'jobs') throw away;
      return queues.call(storage, ns);
    });
    let isAway = true;
    t.mock.method(storage, 'counts', async (...given: Parameters<typeof counts>) => {
      if (isAway) throw away;
      return counts.apply(storage, given);
    });
    for (const query of [{ tree: 1 }, { array: 1, limit: 1 }]) {
      const answer = await client.request('GET', '/q', { query });
      assert.equal(answer.status, 503, answer.body.toString());
    }
    isAway = false;
    const { data, unavailable: names } = jsonOf<{ data: { id: string }[]; unavailable: string[] }>(
      await client.request('GET', '/q', { query: { array: 1 } }),
    );
    assert.deepEqual([data.map(({ id }) => id), names.includes('N')], [['one@two@jobs'], true]);
  });

  it('continues from one namespace to the next', async () => {
    const client = harness().client();
    for (const name of NAMES) await client.insert('N', name, 'a');
    await client.insert('jobs', 'one@two', 'a');
    await client.insert('hidden', 'last', 'a');
    const expected = [...NAMES.map((name) => `${name}@N`), 'one@two@jobs', 'last@hidden'];
    for (const limit of [1, 4, 11, 12, 1000]) {
      const arrays = await pages<{ data: { id: string }[] }>(client, '/q', { limit, array: 1 });
      assert.deepEqual(
        arrays.flatMap(({ data }) => data.map(({ id }) => id)),
        expected,
      );
      const trees = await pages<{ key: string; children: { key: string }[] }[]>(client, '/q', {
        limit,
        tree: 1,
      });
      assert.deepEqual(
        trees.flatMap((tree) => tree.flatMap(({ children }) => children.map(({ key }) => key))),
        expected,
      );
      for (const tree of trees) {
        assert.ok(tree.flatMap(({ children }) => children).length <= limit, 'children count, folders do not');
      }
      const folders = new Set<string>();
      for (const { key, children } of trees.flat()) {
        assert.ok(children.length > 0 || !folders.has(key), `${key} is listed again, without queues`);
        folders.add(key);
      }
    }
  });

  it('contains only the namespaces and exchanges that the user may see', async () => {
    const client = harness().client();
    const names = await pages<string[]>(client, '/q', { limit: 1 });
    assert.deepEqual(names, [['N'], ['jobs'], ['events'], ['hidden']]);
    assert.deepEqual(await pages(harness().client('maker:pw'), '/q', { limit: 2 }), [['N']]);
    const create = (id: string, ns: string): Promise<Answer> =>
      client.request('PUT', `/x/${encodeURIComponent(id)}`, {
        body: JSON.stringify({ src: { ns, queue: id }, dst: [{ ns, queue: 'to' }], consumer: {} }),
      });
    for (const id of NAMES.filter((name) => !name.startsWith('_'))) await create(id, 'N');
    await create('zz', 'jobs');
    const ids = NAMES.filter((name) => !name.startsWith('_'));
    for (const limit of [1, 4, 100]) {
      const own = await pages<object>(harness().client('maker:pw'), '/x', { limit });
      assert.deepEqual(own.flatMap((page) => Object.keys(page)).toSorted(), ids);
      const arrays = await pages<{ data: { id: string }[] }>(client, '/x', { limit, array: 1 });
      assert.deepEqual(
        arrays.flatMap(({ data }) => data.map(({ id }) => id)),
        [...ids, 'zz'].toSorted(),
      );
      const trees = await pages<{ children: { key: string }[] }[]>(client, '/x', { limit, tree: 1 });
      assert.equal(trees.flat().flatMap(({ children }) => children).length, ids.length + 1);
    }
    for (const id of [...ids, 'zz']) await client.request('DELETE', `/x/${encodeURIComponent(id)}`);
  });

  it('continues after a name that no longer exists', async () => {
    const client = harness().client();
    for (const name of NAMES) await client.insert('N', name, 'a');
    const answer = await client.queues('N', { query: { limit: 2, after: 'a  gone' } });
    assert.deepEqual(
      Object.keys(jsonOf<object>(answer)),
      NAMES.filter((name) => name > 'a  gone').slice(0, 2),
    );
    assert.deepEqual(jsonOf(await client.queues('N', { query: { after: '\u{10ffff}' } })), {});
  });

  it('is rejected with a limit of 0 or over 1,000, or with an after of an unknown namespace', async () => {
    const client = harness().client();
    for (const query of [{ limit: 0 }, { limit: 1001 }, { limit: '' }, { after: '' }]) {
      for (const path of ['/q', '/q/N', '/x']) {
        assert.equal((await client.request('GET', path, { query })).status, 400, JSON.stringify(query));
      }
    }
    const unknown = await client.request('GET', '/q', { query: { array: 1, after: 'a@nowhere' } });
    assert.equal(unknown.status, 400);
    assert.match(unknown.body.toString(), /a@nowhere/);
    const name = await client.request('GET', '/q', { query: { after: 'nowhere' } });
    assert.equal(name.status, 400);
    assert.equal(jsonOf<{ parameter: string }>(name).parameter, 'after');
  });
});

describe('A listing in pages of namespaces whose names end alike', () => {
  const harness = sharedHarness({ namespaces: [plain('a@b'), plain('b')] });

  it('contains each queue once, even if two have the same id', async () => {
    const client = harness().client();
    await client.insert('a@b', 'q', 'a');
    for (const name of ['q@a', 'r']) await client.insert('b', name, 'a');
    const found = await pages<{ data: { id: string }[] }>(client, '/q', { limit: 1, array: 1 });
    assert.deepEqual(
      found.flatMap(({ data }) => data.map(({ id }) => id)),
      ['q@a@b', 'q@a@b', 'r@b'],
    );
  });

  it('says how to write the name of a namespace if none has that of `after`', async () => {
    const query = { limit: 1, array: 1, after: 'q@a@c' };
    const { detail } = jsonOf<{ detail: string }>(await harness().client().request('GET', '/q', { query }));
    assert.match(detail, /with %40 and %25 for @ and % in the namespace's name, not "q@a@c"\./);
  });
});
