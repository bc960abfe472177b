import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { UserDefinition } from '../../src/access/account.ts';
import type { Broker } from '../../src/broker/broker.ts';
import type { Ask } from '../../src/broker/questions.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { EngineUnderTest, TestEngine } from '../engines.ts';
import { betweenProcesses, brokerOn } from '../support/broker.ts';
import { jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { Harness, NAMESPACES } from './harness.ts';

const USERS: readonly UserDefinition[] = [
  { name: 'test1', password: 'test1', rights: null },
  { name: 'manager', password: 'x', rights: { jobs: ['manage'], N: ['read'] } },
];

interface Viewer {
  readonly name: string;
  readonly isAdministrator: boolean;
  readonly isLimited: boolean;
  readonly manages: readonly string[];
  readonly sees: readonly string[];
}

interface Params {
  readonly viewer: Viewer;
  readonly limit: number;
  readonly words: readonly string[] | null;
}

interface List {
  readonly total: number;
  readonly missing: readonly string[];
  readonly consumers: readonly { readonly node: string; readonly ns: string; readonly tid: string }[];
}

const USER = { isAdministrator: false, isLimited: false };
const NOBODY: Viewer = { ...USER, name: 'nobody', manages: [], sees: [] };

describe('A list of all nodes', () => {
  let harness: Harness;
  /** Another node, whose replies the tests define. */
  let other: Broker;
  let ask: Ask<Params, { readonly ns: string; readonly tid: string }>;
  let asked: Params[] = [];
  let rows: readonly object[] = [];
  /** What the other node waits for before each reply. */
  let held: Promise<void> = Promise.resolve();

  before(async () => {
    let shared: TestEngine | null = null;
    const engine: EngineUnderTest = {
      ...MEMORY_SQLITE,
      open: async (options) => {
        const opened = await MEMORY_SQLITE.open(options);
        shared = { ...opened, engine: betweenProcesses(opened.engine) };
        return shared;
      },
    };
    harness = await Harness.start({ engine, users: USERS });
    const { engine: of } = shared ?? assert.fail();
    other = brokerOn(
      NAMESPACES.map((policy) => ({ policy, engine: of })),
      harness.opened.clock,
      2,
    );
    ask = other.questions.register({
      name: 'consumers',
      maxBytes: 100_000,
      reply: async (params: Params, from) => {
        if (from !== other.nodeId) asked.push(params);
        await held;
        return { total: rows.length, rows: rows as { ns: string; tid: string }[] };
      },
    });
    await other.start();
    await until(() => harness.broker.nodes().length === 2 && other.nodes().length === 2);
  });
  after(async () => {
    await other.stop();
    await harness.close();
  });

  async function read(client: QueueClient, path = '/consumers'): Promise<List> {
    asked = [];
    const answer = await client.request('GET', path);
    assert.equal(answer.status, 200, answer.body.toString());
    return jsonOf(answer);
  }

  it('omits rows of other nodes that the user may not see', async () => {
    const since = '2026-01-01T00:00:00.000Z';
    rows = [
      { ns: 'N', tid: 'of N', since },
      { ns: 'jobs', tid: 'of jobs', since, node: 'made up' },
      { ns: 'elsewhere', tid: 'of another one', since },
    ];
    const list = await read(harness.client('manager:x'));
    assert.deepEqual(
      list.consumers.map(({ node, tid }) => [node, tid]),
      [[other.nodeId, 'of jobs']],
    );
    assert.equal(list.total, 1);
    assert.equal((await read(harness.client())).total, 3);
    const filtered = await read(harness.client(), '/consumers?ns=N');
    assert.deepEqual([filtered.total, filtered.consumers[0]?.tid], [1, 'of N']);
    rows = [];
  });

  it('passes the words of a filter to other nodes, and filters their rows if they do not', async () => {
    const since = '2026-01-01T00:00:00.000Z';
    rows = ['orders', 'mails'].map((queue) => ({ ns: 'N', queue, tid: `of ${queue}`, since }));
    const list = await read(harness.client(), '/consumers?filter=Orders%20n');
    assert.deepEqual(asked[0]?.words, ['orders', 'n']);
    assert.deepEqual([list.total, list.consumers.map(({ tid }) => tid)], [1, ['of orders']]);
    rows = [];
  });

  it('reports a node as missing if this version cannot read its rows', async () => {
    rows = [null as unknown as object];
    const list = await read(harness.client());
    assert.deepEqual([list.missing, list.total, list.consumers], [[other.nodeId], 0, []]);
    rows = [];
  });

  it('of a user’s sessions is available to administrators even while that user requests the maximum', async () => {
    let questions = 0;
    other.questions.register({
      name: 'console-sessions',
      maxBytes: 100_000,
      reply: () => {
        questions += 1;
        return new Promise<never>(() => {});
      },
    });
    const path = '/console/sessions';
    const manager = harness.client('manager:x');
    const own = Array.from({ length: 21 }, () => manager.request('GET', path));
    assert.equal((await Promise.race(own)).status, 503);
    const asked = harness.client().request('GET', `${path}?user=manager`);
    await until(() => questions === 5);
    await harness.opened.passTime(1_000);
    const answer = await asked;
    assert.equal(answer.status, 200, answer.body.toString());
    assert.deepEqual(jsonOf<List>(answer).missing, [other.nodeId]);
    for (let made = 9; made <= 21; made += 4) {
      await until(() => questions === made);
      await harness.opened.passTime(1_000);
    }
    await Promise.all(own);
  });

  it('asks other nodes only for what the user, or a token with fewer rights, may see', async () => {
    const manager = harness.client('manager:x');
    await read(manager, '/consumers?limit=7');
    const viewer = { ...USER, name: 'manager', manages: ['jobs'], sees: ['N', 'jobs'] };
    assert.deepEqual(asked, [{ viewer, limit: 7, words: null }]);
    await read(harness.client());
    assert.equal(asked[0]?.viewer.isAdministrator, true);
    await read(harness.client(), '/consumers?ns=N');
    const ofN = { ...USER, name: 'test1', manages: ['N'], sees: ['N'] };
    assert.deepEqual(asked[0]?.viewer, ofN);
    const created = await harness.client().request('POST', '/tokens', {
      body: JSON.stringify({ name: 'x', rights: { events: ['manage'] } }),
    });
    const { token } = jsonOf<{ token: string }>(created);
    asked = [];
    const headers = { authorization: `Bearer ${token}` };
    assert.equal((await harness.client(null).request('GET', '/consumers', { headers })).status, 200);
    const rights = { manages: ['events'], sees: ['events'] };
    const narrowed = { name: 'test1', isAdministrator: false, isLimited: true, ...rights };
    assert.deepEqual(asked[0]?.viewer, narrowed);
  });

  it('has no rows for a token that was revoked before other nodes replied', async () => {
    const manager = harness.client('manager:x');
    const { id, token } = jsonOf<{ id: string; token: string }>(
      await manager.request('POST', '/tokens', {
        body: JSON.stringify({ name: 'y', rights: { jobs: ['manage'] } }),
      }),
    );
    rows = [{ ns: 'jobs', tid: 'of jobs', since: '2026-01-01T00:00:00.000Z' }];
    const headers = { authorization: `Bearer ${token}` };
    const request = async (): Promise<List> =>
      jsonOf<List>(await harness.client(null).request('GET', '/consumers', { headers }));
    assert.equal((await request()).total, 1);
    const replies = Promise.withResolvers<void>();
    held = replies.promise;
    asked = [];
    const listed = request();
    await until(() => asked.length === 1);
    assert.equal((await manager.request('DELETE', `/tokens/${id}`)).status, 204);
    replies.resolve();
    assert.deepEqual((await listed).consumers, []);
    rows = [];
  });

  it('contains the first rows of each node that the viewer may see', async () => {
    const waits: Promise<unknown>[] = [];
    for (const [ns, tid] of [
      ['N', 't1'],
      ['jobs', 't2'],
      ['hidden', 't3'],
      ['jobs', 't4'],
    ] as const) {
      waits.push(harness.client().get(ns, 'q', { tid }));
      await harness.waiting(waits.length);
      await harness.passTime(1_000);
    }
    const repliesTo = async (viewer: Partial<Viewer>, limit: number): Promise<[number, string[]]> => {
      const { nodes } = await ask({ viewer: { ...NOBODY, ...viewer }, limit, words: null });
      const reply = nodes.find(({ node }) => node === harness.broker.nodeId) ?? assert.fail();
      return [reply.total, reply.rows.map(({ tid }) => tid)];
    };
    assert.deepEqual(await repliesTo({ manages: ['jobs'], sees: ['N', 'jobs'] }, 1), [2, ['t2']]);
    assert.deepEqual(await repliesTo({ manages: ['jobs', 'N'] }, 9), [3, ['t1', 't2', 't4']]);
    assert.deepEqual(await repliesTo({ sees: ['N', 'jobs'] }, 9), [0, []]);
    assert.deepEqual(await repliesTo({ isAdministrator: true }, 9), [4, ['t1', 't2', 't3', 't4']]);
    for (const { ns, tid } of (await read(harness.client())).consumers) {
      await harness.client().cancel(ns, 'q', tid);
    }
    await Promise.all(waits);
  });
});
