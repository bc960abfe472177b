import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { unavailable } from '../../src/engine/calls.ts';
import { MAIN_ENGINES } from '../engines.ts';
import { plain } from '../support/broker.ts';
import { headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { Harness, sharedHarness } from './harness.ts';

interface Browsed {
  readonly id: string;
  readonly state: string;
  readonly mature: string;
  readonly insertedAt: string;
  readonly expiresAt: string | null;
  readonly tries: number;
  readonly reason: string | null;
  readonly bytes: number;
  readonly contentType: string | null;
  readonly headers: Record<string, string>;
  readonly holder: { tid: string | null; user: string | null; since: string; until: string } | null;
  readonly text?: string;
  readonly base64?: string;
  readonly truncated: boolean;
}

interface Page {
  readonly elements: Browsed[];
  readonly next: string | null;
  readonly looked: number;
  readonly failed: number;
  readonly error: { id: string; message: string; line: number | null; column: number | null } | null;
}

type Query = Record<string, string | number>;

for (const engine of MAIN_ENGINES) {
  describe(`Browsing over HTTP, ${engine.name}`, () => {
    let harness: Harness;
    let http: QueueClient;

    before(async () => {
      harness = await Harness.start({ engine });
      http = harness.client();
    });
    after(() => harness.close());

    const page = async (queue: string, query: Query = {}, ns = 'N'): Promise<Page> => {
      const answer = await http.request('GET', `/q/${ns}/${queue}/elements`, { query });
      assert.equal(answer.status, 200, answer.body.toString());
      return jsonOf<Page>(answer);
    };
    const idOf = async (inserted: ReturnType<QueueClient['insert']>): Promise<string> =>
      jsonOf<{ id: string }>(await inserted).id;

    it('finds an element by its id and shows when it expires', async () => {
      const queue = harness.queue();
      const now = harness.opened.now();
      const first = await idOf(http.insert('N', queue, '1'));
      const second = await idOf(http.request('PUT', `/q/N/${queue}`, { query: { ttl: 60 }, body: '2' }));
      const { elements, looked } = await page(queue, { id: second });
      assert.deepEqual([elements.map(({ id }) => id), looked], [[second], 1]);
      const leftMs = Date.parse(elements[0]?.expiresAt ?? '') - now;
      assert.ok(leftMs >= 60_000 && leftMs < 70_000, `${leftMs}`);
      assert.equal((await page(queue, { id: first })).elements[0]?.expiresAt, null);
      assert.deepEqual((await page(queue, { id: 'none' })).elements, []);
    });

    it('shows elements of all states in delivery order with their holders, without changing the queue', async () => {
      const queue = harness.queue();
      const now = harness.opened.now();
      await http.insert('N', queue, 'held');
      await http.reserve('N', queue, { to: 0, tid: 'w1', lease: 60_000 });
      const headers = { 'x-ks-hdr-a': 'é' };
      await http.insert('N', queue, '{"n":1}', { contentType: 'application/json', headers, tries: 2 });
      await http.insert('N', queue, Buffer.from([0xff, 0]), { delay: 100 });
      const before = await http.status('N', queue);
      const { elements, next, looked } = await page(queue);
      assert.deepEqual([next, looked], [null, 3]);
      assert.deepEqual(
        elements.map(({ state, text, base64, bytes }) => [state, text ?? base64, bytes]),
        [
          ['ready', '{"n":1}', 7],
          ['scheduled', '/wA=', 2],
          ['reserved', 'held', 4],
        ],
      );
      const [ready, , held] = elements;
      assert.deepEqual(
        [ready?.contentType, ready?.headers, ready?.tries, ready?.holder, ready?.reason, ready?.truncated],
        ['application/json', { a: 'é' }, 2, null, null, false],
      );
      assert.deepEqual([held?.holder?.tid, held?.holder?.user], ['w1', 'test1']);
      assert.ok(Date.parse(held?.holder?.since ?? '') >= now);
      const lengthMs = Date.parse(held?.holder?.until ?? '') - Date.parse(held?.holder?.since ?? '');
      assert.equal(lengthMs, 60_000);
      assert.deepEqual(
        { ...jsonOf<object>(await http.status('N', queue)), ...VARYING },
        { ...jsonOf<object>(before), ...VARYING },
      );
      assert.deepEqual((await page(queue, { state: 'scheduled' })).elements.length, 1);
      assert.deepEqual((await page(queue, { state: 'all' })).elements.length, 3);
    });

    it('pages through a queue by cursor, even if the element at the cursor is gone', async () => {
      const queue = harness.queue();
      for (const body of ['a', 'b', 'c', 'd', 'e']) await http.insert('N', queue, body);
      const first = await page(queue, { limit: 2 });
      assert.deepEqual(
        first.elements.map(({ text }) => text),
        ['a', 'b'],
      );
      for (let i = 0; i < 3; i += 1) await http.get('N', queue, { to: 0 });
      const second = await page(queue, { limit: 2, after: first.next ?? '' });
      assert.deepEqual(
        second.elements.map(({ text }) => text),
        ['d', 'e'],
      );
      // After a full page an engine may not yet know that it was the last.
      if (second.next !== null) assert.deepEqual((await page(queue, { after: second.next })).elements, []);
    });

    it('finds elements by a selector of headers or of the payload', async () => {
      const queue = harness.queue();
      for (let n = 0; n < 30; n += 1) {
        const headers = { 'x-ks-hdr-n': String(n) };
        await http.insert('N', queue, JSON.stringify({ n }), { contentType: 'application/json', headers });
      }
      const numbers = async (where: string, query: Query = {}): Promise<string[]> =>
        (await page(queue, { where, ...query })).elements.map(({ headers }) => headers.n ?? '');
      assert.deepEqual(await numbers('env.msg.hdrs.n % 10 === 3'), ['3', '13', '23']);
      assert.deepEqual(await numbers('env => env.msg.payload.n > 27'), ['28', '29']);
      assert.deepEqual(await numbers('env.msg.payload.n > 5', { limit: 2 }), ['6', '7']);
      const full = await page(queue, { where: 'env.msg.hdrs.n == 7', body: 'full' });
      assert.deepEqual(
        full.elements.map(({ text }) => text),
        ['{"n":7}'],
      );
    });

    it('returns no body, a preview or the full body, as requested', async () => {
      const queue = harness.queue();
      const long = `${'x'.repeat(511)}é${'y'.repeat(1000)}`;
      await http.insert('N', queue, long);
      const shown = async (body?: string): Promise<[string | undefined, boolean | undefined]> => {
        const [one] = (await page(queue, body === undefined ? {} : { body })).elements;
        assert.equal(one?.bytes, Buffer.byteLength(long));
        return [one?.text, one?.truncated];
      };
      assert.deepEqual(await shown('none'), [undefined, false]);
      assert.deepEqual(await shown('preview'), ['x'.repeat(511), true]);
      assert.deepEqual(await shown(), ['x'.repeat(511), true]);
      assert.deepEqual(await shown('full'), [long, false]);
    });

    it('returns one element byte for byte with its state, without changing it', async () => {
      const queue = harness.queue();
      const body = Buffer.from([0, 1, 2, 0xff, 0xfe]);
      const headers = { 'x-ks-hdr-a': '1', 'content-encoding': 'x-own' };
      const id = await idOf(http.insert('N', queue, body, { contentType: 'a/b; c=d', headers }));
      const look = () => http.request('GET', `/q/N/${queue}/elements/${id}`);
      const found = await look();
      assert.deepEqual([found.status, found.body], [200, body]);
      assert.deepEqual(
        ['content-type', 'content-encoding', 'x-ks-hdr-a', 'x-ks-id', 'x-ks-tries', 'x-ks-state'].map(
          (name) => headerOf(found, name),
        ),
        ['a/b; c=d', 'x-own', '1', id, '0', 'ready'],
      );
      assert.match(headerOf(found, 'content-security-policy'), /sandbox/);
      const reserved = await http.reserve('N', queue, { to: 0 });
      assert.equal(headerOf(reserved, 'x-ks-id'), id);
      const held = await look();
      assert.equal(headerOf(held, 'x-ks-state'), 'reserved');
      assert.equal(headerOf(held, 'x-ks-lease-until'), headerOf(reserved, 'x-ks-lease-until'));
      assert.equal(held.headers['x-ks-lease'], undefined, 'the token is not shown');
      await http.commit('N', queue, id);
      assert.equal((await look()).status, 404);
    });

    it('shows the deliveries of a group of a stream', async () => {
      const queue = harness.queue();
      const id = await idOf(http.insert('events', queue, 'x', { groups: 'G1' }));
      assert.equal((await page(queue, { group: 'G1' }, 'events')).elements[0]?.id, id);
      assert.deepEqual((await page(queue, {}, 'events')).elements, []);
      const path = `/q/events/${queue}/elements/${id}`;
      assert.equal((await http.request('GET', path, { query: { group: 'G1' } })).status, 200);
      assert.equal((await http.request('GET', path)).status, 404);
    });

    it('does not create a queue that does not exist', async () => {
      assert.deepEqual((await page('never')).elements, []);
      assert.equal((await http.request('GET', '/q/N/never/elements/x')).status, 404);
      assert.ok(!Object.hasOwn(jsonOf<object>(await http.request('GET', '/q/N')), 'never'));
    });

    it('finds dead-letter queues that are named only in the options of a queue', async () => {
      const queue = harness.queue();
      const body = JSON.stringify({ deadLetter: { maxTries: 1, queue: 'own-dead' } });
      const put = await http.request('PUT', `/q/hidden/${queue}/options`, { body });
      assert.equal(put.status, 200, put.body.toString());
      await http.insert('hidden', queue, 'x');
      const id = headerOf(await http.reserve('hidden', queue, { to: 0 }), 'x-ks-id');
      await http.rollback('hidden', queue, id);
      const answer = await http.request('GET', '/dead-letters', { query: { ns: 'hidden' } });
      const { queues } = jsonOf<{ queues: Record<string, unknown>[] }>(answer);
      assert.deepEqual(
        queues.map(({ ns, queue, count }) => [ns, queue, count]),
        [['hidden', 'own-dead', 1]],
      );
    });

    it('summarizes dead letters by reason and by source queue', async () => {
      const [first, second] = [harness.queue(), harness.queue()];
      const fail = async (queue: string, reason: string): Promise<void> => {
        await http.insert('jobs', queue, 'x', { tries: 2 });
        const id = headerOf(await http.reserve('jobs', queue, { to: 0 }), 'x-ks-id');
        await http.rollback('jobs', queue, id, { query: { reason } });
      };
      const started = harness.opened.now();
      await fail(first, 'no address');
      await fail(first, 'too slow ☃');
      await fail(second, 'no address');
      const answer = await http.request('GET', '/dead-letters', { query: { ns: 'jobs' } });
      const [summary, ...others] = jsonOf<{ queues: Record<string, unknown>[] }>(answer).queues;
      assert.deepEqual(others, []);
      const { oldest, ...rest } = summary ?? {};
      assert.ok(Date.parse(String(oldest)) >= started);
      assert.deepEqual(rest, {
        ns: 'jobs',
        queue: '__deadletter__',
        count: 3,
        reasons: [
          { reason: 'no address', count: 2 },
          { reason: 'too slow ☃', count: 1 },
        ],
        sources: [
          { queue: first, count: 2 },
          { queue: second, count: 1 },
        ],
        looked: 3,
        complete: true,
      });
      const [dead] = (await page('__deadletter__', { limit: 1 }, 'jobs')).elements;
      assert.equal(dead?.reason, 'no address');
    });
  });
}

describe('Dead-letter queues in slow or unavailable storage', () => {
  const deadLetter = { maxTries: 1, queue: 'dead' };
  const harness = sharedHarness({ namespaces: [plain('a', { deadLetter }), plain('b', { deadLetter })] });

  it('are omitted from the summary after a second, which is then marked incomplete', async () => {
    const { storage } = harness().opened.engine;
    const { counts } = storage;
    const summary = async (): Promise<{ namespaces: string[]; complete: boolean }> => {
      const answer = await harness().client().request('GET', '/dead-letters');
      const { queues, complete } = jsonOf<{ queues: { ns: string }[]; complete: boolean }>(answer);
      return { namespaces: queues.map(({ ns }) => ns), complete };
    };
    assert.deepEqual(await summary(), { namespaces: ['a', 'b'], complete: true });
    storage.counts = async (...given) => {
      await harness().passTime(1_000);
      return counts.apply(storage, given);
    };
    assert.deepEqual(await summary(), { namespaces: ['a'], complete: false });
    storage.counts = counts;
  });

  it('are reported as unavailable by namespace, while the others are summarized', async () => {
    const { storage } = harness().opened.engine;
    const { counts } = storage;
    const away = new Set(['a']);
    storage.counts = async (...given) => {
      if (!away.has(given[0].ns)) return counts.apply(storage, given);
      // As if the engine's call had timed out.
      await harness().passTime(4_500);
      throw unavailable('The store is not reachable now.', new Error('no answer'));
    };
    try {
      const answer = await harness().client().request('GET', '/dead-letters');
      const body = jsonOf<{ queues: { ns: string }[] }>(answer);
      assert.deepEqual(
        { ...body, queues: body.queues.map(({ ns }) => ns) },
        { queues: ['b'], complete: false, unavailable: ['a'] },
      );
      away.add('b');
      const failed = await harness().client().request('GET', '/dead-letters');
      assert.deepEqual([failed.status, jsonOf<{ code: string }>(failed).code], [503, 'storage-unavailable']);
    } finally {
      storage.counts = counts;
    }
  });
});

describe('Dead letters of a stream', () => {
  const deadLetter = { maxTries: 1, queue: 'dead' };
  const harness = sharedHarness({ namespaces: [plain('stream', { groups: ['a', 'b'], deadLetter })] });

  it('are summarized for the default group, and marked incomplete if other groups have more', async () => {
    const summary = async (): Promise<object[]> => {
      const answer = await harness().client().request('GET', '/dead-letters');
      const { queues } = jsonOf<{ queues: { count: number; looked: number; complete: boolean }[] }>(answer);
      return queues.map(({ count, looked, complete }) => ({ count, looked, complete }));
    };
    await harness().client().insert('stream', 'dead', 'x', { groups: 'a,b' });
    assert.deepEqual(await summary(), [{ count: 1, looked: 1, complete: true }]);
    await harness().client().insert('stream', 'dead', 'y', { groups: 'b' });
    assert.deepEqual(await summary(), [{ count: 2, looked: 1, complete: false }]);
  });
});

/** Members of a status that change over time by themselves. */
const VARYING = { rates: null, oldestReadyAge: null };

describe('Browsing', () => {
  const users = [
    { name: 'reader', password: 'pw', rights: { N: ['read'], jobs: ['read'] }, maskBodies: true },
    { name: 'masked', password: 'pw', rights: { N: ['browse'] }, maskBodies: true },
    { name: 'looker', password: 'pw', rights: { N: ['browse'] } },
    { name: 'all', password: 'pw', rights: null },
  ];
  const harness = sharedHarness({ users, limits: { callMs: 20 } });
  const as = (user: string): QueueClient => harness().client(`${user}:pw`);

  it('is answered with 503 if the engine fails while the selector runs, and works again afterwards', async (t) => {
    const queue = harness().queue();
    const elements = Array.from({ length: 400 }, (_, n) => `{"text":"${n}"}\n`).join('');
    const type = { 'content-type': 'application/x-ndjson' };
    await as('all').request('POST', `/q/N/${queue}/elements`, { body: elements, headers: type });
    const { storage } = harness().opened.engine;
    const { scan } = storage;
    // The third chunk is read while the selector processes the second.
    let parts = 0;
    t.mock.method(storage, 'scan', async (...given: Parameters<typeof scan>) => {
      parts += 1;
      if (parts === 3) throw unavailable('The store is not reachable now.', new Error('no answer'));
      return scan.apply(storage, given);
    });
    const query = { where: 'env.msg.tries === 0', limit: 400, body: 'none' };
    const browse = (): ReturnType<QueueClient['request']> =>
      as('all').request('GET', `/q/N/${queue}/elements`, { query });
    const failed = await browse();
    assert.deepEqual([failed.status, jsonOf<{ code: string }>(failed).code], [503, 'storage-unavailable']);
    assert.equal(jsonOf<Page>(await browse()).elements.length, 400);
  });

  it('hides bodies from a user with maskBodies, except where they have the read right', async () => {
    const queue = harness().queue();
    const inserted = await as('all').insert('N', queue, 'secret', { headers: { 'x-ks-hdr-a': '1' } });
    const { id } = jsonOf<{ id: string }>(inserted);
    const first = async (user: string): Promise<Browsed | undefined> => {
      const answer = await as(user).request('GET', `/q/N/${queue}/elements`, { query: { body: 'full' } });
      return jsonOf<Page>(answer).elements[0];
    };
    assert.equal((await first('reader'))?.text, 'secret');
    assert.equal((await first('looker'))?.text, 'secret');
    const masked = await first('masked');
    assert.ok(masked);
    assert.ok(!('text' in masked) && !('base64' in masked));
    assert.deepEqual([masked.bytes, masked.headers], [6, { a: '1' }]);
    const statuses = ['reader', 'looker', 'masked'].map((user) =>
      as(user).request('GET', `/q/N/${queue}/elements/${id}`),
    );
    assert.deepEqual(
      (await Promise.all(statuses)).map(({ status }) => status),
      [200, 200, 403],
    );
    const where = async (selector: string) =>
      (await as('masked').request('GET', `/q/N/${queue}/elements`, { query: { where: selector } })).status;
    assert.deepEqual(
      [await where('env.msg.hdrs.a == 1'), await where('env.msg.payload === "secret"')],
      [200, 403],
    );
  });

  it('reports where a selector is wrong or throws, and when it takes too long', async () => {
    const queue = harness().queue();
    await as('all').insert('N', queue, 'x');
    const find = (where: string) =>
      as('looker').request('GET', `/q/N/${queue}/elements`, { query: { where } });
    const wrong = await find('env =>\n  env.msg..hdrs');
    const { code, parameter, line, column } = jsonOf<Record<string, unknown>>(wrong);
    assert.deepEqual(
      [wrong.status, code, parameter, line, column],
      [400, 'invalid-parameter', 'where', 2, 11],
    );
    const throwing = jsonOf<Page>(await find('env => {\n  return env.msg.nothing.at(0);\n}'));
    assert.deepEqual([throwing.elements, throwing.failed, throwing.error?.line], [[], 1, 2]);
    assert.match(throwing.error?.message ?? '', /TypeError/);
    const slow = await find('env => { for (;;); }');
    assert.equal(slow.status, 400);
    assert.match(jsonOf<{ detail: string }>(slow).detail, /^where: the selector exceeds its time/);
  });

  it('shows dead letters only of namespaces in which the user may browse', async () => {
    const list = (user: string, query: Query = {}) => as(user).request('GET', '/dead-letters', { query });
    const namespaces = async (user: string) =>
      jsonOf<{ queues: { ns: string }[] }>(await list(user)).queues.map(({ ns }) => ns);
    assert.deepEqual(await namespaces('all'), ['jobs']);
    assert.deepEqual(await namespaces('reader'), ['jobs']);
    assert.deepEqual(await namespaces('looker'), []);
    assert.equal((await list('looker', { ns: 'jobs' })).status, 404);
    assert.equal((await list('all', { ns: 'absent' })).status, 404);
    assert.equal((await list('all', { ns: '\u0000' })).status, 400);
  });
});
