import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { MAIN_ENGINES } from '../engines.ts';
import { plain } from '../support/broker.ts';
import { type Answer, jsonOf, queuePath } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { basic, sharedHarness } from './harness.ts';
import { AUTHORIZATION, exchange, lastRequest, RawConnection, rawRequest } from './raw.ts';

const DEAD = 'dead';
const deadLetter = { maxTries: 1, queue: DEAD };
const NAMESPACES = [plain('N', { deadLetter }), plain('events', { groups: ['default'] }), plain('hidden')];

type Line = Readonly<Record<string, unknown>>;

const idOf = (answer: Answer): string => jsonOf<{ id: string }>(answer).id;

function linesOf({ body }: Pick<Answer, 'body'>): Line[] {
  const text = body.toString();
  assert.ok(text === '' || text.endsWith('\n'));
  return text
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line));
}

for (const engine of MAIN_ENGINES) {
  describe(`Export, ${engine.name}`, () => {
    const harness = sharedHarness({ engine, namespaces: NAMESPACES });

    it('contains each element with its state, without changing the queue', async () => {
      const client = harness().client();
      const insert = async (body: string | Buffer, query: Record<string, string>): Promise<string> =>
        idOf(
          await client.insert('N', 'out', body, {
            query,
            headers: { 'content-type': 'text/plain', 'x-ks-hdr-k': 'v' },
          }),
        );
      const ready = await insert('now', { tries: '2' });
      const late = await insert(Buffer.from([0xff, 0]), { delay: '60' });
      const held = await insert('held', { delay: '0' });
      await client.reserve('N', 'out');
      const answer = await client.request('GET', '/q/N/out/export');
      assert.equal(answer.status, 200);
      assert.equal(answer.headers['content-type'], 'application/x-ndjson');
      const lines = linesOf(answer);
      const shown = lines.map(({ id, state, text, base64, tries }) => ({ id, state, text, base64, tries }));
      assert.deepEqual(shown, [
        { id: held, state: 'ready', text: 'held', base64: undefined, tries: 0 },
        { id: late, state: 'scheduled', text: undefined, base64: '/wA=', tries: 0 },
        { id: ready, state: 'reserved', text: 'now', base64: undefined, tries: 2 },
      ]);
      for (const { contentType, contentEncoding, headers, expiresAt, reason } of lines) {
        assert.deepEqual(
          { contentType, contentEncoding, headers, expiresAt, reason },
          {
            contentType: 'text/plain',
            contentEncoding: null,
            headers: { k: 'v' },
            expiresAt: null,
            reason: null,
          },
        );
      }
      const [, scheduled] = lines;
      const insertedAt = Date.parse(String(scheduled?.insertedAt));
      assert.ok(Math.abs(Number(scheduled?.mature) * 1000 - insertedAt - 60_000) < 5_000);
      const { size, schedSize, resvSize } = jsonOf<Record<string, number>>(await client.status('N', 'out'));
      assert.deepEqual({ size, schedSize, resvSize }, { size: 1, schedSize: 1, resvSize: 1 });
    });

    it('contains the deliveries of all groups of a stream, or of one', async () => {
      const client = harness().client();
      const id = idOf(await client.insert('events', 'out', 'x', { query: { groups: 'a,b' } }));
      const all = linesOf(await client.request('GET', '/q/events/out/export'));
      assert.deepEqual(
        all.map((line) => [line.id, line.group]),
        [
          [id, 'a'],
          [id, 'b'],
        ],
      );
      const one = linesOf(await client.request('GET', '/q/events/out/export?group=b'));
      assert.deepEqual(
        one.map(({ group }) => group),
        ['b'],
      );
    });

    it('of a queue that does not exist is empty and does not create the queue', async () => {
      const client = harness().client();
      const answer = await client.request('GET', '/q/N/never/export');
      assert.deepEqual([answer.status, answer.body.length], [200, 0]);
      assert.ok(!(await client.queues('N')).body.includes('never'));
    });

    it('contains every element once, even if there are more than one page', async () => {
      const client = harness().client();
      const lines = Array.from({ length: 450 }, (_, i) => ({ text: String(i) }));
      for (const { text } of lines) await client.insert('N', 'many', text);
      const exported = linesOf(await client.request('GET', '/q/N/many/export'));
      assert.deepEqual(
        exported.map(({ text }) => text),
        lines.map(({ text }) => text),
      );
    });

    it('can be imported with maturity, tries and headers, each element once', async () => {
      const client = harness().client();
      const options = { query: { tries: '3' }, headers: { 'content-type': 'text/plain', 'x-ks-hdr-k': 'ü' } };
      for (const body of ['a', 'b']) await client.insert('N', 'source', body, options);
      await client.insert('N', 'source', Buffer.from([0, 0xff]), { query: { delay: '3600' } });
      const { body: file } = await client.request('GET', '/q/N/source/export');
      const into = (queue: string) => client.request('POST', `/q/N/${queue}/import`, { body: file });
      assert.deepEqual(jsonOf(await into('target')), { imported: 3, repeated: 0 });
      assert.deepEqual(jsonOf(await into('target')), { imported: 0, repeated: 3 });
      assert.deepEqual(
        jsonOf(await into('source')),
        { imported: 0, repeated: 3 },
        'the source queue still has the elements',
      );
      const withoutIds = (lines: readonly Line[]) => lines.map(({ id: _, insertedAt: __, ...rest }) => rest);
      assert.deepEqual(
        withoutIds(linesOf(await client.request('GET', '/q/N/target/export'))),
        withoutIds(linesOf({ body: file })),
      );
      const first = await client.get('N', 'target');
      assert.equal(first.body.toString(), 'a');
      assert.equal(first.headers['x-ks-tries'], '3');
      assert.deepEqual(
        jsonOf(await into('target')),
        { imported: 0, repeated: 3 },
        'a consumed element is not imported again',
      );
    });

    it('of dead letters can be imported for any name of their source queue and the maximum number of headers', async () => {
      const client = harness().client();
      const names = [' before', 'behind '];
      const headers = Object.fromEntries(Array.from({ length: 64 }, (_, i) => [`x-ks-hdr-h${i}`, 'v']));
      for (const queue of names) {
        const id = idOf(await client.insert('N', queue, 'x', { headers }));
        await client.reserve('N', queue);
        assert.equal((await client.rollback('N', queue, id)).status, 200);
      }
      const { body } = await client.request('GET', `/q/N/${DEAD}/export`);
      await client.request('PUT', '/q/N/again/options', { body: '{"ttl":60}' });
      const answer = await client.request('POST', '/q/N/again/import', { body });
      assert.deepEqual(jsonOf(answer), { imported: 2, repeated: 0 });
      const imported = linesOf(await client.request('GET', '/q/N/again/export'));
      const from = imported.map((line) => (line.headers as Record<string, string>)['x-dl-from-queue']);
      assert.deepEqual(from.sort(), names);
      assert.deepEqual(
        imported.map(({ expiresAt }) => expiresAt),
        [null, null],
        'like the dead letters, they do not expire',
      );
    });

    it('can be imported with a header whose name begins as those of HTTP do, which any protocol can insert', async () => {
      const client = harness().client();
      await client.insert('N', 'prefixed', 'x', { headers: { 'x-ks-hdr-x-ks-hdr-a': '1' } });
      const { body } = await client.request('GET', '/q/N/prefixed/export');
      const headers = { 'content-type': 'application/x-ndjson' };
      const answer = await client.request('POST', '/q/N/prefixed-copy/import', { body, headers });
      assert.equal(answer.status, 200, answer.body.toString());
      assert.equal((await client.get('N', 'prefixed-copy')).headers['x-ks-hdr-x-ks-hdr-a'], '1');
    });

    it('of a stream can be imported with the group of each delivery', async () => {
      const client = harness().client();
      await client.insert('events', 'from', 'x', { query: { groups: 'a,b' } });
      const { body } = await client.request('GET', '/q/events/from/export');
      assert.deepEqual(jsonOf(await client.request('POST', '/q/events/to/import', { body })), {
        imported: 2,
        repeated: 0,
      });
      for (const group of ['a', 'b']) {
        assert.equal((await client.get('events', 'to', { query: { group, to: '0' } })).status, 200);
      }
    });
  });
}

describe('An import', () => {
  const harness = sharedHarness({ namespaces: NAMESPACES });
  const line = (id: string, more = {}): string =>
    `${JSON.stringify({ id, mature: 1, insertedAt: '2026-01-01T00:00:00.000Z', tries: 0, text: id, ...more })}\n`;

  it('accepts null for members that are not given', async () => {
    const client = harness().client();
    const nulls = { state: null, group: null, expiresAt: null, reason: null, tries: null };
    const body = line('a', { ...nulls, contentType: null, contentEncoding: null, headers: null });
    const answer = await client.request('POST', '/q/N/nulls/import', { body });
    assert.deepEqual(jsonOf(answer), { imported: 1, repeated: 0 });
  });

  it('reports which line is wrong and how many elements were stored before it', async () => {
    const client = harness().client();
    const wrong: [string, string, string][] = [
      ['{', 'invalid-body', ''],
      ['[]', 'invalid-body', ''],
      [line('a', { idd: 1 }), 'invalid-parameter', 'idd'],
      [line('a', { text: undefined }), 'invalid-parameter', 'text'],
      [line('a', { json: 1, text: undefined }), 'invalid-parameter', 'json'],
      [line('a/b'), 'invalid-parameter', 'id'],
      [line('a', { mature: null }), 'invalid-parameter', 'mature'],
      [line('a', { insertedAt: 'yesterday' }), 'invalid-parameter', 'insertedAt'],
      [line('a', { group: 'g' }), 'invalid-parameter', 'group'],
    ];
    for (const [text, code, parameter] of wrong) {
      const answer = await client.request('POST', '/q/N/wrong/import', { body: `\n${text.trimEnd()}\n` });
      const problem = jsonOf<{
        code: string;
        parameter?: string;
        line: number;
        imported: number;
        detail: string;
      }>(answer);
      assert.deepEqual(
        [answer.status, problem.code, problem.parameter ?? '', problem.line, problem.imported],
        [400, code, parameter, 2, 0],
        text,
      );
      assert.match(problem.detail, /^Line 2: /);
    }
    const many = Array.from({ length: 600 }, (_, i) => line(String(i))).join('');
    const answer = await client.request('POST', '/q/N/half/import', { body: `${many}{` });
    const { line: at, imported } = jsonOf<{ line: number; imported: number }>(answer);
    assert.deepEqual([answer.status, at, imported], [400, 601, 500]);
    assert.deepEqual(jsonOf(await client.request('POST', '/q/N/half/import', { body: many })), {
      imported: 100,
      repeated: 500,
    });
  });

  it('rejects a line that is too long or not UTF-8, with its number', async () => {
    const client = harness().client();
    const long = await client.request('POST', '/q/N/wrong/import', {
      body: `${line('a')}${'x'.repeat(2_200_000)}`,
    });
    assert.deepEqual([long.status, jsonOf<{ line: number }>(long).line], [413, 2]);
    const bytes = await client.request('POST', '/q/N/wrong/import', {
      body: Buffer.from([0x22, 0xff, 0x22, 0x0a]),
    });
    assert.equal(bytes.status, 400);
    assert.match(jsonOf<{ detail: string }>(bytes).detail, /^Line 1: .*UTF-8/);
  });

  it('of an empty body stores nothing', async () => {
    const answer = await harness().client().request('POST', '/q/N/none/import', { body: '' });
    assert.deepEqual(jsonOf(answer), { imported: 0, repeated: 0 });
  });
});

describe('An import that takes long', () => {
  const harness = sharedHarness({ http: { headersTimeoutMs: 200, requestTimeoutMs: 200 } });

  const line = (id: string): string => {
    const [mature, insertedAt] = [1_700_000_000, '2026-01-01T00:00:00.000Z'];
    return `${JSON.stringify({ id, mature, insertedAt, tries: 0, headers: {}, text: id })}\n`;
  };
  const chunk = (text: string): string => `${text.length.toString(16)}\r\n${text}\r\n`;
  const END = '0\r\n\r\n';

  /** Starts an import and waits until the server is ready for its body. */
  const begin = async (queue: string): Promise<RawConnection> => {
    const connection = await RawConnection.open(harness().port);
    const head = [`POST ${queuePath('N', queue)}/import HTTP/1.1`, 'Host: test', AUTHORIZATION];
    connection.send(rawRequest([...head, 'Expect: 100-continue', 'Transfer-Encoding: chunked']));
    const [answer] = await connection.answers(1);
    assert.equal(answer?.status, 100);
    return connection;
  };

  /** Starts a request whose body never comes. Resolves when it is rejected, that is, after one request timeout. */
  const requestTimedOut = async (): Promise<void> => {
    const head = [`PUT ${queuePath('N', 'slow')} HTTP/1.1`, 'Host: test', AUTHORIZATION, 'Content-Length: 1'];
    const [answer] = await exchange(harness().port, rawRequest(head));
    assert.equal(answer?.status, 408);
  };

  it('does not time out while its body arrives, and neither does the next request on its connection', async () => {
    const connection = await begin('long');
    for (const id of ['a', 'b']) {
      connection.send(chunk(line(id)));
      await harness().passTime(199);
      await requestTimedOut();
    }
    connection.send(chunk(line('c')) + END);
    const [, answer] = await connection.answers(2);
    assert.equal(answer?.status, 200);
    assert.deepEqual(JSON.parse(answer?.body ?? ''), { imported: 3, repeated: 0 });
    connection.send(lastRequest('GET', queuePath('N', 'long')));
    assert.equal((await connection.untilClosed()).at(-1)?.status, 200);
  });

  it('ends, with what was stored, if its client sends nothing for the request timeout', async () => {
    const connection = await begin('idle');
    connection.send(chunk(Array.from({ length: 501 }, (_, i) => line(String(i))).join('')));
    await until(
      async () => jsonOf<{ size: number }>(await harness().client().status('N', 'idle')).size === 500,
    );
    await until(
      () =>
        connection.received.includes('408') ||
        harness()
          .passTime(200)
          .then(() => false),
    );
    const [, answer] = await connection.untilClosed();
    assert.equal(answer?.status, 408);
    const { code, imported, repeated } = JSON.parse(answer?.body ?? '');
    assert.deepEqual({ code, imported, repeated }, { code: 'request-timeout', imported: 500, repeated: 0 });
    assert.equal(answer?.headers.get('connection'), 'close');
  });

  it('does not time out while it waits for slow storage', async () => {
    const { storage } = harness().opened.engine;
    const { insert } = storage;
    const entered = Promise.withResolvers<void>();
    const released = Promise.withResolvers<void>();
    storage.insert = async (...given) => {
      entered.resolve();
      await released.promise;
      return insert.apply(storage, given);
    };
    const connection = await begin('stored');
    connection.send(chunk(Array.from({ length: 500 }, (_, i) => line(String(i))).join('')));
    await entered.promise;
    await harness().passTime(1_000);
    connection.send(END);
    released.resolve();
    storage.insert = insert;
    const [, answer] = await connection.answers(2);
    assert.equal(answer?.status, 200);
    connection.destroy();
  });
});

describe('Exports and imports of several users', () => {
  const names = ['ann', 'ben', 'cleo', 'dan', 'test1'];
  const users = names.map((name) => ({ name, password: name, rights: null }));
  const harness = sharedHarness({ namespaces: NAMESPACES, users });

  it('are limited per user, so that slow ones of other users never prevent a user from starting one', async () => {
    const slow = [];
    for (const name of ['ann', 'ben', 'cleo', 'dan', 'ann', 'ben', 'cleo', 'dan']) {
      const connection = await RawConnection.open(harness().port);
      const authorization = `Authorization: ${basic(name, name)}`;
      const head = [`POST ${queuePath('N', 'in')}/import HTTP/1.1`, 'Host: test', authorization];
      connection.send(rawRequest([...head, 'Expect: 100-continue', 'Transfer-Encoding: chunked']));
      assert.equal((await connection.answers(1))[0]?.status, 100);
      slow.push(connection);
    }
    const third = await harness().client('ann:ann').request('GET', '/q/N/in/export');
    assert.deepEqual([third.status, jsonOf<{ code: string }>(third).code], [503, 'overloaded']);
    assert.equal((await harness().client().request('GET', '/q/N/in/export')).status, 200);
    for (const connection of slow) connection.destroy();
  });
});

describe('Who may export', () => {
  const harness = sharedHarness({
    namespaces: NAMESPACES,
    users: [
      { name: 'viewer', password: 'pw', rights: { N: ['browse'] } },
      { name: 'masked', password: 'pw', rights: { N: ['browse'] }, maskBodies: true },
      { name: 'reader', password: 'pw', rights: { N: ['read'] }, maskBodies: true },
      { name: 'writer', password: 'pw', rights: { N: ['write'] } },
    ],
  });

  it('is every user who may see bodies', async () => {
    const statuses: Record<string, number> = {};
    for (const name of ['viewer', 'masked', 'reader', 'writer']) {
      const client = harness().client(`${name}:pw`);
      statuses[name] = (await client.request('GET', '/q/N/out/export')).status;
    }
    assert.deepEqual(statuses, { viewer: 200, masked: 403, reader: 200, writer: 403 });
    const refused = await harness().client('masked:pw').request('GET', '/q/N/out/export');
    assert.equal(
      jsonOf<{ detail: string }>(refused).detail,
      'User "masked" may not see bodies in namespace N (maskBodies).',
    );
  });
});

describe('An export and an import whose user is removed before their end', () => {
  /** How many more look-ups find the user. */
  let left = 0;
  const harness = sharedHarness({
    namespaces: NAMESPACES,
    renewUser: (user) => {
      left -= 1;
      return left >= 0 ? user : null;
    },
  });

  it('end with what was written or stored by then', async () => {
    const client = harness().client();
    left = 1;
    const exported = Array.from({ length: 2_500 }, (_, i) => `{"text":"${i}"}`).join('\n');
    await client.request('POST', '/q/N/out/elements', {
      body: exported,
      headers: { 'content-type': 'application/x-ndjson' },
    });
    left = 1;
    await assert.rejects(client.request('GET', '/q/N/out/export'), { code: 'ECONNRESET' });

    left = 1_000;
    const { body } = await client.request('GET', '/q/N/out/export');
    left = 600;
    const answer = await client.request('POST', '/q/N/in/import', { body });
    assert.equal(answer.status, 401);
    assert.equal(jsonOf<{ imported: number }>(answer).imported, 500);
  });
});
