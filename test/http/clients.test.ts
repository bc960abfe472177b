import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { UserDefinition } from '../../src/access/account.ts';
import type { SessionInfo } from '../../src/model/records.ts';
import { jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { Harness, sharedHarness } from './harness.ts';
import { AUTHORIZATION, RawConnection, rawRequest } from './raw.ts';

const USERS: readonly UserDefinition[] = [
  { name: 'test1', password: 'test1', rights: null },
  { name: 'manager', password: 'x', rights: { jobs: ['manage'] } },
  { name: 'worker', password: 'x', rights: { N: ['read', 'write'], jobs: ['read'] } },
];

async function read<T>(client: QueueClient, path: string): Promise<T> {
  const answer = await client.request('GET', path);
  assert.equal(answer.status, 200, answer.body.toString());
  return jsonOf<T>(answer);
}

interface Waiting {
  readonly node: string;
  readonly missing: readonly string[];
  readonly total: number;
  readonly consumers: readonly { readonly ns: string; readonly queue: string; readonly tid: string }[];
}

describe('GET /consumers', () => {
  const harness = sharedHarness({ users: USERS });

  it('lists the waiting consumers of the namespaces that the user manages, longest waiting first', async () => {
    const worker = harness().client('worker:x');
    const waits: Promise<unknown>[] = [];
    for (const [ns, queue, tid] of [
      ['N', 'a', 't1'],
      ['jobs', 'b', 't2'],
      ['N', 'c', 't3'],
    ] as const) {
      waits.push(worker.get(ns, queue, { tid }));
      await harness().waiting(waits.length);
      await harness().passTime(1_000);
    }
    const all = await read<Waiting>(harness().client(), '/consumers');
    assert.deepEqual(
      all.consumers.map(({ ns, queue, tid }) => `${ns}/${queue}/${tid}`),
      ['N/a/t1', 'jobs/b/t2', 'N/c/t3'],
    );
    const [first] = all.consumers;
    const [self] = await read<{ id: string }[]>(harness().client(), '/nodes');
    assert.deepEqual(first, {
      node: self?.id,
      ns: 'N',
      queue: 'a',
      ...jsonOf<object[]>(await harness().client().consumers('N', 'a'))[0],
    });
    assert.equal(all.node, self?.id);
    assert.deepEqual(all.missing, [], 'a single node misses no other node');
    const ids = async (path: string, credentials = 'test1:test1'): Promise<[number, string[]]> => {
      const { total, consumers } = await read<Waiting>(harness().client(credentials), path);
      return [total, consumers.map(({ tid }) => tid)];
    };
    assert.deepEqual(await ids('/consumers?ns=N'), [2, ['t1', 't3']]);
    assert.deepEqual(await ids('/consumers?limit=1'), [3, ['t1']]);
    assert.deepEqual(await ids('/consumers?filter=WORKER%20n&limit=1'), [2, ['t1']]);
    assert.deepEqual(await ids('/consumers?filter=t2%20set'), [0, []], 'set is no name');
    assert.deepEqual(await ids('/consumers', 'manager:x'), [1, ['t2']]);
    assert.deepEqual(await ids('/consumers?ns=N', 'manager:x'), [0, []]);
    assert.deepEqual(await ids('/consumers', 'worker:x'), [0, []]);
    await harness().client().cancel('N', 'a', 't1');
    assert.deepEqual(await ids('/consumers'), [2, ['t2', 't3']]);
    await harness().client().cancel('jobs', 'b', 't2');
    await harness().client().cancel('N', 'c', 't3');
    await Promise.all(waits);
  });
});

describe('GET /sessions', () => {
  const sessions: readonly SessionInfo[] = [
    {
      id: 's-2',
      protocol: 'amqp',
      user: 'worker',
      address: '192.0.2.2',
      since: '2026-11-23T10:00:01.000Z',
      consumers: [
        { ns: 'N', queue: 'a', group: null, kind: 'take', window: 10, unacknowledged: 3 },
        { ns: 'jobs', queue: 'b', group: null, kind: 'browse', window: null, unacknowledged: 0 },
      ],
    },
    {
      id: 's-1',
      protocol: 'stomp',
      user: 'test1',
      address: '',
      since: '2026-11-23T10:00:00.000Z',
      consumers: [],
    },
  ];
  const harness = sharedHarness({ users: USERS, sessions: () => sessions });

  it('lists the sessions and consumers that the user may see, oldest first', async () => {
    const { nodeId } = harness().broker;
    const list = async (credentials: string, query = ''): Promise<readonly object[]> => {
      const answer = await read<{ sessions: (SessionInfo & { node: string })[] }>(
        harness().client(credentials),
        `/sessions${query}`,
      );
      return answer.sessions.map(({ node, ...session }) => {
        assert.equal(node, nodeId);
        return session;
      });
    };
    const [amqp, stomp] = sessions;
    assert.deepEqual(await list('test1:test1'), [stomp, amqp]);
    assert.deepEqual(await list('test1:test1', '?limit=1'), [stomp]);
    assert.deepEqual(await list('test1:test1', '?filter=192.0.2.2'), [amqp]);
    assert.deepEqual(await list('test1:test1', '?filter=Jobs+amqp'), [amqp]);
    assert.deepEqual(await list('test1:test1', '?filter=jobs+stomp'), []);
    assert.deepEqual(await list('manager:x', '?filter=n'), [], 'a consumer that this user may not see');
    assert.deepEqual(await list('worker:x'), [amqp]);
    assert.deepEqual(await list('manager:x'), [{ ...amqp, consumers: amqp?.consumers.slice(1) }]);
  });
});

describe('GET /audit', () => {
  const harness = sharedHarness({ users: USERS });

  interface Line {
    readonly at: string;
    readonly user: string;
    readonly action: string;
    readonly address: string;
    readonly namespace: string | null;
    readonly queue: string | null;
    readonly details: object;
  }

  it('shows the changes that the user may see with their authors, latest first', async () => {
    const admin = harness().client();
    await admin.pause('N', 'a');
    await harness().passTime(1_000);
    await harness().client('manager:x').pause('jobs', 'b');
    await admin.request('DELETE', '/x/none');
    await admin.resume('jobs', 'b');
    const forbidden = await harness().client('worker:x').pause('N', 'a');
    assert.equal(forbidden.status, 403);
    const lines = async (credentials: string, query = ''): Promise<readonly Line[]> =>
      (await read<{ lines: Line[] }>(harness().client(credentials), `/audit${query}`)).lines;
    const all = await lines('test1:test1');
    assert.deepEqual(
      all.map(({ user, action, namespace, queue }) => [user, action, namespace, queue]),
      [
        ['test1', 'resume', 'jobs', 'b'],
        ['manager', 'pause', 'jobs', 'b'],
        ['test1', 'pause', 'N', 'a'],
      ],
    );
    assert.equal(all[0]?.address, '127.0.0.1');
    assert.equal(Date.parse(all[0]?.at ?? '') - Date.parse(all[2]?.at ?? ''), 1_000);
    assert.deepEqual(all[0]?.details, {});
    assert.deepEqual(await lines('test1:test1', '?limit=1'), all.slice(0, 1));
    assert.deepEqual(await lines('test1:test1', '?filter=pause+JOBS'), all.slice(1, 2));
    const words = await admin.request('GET', `/audit?filter=${'w+'.repeat(17)}`);
    assert.deepEqual([words.status, jsonOf<{ parameter: string }>(words).parameter], [400, 'filter']);
    assert.deepEqual(await lines('manager:x'), all.slice(0, 2));
    assert.deepEqual(await lines('worker:x'), []);
  });

  it('has a cancel only if it ended a call of another user: workers cancel their own takes when they stop', async () => {
    const on = await Harness.start({ users: USERS });
    const admin = on.client();
    const before = on.log.length;
    for (const [credentials, tid] of [
      ['test1:test1', 'own'],
      ['worker:x', 'foreign'],
    ] as const) {
      const waiting = on.client(credentials).get('N', 'a', { tid });
      await on.waiting(1);
      assert.equal((await admin.cancel('N', 'a', tid)).status, 200);
      assert.equal((await waiting).status, 410);
    }
    assert.equal((await admin.cancel('N', 'a', 'nobody')).status, 200);
    const { lines } = await read<{ lines: Line[] }>(admin, '/audit');
    assert.deepEqual(
      lines.map(({ user, action, details }) => [user, action, details]),
      [['test1', 'cancel', { tid: 'foreign' }]],
    );
    assert.equal(on.log.slice(before).filter(({ fields }) => fields.event === 'admin').length, 1);
    await on.close();
  });

  it('has no line for a request whose client disconnected before the end of its body', async () => {
    const on = await Harness.start({ http: { logsAccess: true } });
    const connection = await RawConnection.open(on.port);
    const lines = ['PUT /x/cut HTTP/1.1', 'Host: test', AUTHORIZATION, 'Content-Length: 9'];
    connection.send(rawRequest([...lines, 'Expect: 100-continue']));
    await connection.next('data');
    connection.send('{');
    connection.destroy();
    await until(() => on.log.some(({ fields }) => fields.event === 'access'));
    assert.deepEqual((await read<{ lines: Line[] }>(on.client(), '/audit')).lines, []);
    await on.close();
  });

  it('keeps the last thousand lines', async () => {
    const admin = harness().client();
    for (let i = 0; i < 1_001; i += 1) await admin.resume('N', 'many');
    const { total, lines } = await read<{ total: number; lines: Line[] }>(admin, '/audit');
    assert.deepEqual([total, lines.length], [1_000, 1_000]);
    assert.ok(lines.every(({ action }) => action === 'resume'));
  });
});
