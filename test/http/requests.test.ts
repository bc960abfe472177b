import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { readAccounts } from '../../src/access/account.ts';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import { SILENT_LOG } from '../support/broker.ts';
import { type Answer, headerOf, jsonOf, queuePath } from '../support/http-client.ts';
import { sharedHarness } from './harness.ts';

const INERT = {
  'cache-control': 'no-store',
  'content-security-policy':
    "sandbox; default-src 'none'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
};

interface Problem {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly parameter?: string;
}

/** Asserts that the response is a problem with this status and code. Returns its members. */
function problemOf(answer: Answer, status: number, code: string): Problem {
  assert.equal(answer.status, status, answer.body.toString());
  assert.equal(headerOf(answer, 'content-type'), 'application/problem+json');
  const problem = jsonOf<Problem>(answer);
  assert.equal(problem.status, status);
  assert.equal(problem.code, code);
  assert.ok(problem.detail.length > 0);
  return problem;
}

describe('Requests in general', () => {
  const harness = sharedHarness();

  it('authentication precedes routing: an unknown path without credentials is answered with 401', async () => {
    const { detail } = problemOf(
      await harness().client(null).request('GET', '/nowhere'),
      401,
      'unauthorized',
    );
    assert.match(detail, /^The request has no credentials\. .* \(Basic\), or an API token \(Bearer\)\.$/);
    problemOf(await harness().client(null).request('TRACE', '/q'), 401, 'unauthorized');
    problemOf(await harness().client().request('GET', '/nowhere'), 404, 'route-not-found');
    const slash = problemOf(await harness().client().request('GET', '/q/N/a/'), 404, 'route-not-found');
    assert.equal(slash.detail, 'Path "/q/N/a/" ends with an empty name. Did you mean "/q/N/a"?');
  });

  it('probes need no credentials, and without them they reveal only whether the node is ready', async () => {
    const stranger = harness().client(null);
    assert.deepEqual(jsonOf(await stranger.request('GET', '/livez')), { status: 'live' });
    assert.deepEqual(jsonOf(await stranger.request('GET', '/readyz')), { status: 'ready' });
    assert.equal((await stranger.request('HEAD', '/readyz')).status, 200);
  });

  it('a probe with credentials shows why a node is not ready, and wrong credentials are rejected', async () => {
    harness().readiness = { ready: false, checks: { 'sqlite:test': 'disk full' } };
    const answer = await harness().client().request('GET', '/readyz');
    assert.equal(answer.status, 503);
    assert.equal(headerOf(answer, 'retry-after'), '1');
    assert.deepEqual(jsonOf(answer), { status: 'not ready', checks: { 'sqlite:test': 'disk full' } });
    assert.deepEqual(jsonOf(await harness().client(null).request('GET', '/readyz')), { status: 'not ready' });
    assert.equal((await harness().client('a:b').request('GET', '/readyz')).status, 401);
    harness().readiness = { ready: true, checks: {} };
  });

  it('/readyz?verbose lists the nodes only for authenticated users, even if this node is not ready', async () => {
    harness().readiness = { ready: true, checks: {} };
    const verbose = ['/readyz?verbose', '/readyz?verbose=', '/readyz?verbose=1'];
    const known = harness().client();
    const nodes = jsonOf<object[]>(await known.request('GET', '/nodes'));
    assert.equal(nodes.length, 1);
    for (const path of verbose) {
      assert.deepEqual(
        jsonOf(await known.request('GET', path)),
        { status: 'ready', checks: {}, nodes },
        path,
      );
      assert.deepEqual(jsonOf(await harness().client(null).request('GET', path)), { status: 'ready' }, path);
    }
    for (const path of ['/readyz', '/readyz?verbose=0']) {
      assert.deepEqual(jsonOf(await known.request('GET', path)), { status: 'ready', checks: {} }, path);
    }
    harness().readiness = { ready: false, checks: {} };
    const unready = jsonOf(await known.request('GET', '/readyz?verbose'));
    assert.deepEqual(unready, { status: 'not ready', checks: {}, nodes });
    harness().readiness = { ready: true, checks: {} };
  });

  it('an engine is listed with its namespaces, and omitted if the user sees none of them', async () => {
    const [url = ''] = harness().broker.namespaces()[0]?.engineUrls ?? [];
    const healthy = { type: 'sqlite', state: 'healthy', pingMs: 1, disk: null } as const;
    harness().engines = [
      { engine: url, ...healthy, check: 'ok' },
      { engine: 'redis://elsewhere', ...healthy, check: 'ok' },
    ];
    const answer = await harness().client().request('GET', '/engines');
    const namespaces = harness()
      .broker.namespaces()
      .map(({ name }) => name);
    const node = harness().broker.nodeId;
    const engines = [{ engine: url, namespaces, ...healthy, node }];
    assert.deepEqual(jsonOf(answer), { node, missing: [], total: 1, engines });
  });

  it('an error of the spec is byte-exact, but sent as problem details to clients that accept them', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const plain = client.get('N', queue, { tid: 't' });
    const detailed = client.get('N', queue, {
      tid: 't',
      headers: { accept: 'text/html, Application/Problem+JSON;q=0.9' },
    });
    await harness().waiting(2);
    await client.cancel('N', queue, 't');
    assert.equal((await plain).body.toString(), 'cancel');
    const answer = await detailed;
    assert.equal(answer.reason, 'Queue Pop Cancelled');
    problemOf(answer, 410, 'pop-cancelled');
  });

  it('a bad value is answered with 400, the parameter and what is allowed', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const answer = await client.insert('N', queue, 'a', { query: { delay: 'abc' } });
    const problem = problemOf(answer, 400, 'invalid-parameter');
    assert.equal(problem.parameter, 'delay');
    assert.equal(problem.detail, 'delay must be seconds, a number from 0 to 315360000, not "abc".');
  });

  it('unknown query parameters are ignored, even if repeated', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a', { query: { colour: ['red', 'blue'], constructor: '1' } });
    assert.equal((await client.get('N', queue, { query: { x: '%zz' } })).status, 200);
  });

  it('a misspelled ttl is rejected, because an ignored one would let the element live forever', async () => {
    const client = harness().client();
    const queue = harness().queue();
    for (const name of ['tll', 'ttls', 'tl', 'Ttl', 'til']) {
      const answer = await client.insert('N', queue, 'a', { query: { [name]: '5' } });
      const { detail } = problemOf(answer, 400, 'invalid-parameter');
      assert.equal(detail, `Unknown parameter "${name}". Did you mean "ttl"?`);
    }
    assert.equal((await client.get('N', queue, { query: { to: '0' } })).status, 504);
  });

  it('a flag is true for any value except 0, false, no and off, in upper or lower case', async () => {
    const client = harness().client();
    const queue = harness().queue();
    for (const reserve of ['1', 'true', 'YES', 'On', '2', 'y', 'please', ' 1']) {
      await client.insert('N', queue, 'a');
      const answer = await client.get('N', queue, { query: { reserve } });
      assert.ok(headerOf(answer, 'x-ks-lease'), reserve);
    }
    for (const reserve of ['0', 'False', 'no', 'OFF']) {
      await client.insert('N', queue, 'a');
      const answer = await client.get('N', queue, { query: { reserve } });
      assert.equal(answer.headers['x-ks-lease'], undefined, reserve);
    }
  });

  it('a misspelled or empty reserve is rejected and pops nothing', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    for (const search of ['reserve', 'reserve=', 'reserve=%20', 'Reserve=true', 'reserv=1', 'resreve=1']) {
      problemOf(
        await client.request('GET', `${queuePath('N', queue)}?to=0&${search}`),
        400,
        'invalid-parameter',
      );
    }
    assert.equal(jsonOf<{ size: number }>(await client.status('N', queue)).size, 1);
  });

  it('a parameter unlike all known ones is ignored, and so is one of another route', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const search = 'priority=1&token=x&too=1&delay=9&to=0';
    await client.insert('N', queue, 'a');
    assert.equal((await client.request('GET', `${queuePath('N', queue)}?${search}`)).status, 200);
  });

  it('an unknown namespace is answered with 404', async () => {
    const client = harness().client();
    const problem = problemOf(await client.status('nowhere', 'q'), 404, 'namespace-not-found');
    assert.equal(problem.parameter, 'namespace');
    problemOf(await client.queues('__proto__'), 404, 'namespace-not-found');
  });

  it('a queue is created by its first insert, pause or waiting consumer, but not by reading it', async () => {
    const client = harness().client();
    const made = [harness().queue(), harness().queue(), harness().queue()] as const;
    await client.insert('N', made[0], 'x');
    await client.pause('N', made[1]);
    const waited = client.get('N', made[2], { to: 10 });
    await harness().waiting(1);
    await harness().passTime(10);
    assert.equal((await waited).status, 504);
    const read = [harness().queue(), harness().queue(), harness().queue(), harness().queue()] as const;
    const record = jsonOf<Record<string, unknown>>(await client.status('N', read[0]));
    assert.deepEqual([record.totalSize, record.paused, record.next_mature_t], [0, false, null]);
    assert.equal((await client.paused('N', read[1])).body.toString(), 'false');
    assert.equal((await client.get('N', read[2], { to: 0 })).status, 504);
    assert.equal((await client.consumers('N', read[3])).status, 200);
    const queues = jsonOf<Record<string, unknown>>(await client.queues('N'));
    for (const name of made) assert.ok(name in queues, name);
    for (const name of read) assert.ok(!(name in queues), name);
  });

  it('GET paused returns true or false as JSON', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const before = await client.paused('N', queue);
    assert.equal(headerOf(before, 'content-type'), 'application/json');
    assert.equal(before.body.toString(), 'false');
    await client.pause('N', queue);
    assert.equal((await client.paused('N', queue)).body.toString(), 'true');
  });

  it('POST is equivalent to PATCH, for clients that cannot send PATCH', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const path = queuePath('N', queue);
    await client.insert('N', queue, 'a');
    assert.equal((await client.request('POST', `${path}/pause`)).status, 201);
    assert.equal((await client.paused('N', queue)).body.toString(), 'true');
    assert.equal((await client.request('POST', `${path}/resume`)).status, 201);
    const reserve = async (): Promise<string> => headerOf(await client.reserve('N', queue), 'x-ks-id');
    const id = await reserve();
    assert.equal((await client.request('POST', `${path}/extend/${id}`)).status, 200);
    assert.equal((await client.request('POST', `${path}/rollback/${id}`)).status, 200);
    assert.equal((await client.request('POST', `${path}/commit/${await reserve()}`)).status, 200);
    assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', queue)).totalSize, 0);
  });

  it('HEAD never consumes', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    const answer = await client.request('HEAD', queuePath('N', queue));
    assert.equal(answer.status, 405);
    assert.equal(headerOf(answer, 'allow'), 'GET, PUT, POST, DELETE');
    assert.equal((await client.request('HEAD', `${queuePath('N', queue)}/status`)).status, 200);
    assert.equal(jsonOf<{ size: number }>(await client.status('N', queue)).size, 1);
  });

  it('a wrong method on a known path is answered with 405 and Allow', async () => {
    const client = harness().client();
    const queue = queuePath('N', harness().queue());
    const expected: [string, string, string][] = [
      ['PATCH', queue, 'GET, PUT, POST, DELETE'],
      ['PUT', `${queue}/status`, 'GET, HEAD, DELETE'],
      ['GET', `${queue}/pause`, 'POST, PATCH, DELETE'],
      ['PUT', `${queue}/commit/x`, 'POST, PATCH'],
      ['GET', `${queue}/consumer/x`, 'DELETE'],
      ['OPTIONS', '/q', 'GET, HEAD'],
      ['TRACE', '/q/N', 'GET, HEAD'],
    ];
    for (const [method, path, allow] of expected) {
      const answer = await client.request(method, path);
      problemOf(answer, 405, 'method-not-allowed');
      assert.equal(headerOf(answer, 'allow'), allow, `${method} ${path}`);
    }
  });

  it('an operation that a queue does not support is answered with 405, and Allow omits the method', async () => {
    const client = harness().client();
    const answer = await client.remove('events', harness().queue(), 'x');
    problemOf(answer, 405, 'not-supported');
    assert.equal(answer.headers.allow, '');
  });

  it('every response is inert in a browser, including errors and empty responses', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, '<script>alert(1)</script>', { contentType: 'text/html' });
    const answers = [
      await client.get('N', queue),
      await client.get('N', queue, { to: 0 }),
      await client.pause('N', queue),
      await client.remove('N', queue, 'x'),
      await client.namespaces(),
      await client.request('GET', '/nowhere'),
      await harness().client(null).request('GET', '/q'),
      await harness().client(null).request('GET', '/livez'),
    ];
    for (const answer of answers) {
      for (const [name, value] of Object.entries(INERT)) assert.equal(headerOf(answer, name), value);
      assert.equal(answer.headers['strict-transport-security'], undefined);
    }
  });

  it('a body of a request that takes none is discarded, and the connection stays usable', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    const options = { body: Buffer.alloc(300_000, 'x') };
    assert.equal((await client.request('GET', queuePath('N', queue), options)).body.toString(), 'a');
    assert.equal((await client.request('GET', '/nowhere', options)).status, 404);
    assert.equal((await client.request('PATCH', `${queuePath('N', queue)}/pause`, options)).status, 201);
  });

  it('metrics require a user and are sent in the text format of Prometheus', async () => {
    problemOf(await harness().client(null).request('GET', '/metrics'), 401, 'unauthorized');
    const answer = await harness().client().request('GET', '/metrics');
    assert.equal(headerOf(answer, 'content-type'), 'text/plain; version=0.0.4; charset=utf-8');
    assert.match(answer.body.toString(), /^quayside_build_info\{version="0.0.0-test",.*\} 1$/m);
  });
});

describe('Requests with wrong passwords', () => {
  const users = [{ name: 'test1', password: 'test1', rights: null }];
  const harness = sharedHarness({
    users,
    authenticator: ({ clock }) =>
      new PasswordAuthenticator({ accounts: readAccounts(users, ['N']), clock, log: SILENT_LOG }),
  });

  it('are eventually answered with 429 and Retry-After, while a user who logged in before is served', async () => {
    const known = harness().client();
    assert.equal((await known.namespaces()).status, 200);
    const statuses: number[] = [];
    let last: Answer | null = null;
    for (let i = 0; i < 12; i++) {
      last = await harness().client(`test1:wrong ${i}`).namespaces();
      statuses.push(last.status);
    }
    assert.deepEqual(new Set(statuses), new Set([401, 429]));
    assert.ok(last !== null);
    problemOf(last, 429, 'too-many-attempts');
    assert.ok(Number(headerOf(last, 'retry-after')) >= 1);
    assert.equal((await known.namespaces()).status, 200);
  });

  it('or malformed credentials are answered with 401', async () => {
    for (const authorization of ['', 'Basic', 'Basic !!!', 'Bearer abc', `Basic ${'A'.repeat(9_000)}`]) {
      const answer = await harness().client(null).request('GET', '/q', { headers: { authorization } });
      assert.equal(answer.status, 401, authorization.slice(0, 20));
    }
  });
});

describe('Requests in general, with non-default configuration', () => {
  const users = [
    { name: 'test1', password: 'test1', rights: null },
    { name: 'guest', password: 'pw', rights: {} },
  ];
  const harness = sharedHarness({ users, http: { metricsWithoutLogin: true, bodyLimit: 100 } });

  it('metrics need no login if so configured, and then show all namespaces to everyone', async () => {
    for (const who of [null, 'guest:pw']) {
      const answer = await harness().client(who).request('GET', '/metrics');
      assert.equal(answer.status, 200);
      assert.match(answer.body.toString(), /^quayside_storage_up\{namespace="hidden"\} 1$/m);
    }
  });

  it('a body above the limit is answered with 413 and not stored, and one of exactly the limit is accepted', async () => {
    const client = harness().client();
    const queue = harness().queue();
    problemOf(await client.insert('N', queue, Buffer.alloc(101)), 413, 'body-too-large');
    assert.equal((await client.insert('N', queue, Buffer.alloc(100))).status, 200);
    assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', queue)).totalSize, 1);
  });
});
