import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { MAIN_ENGINES } from '../engines.ts';
import { plain } from '../support/broker.ts';
import { type Answer, jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { sharedHarness } from './harness.ts';
import { AUTHORIZATION, RawConnection, rawRequest } from './raw.ts';

const NAMESPACES = [plain('N'), plain('other')];

const EMPTY = { exchanges: {}, queues: {} };
const FORWARD = { src: { ns: 'N', queue: 'in' }, dst: [{ ns: 'N', queue: 'out' }], consumer: {} };

interface Changes {
  readonly applied: boolean;
  readonly changes: readonly {
    readonly outcome?: unknown;
    readonly kind: string;
    readonly id?: string;
    readonly queue?: string;
  }[];
}

function put(client: QueueClient, document: unknown, query = '', headers = {}): Promise<Answer> {
  const all = { 'content-type': 'application/json', ...headers };
  return client.request('PUT', `/definitions${query}`, { body: JSON.stringify(document), headers: all });
}

const present = async (client: QueueClient): Promise<unknown> =>
  jsonOf(await client.request('GET', '/definitions'));

for (const engine of MAIN_ENGINES) {
  describe(`Definitions as one document, ${engine.name}`, () => {
    const harness = sharedHarness({ engine, namespaces: NAMESPACES });

    it('match the document that was applied, and applying it again changes nothing', async () => {
      const client = harness().client();
      const document = {
        exchanges: { forward: { ...FORWARD, stopped: true } },
        queues: {
          N: { held: { paused: true, options: null }, slow: { paused: false, options: { maxElements: 5 } } },
        },
      };
      const first = jsonOf<Changes>(await put(client, document));
      assert.equal(first.applied, true);
      assert.deepEqual(
        first.changes.map(({ kind, outcome }) => [kind, outcome]),
        [
          ['exchange', 'done'],
          ['queue', 'done'],
          ['queue', 'done'],
        ],
      );
      assert.deepEqual(await present(client), document);
      assert.equal((await client.paused('N', 'held')).body.toString(), 'true');
      assert.deepEqual(jsonOf<Changes>(await put(client, document)).changes, []);
      // Clean up: the next test expects no definitions.
      const last = jsonOf<Changes>(await put(client, EMPTY, '?prune=1'));
      assert.deepEqual(
        last.changes.map(({ outcome }) => outcome),
        ['done', 'done', 'done'],
      );
      assert.deepEqual(await present(client), EMPTY);
    });

    it('create a stopped exchange that forwards nothing', async () => {
      const client = harness().client();
      await client.insert('N', 'in', 'kept');
      await put(client, { exchanges: { forward: { ...FORWARD, stopped: true } }, queues: {} });
      const got = await client.get('N', 'in', { to: 0 });
      assert.equal(got.body.toString(), 'kept');
      await put(client, EMPTY, '?prune=1');
    });

    it('are compared with a document by a dry run, which changes nothing', async () => {
      const client = harness().client();
      const document = { exchanges: { forward: FORWARD }, queues: { N: { held: { paused: true } } } };
      const { applied, changes } = jsonOf<Changes>(await put(client, document, '?dryRun=1'));
      assert.equal(applied, false);
      assert.deepEqual(changes, [
        { kind: 'queue', ns: 'N', queue: 'held', before: null, after: { paused: true, options: null } },
        { kind: 'exchange', id: 'forward', before: null, after: { ...FORWARD, stopped: false } },
      ]);
      assert.deepEqual(await present(client), EMPTY);
    });
  });
}

describe('A document of definitions', () => {
  const harness = sharedHarness({
    namespaces: NAMESPACES,
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'operator', password: 'pw', rights: { N: ['read', 'write', 'manage', 'exchange'] } },
    ],
  });

  it('is checked by a dry run in parts, between which other requests are served', async (t) => {
    const { exchanges } = harness();
    const { checkCreate } = exchanges;
    let [checked, most] = [0, 0];
    t.mock.method(exchanges, 'checkCreate', (...given: Parameters<typeof checkCreate>) => {
      if (checked === 0) {
        setImmediate(() => {
          most = Math.max(most, checked);
          checked = 0;
        });
      }
      checked += 1;
      return checkCreate.apply(exchanges, given);
    });
    const many = Object.fromEntries(Array.from({ length: 1000 }, (_, i) => [`e${i}`, FORWARD]));
    const { changes } = jsonOf<Changes>(
      await put(harness().client(), { exchanges: many, queues: {} }, '?dryRun=1'),
    );
    assert.equal(changes.filter(({ id }) => id?.startsWith('e')).length, 1000);
    assert.ok(most <= 100, `${most} exchanges were checked in one turn`);
  });

  it('is read in parts, between which other requests are served', async (t) => {
    const { broker } = harness();
    const { namespace, namespaces } = broker;
    let turns = 0;
    let immediate: NodeJS.Immediate;
    const countTurn = (): void => {
      turns += 1;
      immediate = setImmediate(countTurn);
    };
    immediate = setImmediate(countTurn);
    /** The turns before the document is read, and after that. */
    const marks: number[] = [];
    t.mock.method(broker, 'namespace', (name: string) => {
      if (marks.length === 0) marks.push(turns);
      return namespace.call(broker, name);
    });
    t.mock.method(broker, 'namespaces', () => {
      marks.push(turns);
      return namespaces.call(broker);
    });
    const many = Object.fromEntries(Array.from({ length: 1000 }, (_, i) => [`q${i}`, { paused: true }]));
    const { changes } = jsonOf<Changes>(await put(harness().client(), { queues: { N: many } }, '?dryRun=1'));
    clearImmediate(immediate);
    assert.equal(changes.length, 1000);
    const [before = 0, read = 0] = marks;
    assert.ok(read - before >= 10, `it was read in ${read - before} turns`);
  });

  it('may have 32 MiB, since a server may return millions of bytes of definitions', async () => {
    const client = harness().client();
    await put(client, { exchanges: { forward: FORWARD } });
    const { body } = await client.request('GET', '/definitions');
    const sent = async (bytes: number): Promise<Answer> =>
      client.request('PUT', '/definitions', {
        body: Buffer.concat([Buffer.alloc(bytes - body.length, ' '), body]),
      });
    const answer = await sent(33_554_432);
    assert.deepEqual([answer.status, jsonOf<Changes>(answer).changes], [200, []]);
    const tooLarge = await sent(33_554_433);
    assert.deepEqual([tooLarge.status, jsonOf<{ code: string }>(tooLarge).code], [413, 'body-too-large']);
    await put(client, EMPTY, '?prune=1');
  });

  it('may name all exchanges and queues that the namespaces may have, and no more', async () => {
    const client = harness().client();
    // Each of the two namespaces may have 1000 queues and 1000 exchanges.
    const named = (count: number): unknown => ({
      queues: { N: Object.fromEntries(Array.from({ length: count }, (_, i) => [`q${i}`, {}])) },
    });
    assert.equal((await put(client, named(4000), '?dryRun=1')).status, 200);
    const answer = await put(client, named(4001), '?dryRun=1');
    assert.deepEqual([answer.status, jsonOf<{ code: string }>(answer).code], [400, 'invalid-parameter']);
  });

  it('is rejected if it is not JSON, or an entry has more values than it can need', async () => {
    const client = harness().client();
    const sent = async (body: string): Promise<unknown> => {
      const answer = await client.request('PUT', '/definitions', { body });
      const { code, parameter } = jsonOf<{ code: string; parameter?: string }>(answer);
      return [answer.status, code, parameter];
    };
    for (const body of ['', 'hello', '{"queues": {"N": {"a": {]}}', '{"queues": {}} x']) {
      assert.deepEqual(await sent(body), [400, 'invalid-body', undefined], body);
    }
    for (const [body, path] of [
      ['[1, 2]', ''],
      ['{"queues": 5}', 'queues'],
      ['{"queues": {"N": []}}', 'queues.N'],
      [`{"exchanges": {"a": {"dst": [${'0,'.repeat(100_000)}0]}}}`, 'exchanges.a'],
    ]) {
      assert.deepEqual(await sent(body ?? ''), [400, 'invalid-parameter', path], body?.slice(0, 64));
    }
  });

  it('changes what differs, and keeps what it does not name unless prune is set', async () => {
    const client = harness().client();
    await put(client, {
      exchanges: { one: FORWARD, two: { ...FORWARD, stopped: true } },
      queues: { N: { a: { paused: true } } },
    });
    const wanted = { exchanges: { two: { ...FORWARD, dst: [{ ns: 'other', queue: 'out' }] } } };
    const { changes } = jsonOf<Changes>(await put(client, wanted));
    assert.deepEqual(
      changes.map(({ id, outcome }) => [id, outcome]),
      [['two', 'done']],
    );
    const { exchanges, queues } = jsonOf<{
      exchanges: Record<string, { stopped: boolean }>;
      queues: unknown;
    }>(await client.request('GET', '/definitions'));
    assert.deepEqual(Object.keys(exchanges), ['one', 'two']);
    assert.equal(exchanges.two?.stopped, false);
    assert.deepEqual(queues, { N: { a: { paused: true, options: null } } });
    await put(client, EMPTY, '?prune=1');
    assert.deepEqual(await present(client), EMPTY);
  });

  it('distinguishes two exchanges with the same id, and can be applied to change or remove each of them', async () => {
    const client = harness().client();
    const hidden = { ...FORWARD, src: { ns: 'other', queue: 'in' } };
    await put(client, { exchanges: { twin: hidden } });
    const operator = harness().client('operator:pw');
    const body = JSON.stringify(FORWARD);
    assert.equal((await operator.request('PUT', '/x/twin', { body })).status, 201);
    const both = {
      exchanges: { twin: { ...hidden, stopped: false }, 'twin@N': { ...FORWARD, stopped: false } },
    };
    assert.deepEqual(await present(client), { ...EMPTY, ...both });
    assert.deepEqual(jsonOf<Changes>(await put(client, both)).changes, []);
    const stopped = { exchanges: { ...both.exchanges, 'twin@N': { ...FORWARD, stopped: true } } };
    await put(client, stopped);
    assert.deepEqual(await present(client), { ...EMPTY, ...stopped });
    await put(client, { exchanges: { twin: hidden } }, '?prune=1');
    assert.deepEqual(await present(client), { ...EMPTY, exchanges: { twin: { ...hidden, stopped: false } } });
    assert.equal((await operator.request('GET', '/x/twin')).status, 404);
    await put(client, EMPTY, '?prune=1');
    assert.deepEqual(await present(client), EMPTY);
  });

  it('applies the remaining definitions if one fails, and reports why it failed', async () => {
    const client = harness().client();
    const broken = { ...FORWARD, dst: [{ ns: 'N', queue: 'out', selector: 'env => {' }] };
    const { changes } = jsonOf<Changes>(await put(client, { exchanges: { bad: broken, good: FORWARD } }));
    assert.deepEqual(
      changes.map(({ id, outcome }) => [
        id,
        outcome === 'done' ? outcome : (outcome as { code: string }).code,
      ]),
      [
        ['bad', 'invalid-body'],
        ['good', 'done'],
      ],
    );
    await put(client, EMPTY, '?prune=1');
  });

  it('pauses and limits queues before exchanges use them, and resumes them when exchanges no longer do', async () => {
    const client = harness().client();
    const order = async (document: unknown, query = ''): Promise<(string | undefined)[]> =>
      jsonOf<Changes>(await put(client, document, query)).changes.map(({ id, queue }) => id ?? queue);
    const held = { exchanges: { forward: FORWARD }, queues: { N: { in: { paused: true } } } };
    assert.deepEqual(await order(held), ['in', 'forward']);
    assert.deepEqual(await order(EMPTY, '?prune=1'), ['forward', 'in']);
    const limited = {
      exchanges: { forward: FORWARD },
      queues: { N: { out: { options: { maxElements: 1 } } } },
    };
    assert.deepEqual(await order(limited), ['out', 'forward']);
    const stopped = {
      exchanges: { forward: { ...FORWARD, stopped: true } },
      queues: { N: { out: { options: null } } },
    };
    assert.deepEqual(await order(stopped), ['forward', 'out']);
    await put(client, EMPTY, '?prune=1');
  });

  it('resumes a queue after the exchange that consumed it has another source', async () => {
    const client = harness().client();
    const held = { exchanges: { forward: FORWARD }, queues: { N: { in: { paused: true } } } };
    await put(client, held);
    await client.insert('N', 'in', 'kept');
    const elsewhere = { ...FORWARD, src: { ns: 'N', queue: 'elsewhere' } };
    await put(client, { exchanges: { forward: elsewhere }, queues: { N: { in: { paused: false } } } });
    assert.equal((await client.get('N', 'in', { to: 0 })).body.toString(), 'kept');
    await put(client, EMPTY, '?prune=1');
  });

  it('is applied only if the version in If-Match is current', async () => {
    const client = harness().client();
    const { headers } = await client.request('GET', '/definitions');
    const etag = String(headers.etag);
    assert.equal(
      (await put(client, { queues: { N: { a: { paused: true } } } }, '', { 'if-match': etag })).status,
      200,
    );
    const late = await put(client, { queues: { N: { b: { paused: true } } } }, '', { 'if-match': etag });
    assert.deepEqual([late.status, jsonOf<{ code: string }>(late).code], [412, 'precondition-failed']);
    await put(client, EMPTY, '?prune=1');
  });

  it('is rejected with the path of the wrong member', async () => {
    const client = harness().client();
    for (const [document, parameter] of [
      [[], ''],
      [{ exchange: {} }, 'exchange'],
      [
        { exchanges: { a: { ...FORWARD, dst: [{ ns: 'N', queue: 'q', selectr: '' }] } } },
        'exchanges.a.dst[0].selectr',
      ],
      [{ exchanges: { a: { ...FORWARD, stopped: 1 } } }, 'exchanges.a.stopped'],
      [{ queues: { N: { a: { paused: 'yes' } } } }, 'queues.N.a.paused'],
      [{ queues: { N: { a: { options: { lease: 0 } } } } }, 'queues.N.a.options.lease'],
      [
        { queues: { N: { a: { options: { deadLetter: { maxTries: 1, queue: 'a' } } } } } },
        'queues.N.a.options',
      ],
    ] as const) {
      const answer = await put(client, document);
      const { code, parameter: named } = jsonOf<{ code: string; parameter: string }>(answer);
      assert.deepEqual([answer.status, code, named], [400, 'invalid-parameter', parameter]);
    }
    for (const [document, path] of [
      [{ exchanges: { '': FORWARD } }, 'exchanges'],
      [{ queues: { N: { ['n'.repeat(256)]: {} } } }, 'queues.N'],
    ] as const) {
      const answer = await put(client, document);
      const { code, parameter, detail } = jsonOf<{ code: string; parameter: string; detail: string }>(answer);
      assert.deepEqual([answer.status, code, parameter], [400, 'invalid-name', path]);
      assert.ok(detail.startsWith(`${path}: The `), detail);
    }
    const unknown = await put(client, { queues: { nowhere: {} } });
    const { code, parameter: named } = jsonOf<{ code: string; parameter: string }>(unknown);
    assert.deepEqual([unknown.status, code, named], [404, 'namespace-not-found', 'queues.nowhere']);
  });

  it('may be read and applied only by administrators', async () => {
    const client = harness().client('operator:pw');
    assert.equal((await client.request('GET', '/definitions')).status, 403);
    assert.equal((await put(client, EMPTY)).status, 403);
  });
});

describe('A dry run of a document of definitions', () => {
  const configured = new Map([['configured', FORWARD]]);
  const harness = sharedHarness({
    namespaces: NAMESPACES,
    maxQueues: 4,
    maxExchanges: 2,
    configured,
  });

  it('reports the error of each change that would fail, as the change itself does', async () => {
    const client = harness().client();
    const stored = { ...FORWARD, stopped: true };
    await put(client, { exchanges: { stored } });
    const to = (...dst: readonly object[]): object => ({ ...FORWARD, dst, stopped: true });
    const out = { ns: 'N', queue: 'out' };
    const document = {
      exchanges: {
        beyond: to(out),
        broken: to({ ...out, selector: 'env => {' }),
        configured: { ...FORWARD, consumer: { wsize: 1 } },
        elsewhere: to({ ns: 'nowhere', queue: 'out' }),
        repeated: to(out, out),
        same: FORWARD,
        stored: to({ ...out, selector: 'env => (' }),
        wide: to(out, ...['b', 'c', 'd', 'e'].map((queue) => ({ ns: 'N', queue }))),
      },
      queues: { N: { tape: { options: { retention: 5 } } } },
    };
    const before = await present(client);
    const dry = jsonOf<Changes>(await put(client, document, '?dryRun=1')).changes;
    assert.deepEqual(await present(client), before);
    const real = jsonOf<Changes>(await put(client, document)).changes;
    assert.deepEqual(dry, real);
    assert.deepEqual(
      dry.map(({ id, outcome }) => [id, (outcome as { code: string }).code]),
      [
        ['beyond', 'too-many-exchanges'],
        ['broken', 'invalid-body'],
        ['elsewhere', 'invalid-parameter'],
        ['repeated', 'invalid-parameter'],
        ['stored', 'invalid-body'],
        ['wide', 'too-many-queues'],
        [undefined, 'not-supported'],
        ['configured', 'exchange-exists'],
        ['same', 'too-many-exchanges'],
      ],
    );
    await put(client, EMPTY, '?prune=1');
  });
});

describe('A document of definitions whose user is removed while it is applied', () => {
  let isUser = true;
  const harness = sharedHarness({ renewUser: (user) => (isUser ? user : null) });

  it('changes nothing from then on and reports this for each definition', async () => {
    const client = harness().client();
    const { definitions } = harness().opened.engine;
    const store = definitions.put.bind(definitions);
    definitions.put = async (...args) => {
      const version = await store(...args);
      isUser = false;
      return version;
    };
    const queues = { N: { a: { paused: true }, b: { paused: true } } };
    const forward = { ...FORWARD, stopped: true };
    const { changes } = jsonOf<Changes>(await put(client, { exchanges: { forward }, queues }));
    definitions.put = store;
    assert.deepEqual(
      changes.map(({ outcome }) => (outcome === 'done' ? outcome : (outcome as { code: string }).code)),
      ['done', 'unauthorized', 'unauthorized'],
    );
    isUser = true;
    assert.equal((await client.paused('N', 'a')).body.toString(), 'false');
  });
});

describe('Large documents of definitions', () => {
  const names = ['test1', 'second', 'third'];
  const harness = sharedHarness({
    namespaces: NAMESPACES,
    users: names.map((name) => ({ name, password: name, rights: null })),
    http: { bodyLimit: 1000 },
  });
  const as = (name: string): QueueClient => harness().client(`${name}:${name}`);

  const selector = `env => ${JSON.stringify('x'.repeat(1000))}`;
  const dst = [{ ns: 'N', queue: 'out', selector }];
  const LARGE = { exchanges: { forward: { ...FORWARD, dst } } };

  interface HeldChecks {
    readonly count: number;
    release(): void;
  }
  const holdChecks = (t: TestContext): HeldChecks => {
    const { exchanges } = harness();
    const { checkCreate } = exchanges;
    const { promise, resolve: release } = Promise.withResolvers<void>();
    t.after(() => release());
    let count = 0;
    t.mock.method(exchanges, 'checkCreate', async (...given: Parameters<typeof checkCreate>) => {
      count += 1;
      await promise;
      return checkCreate.apply(exchanges, given);
    });
    return {
      get count() {
        return count;
      },
      release,
    };
  };

  it('of other users that are still being applied delay no large body', async (t) => {
    const held = holdChecks(t);
    const applying = ['test1', 'test1', 'second', 'second'].map((name) => put(as(name), LARGE, '?dryRun=1'));
    await until(() => held.count === applying.length);
    const lines = [{ text: 'a'.repeat(600) }, { text: 'b'.repeat(600) }];
    const inserted = await as('third').insertLines('N', 'large', lines);
    assert.equal(inserted.status, 200);
    held.release();
    for (const { status } of await Promise.all(applying)) assert.equal(status, 200);
  });

  it('count as bodies of their user until they are applied', async (t) => {
    const held = holdChecks(t);
    const send = async (line: string, ...headers: string[]): Promise<RawConnection> => {
      const connection = await RawConnection.open(harness().port);
      t.after(() => connection.destroy());
      connection.send(rawRequest([`${line} HTTP/1.1`, 'Host: test', AUTHORIZATION, ...headers]));
      return connection;
    };
    // Each counts as 32 MiB, since its length is not known: four occupy all that the user may have.
    const applying = await Promise.all(
      Array.from({ length: 4 }, () => send('PUT /definitions?dryRun=1', 'Transfer-Encoding: chunked')),
    );
    const body = JSON.stringify(LARGE).padEnd(70_000);
    for (const connection of applying) connection.send(`${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`);
    await until(() => held.count === applying.length);
    const next = await send(
      'POST /q/N/next/elements',
      'Content-Type: application/x-ndjson',
      'Content-Length: 70000',
      'Expect: 100-continue',
    );
    // The server reads what arrived before these requests.
    for (let i = 0; i < 100; i += 1) await as('test1').status('N', 'none');
    assert.equal(next.received, '');
    held.release();
    assert.equal((await next.answers(1))[0]?.status, 100);
    for (const connection of applying) assert.equal((await connection.answers(1))[0]?.status, 200);
  });
});

describe('Queues of a document of definitions', () => {
  const harness = sharedHarness({ namespaces: NAMESPACES, maxQueues: 40 });
  const pauses = (count: number): unknown => ({
    queues: { N: Object.fromEntries(Array.from({ length: count }, (_, i) => [`q${i}`, { paused: true }])) },
  });
  const outcomesOf = (answer: Answer): unknown[] =>
    jsonOf<Changes>(answer).changes.map(({ outcome }) =>
      outcome === 'done' ? outcome : (outcome as { code: string }).code,
    );

  it('are stored up to 32 at a time, and those that are resumed after the others', async (t) => {
    const client = harness().client();
    const { storage } = harness().opened.engine;
    const { declare } = storage;
    const pending = new Set<string>();
    const batches: string[][] = [];
    t.mock.method(storage, 'declare', async (...given: Parameters<typeof declare>) => {
      const names = given[0].map(({ name }) => name);
      if (pending.size === 0) batches.push([]);
      batches.at(-1)?.push(...names);
      for (const name of names) pending.add(name);
      try {
        return await declare.apply(storage, given);
      } finally {
        for (const name of names) pending.delete(name);
      }
    });
    assert.deepEqual(outcomesOf(await put(client, pauses(34))), Array(34).fill('done'));
    assert.deepEqual(
      batches.map(({ length }) => length),
      [32, 2],
    );
    batches.length = 0;
    const queues = { N: { q0: {}, q1: {}, q40: { paused: true } } };
    assert.deepEqual(outcomesOf(await put(client, { queues })), ['done', 'done', 'done']);
    assert.deepEqual(batches, [['q40'], ['q0', 'q1']]);
  });

  it('are no more than the namespace may have, also if two documents are applied at the same time', async () => {
    const client = harness().client();
    const named = (prefix: string): unknown => ({
      queues: {
        other: Object.fromEntries(
          Array.from({ length: 32 }, (_, i) => [
            `${prefix}${i}`,
            i % 2 ? { paused: true } : { options: { lease: 5 } },
          ]),
        ),
      },
    });
    const answers = await Promise.all(['a', 'b'].map((prefix) => put(client, named(prefix))));
    const outcomes = answers.flatMap(outcomesOf);
    assert.equal(outcomes.filter((outcome) => outcome === 'done').length, 40);
    assert.equal(outcomes.filter((outcome) => outcome === 'too-many-queues').length, 24);
    assert.equal(Object.keys(jsonOf<object>(await client.request('GET', '/q/other'))).length, 40);
  });

  it('are no more than the namespace may have', async () => {
    const client = harness().client();
    const { changes } = jsonOf<Changes>(await put(client, pauses(50)));
    const done = changes.filter(({ outcome }) => outcome === 'done');
    const rejected = changes.filter(({ outcome }) => outcome !== 'done');
    assert.deepEqual(
      rejected.map(({ outcome }) => (outcome as { code: string }).code),
      Array(rejected.length).fill('too-many-queues'),
    );
    const { queues } = jsonOf<{ queues: { N: object } }>(await client.request('GET', '/definitions'));
    assert.deepEqual(Object.keys(queues.N).length, 40);
    assert.equal(done.length + rejected.length, changes.length);
  });
});
