import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { UserDefinition } from '../../src/access/account.ts';
import { operationPictures } from '../../src/events/pictures.ts';
import type { OperationRecord } from '../../src/model/records.ts';
import { toByteString } from '../../src/util/byte-string.ts';
import { type Answer, jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { type Harness, sharedHarness } from './harness.ts';

const json = { 'content-type': 'application/json' };

function start(client: QueueClient, request: unknown): Promise<Answer> {
  const body = typeof request === 'string' ? request : JSON.stringify(request);
  return client.request('POST', '/operations', { body, headers: json });
}

/** Waits for the end of an operation and returns its record. */
async function ended(harness: Harness, client: QueueClient, location = ''): Promise<OperationRecord> {
  const read = async () => jsonOf<OperationRecord>(await client.request('GET', location));
  await until(async () => {
    if ((await read()).state !== 'running') return true;
    await harness.passTime(1);
    return false;
  });
  return read();
}

const problemOf = (answer: Answer): unknown[] => {
  const { code, parameter } = jsonOf<{ code: string; parameter?: string }>(answer);
  return [answer.status, code, parameter];
};

describe('Bulk operations over HTTP', () => {
  const users = ['test1', 'ann'].map((name) => ({ name, password: name, rights: null }));
  const harness = sharedHarness({ users });

  it('are started with 202 and a location, run to their end, and are then listed', async () => {
    const client = harness().client();
    for (let i = 0; i < 20; i += 1) await client.insert('N', 'from', String(i));
    const source = { ns: 'N', queue: 'from' };
    const answer = await start(client, { action: 'move', source, to: { ns: 'N', queue: 'to' }, limit: 15 });
    const { location } = answer.headers;
    assert.equal(answer.status, 202);
    assert.match(location ?? '', /^\/operations\/[a-z0-9-]+$/);
    const record = await ended(harness(), client, location);
    assert.equal(`/operations/${record.id}`, location);
    const { state, matched, changed, failed, by, limit, rate, to, error } = record;
    assert.deepEqual(
      { state, matched, changed, failed, by, limit, rate, to, error },
      {
        state: 'done',
        matched: 15,
        changed: 15,
        failed: 0,
        by: 'test1',
        limit: 15,
        rate: null,
        to: { ns: 'N', queue: 'to' },
        error: null,
      },
    );
    assert.ok(Date.parse(record.startedAt) <= Date.parse(record.endedAt ?? ''));
    assert.equal(jsonOf<{ size: number }>(await client.status('N', 'to')).size, 15);
    const list = async (query: string): Promise<string[]> =>
      jsonOf<OperationRecord[]>(await client.request('GET', `/operations${query}`)).map(({ id }) => id);
    assert.deepEqual(await list('?ns=N&queue=from&state=done'), [record.id]);
    assert.deepEqual(await list('?state=running'), []);
    assert.deepEqual(await list('?ns=jobs'), []);
    assert.deepEqual(await list('?queue=to'), []);
  });

  it('are logged at start and end with user, action and count', async () => {
    const client = harness().client();
    await client.insert('N', 'logged', 'a');
    const { headers } = await start(client, { action: 'delete', source: { ns: 'N', queue: 'logged' } });
    await ended(harness(), client, headers.location);
    const lines = harness().log.filter(
      ({ fields }) => fields.event === 'operation' && fields.queue === 'logged',
    );
    assert.deepEqual(
      lines.map(({ fields: { action, user, ns, changed } }) => ({ action, user, ns, changed })),
      [
        { action: 'delete', user: 'test1', ns: 'N', changed: undefined },
        { action: 'delete', user: 'test1', ns: 'N', changed: 1 },
      ],
    );
  });

  it('are audited with their id, action and source', async () => {
    const client = harness().client();
    const source = { ns: 'N', queue: 'audited' };
    const id = jsonOf<OperationRecord>(await start(client, { action: 'delete', source })).id;
    await ended(harness(), client, `/operations/${id}`);
    const { lines } = jsonOf<{ lines: { action: string; details: unknown }[] }>(
      await client.request('GET', '/audit?limit=1'),
    );
    assert.deepEqual(
      lines.map(({ action, details }) => [action, details]),
      [['startOperation', { id, operation: 'delete', source }]],
    );
  });

  it('are cancelled with 204, even repeatedly', async () => {
    const client = harness().client();
    for (let i = 0; i < 5; i += 1) await client.insert('N', 'slow', String(i));
    const answer = await start(client, { action: 'delete', source: { ns: 'N', queue: 'slow' }, rate: 1 });
    const location = answer.headers.location ?? '';
    assert.equal((await client.request('DELETE', location)).status, 204);
    assert.equal((await client.request('DELETE', location)).status, 204);
    const record = await ended(harness(), client, location);
    assert.equal(record.state, 'cancelled');
    assert.equal(jsonOf<{ size: number }>(await client.status('N', 'slow')).size, 5 - record.changed);
    assert.deepEqual(problemOf(await client.request('DELETE', '/operations/none')), [
      404,
      'operation-not-found',
      'id',
    ]);
    assert.deepEqual(problemOf(await client.request('GET', '/operations/none')), [
      404,
      'operation-not-found',
      'id',
    ]);
  });

  it('are limited to 16 at a time per engine, but a user without one can always start one', async () => {
    const client = harness().client();
    for (let i = 0; i < 3; i += 1) await client.insert('N', 'many', String(i));
    const request = {
      action: 'delete',
      source: { ns: 'N', queue: 'many' },
      rate: 1,
      where: { olderThan: 3600 },
    };
    const copies = { ...request, action: 'delay', delay: 5000, where: {} };
    const answers = await Promise.all(Array.from({ length: 17 }, () => start(client, copies)));
    const statuses = answers.map(({ status }) => status).sort();
    assert.deepEqual([statuses.filter((one) => one === 202).length, statuses.at(-1)], [16, 503]);
    const other = harness().client('ann:ann');
    const first = await start(other, copies);
    assert.equal(first.status, 202, 'a user without an operation can always start one');
    assert.equal((await start(other, copies)).status, 503);
    for (const { headers } of [...answers, first]) {
      if (headers.location !== undefined) await client.request('DELETE', headers.location);
    }
  });

  it('show the headers to set as they were requested', async () => {
    const client = harness().client();
    await client.insert('N', 'umlauts', 'x');
    const set = { headers: { city: 'Zürich €', old: null }, tries: null };
    const answer = await start(client, { action: 'set', source: { ns: 'N', queue: 'umlauts' }, set });
    assert.deepEqual(jsonOf<OperationRecord>(answer).set, set);
    const { set: shown, changed } = await ended(harness(), client, answer.headers.location);
    assert.deepEqual([shown, changed], [set, 1]);
    const page = jsonOf<{ elements: { headers: object }[] }>(
      await client.request('GET', '/q/N/umlauts/elements'),
    );
    assert.deepEqual(
      page.elements.map(({ headers }) => headers),
      [{ city: 'Zürich €' }],
    );
  });

  it('accept a body of up to 128 KiB with 1000 ids', async () => {
    const client = harness().client();
    const ids = Array.from({ length: 1000 }, (_, i) => `${'x'.repeat(60)}${i}`);
    const source = { ns: 'N', queue: 'ids' };
    const answer = await start(client, { action: 'delete', source, where: { ids } });
    assert.equal(answer.status, 202);
    assert.equal((await ended(harness(), client, answer.headers.location)).changed, 0);
  });

  const good = { action: 'move', source: { ns: 'N', queue: 'q' }, to: { ns: 'N', queue: 'r' } };
  const count = { action: 'count', source: good.source };
  const rows: readonly (readonly [string, unknown, unknown[]])[] = [
    ['an array', [], [400, 'invalid-parameter', '']],
    ['a body that is not JSON', '{', [400, 'invalid-body', undefined]],
    ['an unknown action', { ...good, action: 'remove' }, [400, 'invalid-parameter', 'action']],
    ['no action', { source: good.source }, [400, 'invalid-parameter', 'action']],
    ['no source', { action: 'count' }, [400, 'invalid-parameter', 'source']],
    ['a misspelled member', { ...good, dryrun: true }, [400, 'invalid-parameter', 'dryrun']],
    [
      'a misspelled member of where',
      { ...count, where: { selectr: '1' } },
      [400, 'invalid-parameter', 'where.selectr'],
    ],
    [
      'a source without a queue',
      { ...count, source: { ns: 'N' } },
      [400, 'invalid-parameter', 'source.queue'],
    ],
    ['an empty name', { ...count, source: { ns: 'N', queue: '' } }, [400, 'invalid-name', 'source.queue']],
    [
      'an unknown namespace',
      { ...count, source: { ns: 'X', queue: 'q' } },
      [404, 'namespace-not-found', 'source.ns'],
    ],
    ['an unknown target', { ...good, to: { ns: 'X', queue: 'q' } }, [404, 'namespace-not-found', 'to.ns']],
    ['a move without a target', { action: 'move', source: good.source }, [400, 'invalid-parameter', 'to']],
    ['a move to itself', { ...good, to: good.source }, [400, 'invalid-parameter', 'to']],
    ['a target for a delete', { ...good, action: 'delete' }, [400, 'invalid-parameter', 'to']],
    ['a delay for a count', { ...count, delay: 5 }, [400, 'invalid-parameter', 'delay']],
    ['a delay action without a delay', { ...count, action: 'delay' }, [400, 'invalid-parameter', 'delay']],
    ['a negative delay', { ...count, action: 'delay', delay: -1 }, [400, 'invalid-parameter', 'delay']],
    ['an empty set', { ...count, action: 'set', set: {} }, [400, 'invalid-parameter', 'set']],
    ['a set action without a set', { ...count, action: 'set' }, [400, 'invalid-parameter', 'set']],
    [
      'a header that is reserved for the service',
      { ...count, action: 'set', set: { headers: { 'x-dl-at': 'x' } } },
      [400, 'invalid-parameter', 'set.headers["x-dl-at"]'],
    ],
    [
      'a header that is reserved for the service, in upper case',
      { ...count, action: 'set', set: { headers: { 'X-DL-At': 'x' } } },
      [400, 'invalid-parameter', 'set.headers["X-DL-At"]'],
    ],
    [
      'a header twice',
      { ...count, action: 'set', set: { headers: { a: 'x', A: 'y' } } },
      [400, 'invalid-parameter', 'set.headers.A'],
    ],
    [
      'a header that no response can carry',
      { ...count, action: 'set', set: { headers: { a: 'b\nc' } } },
      [400, 'invalid-header', 'set.headers.a'],
    ],
    [
      'a header that is not well-formed Unicode',
      { ...count, action: 'set', set: { headers: { a: '\ud800' } } },
      [400, 'invalid-parameter', 'set.headers.a'],
    ],
    [
      'a fraction of a try',
      { ...count, action: 'set', set: { tries: 1.5 } },
      [400, 'invalid-parameter', 'set.tries'],
    ],
    ['a limit of 0', { ...good, limit: 0 }, [400, 'invalid-parameter', 'limit']],
    ['a rate as a string', { ...good, rate: '5' }, [400, 'invalid-parameter', 'rate']],
    ['a dryRun of 1', { ...good, dryRun: 1 }, [400, 'invalid-parameter', 'dryRun']],
    ['an unknown state', { ...count, where: { state: 'gone' } }, [400, 'invalid-parameter', 'where.state']],
    [
      'a move of reserved elements',
      { ...good, where: { state: 'reserved' } },
      [400, 'invalid-parameter', 'where.state'],
    ],
    [
      'a release of ready elements',
      { action: 'release', source: good.source, where: { state: 'ready' } },
      [400, 'invalid-parameter', 'where.state'],
    ],
    ['no ids', { ...count, where: { ids: [] } }, [400, 'invalid-parameter', 'where.ids']],
    [
      '1001 ids',
      { ...count, where: { ids: Array(1001).fill('a') } },
      [400, 'invalid-parameter', 'where.ids'],
    ],
    [
      'an id that is not a string',
      { ...count, where: { ids: ['a', 5] } },
      [400, 'invalid-parameter', 'where.ids[1]'],
    ],
    [
      'a group of a plain queue',
      { ...count, where: { group: 'G' } },
      [400, 'invalid-parameter', 'where.group'],
    ],
    ['a negative age', { ...count, where: { olderThan: -1 } }, [400, 'invalid-parameter', 'where.olderThan']],
    [
      'a selector that does not parse',
      { ...count, where: { selector: 'a b' } },
      [400, 'invalid-body', 'where.selector'],
    ],
    [
      'a selector of 8,193 characters',
      { ...count, where: { selector: 'x'.repeat(8_193) } },
      [400, 'invalid-parameter', 'where.selector'],
    ],
    ['a body of 200 KiB', ' '.repeat(200_000), [413, 'body-too-large', undefined]],
  ];
  for (const [what, body, expected] of rows) {
    it(`${what} is rejected, and nothing is started`, async () => {
      const client = harness().client();
      const before = jsonOf<unknown[]>(await client.request('GET', '/operations')).length;
      assert.deepEqual(problemOf(await start(client, body)), expected);
      assert.equal(jsonOf<unknown[]>(await client.request('GET', '/operations')).length, before);
    });
  }
});

describe('A purge', () => {
  const harness = sharedHarness();

  it('removes waiting elements, those of one state, or all, and returns and logs their number', async () => {
    const client = harness().client();
    const fill = async (): Promise<void> => {
      for (let i = 0; i < 3; i += 1) await client.insert('N', 'full', 'a');
      await client.insert('N', 'full', 'late', { delay: 60 });
      await client.reserve('N', 'full');
    };
    const purge = async (query = ''): Promise<unknown> =>
      jsonOf(await client.request('DELETE', `/q/N/full/elements${query}`));
    await fill();
    assert.deepEqual(await purge('?state=scheduled'), { removed: 1 });
    assert.deepEqual(await purge(), { removed: 2 });
    assert.deepEqual(await purge(), { removed: 0 });
    await fill();
    assert.deepEqual(await purge('?state=all'), { removed: 5 });
    const line = harness().log.findLast(({ fields }) => fields.action === 'purge');
    assert.deepEqual(
      [line?.fields.user, line?.fields.queue, line?.fields.removed, line?.fields.states],
      ['test1', 'full', 5, ['ready', 'scheduled', 'reserved']],
    );
  });

  it('counts an element of a stream once per group, and creates no queue', async () => {
    const client = harness().client();
    await client.insert('events', 's', 'a', { groups: 'g1,g2' });
    assert.deepEqual(jsonOf(await client.request('DELETE', '/q/events/s/elements')), { removed: 2 });
    assert.deepEqual(jsonOf(await client.request('DELETE', '/q/N/never/elements')), { removed: 0 });
    assert.ok(!('never' in jsonOf<object>(await client.queues('N'))));
  });

  it('of a queue that does not exist leaves nothing in memory, like all other requests that name such a queue', async () => {
    const client = harness().client();
    const { activity, knownNames } = harness().broker.namespace('N');
    activity.takeChanged(Infinity);
    const requests: readonly (readonly [method: string, path: string, body?: unknown])[] = [
      ['DELETE', '/elements'],
      ['DELETE', '/elements?state=all'],
      ['GET', '?to=0'],
      ['GET', '?to=0&reserve=1'],
      ['POST', '/take', { to: 0 }],
      ['GET', '/elements'],
      ['GET', '/elements/1-1'],
      ['GET', '/export'],
      ['GET', '/status'],
      ['GET', '/history'],
      ['GET', '/paused'],
      ['GET', '/consumers'],
      ['PATCH', '/commit/1-1'],
      ['PATCH', '/rollback/1-1'],
      ['PATCH', '/release/1-1'],
      ['PATCH', '/extend/1-1'],
      ['POST', '/settle', { commit: ['1-1'], rollback: ['1-2'], extend: ['1-3'] }],
      ['DELETE', '/1-1'],
      ['DELETE', '/consumer/none'],
      ['DELETE', ''],
      ['DELETE', '?force=1'],
    ];
    for (const [i, [method, path, body]] of requests.entries()) {
      const options = body === undefined ? {} : { body: JSON.stringify(body), headers: json };
      const { status } = await client.request(method, `/q/N/invented${i}${path}`, options);
      assert.notEqual(status, 400, `${method} ${path}`);
      assert.deepEqual([...activity.changed(Infinity).keys()], [], `${method} ${path}`);
    }
    assert.deepEqual(activity.forgetUnknown(knownNames), []);
  });
});

describe('Deleting a queue', () => {
  const harness = sharedHarness();
  const remove = (queue: string, query = '', ns = 'N'): Promise<Answer> =>
    harness().client().request('DELETE', `/q/${ns}/${queue}${query}`);
  const listed = async (queue: string): Promise<boolean> =>
    queue in
    jsonOf<object>(
      await harness()
        .client()
        .queues('N', { query: { reload: 1 } }),
    );

  it('succeeds if the queue is empty, and removes its pause flag and statistics', async () => {
    const client = harness().client();
    await client.insert('N', 'old', 'a');
    await client.get('N', 'old');
    await client.request('PATCH', '/q/N/old/pause');
    assert.equal((await remove('old')).status, 204);
    assert.equal(await listed('old'), false);
    assert.equal((await client.insert('N', 'old', 'b')).status, 200);
    const { paused, stats } = jsonOf<{ paused: boolean; stats: { put: number } }>(
      await client.status('N', 'old'),
    );
    assert.deepEqual([paused, stats.put], [false, 1]);
    assert.equal((await client.get('N', 'old')).body.toString(), 'b');
  });

  it('is answered with 204 for a queue that never existed, without creating it', async () => {
    assert.equal((await remove('never')).status, 204);
    assert.equal(await listed('never'), false);
  });

  it('is rejected with 409 while the queue holds elements; force removes and logs them', async () => {
    const client = harness().client();
    await client.insert('N', 'held', 'a');
    await client.insert('N', 'held', 'b', { delay: 60 });
    await client.reserve('N', 'held');
    assert.deepEqual(problemOf(await remove('held')), [409, 'queue-in-use', undefined]);
    assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', 'held')).totalSize, 2);
    assert.equal((await remove('held', '?force=1')).status, 204);
    assert.equal(await listed('held'), false);
    const line = harness().log.findLast(({ fields }) => fields.action === 'deleteQueue');
    assert.deepEqual([line?.fields.user, line?.fields.queue, line?.fields.removed], ['test1', 'held', 2]);
  });

  it('is rejected with 409 while a call waits; force ends that call with 410', async () => {
    const waiting = harness().client().get('N', 'awaited');
    await harness().waiting(1);
    assert.deepEqual(problemOf(await remove('awaited')), [409, 'queue-in-use', undefined]);
    assert.equal((await remove('awaited', '?force=1')).status, 204);
    assert.equal((await waiting).status, 410);
    assert.equal(await listed('awaited'), false);
  });

  it('is rejected with 409 while the queue is the source or destination of an exchange', async () => {
    const client = harness().client();
    const body = JSON.stringify({
      src: { ns: 'N', queue: 'xin' },
      dst: [{ ns: 'N', queue: 'xout' }],
      consumer: {},
    });
    assert.equal((await client.request('PUT', '/x/named', { body })).status, 201);
    assert.equal((await remove('xin')).status, 409);
    assert.equal((await remove('xout')).status, 409);
    await client.request('DELETE', '/x/named');
    await until(async () => (await remove('xin')).status === 204);
    assert.equal((await remove('xout')).status, 204);
  });

  for (const query of ['', '?force=1']) {
    it(`is answered within 5 s even if its calls to the engine take longer in total${query && ', by force, too'}`, async () => {
      const client = harness().client();
      await client.request('PATCH', '/q/N/slow/pause');
      const { clock, engine } = harness().opened;
      const { definitions } = engine;
      let calls = 0;
      let done = 0;
      const stored = definitions.delete.bind(definitions);
      definitions.delete = async (...given) => {
        calls += 1;
        await new Promise<void>((resolve) => {
          clock.after(3_000, resolve);
        });
        const wasThere = await stored(...given);
        done += 1;
        return wasThere;
      };
      const removed = remove('slow', query);
      await until(() => calls === 1);
      await harness().passTime(3_000);
      await until(() => calls === 2);
      await harness().passTime(1_500);
      assert.deepEqual(problemOf(await removed), [503, 'outcome-unknown', undefined]);
      await harness().passTime(1_500);
      await until(() => done === 2);
      definitions.delete = stored;
      assert.equal((await remove('slow', query)).status, 204);
      assert.equal(await listed('slow'), false);
    });
  }

  it('removes a stream with its groups by force', async () => {
    const client = harness().client();
    await client.insert('events', 's', 'a', { groups: 'g1,g2' });
    assert.equal((await remove('s', '', 'events')).status, 409);
    assert.equal((await remove('s', '?force=1', 'events')).status, 204);
    assert.ok(!('s' in jsonOf<object>(await client.queues('events'))));
  });
});

describe('The rights of bulk operations', () => {
  const users: UserDefinition[] = [
    { name: 'all', password: 'pw', rights: null },
    { name: 'manager', password: 'pw', rights: { N: ['manage'] } },
    { name: 'mover', password: 'pw', rights: { N: ['manage', 'write', 'browse'] } },
    { name: 'masked', password: 'pw', rights: { N: ['manage', 'browse'] }, maskBodies: true },
    {
      name: 'exporter',
      password: 'pw',
      rights: { N: ['manage', 'browse'], jobs: ['read', 'write'] },
      maskBodies: true,
    },
    { name: 'porter', password: 'pw', rights: { N: ['manage', 'read'], jobs: ['write'] } },
    { name: 'reader', password: 'pw', rights: { N: ['read', 'write'] } },
    { name: 'stranger', password: 'pw', rights: { jobs: ['manage', 'write'] } },
  ];
  const harness = sharedHarness({ users });
  const source = { ns: 'N', queue: 'q' };
  const move = { action: 'move', source, to: { ns: 'N', queue: 'r' } };
  const out = { to: { ns: 'jobs', queue: 'r' } };
  const migrate = { action: 'migrate', source: { ns: 'N' }, to: { ns: 'jobs' } };
  const hidden = { action: 'move', source, to: { ns: 'hidden', queue: 'r' } };
  const selecting = { action: 'count', source, where: { selector: 'true' } };
  const reading = { action: 'count', source, where: { selector: 'env => env.msg.payload === "a"' } };

  const rows: readonly (readonly [string, string, object, number])[] = [
    ['manager', 'a count', { action: 'count', source }, 202],
    ['manager', 'a delete', { action: 'delete', source }, 202],
    ['manager', 'a release', { action: 'release', source }, 202],
    ['manager', 'a move', move, 403],
    ['manager', 'a migration to a namespace that it may not see', migrate, 404],
    ['porter', 'a migration without manage on the target', migrate, 403],
    ['all', 'a migration that the engine does not support', migrate, 405],
    ['manager', 'a redrive', { action: 'redrive', source }, 403],
    ['manager', 'a set', { action: 'set', source, set: { tries: 0 } }, 403],
    ['manager', 'a selector', selecting, 403],
    ['manager', 'a dry run', { action: 'delete', source, dryRun: true }, 403],
    ['mover', 'a move', move, 202],
    ['mover', 'a move to a namespace that it may not see', hidden, 404],
    ['mover', 'a selector that reads bodies', reading, 202],
    ['masked', 'a selector', selecting, 202],
    ['exporter', 'a move of masked bodies to where it may read them', { ...move, ...out }, 403],
    [
      'exporter',
      'a copy of masked bodies to where it may read them',
      { ...move, action: 'copy', ...out },
      403,
    ],
    ['porter', 'a move to another namespace', { ...move, ...out }, 202],
    ['reader', 'a count', { action: 'count', source }, 403],
    ['reader', 'a move', move, 403],
    ['stranger', 'a count', { action: 'count', source }, 404],
    [
      'stranger',
      'a count in an unknown namespace',
      { action: 'count', source: { ns: 'X', queue: 'q' } },
      404,
    ],
  ];
  for (const [user, what, request, status] of rows) {
    it(`${user}: ${what}: ${status}`, async () => {
      const all = harness().client('all:pw');
      const count = async (): Promise<number> =>
        jsonOf<unknown[]>(await all.request('GET', '/operations')).length;
      const before = await count();
      assert.equal((await start(harness().client(`${user}:pw`), request)).status, status);
      assert.equal(await count(), status === 202 ? before + 1 : before, 'a rejected one is not started');
    });
  }

  it('a selector that reads bodies fails for a user who may not see them', async () => {
    await harness().client('all:pw').insert('N', 'masked', 'a');
    const client = harness().client('masked:pw');
    const { headers } = await start(client, { ...reading, source: { ns: 'N', queue: 'masked' } });
    const record = await ended(harness(), client, headers.location);
    assert.deepEqual([record.state, record.matched], ['failed', 0]);
    assert.match(record.error ?? '', /env\.msg\.payload/);
  });

  it('an operation is hidden without a right on its source, forbidden without manage, and shown without a hidden target', async () => {
    const all = harness().client('all:pw');
    const location = (await start(all, hidden)).headers.location ?? '';
    await ended(harness(), all, location);
    const seen = async (user: string, method = 'GET'): Promise<Answer> =>
      harness().client(`${user}:pw`).request(method, location);
    for (const method of ['GET', 'DELETE']) {
      assert.deepEqual(problemOf(await seen('stranger', method)), [404, 'operation-not-found', 'id']);
      assert.deepEqual(problemOf(await seen('reader', method)), [403, 'forbidden', undefined]);
    }
    assert.equal(jsonOf<OperationRecord>(await seen('manager')).to, null);
    assert.deepEqual(jsonOf<OperationRecord>(await seen('all')).to, hidden.to);
    for (const [user, shows] of [
      ['stranger', false],
      ['reader', false],
      ['manager', true],
    ] as const) {
      const answer = await harness().client(`${user}:pw`).request('GET', '/operations');
      assert.equal(jsonOf<unknown[]>(answer).length > 0, shows, user);
    }
  });

  it('an error that names a queue of the target is hidden, also in events, from users who may not see the target', async () => {
    const all = harness().client('all:pw');
    const body = JSON.stringify({ maxElements: 1 });
    await all.request('PUT', '/q/hidden/vault/options', { body });
    await all.insert('hidden', 'vault', 'full');
    await all.insert('N', 'full', 'a');
    const request = {
      action: 'move',
      source: { ns: 'N', queue: 'full' },
      to: { ns: 'hidden', queue: 'vault' },
    };
    const location = (await start(all, request)).headers.location ?? '';
    assert.match((await ended(harness(), all, location)).error ?? '', /vault/);
    const manager = harness().client('manager:pw');
    const shown = await manager.request('GET', location);
    assert.equal(
      jsonOf<OperationRecord>(shown).error,
      'The operation failed. The reason may name a queue of a namespace that you may not see.',
    );
    assert.doesNotMatch(shown.body.toString(), /vault|maxElements/);
    const pictures = await operationPictures(harness().operations).read();
    const user = {
      name: 'manager',
      may: () => true,
      maySee: (ns: string) => ns === 'N',
      maySeeBodies: () => true,
    };
    assert.doesNotMatch(pictures.map((picture) => picture.json(user)).join('\n'), /vault/);
  });

  it('an error of a selector is shown to users who may see bodies, and to the user who ran it on masked ones', async () => {
    const all = harness().client('all:pw');
    await all.insert('N', 'thrown', 'a body', { headers: { 'content-type': 'text/plain' } });
    const queue = { ns: 'N', queue: 'thrown' };
    const throwing = (text: string): object => ({
      action: 'count',
      source: queue,
      where: { selector: `env => { throw new Error(${text}) }` },
    });
    const errorFor = async (user: string, location = ''): Promise<string> => {
      const answer = await harness().client(`${user}:pw`).request('GET', location);
      return jsonOf<OperationRecord>(answer).error ?? '';
    };
    const { location } = (await start(all, throwing('env.msg.payload'))).headers;
    await ended(harness(), all, location);
    for (const user of ['all', 'mover', 'porter'])
      assert.match(await errorFor(user, location), /a body/, user);
    for (const user of ['manager', 'masked']) {
      assert.equal(
        await errorFor(user, location),
        'where.selector failed with an element. The error may quote the body, which you may not see.',
      );
    }
    const pictures = await operationPictures(harness().operations).read();
    const user = { name: 'masked', may: () => true, maySee: () => true, maySeeBodies: () => false };
    assert.doesNotMatch(pictures.map((picture) => picture.json(user)).join('\n'), /a body/);
    const own = (await start(harness().client('masked:pw'), throwing('env.msg.id'))).headers.location;
    await ended(harness(), all, own);
    assert.match(await errorFor('masked', own), /^where\.selector failed with element \S+: Error: /);
    assert.match(await errorFor('manager', own), /^where\.selector failed with an element\./);
    const events = await operationPictures(harness().operations).read();
    const [event] = events.filter(({ key }) => own?.endsWith(key));
    assert.match(event?.json(user) ?? '', /failed with element/, 'events show what the record shows');
  });

  it('samples are shown only to users who may browse', async () => {
    const all = harness().client('all:pw');
    await all.insert('N', 'q', 'a', { contentType: toByteString('text/z\u00fcrich') });
    const { headers } = await start(all, { action: 'count', source });
    const shown = await ended(harness(), all, headers.location);
    assert.deepEqual(
      shown.samples.map(({ contentType }) => contentType),
      ['text/z\u00fcrich'],
    );
    const answer = await harness()
      .client('manager:pw')
      .request('GET', headers.location ?? '');
    assert.deepEqual(jsonOf<OperationRecord>(answer).samples, []);
  });
});
