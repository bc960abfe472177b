import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { User } from '../../src/access/user.ts';
import { HTTP_DEFAULTS } from '../../src/http/options.ts';
import { routeTable } from '../../src/http/routes/table.ts';
import type { Right } from '../../src/model/rights.ts';
import { type Answer, headerOf, jsonOf, queuePath } from '../support/http-client.ts';
import { sharedHarness } from './harness.ts';
import { AUTHORIZATION, RawConnection, rawRequest } from './raw.ts';

/** Each route of a namespace and the right that it requires; null if any right in the namespace suffices. */
const ROUTES: readonly (readonly [string, string, string, Right | null])[] = [
  ['listQueues', 'GET', '', 'read'],
  ['queueStatus', 'GET', '/q/status', 'read'],
  ['queueHistory', 'GET', '/q/history', 'read'],
  ['isPaused', 'GET', '/q/paused', 'read'],
  ['queueOptions', 'GET', '/q/options', 'read'],
  ['setQueueOptions', 'PUT', '/q/options', 'manage'],
  ['removeQueueOptions', 'DELETE', '/q/options', 'manage'],
  ['take', 'GET', '/q?to=0', 'read'],
  ['take', 'GET', '/q?to=0&reserve=1', 'read'],
  ['takeMany', 'POST', '/q/take?to=0', 'read'],
  ['commit', 'PATCH', '/q/commit/x', 'read'],
  ['rollback', 'PATCH', '/q/rollback/x', 'read'],
  ['release', 'PATCH', '/q/release/x', 'read'],
  ['extend', 'PATCH', '/q/extend/x', 'read'],
  ['insert', 'PUT', '/q', 'write'],
  ['insert', 'POST', '/q', 'write'],
  ['insertMany', 'POST', '/q/elements', 'write'],
  ['settleMany', 'POST', '/q/settle', 'read'],
  ['remove', 'DELETE', '/q/x', 'manage'],
  ['browse', 'GET', '/q/elements', 'browse'],
  ['browse', 'GET', '/q/elements?where=true&body=full', 'browse'],
  ['browseElement', 'GET', '/q/elements/x', 'browse'],
  ['deleteQueue', 'DELETE', '/q', 'manage'],
  ['exportQueue', 'GET', '/q/export', 'browse'],
  ['importQueue', 'POST', '/q/import', 'write'],
  ['purge', 'DELETE', '/q/elements', 'manage'],
  ['pause', 'PATCH', '/q/pause', 'manage'],
  ['resume', 'PATCH', '/q/resume', 'manage'],
  ['listConsumers', 'GET', '/q/consumers', 'manage'],
  ['cancel', 'DELETE', '/q/consumer/x', null],
];

const SETS: Readonly<Record<string, readonly Right[] | null>> = {
  nobody: [],
  reader: ['read'],
  writer: ['write'],
  manager: ['manage'],
  exchanger: ['exchange'],
  browser: ['browse'],
  worker: ['read', 'write'],
  operator: ['read', 'manage'],
  all: ['read', 'write', 'manage', 'exchange'],
  unlisted: null,
};

const users = Object.entries(SETS).map(([name, rights]) => ({
  name,
  password: 'pw',
  rights: rights === null ? null : { N: rights },
}));

function codeOf(answer: Answer): string | undefined {
  const isProblem = answer.headers['content-type'] === 'application/problem+json';
  return isProblem ? jsonOf<{ code: string }>(answer).code : undefined;
}

describe('Rights', () => {
  const harness = sharedHarness({ users });

  it('the table of this test names every route of a namespace', () => {
    const inNamespace = routeTable({ options: HTTP_DEFAULTS, version: '0' })
      .filter(({ path }) => path.includes(':namespace'))
      .map(({ id }) => id);
    assert.deepEqual(new Set(ROUTES.map(([id]) => id)), new Set(inNamespace));
  });

  for (const [user, rights] of Object.entries(SETS)) {
    for (const [id, method, rest, right] of ROUTES) {
      const sees = rights === null || rights.length > 0;
      const has = (one: Right) => rights === null || rights.includes(one);
      const may = has(right ?? 'read') || (sees && right === null) || (right === 'browse' && has('read'));
      const outcome = may ? 'served' : sees ? '403' : '404';
      it(`${user}: ${id} (${method} ${rest}): ${outcome}`, async () => {
        const answer = await harness().client(`${user}:pw`).request(method, `/q/N${rest}`, { body: 'a' });
        const code = codeOf(answer);
        if (outcome === '403') assert.deepEqual([answer.status, code], [403, 'forbidden']);
        else if (outcome === '404') assert.deepEqual([answer.status, code], [404, 'namespace-not-found']);
        else assert.ok(!['forbidden', 'namespace-not-found', 'unauthorized'].includes(code ?? ''), code);
      });
    }
  }

  it('requests for a hidden namespace are answered like those for one that does not exist', async () => {
    const client = harness().client('all:pw');
    for (const [, method, rest] of ROUTES) {
      const hidden = await client.request(method, `/q/hidden${rest}`, { body: 'a' });
      const absent = await client.request(method, `/q/absent${rest}`, { body: 'a' });
      assert.equal(hidden.status, 404);
      assert.equal(hidden.body.toString().replaceAll('hidden', 'absent'), absent.body.toString());
    }
  });

  it('lists contain the namespaces that the user may see, and records of those that they may read', async () => {
    const names = async (user: string) => jsonOf(await harness().client(`${user}:pw`).namespaces());
    assert.deepEqual(await names('nobody'), []);
    assert.deepEqual(await names('writer'), ['N']);
    assert.deepEqual(await names('unlisted'), ['N', 'jobs', 'events', 'hidden']);
    const query = { array: 1 };
    const data = async (user: string) =>
      jsonOf<{ data: { id: string }[] }>(await harness().client(`${user}:pw`).namespaces({ query })).data;
    await harness().client('unlisted:pw').insert('hidden', 'secret', 'a');
    assert.deepEqual(await data('writer'), []);
    assert.ok((await data('reader')).every(({ id }) => id.endsWith('@N')));
    assert.ok((await data('unlisted')).some(({ id }) => id === 'secret@hidden'));
  });

  it('metrics cover the namespaces that the user may see, and exchanges whose source they may see', async () => {
    const admin = harness().client('unlisted:pw');
    for (const ns of ['N', 'hidden']) {
      await admin.insert(ns, 'measured', 'a');
      const dst = [{ ns, queue: 'out', selector: 'env => true' }];
      const body = JSON.stringify({ src: { ns, queue: 'in' }, dst, consumer: {} });
      assert.equal((await admin.request('PUT', `/x/of-${ns}`, { body })).status, 201);
    }
    const metrics = async (user: string) =>
      (await harness().client(`${user}:pw`).request('GET', '/metrics')).body.toString();
    const labels = (label: string, text: string) =>
      new Set(Array.from(text.matchAll(new RegExp(`${label}="(.*?)"`, 'g')), ([, value]) => value));
    const all = await metrics('unlisted');
    assert.deepEqual(labels('namespace', all), new Set(['N', 'jobs', 'events', 'hidden']));
    assert.deepEqual(labels('exchange', all), new Set(['of-N', 'of-hidden']));
    const writers = await metrics('writer');
    assert.deepEqual(labels('namespace', writers), new Set(['N']));
    assert.deepEqual(labels('exchange', writers), new Set(['of-N']));
    const nobodys = await metrics('nobody');
    assert.doesNotMatch(nobodys, /namespace=|exchange=|destination=/);
    assert.doesNotMatch(nobodys, /^quayside_exchanges/m);
    assert.doesNotMatch(writers + nobodys, /hidden/);
    for (const ns of ['N', 'hidden']) await admin.request('DELETE', `/x/of-${ns}`);
  });

  // After the test of the metrics, which would be given numbers that this one collected up to a second ago.
  it('no GET outside of a namespace tells users anything of a namespace that they may not see', async () => {
    const admin = harness().client('unlisted:pw');
    const created = async (method: string, path: string, body: object): Promise<string> => {
      const answer = await admin.request(method, path, { body: JSON.stringify(body) });
      assert.ok(answer.status < 300, answer.body.toString());
      return answer.body.length === 0 ? '' : jsonOf<{ id: string }>(answer).id;
    };
    const at = (queue: string) => ({ ns: 'hidden', queue });
    await admin.insert('hidden', 'canary-queue', 'canary-body', {
      headers: { 'x-ks-hdr-a': 'canary-header' },
    });
    await created('PUT', '/q/hidden/canary-queue/options', { ttl: 1000 });
    await admin.request('PATCH', '/q/hidden/canary-queue/pause');
    const throwing = 'env => { throw new Error("canary-thrown") }';
    const declaration = {
      src: at('canary-source'),
      dst: [{ ...at('canary-target'), selector: throwing }],
      consumer: {},
    };
    await created('PUT', '/x/canary-exchange', declaration);
    await admin.insert('hidden', 'canary-source', 'a');
    const copy = { action: 'copy', source: at('canary-queue'), to: at('canary-copy') };
    const operation = await created('POST', '/operations', copy);
    const token = { name: 'canary-token', rights: { hidden: ['read'] }, expiresAt: null };
    const tokenId = await created('POST', '/tokens', token);
    const waiting = admin.get('hidden', 'canary-waited', { tid: 'canary-tid' });
    await harness().waiting(1);
    const routes = routeTable({ options: HTTP_DEFAULTS, version: '0' }).filter(
      ({ id, methods, path, isPage }) =>
        methods.includes('GET') &&
        !path.includes(':namespace') &&
        !isPage &&
        !['events', 'openApi'].includes(id),
    );
    const texts = async (user: string): Promise<Map<string, string>> => {
      const read = new Map<string, string>();
      for (const { path } of routes) {
        for (const id of path.includes(':') ? ['canary-exchange', operation, tokenId] : ['']) {
          for (const form of ['', '?array=1', '?tree=1', '?filter=canary', '?verbose=1']) {
            const target = path.replace(/:\w+/, id) + form;
            const answer = await harness().client(`${user}:pw`).request('GET', target);
            read.set(
              target,
              JSON.stringify([answer.headers, answer.body.toString()]).replaceAll(id || ' ', ' '),
            );
          }
        }
      }
      return read;
    };
    const seen = (read: Map<string, string>): string[] =>
      [...read].filter(([, text]) => /canary-|hidden/.test(text)).map(([target]) => target);
    const byAdministrator = new Set(seen(await texts('unlisted')).map((target) => target.split('?')[0]));
    for (const path of [
      '/audit',
      '/consumers',
      '/definitions',
      '/metrics',
      '/operations',
      '/q',
      '/tokens',
      '/x',
    ]) {
      assert.ok(byAdministrator.has(path), `an administrator sees the namespace in ${path}`);
    }
    for (const user of ['nobody', 'writer', 'all']) assert.deepEqual(seen(await texts(user)), [], user);
    await admin.cancel('hidden', 'canary-waited', 'canary-tid');
    assert.equal((await waiting).status, 410);
    for (const path of ['/x/canary-exchange', `/tokens/${tokenId}`]) await admin.request('DELETE', path);
  });

  it('a user without manage can cancel only their own calls', async () => {
    const queue = harness().queue();
    const [reader, worker, manager] = ['reader', 'worker', 'manager'].map((user) =>
      harness().client(`${user}:pw`),
    );
    assert.ok(reader && worker && manager);
    const own = reader.get('N', queue, { tid: 't' });
    const foreign = worker.get('N', queue, { tid: 't' });
    await harness().waiting(2);
    assert.equal((await reader.cancel('N', queue, 't')).status, 200);
    assert.equal((await own).status, 410);
    assert.equal(harness().broker.waiting, 1);
    await manager.cancel('N', queue, 't');
    assert.equal((await foreign).status, 410);
  });

  it('a rejection is logged with user, queue, action and right, but without content of the request', async () => {
    const before = harness().log.length;
    await harness()
      .client('reader:pw')
      .insert('N', 'q', 'a body', { headers: { 'x-ks-hdr-a': 'secret' } });
    const line = harness()
      .log.slice(before)
      .find(({ fields }) => fields.user === 'reader');
    assert.deepEqual(line?.fields, {
      event: 'forbidden',
      address: '127.0.0.1',
      namespace: 'N',
      queue: 'q',
      user: 'reader',
      action: 'insert',
      detail: 'User "reader" does not have the right write in namespace N.',
    });
    assert.doesNotMatch(JSON.stringify(harness().log), /a body|secret|Basic/);
  });
});

describe('Requests that a browser sends', () => {
  const harness = sharedHarness({ http: { allowedOrigins: ['https://Jobs.example'] } });
  const origin = () => `http://127.0.0.1:${harness().port}`;

  const rejected: readonly (readonly [string, Readonly<Record<string, string>>])[] = [
    [
      'an image on another site',
      { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'image' },
    ],
    ['a link on another site', { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate' }],
    ['a page of the same site, another origin', { 'sec-fetch-site': 'same-site' }],
    ['an unknown Sec-Fetch-Site', { 'sec-fetch-site': 'elsewhere' }],
    ['a prefetch', { 'sec-purpose': 'prefetch', 'sec-fetch-site': 'none' }],
    ['a prerender', { 'sec-purpose': 'prefetch;prerender' }],
    ['a prefetch of an older browser', { purpose: 'prefetch' }],
    ['another origin', { origin: 'https://evil.example' }],
    ['an opaque origin', { origin: 'null' }],
    ['a form on another site', { origin: 'http://evil.example', 'content-type': 'text/plain' }],
    ['an allowed origin as a part of another', { origin: 'https://jobs.example.evil.example' }],
  ];

  for (const [what, headers] of rejected) {
    it(`from ${what} are rejected with 403 on every route, and pop and store nothing`, async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      const path = queuePath('N', queue);
      for (const [method, target] of [
        ['GET', path],
        ['PUT', path],
        ['POST', path],
        ['GET', '/q'],
        ['PATCH', `${path}/pause`],
        ['GET', '/livez'],
        ['GET', '/nowhere'],
      ] as const) {
        const answer = await client.request(method, target, { headers });
        assert.equal(answer.status, 403, `${method} ${target}`);
        assert.equal(jsonOf<{ code: string }>(answer).code, 'forbidden-origin');
      }
      assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', queue)).totalSize, 1);
      assert.equal((await client.paused('N', queue)).body.toString(), 'false');
    });
  }

  const served: readonly (readonly [string, () => Readonly<Record<string, string>>])[] = [
    ['a program', () => ({})],
    ['an address that a person typed', () => ({ 'sec-fetch-site': 'none', 'sec-fetch-mode': 'navigate' })],
    ['a page of this server', () => ({ 'sec-fetch-site': 'same-origin', origin: origin() })],
    [
      'a page of this server behind a proxy that terminates TLS',
      () => ({ origin: origin().replace('http:', 'https:') }),
    ],
    ['an allowed origin', () => ({ origin: 'https://jobs.example', 'sec-fetch-site': 'same-origin' })],
    [
      'an allowed origin, from another site',
      () => ({ origin: 'https://jobs.example', 'sec-fetch-site': 'cross-site' }),
    ],
  ];

  for (const [what, headers] of served) {
    it(`from ${what} are served`, async () => {
      const client = harness().client();
      const queue = harness().queue();
      assert.equal((await client.insert('N', queue, 'a', { headers: headers() })).status, 200);
      const answer = await client.get('N', queue, { headers: headers() });
      assert.equal(answer.body.toString(), 'a');
      assert.ok(headerOf(answer, 'content-security-policy').startsWith('sandbox;'));
    });
  }
});

describe('A body that arrives while the rights of its user change', () => {
  /** Returns the current user for the one that logged in; null if they were removed. */
  let now: (user: User) => User | null = (user) => user;
  const harness = sharedHarness({ renewUser: (user) => now(user) });

  const changes: readonly (readonly [string, typeof now, number])[] = [
    ['is removed', () => null, 401],
    ['loses the right', (user) => ({ ...user, isAdministrator: false, may: () => false }), 403],
    ['loses the namespace', (user) => ({ ...user, may: () => false, maySee: () => false }), 404],
  ];
  for (const path of ['', '/elements']) {
    for (const [what, renewed, status] of changes) {
      it(`stores nothing at ${path || 'an insert'} if the user ${what} before its end`, async () => {
        now = (user) => user;
        const queue = harness().queue();
        const connection = await RawConnection.open(harness().port);
        const body = '{"body": "late"}\n';
        const head = [
          `POST /q/N/${queue}${path} HTTP/1.1`,
          'Host: test',
          AUTHORIZATION,
          'Content-Type: application/x-ndjson',
          `Content-Length: ${body.length}`,
          'Connection: close',
        ];
        connection.send(rawRequest(head, body.slice(0, 5)));
        // A response on another connection means that the bytes sent before it have been read.
        await harness().client().namespaces();
        now = renewed;
        connection.send(body.slice(5));
        const [answer] = await connection.untilClosed();
        assert.equal(answer?.status, status);
        const { totalSize } = jsonOf<{ totalSize: number }>(await harness().client().status('N', queue));
        assert.equal(totalSize, 0);
      });
    }
  }
});

describe('A batch take that is pipelined behind a get', () => {
  /** Returns the current user for the one that logged in; null if they were removed. */
  let now: (user: User) => User | null = (user) => user;
  const harness = sharedHarness({ renewUser: (user) => now(user) });

  it('takes nothing if its user was removed while the get waited', async () => {
    const queue = harness().queue();
    const head = (line: string): string[] => [line, 'Host: test', AUTHORIZATION];
    const connection = await RawConnection.open(harness().port);
    connection.send(rawRequest(head(`GET /q/N/${queue} HTTP/1.1`)));
    connection.send(rawRequest([...head(`POST /q/N/${queue}/take HTTP/1.1`), 'Content-Length: 2'], '{}'));
    await harness().waiting(1);
    // A response on another connection means that the second request has been read.
    await harness().client().namespaces();
    now = () => null;
    harness().server.renewUsers();
    const answers = await connection.answers(2);
    assert.deepEqual(
      answers.map(({ status }) => status),
      [401, 401],
    );
    assert.equal(harness().broker.waiting, 0);
    connection.destroy();
  });
});
