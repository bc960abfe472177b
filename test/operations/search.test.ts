import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Worker } from 'node:worker_threads';
import type { Broker } from '../../src/broker/broker.ts';
import type { Queue } from '../../src/broker/queue.ts';
import { DELIVERY_STATES, type NewElement } from '../../src/model/element.ts';
import type { QuaysideError } from '../../src/model/errors.ts';
import {
  type ElementFilter,
  Searches,
  type SearchOptions,
  type SearchPage,
} from '../../src/operations/search.ts';
import type { WorkerRequest } from '../../src/sandbox/protocol.ts';
import { type SelectorSandbox, WorkerSandbox } from '../../src/sandbox/sandbox.ts';
import { MAIN_ENGINES, type TestEngine } from '../engines.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { until } from '../support/until.ts';

const ALL: ElementFilter = { states: DELIVERY_STATES, group: null };
const OPTIONS: SearchOptions = { payer: 'ann', path: 'where', bodies: true };

/** Elements `0`, `1`, … with their number in a header and in a JSON body. */
function numbered(count: number): NewElement[] {
  return Array.from({ length: count }, (_, n) =>
    newElement({
      body: JSON.stringify({ n }),
      contentType: 'application/json',
      headers: ['n', String(n)],
    }),
  );
}

for (const engine of MAIN_ENGINES) {
  describe(`Search, ${engine.name}`, () => {
    let opened: TestEngine;
    let broker: Broker;
    let sandbox: SelectorSandbox;
    let searches: Searches;
    let queues = 0;

    before(async () => {
      const policies = [plain('N'), plain('events', { groups: ['g1', 'g2'] })];
      opened = await engine.open({ namespaces: policies });
      broker = brokerOn(
        policies.map((policy) => ({ policy, engine: opened.engine })),
        opened.clock,
      );
      await broker.start();
      sandbox = sharedSandbox();
      searches = new Searches({ sandbox, clock: opened.clock, selectors: true });
    });
    after(async () => {
      await broker.stop();
      await sandbox.stop();
      await opened.close();
    });

    const queue = (ns = 'N'): Queue => broker.namespace(ns).queue(`queue ${++queues}`);

    async function searchAll(
      from: Queue,
      filter: Partial<ElementFilter>,
      { limit = 100, ...options }: Partial<SearchOptions> & { limit?: number } = {},
    ): Promise<SearchPage & { pages: number }> {
      const search = await searches.open(from, { ...ALL, ...filter }, { ...OPTIONS, ...options });
      const matches = [];
      let [pages, looked, failed] = [0, 0, 0];
      let next: string | null = null;
      let error = null;
      try {
        do {
          const page: SearchPage = await search.page(next, limit);
          assert.ok(page.matches.length <= limit, 'a page is no longer than its limit');
          matches.push(...page.matches);
          looked += page.looked;
          failed += page.failed;
          error ??= page.error;
          pages += 1;
          next = page.next;
        } while (next !== null);
      } finally {
        search.close();
      }
      return { matches, looked, failed, error, next, pages };
    }

    const numbersOf = ({ matches }: SearchPage): number[] =>
      matches.map(({ headers }) => Number(headers[headers.indexOf('n') + 1]));

    it('finds elements by a selector of their headers, in delivery order, each once, whatever the page size', async () => {
      const source = queue();
      await source.insert(numbered(1_000));
      const expected = Array.from({ length: 143 }, (_, i) => 7 * i);
      const selector = 'env.msg.hdrs.n % 7 === 0';
      for (const limit of [1, 10, 100, 1_000]) {
        const found = await searchAll(source, { selector }, { limit, bodies: false });
        assert.deepEqual(numbersOf(found), expected, `pages of ${limit}`);
        assert.equal(found.looked, 1_000);
        assert.ok(found.matches.every(({ body, bytes }) => body.length === 0 && bytes > 0));
      }
    });

    it('closes its selector in the worker, even if a page ends while more is read ahead', async (t) => {
      const source = queue();
      await source.insert(numbered(1_000));
      const sent = t.mock.method(Worker.prototype, 'postMessage');
      const filter = { ...ALL, selector: 'env.msg.hdrs.n >= 0' };
      for (let i = 0; i < 5; i += 1) {
        const { matches } = await searches.page(source, filter, { ...OPTIONS, bodies: false }, null, 150);
        assert.equal(matches.length, 150);
      }
      // The engine replies in order, so that all pages that were read ahead have arrived before this reply.
      await source.scan({ group: null, states: DELIVERY_STATES, after: null, limit: 1, bodies: false });
      const lastOfPrograms = (): unknown[] => {
        const requests = sent.mock.calls.map(({ arguments: [request] }) => request as WorkerRequest);
        const own = requests.filter((request) => request.kind === 'call' || request.kind === 'close');
        return [...new Map(own.map(({ program, kind }) => [program, kind])).values()];
      };
      await until(() => lastOfPrograms().every((kind) => kind === 'close'));
      assert.equal(lastOfPrograms().length, 5);
    });

    it('rejects a cursor that was not issued for the queue, and continues after an element that was taken in between', async () => {
      const [source, other] = [queue(), queue()];
      await source.insert(newElements('a', 'b', 'c', 'd'));
      await other.insert(newElements('a', 'b', 'c', 'd'));
      const page = (of: Queue, cursor: string | null, filter = ALL): Promise<SearchPage> =>
        searches.page(of, filter, OPTIONS, cursor, 2);
      const first = await page(source, null);
      const { next } = first;
      assert.ok(next !== null);
      const ready: ElementFilter = { ...ALL, states: ['ready'] };
      for (const [of, cursor, filter] of [
        [source, 'nonsense', ALL],
        [source, '', ALL],
        [source, `${next}x`, ALL],
        [source, next.slice(1), ALL],
        [source, `${next.slice(0, -8)}AAAAAAAA`, ready],
        [other, next, ALL],
      ] as const) {
        await assert.rejects(page(of, cursor, filter), (error: QuaysideError) => {
          assert.deepEqual([error.code, error.details.parameter], ['invalid-parameter', 'after'], cursor);
          return /is not a cursor of this search in queue/.test(error.message);
        });
      }
      assert.deepEqual(bodyTexts((await page(source, next, ready)).matches), ['c', 'd']);
      const { namespace, key } = source;
      await namespace.storage.take(key, { group: namespace.defaultGroup, count: 2, leaseMs: null });
      assert.deepEqual(bodyTexts((await page(source, next)).matches), ['c', 'd']);
    });

    it('reads bodies for a selector that uses the payload, and returns them only if requested', async () => {
      const source = queue();
      await source.insert(numbered(300));
      // The selector first reads a body in the middle: earlier elements are decided without bodies.
      const selector = 'env => env.msg.hdrs.n < 150 ? env.msg.hdrs.n == 3 : env.msg.payload.n % 100 === 0';
      for (const bodies of [true, false]) {
        const found = await searchAll(source, { selector }, { bodies });
        assert.deepEqual(numbersOf(found), [3, 200]);
        assert.equal(found.looked, 300);
        assert.deepEqual(bodyTexts(found.matches), bodies ? ['{"n":3}', '{"n":200}'] : ['', '']);
      }
    });

    it('finds elements by state, by age, and by id', async () => {
      const source = queue();
      const ids = await source.insert([
        ...newElements('a', 'b'),
        newElement({ body: 'later', delayMs: 3_600_000 }),
      ]);
      await opened.passTime(2_000);
      const now = source.namespace.storage.now(source.key);
      await source.insert(newElements('young'));
      const texts = async (filter: Partial<ElementFilter>): Promise<string[]> =>
        bodyTexts((await searchAll(source, filter, { limit: 1 })).matches);
      assert.deepEqual(await texts({}), ['a', 'b', 'young', 'later']);
      assert.deepEqual(await texts({ states: ['scheduled'] }), ['later']);
      assert.deepEqual(await texts({ insertedBefore: now - 1_000 }), ['a', 'b', 'later']);
      const some = [ids[2] ?? '', 'unknown', ids[0] ?? ''];
      assert.deepEqual((await texts({ ids: some })).toSorted(), ['a', 'later']);
      assert.deepEqual(await texts({ ids: some, selector: 'env.msg.payload === "a"' }), ['a']);
      assert.deepEqual(await texts({ ids: [] }), []);
    });

    it('finds large elements by their ids and bodies, even if all together are more than an engine returns', async () => {
      const source = queue();
      const ids: string[] = [];
      for (let n = 0; n < 12; n++)
        ids.push(...(await source.insert([newElement({ body: `${n % 2}`.repeat(2 * 1_048_576) })])));
      const selector = 'env.msg.payload.startsWith("1")';
      const found = await searchAll(source, { ids, selector }, { bodies: false });
      assert.equal(found.looked, 12);
      assert.equal(found.matches.length, 6);
    });

    it('finds the deliveries of a group of a stream, and of its default group', async () => {
      const source = queue('events');
      await source.insert([
        newElement({ body: 'both', groups: ['g1', 'g2'] }),
        newElement({ body: 'second', groups: ['g2'] }),
      ]);
      const texts = async (group: string | null): Promise<string[]> =>
        bodyTexts((await searchAll(source, { group }, { limit: 1 })).matches);
      assert.deepEqual(await texts('g2'), ['both', 'second']);
      assert.deepEqual(await texts(null), ['both']);
    });

    it('returns the bodies of its matches, and ends a page at 16 MiB of them', async () => {
      const source = queue();
      const body = Buffer.alloc(1_000_000, 'x');
      // One at a time: a busy machine may need seconds for many megabytes, and a call of the engine has a deadline.
      for (let i = 0; i < 20; i += 1) await source.insert([newElement({ body, headers: ['n', '1'] })]);
      const found = await searchAll(source, { selector: 'env.msg.hdrs.n' });
      assert.equal(found.matches.length, 20);
      assert.equal(found.pages, 2);
      assert.ok(found.matches.every((delivery) => delivery.body.length === body.length));
    });

    it('counts the elements for which the selector throws, and returns the error with its line', async () => {
      const source = queue();
      await source.insert([newElement({ body: 'a', headers: ['x', '{'] }), newElement({ body: 'b' })]);
      const selector = 'env => {\n  return JSON.parse(env.msg.hdrs.x || "1");\n}';
      const found = await searchAll(source, { selector });
      assert.deepEqual(bodyTexts(found.matches), ['b']);
      assert.equal(found.failed, 1);
      assert.match(found.error?.message ?? '', /SyntaxError/);
      assert.equal(found.error?.line, 2);
    });
  });
}

describe('Search rejects', () => {
  let opened: TestEngine;
  let broker: Broker;
  const sandbox = new WorkerSandbox({ limits: { callMs: 20, watchdogMs: 2_000 } });

  before(async () => {
    const policies = [plain('N')];
    const [engine] = MAIN_ENGINES;
    assert.ok(engine);
    opened = await engine.open({ namespaces: policies });
    broker = brokerOn([{ policy: policies[0] ?? plain('N'), engine: opened.engine }], opened.clock);
    await broker.start();
    await broker.namespace('N').queue('q').insert(numbered(10));
  });
  after(async () => {
    await broker.stop();
    await sandbox.stop();
    await opened.close();
  });

  const find = (
    selector: string,
    options: Partial<SearchOptions> = {},
    selectors = true,
  ): Promise<SearchPage> =>
    new Searches({ sandbox, clock: opened.clock, selectors }).page(
      broker.namespace('N').queue('q'),
      { ...ALL, selector },
      { ...OPTIONS, ...options },
      null,
      100,
    );

  it('a selector that does not compile, with its line and column', async () => {
    await assert.rejects(find('env =>\n  env.msg..hdrs'), (error: { code?: string; details?: unknown }) => {
      assert.equal(error.code, 'invalid-body');
      assert.deepEqual(error.details, { parameter: 'where', extra: { line: 2, column: 11 } });
      return true;
    });
  });

  it('a selector that exceeds its limits, and names the element', async () => {
    await assert.rejects(
      find('env => { while (env.msg.hdrs.n == 4); }'),
      (error: Error & { code?: string }) => {
        assert.equal(error.code, 'invalid-parameter');
        assert.match(error.message, /^where: the selector exceeds its time or memory limit with element "/);
        return true;
      },
    );
    assert.equal((await find('env.msg.hdrs.n == 4')).matches.length, 1, 'the next search is not affected');
  });

  it('a selector that reads hidden bodies, and no other', async () => {
    const hidden = { hidesBodies: true, bodies: false };
    await assert.rejects(find('env.msg.payload.n === 1', hidden), { code: 'forbidden' });
    assert.equal((await find('env.msg.hdrs.n == 1', hidden)).matches.length, 1);
  });

  it('every selector of a server that runs with selectors: off', async () => {
    await assert.rejects(find('true', {}, false), { code: 'invalid-parameter' });
  });

  it('a group in a namespace without groups', async () => {
    const queue = broker.namespace('N').queue('q');
    const searches = new Searches({ sandbox, clock: opened.clock, selectors: true });
    await assert.rejects(searches.open(queue, { ...ALL, group: 'g' }, OPTIONS), {
      code: 'invalid-parameter',
    });
  });
});
