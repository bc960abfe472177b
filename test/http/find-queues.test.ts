import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { UserDefinition } from '../../src/access/account.ts';
import { unavailable } from '../../src/engine/calls.ts';
import { plain } from '../support/broker.ts';
import { type Answer, jsonOf, type QueueClient } from '../support/http-client.ts';
import { Harness } from './harness.ts';

interface Found {
  readonly queues: readonly {
    readonly ns: string;
    readonly queue: string;
    readonly size: number;
    readonly schedSize: number;
    readonly resvSize: number;
    readonly totalSize: number;
    readonly next_mature_t: string | null;
    readonly oldestReadyAge: number | null;
    readonly paused: boolean;
    readonly insert: number;
    readonly take: number;
  }[];
  readonly matched: number;
  readonly total: number;
  readonly sums: Readonly<Record<string, number>>;
  readonly unavailable: readonly string[];
}

interface Columns {
  readonly from: string;
  readonly intervalMs: number;
  readonly size: readonly (number | null)[];
  readonly schedSize: readonly (number | null)[];
  readonly insert: readonly (number | null)[];
  readonly take: readonly (number | null)[];
}

type Query = Readonly<Record<string, string | number>>;

const USERS: readonly UserDefinition[] = [
  { name: 'test1', password: 'test1', rights: null },
  { name: 'jobs-only', password: 'x', rights: { jobs: ['read'], N: ['browse'] } },
];

/**
 * On a node that has read its queues: `N` has `small` (2), `large` (20) and `later` (3 scheduled); `jobs` has `large`
 * (5), which is paused.
 */
describe('GET /queues', () => {
  let harness: Harness;
  let client: QueueClient;

  before(async () => {
    harness = await Harness.start({ watches: true, users: USERS });
    client = harness.client();
    const lines = (count: number): object[] => Array.from({ length: count }, (_, i) => ({ text: `${i}` }));
    await client.insertLines('N', 'small', lines(2));
    await client.insertLines('N', 'large', lines(20));
    await client.insertLines(
      'N',
      'later',
      lines(3).map((line) => ({ ...line, delay: 3_600 })),
    );
    await client.insertLines('jobs', 'large', lines(5));
    await client.pause('jobs', 'large');
    await client.reserve('N', 'small', { to: 0 });
    await harness.passTime(10_000);
    await harness.watch.idle();
  });

  after(() => harness.close());

  const ask = (query: Query = {}, as = client): Promise<Answer> => as.request('GET', '/queues', { query });
  async function find(query: Query = {}, as = client): Promise<Found> {
    const answer = await ask(query, as);
    assert.equal(answer.status, 200, answer.body.toString());
    return jsonOf<Found>(answer);
  }
  const ids = ({ queues }: Found): string[] => queues.map(({ ns, queue }) => `${queue}@${ns}`);

  it('includes changes that this node has just made, even in a new queue', async () => {
    await client.insertLines('jobs', 'just-now', [{ text: '1' }, { text: '2' }]);
    const ask = { ns: 'jobs', filter: 'just-now' };
    assert.deepEqual((await find(ask)).sums, { size: 2, schedSize: 0, resvSize: 0, totalSize: 2 });
    await client.reserve('jobs', 'just-now', { to: 0 });
    assert.deepEqual((await find(ask)).sums, { size: 1, schedSize: 0, resvSize: 1, totalSize: 2 });
    await client.request('DELETE', '/q/jobs/just-now', { query: { force: 1 } });
    assert.equal((await find(ask)).matched, 0);
  });

  it('lists the queues of all namespaces by name, with counts, rates and sums', async () => {
    const found = await find();
    assert.deepEqual(ids(found), ['large@N', 'large@jobs', 'later@N', 'small@N']);
    assert.deepEqual([found.matched, found.total, found.unavailable], [4, 4, []]);
    assert.deepEqual(found.sums, { size: 26, schedSize: 3, resvSize: 1, totalSize: 30 });
    const [large, jobs, later, small] = found.queues;
    assert.deepEqual([large?.size, large?.paused, large?.oldestReadyAge], [20, false, 10]);
    assert.deepEqual([jobs?.size, jobs?.paused], [5, true]);
    assert.deepEqual([later?.size, later?.schedSize, later?.oldestReadyAge], [0, 3, null]);
    assert.equal(Date.parse(later?.next_mature_t ?? ''), harness.opened.clock.now() + 3_590_000);
    assert.deepEqual([small?.size, small?.resvSize, small?.totalSize], [1, 1, 2]);
    assert.ok((large?.insert ?? 0) > 0);
    assert.ok((small?.take ?? 0) > 0);
  });

  it('filters by names, numbers and states, all of which must match', async () => {
    for (const [filter, expected] of [
      ['large', ['large@N', 'large@jobs']],
      ['LAR ns:n', ['large@N']],
      ['depth:>2', ['large@N', 'large@jobs', 'later@N']],
      ['ready:>=5 ready:<20', ['large@jobs']],
      ['ready:=1', ['small@N']],
      ['ready:1', ['small@N']],
      ['depth:<=2', ['small@N']],
      ['scheduled:>0', ['later@N']],
      ['reserved:>0', ['small@N']],
      ['paused', ['large@jobs']],
      ['running l', ['large@N', 'later@N', 'small@N']],
      ['queue:paused', []],
      ['age:>9.5', ['large@N', 'large@jobs', 'small@N']],
      ['in:>0 out:>0', ['small@N']],
      ['ns:none', []],
    ] as const) {
      const found = await find({ filter });
      assert.deepEqual(ids(found), expected, filter);
      assert.deepEqual([found.matched, found.total], [expected.length, 4]);
    }
    assert.deepEqual((await find({ filter: 'large' })).sums, {
      size: 25,
      schedSize: 0,
      resvSize: 0,
      totalSize: 25,
    });
  });

  it('filters by names with spaces and quotes', async (test) => {
    const names = ['two words', 'say "hi"', 'back\\slash here', 'a"b'];
    const other = await Harness.start({
      namespaces: names.map((name) => plain(name)),
      watches: true,
    });
    test.after(() => other.close());
    const own = other.client();
    for (const name of names) await own.insert(name, `queue of ${name}`, 'x');
    const found = async (filter: string): Promise<string[]> => {
      const answer = await own.request('GET', '/queues', { query: { filter } });
      assert.equal(answer.status, 200, answer.body.toString());
      return jsonOf<Found>(answer).queues.map(({ ns }) => ns);
    };
    for (const [filter, expected] of [
      ['ns:"two words"', ['two words']],
      ['"ns:two words"', ['two words']],
      ['ns:"TWO Words" "queue OF"', ['two words']],
      ['ns:"two  words"', []],
      ['ns:"say \\"hi\\""', ['say "hi"']],
      ['ns:"back\\\\slash here"', ['back\\slash here']],
      ['ns:"back\\slash here"', ['back\\slash here']],
      ['ns:a"b', ['a"b']],
      ['"of two" depth:"1"', ['two words']],
      ['queue:"of two"', ['two words']],
      ['"two', []],
    ] as const) {
      assert.deepEqual(await found(filter), expected, filter);
    }
  });

  it('sorts by numbers, largest first by default, and by name', async () => {
    assert.deepEqual(ids(await find({ sort: 'depth' })), ['large@N', 'large@jobs', 'later@N', 'small@N']);
    assert.deepEqual(ids(await find({ sort: 'depth', order: 'asc' })), [
      'small@N',
      'later@N',
      'large@jobs',
      'large@N',
    ]);
    assert.deepEqual(ids(await find({ sort: 'scheduled' }))[0], 'later@N');
    assert.deepEqual(ids(await find({ sort: 'out' }))[0], 'small@N');
    assert.deepEqual(ids(await find({ sort: 'name', order: 'desc' })), [
      'small@N',
      'later@N',
      'large@jobs',
      'large@N',
    ]);
  });

  it('returns pages', async () => {
    const first = await find({ limit: 3 });
    const second = await find({ limit: 3, offset: 3 });
    assert.deepEqual(ids(first), ['large@N', 'large@jobs', 'later@N']);
    assert.deepEqual(ids(second), ['small@N']);
    assert.deepEqual([second.matched, second.sums], [4, first.sums]);
    assert.deepEqual(ids(await find({ offset: 100 })), []);
  });

  it('reports what is wrong with a request', async () => {
    for (const [query, detail] of [
      [{ filter: 'dept:>1' }, /"dept".*Did you mean "depth"\?/],
      [{ filter: 'colour:red' }, /there is no measure "colour". Allowed: ready.* write "queue:colour:red"\./],
      [{ filter: 'depth:many' }, /"depth:many".*a number/],
      [{ filter: 'a '.repeat(17) }, /17 words/],
      [{ sort: 'colour' }, /colour/],
      [{ order: 'up' }, /one of asc, desc/],
      [{ limit: 0 }, /limit/],
      [{ offset: -1 }, /offset/],
    ] as const) {
      const answer = await ask(query);
      assert.equal(answer.status, 400, JSON.stringify(query));
      assert.match(jsonOf<{ detail: string }>(answer).detail, detail);
    }
  });

  it('omits and names namespaces whose engine is unavailable, although none of their queues has changed', async (t) => {
    await find();
    const { storage } = harness.opened.engine;
    const { counts } = storage;
    t.mock.method(storage, 'counts', async (...given: Parameters<typeof counts>) => {
      if (given[0].ns === 'N') throw unavailable('The store is not reachable now.', new Error('no answer'));
      return counts.apply(storage, given);
    });
    const found = await find();
    assert.deepEqual([ids(found), found.unavailable], [['large@jobs'], ['N']]);
    assert.equal((await ask({ ns: 'N' })).status, 503);
  });

  it('returns only queues that the user may read', async () => {
    const limited = harness.client('jobs-only:x');
    const found = await find({}, limited);
    assert.deepEqual(ids(found), ['large@jobs']);
    assert.deepEqual([found.total, found.sums.totalSize], [1, 5]);
    assert.equal((await ask({ ns: 'N' }, limited)).status, 403);
    assert.equal((await ask({ ns: 'hidden' }, limited)).status, 404);
    assert.deepEqual(ids(await find({ ns: 'jobs' })), ['large@jobs']);
    assert.equal((await harness.client(null).request('GET', '/queues')).status, 401);
  });
});

describe('GET /queues of a node that has not read its queues yet', () => {
  it('reads them first', async () => {
    const harness = await Harness.start();
    const client = harness.client();
    await client.insert('N', 'a', 'x');
    const [namespace] = harness.broker.namespaces();
    await namespace?.activity.forgetUnknown(new Set());
    const { queues } = jsonOf<Found>(await client.request('GET', '/queues'));
    assert.deepEqual(
      queues.map(({ queue, size }) => [queue, size]),
      [['a', 1]],
    );
    await harness.close();
  });
});

describe('GET /history', () => {
  let harness: Harness;
  let client: QueueClient;

  before(async () => {
    harness = await Harness.start({ watches: true, users: USERS });
    client = harness.client();
  });

  after(() => harness.close());

  async function history(query: Query = {}, as = client): Promise<Columns> {
    const answer = await as.request('GET', '/history', { query });
    assert.equal(answer.status, 200, answer.body.toString());
    return jsonOf<Columns>(answer);
  }

  async function minutes(count: number): Promise<void> {
    for (let i = 0; i < 6 * count; i += 1) {
      await harness.passTime(10_000);
      await harness.watch.idle();
    }
  }

  it('sums up the existing queues of all visible namespaces, or of one', async () => {
    await minutes(1);
    for (const [ns, queue] of [
      ['N', 'a'],
      ['N', 'b'],
      ['jobs', 'c'],
    ] as const) {
      await client.insert(ns, queue, 'x');
      await client.insert(ns, queue, 'y', { delay: 7_200 });
    }
    await minutes(2);
    const { from, intervalMs, size, schedSize, insert, take } = await history();
    assert.equal(intervalMs, 60_000);
    assert.ok(Date.parse(from) <= harness.opened.clock.now() - 59 * 60_000);
    assert.equal(size.length, 60);
    assert.deepEqual([size.at(-1), schedSize.at(-1)], [3, 3]);
    assert.ok(insert.some((rate) => rate !== null && rate > 0));
    assert.equal(insert.at(-1), 0);
    assert.equal(take.at(-1), 0);
    assert.equal((await history({ ns: 'jobs' })).size.at(-1), 1);
    assert.equal((await history({}, harness.client('jobs-only:x'))).size.at(-1), 1);
    assert.equal((await client.request('DELETE', '/q/N/b?force=1')).status, 204);
    await minutes(1);
    assert.equal((await history()).size.at(-1), 2);
  });
});
