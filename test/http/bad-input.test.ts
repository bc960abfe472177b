import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { HTTP_DEFAULTS } from '../../src/http/options.ts';
import type { Route } from '../../src/http/route.ts';
import { problemsOf, routeTable } from '../../src/http/routes/table.ts';
import { jsonOf } from '../support/http-client.ts';
import { sharedHarness } from './harness.ts';
import { AUTHORIZATION, exchange, type RawAnswer, closingRequest as request } from './raw.ts';

interface RejectedRequest {
  readonly what: string;
  readonly status: number;
  readonly code: string;
  readonly parameter?: string;
  readonly bytes: Buffer;
}

const WHOLE = [
  '',
  ' ',
  '-1',
  '1.5',
  '+1',
  '0x10',
  '1e3',
  'abc',
  'NaN',
  'Infinity',
  '9007199254740993',
  '١',
  '1,2',
];
const SECONDS = [
  '',
  '-1',
  '-0.5',
  '.5',
  '1.',
  '1e3',
  '1e309',
  'abc',
  'NaN',
  'Infinity',
  '0x1',
  '1,5',
  '1_000',
];
const FLAGS = ['', ' '];
const ROUTES = routeTable({ options: HTTP_DEFAULTS, version: '0' });
const NAMES: readonly (readonly [string, string])[] = [
  ['%00', 'NUL'],
  ['a%0Ab', 'a line feed'],
  ['%7F', 'DEL'],
  ['%C2%85', 'a C1 control'],
  ['x'.repeat(256), '256 bytes'],
  ['%E2%98%83'.repeat(86), '258 bytes of snowmen'],
];
const MALFORMED = ['%', '%2', '%zz', '%FF', '%C0%AF', '%ED%A0%80', '%E2%98', '%u0041'];

function parameterRows(): RejectedRequest[] {
  const rows: RejectedRequest[] = [];
  const reject = (method: string, target: string, parameter: string, values: readonly string[]): void => {
    for (const value of values) {
      rows.push({
        what: `${method} ${target}: ${parameter}=${JSON.stringify(value)}`,
        status: 400,
        code: 'invalid-parameter',
        parameter,
        bytes: request(method, `${target}?${parameter}=${encodeURIComponent(value)}`, [], 'body'),
      });
    }
    rows.push({
      what: `${method} ${target}: ${parameter} twice`,
      status: 400,
      code: 'invalid-parameter',
      parameter,
      bytes: request(method, `${target}?${parameter}=1&x=2&${parameter}=1`, [], 'body'),
    });
    for (const value of MALFORMED) {
      rows.push({
        what: `${method} ${target}: ${parameter} not well encoded: ${value}`,
        status: 400,
        code: 'invalid-parameter',
        parameter,
        bytes: request(method, `${target}?${parameter}=${value}`, [], 'body'),
      });
    }
  };
  reject('PUT', '/q/N/bad', 'delay', [...SECONDS, '315360001']);
  reject('PUT', '/q/N/bad', 'mature', [...SECONDS, '1800000000000', '95617584000']);
  reject('POST', '/q/N/bad', 'tries', [...WHOLE, '1000001']);
  reject('PUT', '/q/events/bad', 'groups', ['', ',', 'a,,b', ' ', 'a\u0000', 'x'.repeat(65)]);
  reject('PUT', '/q/N/bad', 'groups', ['G1']);
  reject('POST', '/q/N/bad/elements', 'delay', [...SECONDS, '315360001']);
  reject('POST', '/q/N/bad/elements', 'mature', [...SECONDS, '1800000000000', '95617584000']);
  reject('POST', '/q/N/bad/elements', 'ttl', [...SECONDS, '0', '315360001']);
  reject('POST', '/q/N/bad/elements', 'tries', [...WHOLE, '1000001']);
  reject('POST', '/q/events/bad/elements', 'groups', ['', ',', 'a,,b', ' ', 'a\u0000', 'x'.repeat(65)]);
  reject('GET', '/q/N/bad', 'to', [...WHOLE, '315360000001']);
  reject('GET', '/q/N/bad', 'reserve', FLAGS);
  reject('GET', '/q/N/bad?reserve=1&to=0', 'lease', []);
  reject('GET', '/q/events/bad', 'group', ['', 'a,b', 'x'.repeat(65), '\u0007']);
  reject('GET', '/q/N/bad', 'group', ['G1']);
  reject('PATCH', '/q/N/bad/rollback/x', 'delay', [...WHOLE, '315360000001']);
  reject('PATCH', '/q/N/bad/extend/x', 'lease', [...WHOLE, '0', '315360000001']);
  for (const verb of ['commit', 'rollback', 'release', 'extend']) {
    reject('PATCH', `/q/N/bad/${verb}/x`, 'token', ['', 'a b', 'ü', 'x'.repeat(65)]);
    reject('PATCH', `/q/N/bad/${verb}/x`, 'group', ['', 'a,b']);
  }
  for (const flag of ['array', 'tree', 'reload']) {
    reject('GET', '/q', flag, FLAGS);
    reject('GET', '/q/N', flag, FLAGS);
    reject('GET', '/x', flag, FLAGS);
  }
  reject('DELETE', '/q/N/bad/elements', 'state', ['', 'waiting', 'READY', 'ready,scheduled']);
  reject('GET', '/q/N/bad/elements', 'state', ['', 'waiting', 'READY', 'ready,scheduled']);
  reject('GET', '/q/N/bad/elements', 'limit', [...WHOLE, '0', '1001']);
  reject('GET', '/q/N/bad/elements', 'body', ['', 'all', 'FULL']);
  reject('GET', '/q/N/bad/elements', 'after', ['', 'a b', 'ü', 'x'.repeat(129)]);
  reject('GET', '/q/N/bad/elements', 'where', ['', 'env =>', 'env.msg..x', 'x'.repeat(8193)]);
  reject('GET', '/q/N/bad/elements', 'group', ['G1']);
  reject('GET', '/q/events/bad/elements', 'group', ['', 'a,b']);
  reject('GET', '/q/events/bad/elements/x', 'group', ['', 'a,b']);
  reject('GET', '/operations', 'state', ['', 'gone']);
  reject('GET', '/q/events/bad/status', 'group', ['', 'a,b']);
  reject('GET', '/events', 'kinds', ['', ',', 'queus', 'QUEUES', 'queues,', 'queues nodes', '*']);
  return rows.map((row) => ({ ...row, bytes: fixQuery(row.bytes) }));
}

/** Joins the second query of a target, which a row added to a target that had one, with `&`. */
function fixQuery(bytes: Buffer): Buffer {
  const text = bytes.toString('latin1');
  const line = text.slice(0, text.indexOf('\r\n'));
  const parts = line.split('?');
  if (parts.length < 3) return bytes;
  return Buffer.from(text.replace(line, `${parts[0]}?${parts.slice(1).join('&')}`), 'latin1');
}

function nameRows(): RejectedRequest[] {
  const rows: RejectedRequest[] = [];
  for (const [name, what] of NAMES) {
    for (const [method, target, parameter] of [
      ['PUT', `/q/N/${name}`, 'queue'],
      ['GET', `/q/N/${name}/status`, 'queue'],
      ['GET', `/q/N/${name}/history`, 'queue'],
      ['DELETE', `/q/N/bad/consumer/${name}`, 'tid'],
      ['GET', `/q/N/bad?tid=${name}`, 'tid'],
      ['GET', `/queues?ns=${name}`, 'ns'],
      ['GET', `/history?ns=${name}`, 'ns'],
      ['GET', `/dead-letters?ns=${name}`, 'ns'],
      ['GET', `/consumers?ns=${name}`, 'ns'],
      ['GET', `/operations?ns=${name}`, 'ns'],
      ['GET', `/operations?queue=${name}`, 'queue'],
      ['GET', `/events?ns=${name}`, 'ns'],
      ['GET', `/events?ns=N&queue=${name}`, 'queue'],
    ] as const) {
      const bytes = request(method, target, [], 'body');
      rows.push({
        what: `${method}: ${parameter} with ${what}`,
        status: 400,
        code: 'invalid-name',
        parameter,
        bytes,
      });
    }
  }
  for (const target of ['/q/N/?to=0', '/q/N//status', '/q/N/bad?tid=']) {
    const bytes = request('GET', target);
    rows.push({ what: `an empty name: ${target}`, status: 400, code: 'invalid-name', bytes });
  }
  for (const [id, what] of [
    ['x'.repeat(65), '65 characters'],
    ['%00', 'NUL'],
    ['a%20b', 'a space'],
    ['%C3%BC', 'a letter beyond ASCII'],
  ]) {
    for (const [method, target] of [
      ['PATCH', `/q/N/bad/commit/${id}`],
      ['PATCH', `/q/N/bad/rollback/${id}`],
      ['PATCH', `/q/N/bad/release/${id}`],
      ['PATCH', `/q/N/bad/extend/${id}`],
      ['DELETE', `/q/N/bad/${id}`],
      ['GET', `/operations/${id}`],
      ['DELETE', `/operations/${id}`],
    ] as const) {
      const bytes = request(method, target);
      rows.push({
        what: `${method}: id with ${what}`,
        status: 400,
        code: 'invalid-parameter',
        parameter: 'id',
        bytes,
      });
    }
  }
  for (const part of MALFORMED) {
    for (const target of [`/q/${part}/bad`, `/q/N/${part}`, `/q/N/a${part}/status`]) {
      const bytes = request('PUT', target, [], 'body');
      rows.push({ what: `path not well encoded: ${target}`, status: 400, code: 'malformed-request', bytes });
    }
  }
  rows.push({
    what: 'a parameter name that is not well encoded',
    status: 400,
    code: 'malformed-request',
    bytes: request('PUT', '/q/N/bad?%FF=1', [], 'body'),
  });
  return rows;
}

function headerRows(): RejectedRequest[] {
  const put = (
    what: string,
    headers: readonly string[],
    rest: Partial<RejectedRequest>,
  ): RejectedRequest => ({
    what,
    status: 400,
    code: 'invalid-header',
    bytes: request('PUT', '/q/N/bad', headers, 'body'),
    ...rest,
  });
  return [
    put('two Authorization headers', [AUTHORIZATION], {
      code: 'malformed-request',
      parameter: 'authorization',
    }),
    put('two Host headers', ['Host: test'], { code: 'malformed-request', parameter: 'host' }),
    put('two content types', ['Content-Type: a/b', 'content-type: a/b'], { parameter: 'content-type' }),
    put('two idempotency keys', ['Idempotency-Key: a', 'Idempotency-Key: b'], {
      parameter: 'idempotency-key',
    }),
    put('an empty idempotency key', ['Idempotency-Key:'], { parameter: 'idempotency-key' }),
    put('a long idempotency key', [`Idempotency-Key: ${'x'.repeat(256)}`], { parameter: 'idempotency-key' }),
    put('a long content type', [`Content-Type: ${'x'.repeat(256)}`], { parameter: 'content-type' }),
    put('a long content encoding', [`Content-Encoding: ${'x'.repeat(256)}`], {
      parameter: 'content-encoding',
    }),
    put(
      '65 element headers',
      Array.from({ length: 65 }, (_, i) => `x-ks-hdr-${i}: v`),
      { parameter: 'x-ks-hdr-64' },
    ),
    put('8193 bytes of element headers', [`x-ks-hdr-a: ${'v'.repeat(8192)}`], { parameter: 'x-ks-hdr-a' }),
    put('another expectation', ['Expect: 200-ok'], { status: 417, code: 'expectation-failed' }),
    put('a wait that is no number', ['X: y'], {
      code: 'invalid-parameter',
      parameter: 'prefer',
      bytes: request('GET', '/q/N/bad', ['Prefer: wait=soon']),
    }),
    put('a wait below 0', ['X: y'], {
      code: 'invalid-parameter',
      parameter: 'prefer',
      bytes: request('GET', '/q/N/bad', ['Prefer: wait=-1']),
    }),
    put('a body over the limit', [], {
      status: 413,
      code: 'body-too-large',
      bytes: request('PUT', '/q/N/bad', [], 'x'.repeat(2_001)),
    }),
  ];
}

/** The route that a request matches; undefined if its path is malformed. */
function routeOf(bytes: Buffer): Route | undefined {
  const [method = '', target = ''] = bytes.toString('latin1').split(' ', 2);
  const segments = target.split('?', 1)[0]?.split('/') ?? [];
  const matching = ROUTES.filter(({ methods, path }) => {
    const own = path.split('/');
    const isSame = (part: string, i: number): boolean => part.startsWith(':') || part === segments[i];
    return methods.some((one) => one === method) && own.length === segments.length && own.every(isSame);
  });
  const named = ({ path }: Route): number => path.split('/').filter((part) => !part.startsWith(':')).length;
  return matching.sort((a, b) => named(b) - named(a))[0];
}

function problemOf(answers: readonly RawAnswer[]): { status: number; code?: string; parameter?: string } {
  const [answer] = answers;
  assert.equal(answers.length, 1, JSON.stringify(answers));
  assert.ok(answer !== undefined);
  const { code, parameter } = JSON.parse(answer.body);
  return { status: answer.status, code, parameter };
}

describe('Bad input', () => {
  const harness = sharedHarness({ http: { bodyLimit: 2_000 } });

  for (const { what, status, code, parameter, bytes } of [
    ...parameterRows(),
    ...nameRows(),
    ...headerRows(),
  ]) {
    it(`${what}: ${status} ${code}`, async () => {
      const problem = problemOf(await exchange(harness().port, bytes));
      assert.equal(problem.status, status);
      assert.equal(problem.code, code);
      if (parameter !== undefined) assert.equal(problem.parameter, parameter);
      const route = routeOf(bytes);
      if (route !== undefined)
        assert.ok(
          problemsOf(route).some((one) => one === code),
          `${route.id} documents it`,
        );
    });
  }

  it('stores no element and leaves no consumer waiting', async () => {
    const { data } = jsonOf<{ data: { id: string; totalSize: number }[] }>(
      await harness()
        .client()
        .namespaces({ query: { array: 1 } }),
    );
    assert.deepEqual(
      data.filter(({ totalSize }) => totalSize > 0),
      [],
    );
    assert.equal(harness().broker.waiting, 0);
  });
});

describe('Odd but valid names', () => {
  const harness = sharedHarness();

  // Each is only a queue name: it must not be mistaken for a file, a route or an object key.
  const names = [
    '..',
    '.',
    '%2e%2e%2f',
    '../../etc/passwd',
    'a/b',
    'x'.repeat(255),
    '☃'.repeat(85),
    'עברית',
    '{tag}',
    '*',
    "'",
    ';',
    ':',
    '?',
    '#',
    '%',
    '%2F',
    '+',
    'a b',
    ' ',
    '\\',
    '"',
    'status',
    'consumers',
    'consumer',
    'pause',
    'commit',
    '__proto__',
    'constructor',
    'toString',
    '\u200b',
    '𝄞',
  ];

  for (const name of names) {
    it(`${JSON.stringify(name)} can name a queue, a tid and a group`, async () => {
      const client = harness().client();
      const { id } = jsonOf<{ id: string }>(await client.insert('N', name, name));
      assert.equal(jsonOf<{ size: number }>(await client.status('N', name)).size, 1);
      assert.ok(name in jsonOf<object>(await client.queues('N')));
      const answer = await client.reserve('N', name);
      assert.equal(answer.body.toString(), name);
      assert.equal((await client.commit('N', name, id)).status, 200);
      const waiting = client.get('N', name, { tid: name });
      await harness().waiting(1);
      const [consumer] = jsonOf<{ tid: string }[]>(await client.consumers('N', name));
      assert.equal(consumer?.tid, name);
      await client.cancel('N', name, name);
      assert.equal((await waiting).status, 410);
      const groups = name.trim() === '' || name.length > 64 ? 'G' : name.trim();
      assert.equal((await client.insert('events', name, 'a', { groups })).status, 200);
      assert.equal((await client.get('events', name, { group: groups })).status, 200);
    });
  }

  it('an id may be a word of another route', async () => {
    const client = harness().client();
    for (const id of ['status', 'consumers', 'pause', '__proto__']) {
      assert.equal((await client.remove('N', 'q', id)).status, 404, id);
      assert.equal((await client.commit('N', 'q', id)).status, 404, id);
    }
  });

  it('a plus sign in a query means a space, as in HTML forms', async () => {
    const client = harness().client();
    const waiting = client.request('GET', '/q/N/plus?tid=a+b%2Bc');
    await harness().waiting(1);
    const [consumer] = jsonOf<{ tid: string }[]>(await client.consumers('N', 'plus'));
    assert.equal(consumer?.tid, 'a b+c');
    await client.cancel('N', 'plus', 'a b+c');
    await waiting;
  });
});
