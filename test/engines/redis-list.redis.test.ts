import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import fc from 'fast-check';
import type { Engine } from '../../src/engine/engine.ts';
import { isKeySeen } from '../../src/engine/request-keys.ts';
import type { Storage } from '../../src/engine/storage.ts';
import { Batchers } from '../../src/engines/redis/batcher.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { NewElement } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { contentFingerprint } from '../../src/model/fingerprint.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { sampleBodies } from '../support/bodies.ts';
import { plain } from '../support/broker.ts';
import { bodyText, bodyTexts, newElement, newElements } from '../support/elements.ts';
import { redisCli } from '../support/redis-servers.ts';
import { commit, extend, nextDueAt, purge, remove, rollback, transfer } from '../support/settle.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { freshPrefix, redisEngine, sharedCluster, standalone } from './redis.ts';

const servers = [
  { name: 'one server', url: async () => (await standalone()).url },
  { name: 'a cluster', url: sharedCluster },
];

for (const { name, url } of servers) {
  describe(`The Redis list variant on ${name}`, () => {
    let engine: Engine;
    let storage: Storage;
    let queues = 0;

    before(async () => {
      const settings = { variant: 'list' };
      engine = redisEngine({ url: await url(), namespaces: [plain('plain')], clock: null, settings });
      await engine.start();
      storage = engine.storage;
    });

    after(() => engine.stop());

    const freshQueue = (): QueueKey => ({ ns: 'plain', name: `queue {${++queues}}` });
    const pop = (queue: QueueKey, count = 100) => storage.take(queue, { group: '', count, leaseMs: null });

    it('rejects calls that its capabilities exclude with not-supported', async () => {
      assert.deepEqual(storage.capabilities, {
        sched: false,
        reserve: false,
        pipeline: false,
        remove: false,
        expiry: false,
      });
      const queue = freshQueue();
      const ref = { id: 'x', group: '', token: null };
      const rejected = [
        storage.take(queue, { group: '', count: 1, leaseMs: 1000 }),
        commit(storage, queue, [ref]),
        rollback(storage, queue, [{ ...ref, delayMs: 0, countTry: true }]),
        extend(storage, queue, [{ ...ref, leaseMs: 1 }]),
        remove(storage, queue, ['x']),
        transfer(storage, [{ from: queue, finish: ref, inserts: [] }]),
        storage.insert(queue, [newElement({ delayMs: 1000 })]),
        storage.insert(queue, [newElement({ groups: ['g1'] })]),
        storage.insert(queue, [newElement({ expiresAt: Date.now() + 60_000 })]),
      ];
      for (const call of rejected) {
        await assert.rejects(
          call,
          (error) => error instanceof QuaysideError && error.code === 'not-supported',
        );
      }
      assert.equal((await storage.counts(queue)).ready, 0);
    });

    it('delivers elements in the order of insertion, with all fields', async () => {
      const queue = freshQueue();
      const element = newElement({ body: 'first', tries: 3, headers: ['a', '1'], contentEncoding: 'gzip' });
      const [id] = await storage.insert(queue, [element]);
      await storage.insert(queue, newElements('second', 'third'));
      const [first, ...rest] = (await pop(queue)).deliveries;
      assert.deepEqual(bodyTexts(rest), ['second', 'third']);
      assert.equal(first?.id, id);
      assert.equal(first?.tries, 3);
      assert.equal(first?.contentEncoding, 'gzip');
      assert.deepEqual(first?.headers, ['a', '1']);
      assert.equal(first?.lease, null);
    });

    it('keeps every body byte for byte', async () => {
      const queue = freshQueue();
      const bodies = sampleBodies().map(({ bytes }) => bytes);
      await storage.insert(
        queue,
        bodies.map((body) => newElement({ body })),
      );
      const { deliveries } = await pop(queue);
      assert.equal(deliveries.length, bodies.length);
      for (const [i, body] of bodies.entries())
        assert.ok(body.equals(deliveries[i]?.body ?? Buffer.alloc(0)));
    });

    it('lists a queue after an insert, and executes calls in their order, awaited or not', async () => {
      const queue = freshQueue();
      const calls = [
        storage.insert(queue, newElements('a', 'b')),
        pop(queue, 1),
        storage.insert(queue, newElements('c')),
        pop(queue, 9),
        pop(queue, 1),
      ] as const;
      const [, one, , rest, none] = await Promise.all(calls);
      assert.deepEqual(bodyTexts(one.deliveries), ['a']);
      assert.deepEqual(bodyTexts(rest.deliveries), ['b', 'c']);
      assert.deepEqual([none.deliveries, none.nextDueAt], [[], null]);
      assert.ok((await storage.queues('plain')).includes(queue.name));
    });

    it('returns to each call of a batch its own ids or elements, in the order of calls', async () => {
      const queue = freshQueue();
      const bodies = Array.from({ length: 2_500 }, (_, index) => `${index}`);
      const inserted = await Promise.all(bodies.map((body) => storage.insert(queue, newElements(body))));
      const popped = await Promise.all(Array.from({ length: 1_260 }, (_, i) => pop(queue, 1 + (i % 3))));
      const deliveries = popped.flatMap((result) => result.deliveries);
      assert.deepEqual(bodyTexts(deliveries), bodies);
      assert.deepEqual(
        deliveries.map(({ id }) => id),
        inserted.flat(),
      );
      assert.ok(popped.slice(0, 1_200).every((result, i) => result.deliveries.length === 1 + (i % 3)));
    });

    it('rejects one of several concurrent calls without affecting the others', async () => {
      const queue = freshQueue();
      const large = newElement({ body: 'x'.repeat(3 * 1024 * 1024) });
      const calls = await Promise.allSettled([
        storage.insert(queue, newElements('a')),
        storage.insert(queue, [newElement({ delayMs: 5 })]),
        storage.insert(queue, [large]),
        storage.insert(queue, [large]),
        storage.insert(queue, newElements('b')),
      ]);
      assert.deepEqual(
        calls.map(({ status }) => status),
        ['fulfilled', 'rejected', 'fulfilled', 'fulfilled', 'fulfilled'],
      );
      const { deliveries } = await pop(queue);
      assert.deepEqual(
        deliveries.map(({ body }) => body.length),
        [1, 3 * 1024 * 1024, 3 * 1024 * 1024, 1],
      );
    });

    it('returns no more than fits in a reply, and reports that there is more', async () => {
      const queue = freshQueue();
      const bodies = Array.from({ length: 18 }, (_, i) => Buffer.alloc(1_200_000, i));
      for (const body of bodies) await storage.insert(queue, [newElement({ body })]);
      const page = { group: '', states: ['ready'], bodies: true, after: null, limit: 100 } as const;
      const listed = await storage.scan(queue, page);
      assert.ok(
        listed.next !== null && listed.deliveries.length <= 2,
        `${listed.deliveries.length} in a page`,
      );
      const after = await storage.scan(queue, { ...page, after: listed.next });
      assert.equal(after.deliveries[0]?.body[0], listed.deliveries.length);
      const [first, second] = await Promise.all([pop(queue, 100), pop(queue, 100)]);
      assert.ok(first.deliveries.length <= 14, `${first.deliveries.length} at once`);
      assert.ok(first.nextDueAt !== null && first.nextDueAt <= storage.now(queue));
      assert.deepEqual(second.deliveries, []);
      assert.deepEqual(second.nextDueAt, first.nextDueAt);
      const popped = [...first.deliveries];
      for (;;) {
        const { deliveries, nextDueAt } = await pop(queue, 100);
        popped.push(...deliveries);
        if (nextDueAt === null) break;
      }
      assert.deepEqual(
        popped.map(({ body }) => body[0]),
        bodies.map((_, i) => i),
      );
    });

    it('stores no dedup keys if the window is 0', async () => {
      const options = { namespaces: [plain('plain')], clock: null, settings: { variant: 'list' } };
      const own = redisEngine({ ...options, url: await url(), dedupWindowMs: 0 });
      await own.start();
      const queue = freshQueue();
      for (const body of ['a', 'b']) await own.storage.insert(queue, [newElement({ body, dedupKey: 'k' })]);
      assert.equal((await own.storage.counts(queue)).ready, 2);
      assert.equal(await isKeySeen(own.storage, queue, 'k'), false);
      assert.equal((await own.storage.counts(queue)).ready, 2);
      await own.stop();
    });

    it('returns popped elements to their places if the pop is undone', async () => {
      const queue = freshQueue();
      await storage.insert(queue, newElements('a', 'b', 'c'));
      const { deliveries } = await pop(queue, 2);
      await storage.undoTake(queue, deliveries);
      assert.deepEqual((await pop(queue)).deliveries.map(bodyText), ['a', 'b', 'c']);
    });

    it('stores an element with a repeated dedup key once, among elements without a key', async () => {
      const queue = freshQueue();
      const keyed = (body: string): NewElement => newElement({ body, dedupKey: 'k' });
      const [first] = await storage.insert(queue, [keyed('once')]);
      const ids = await storage.insert(queue, [newElement({ body: 'other' }), keyed('again')]);
      assert.equal(ids[1], first);
      assert.deepEqual(bodyTexts((await pop(queue)).deliveries), ['once', 'other']);
    });

    it('reports whether a repeated dedup key has the same content', async () => {
      const queue = freshQueue();
      const keyed = (body: string): NewElement => {
        const element = newElement({ body, dedupKey: 'k' });
        return { ...element, fingerprint: contentFingerprint(element) };
      };
      const repeats: [number, boolean][] = [];
      const insert = (...elements: NewElement[]): Promise<string[]> =>
        storage.insert(queue, elements, { onRepeat: (index, isSame) => repeats.push([index, isSame]) });
      const [first] = await insert(keyed('a'));
      assert.deepEqual((await insert(newElement({ body: 'other' }), keyed('a'))).slice(1), [first]);
      assert.deepEqual(repeats.splice(0), [[1, true]]);
      const ids = await Promise.all([
        insert(newElement({ body: 'lost' }), keyed('a'), keyed('b')),
        insert(newElement({ body: 'next' })),
      ]);
      assert.deepEqual(
        ids.map(({ length }) => length),
        [0, 1],
      );
      assert.deepEqual(repeats, [[2, false]]);
      assert.deepEqual(bodyTexts((await pop(queue)).deliveries), ['a', 'other', 'next']);
    });

    it('stores the elements of a request with a request key once', async () => {
      const queue = freshQueue();
      const repeats: [number, boolean][] = [];
      const insert = (fingerprint: string, ...bodies: string[]): Promise<string[]> =>
        storage.insert(queue, newElements(...bodies), {
          request: { key: ':user:k', fingerprint },
          onRepeat: (index, isSame) => repeats.push([index, isSame]),
        });
      assert.deepEqual(await insert('same'), []);
      const first = await insert('same', 'a', 'b');
      assert.deepEqual(repeats.splice(0), []);
      assert.deepEqual(await insert('same', 'a', 'b'), first);
      assert.deepEqual(repeats.splice(0), [
        [0, true],
        [1, true],
      ]);
      assert.deepEqual(await insert('other', 'a', 'c'), []);
      assert.deepEqual(
        repeats.splice(0).filter(([, isSame]) => !isSame),
        [[0, false]],
      );
      assert.deepEqual(await insert('same'), []);
      assert.deepEqual(repeats, [[0, true]]);
      assert.deepEqual(bodyTexts((await pop(queue)).deliveries), ['a', 'b']);
    });

    it('does not create a queue by looking up a request key', async () => {
      const queue = freshQueue();
      const request = { key: ':user:k', fingerprint: 'f' };
      const repeats: number[] = [];
      const onRepeat = (index: number): unknown => repeats.push(index);
      assert.deepEqual(await storage.insert(queue, [], { request, onRepeat }), []);
      assert.ok(!(await storage.queues('plain')).includes(queue.name));
      await storage.insert(queue, newElements('a'), { request });
      await storage.insert(queue, [], { request, onRepeat });
      assert.deepEqual(repeats, [0]);
    });

    it('creates no queue for a call that has one dedup key with different content', async () => {
      const queue = freshQueue();
      const elements = ['one', 'two'].map((fingerprint) => newElement({ dedupKey: 'k', fingerprint }));
      assert.deepEqual(await storage.insert(queue, elements), []);
      assert.ok(!(await storage.queues('plain')).includes(queue.name));
    });

    it('forgets dedup and request keys when their queue is dropped, and stores new ones afterwards', async () => {
      const queue = freshQueue();
      const elements = [
        newElement({ body: 'a', dedupKey: 'a', fingerprint: 'one' }),
        newElement({ body: 'b', dedupKey: 'b', fingerprint: 'one' }),
      ];
      const others = elements.map((element) => ({ ...element, fingerprint: 'two' }));
      const request = { key: ':user:k', fingerprint: 'f' };
      await storage.insert(queue, elements);
      await storage.insert(queue, newElements('c'), { request });
      await pop(queue);
      assert.equal(await storage.drop(queue), true);
      assert.ok(!(await storage.queues('plain')).includes(queue.name));
      const one = await storage.insert(queue, others.slice(0, 1));
      const many = await storage.insert(queue, others);
      assert.deepEqual(many.slice(0, 1), one, 'the key was stored after the drop, so this is a repeat');
      const repeats: number[] = [];
      const asked = await storage.insert(queue, newElements('c'), {
        request,
        onRepeat: (index) => repeats.push(index),
      });
      assert.deepEqual([asked.length, repeats], [1, []]);
      assert.deepEqual(bodyTexts((await pop(queue)).deliveries), ['a', 'b', 'c']);
      assert.deepEqual(await storage.insert(queue, others.toReversed()), many.toReversed());
    });

    it('distinguishes keys stored before and after a drop, even within one millisecond', async () => {
      const queue = freshQueue();
      const elements = [newElement({ body: 'a', dedupKey: 'a', fingerprint: 'one' })];
      const given = new Set<string>();
      // Some of these calls share a millisecond.
      for (let round = 0; round < 50; round++) {
        const [first, again] = await Promise.all([
          storage.insert(queue, elements),
          storage.insert(queue, elements),
        ]);
        assert.deepEqual(again, first, 'the key was stored after the drop, so this is a repeat');
        assert.deepEqual(await storage.insert(queue, elements), first);
        given.add(String(first));
        const [{ deliveries }, isDropped] = await Promise.all([pop(queue), storage.drop(queue)]);
        assert.deepEqual([bodyTexts(deliveries), isDropped], [['a'], true]);
      }
      assert.equal(given.size, 50, 'a key from before a drop stores a new element');
    });

    it('counts, pages and purges', async () => {
      const queue = freshQueue();
      await storage.insert(queue, newElements('a', 'b', 'c', 'd', 'e'));
      const sizes = await storage.counts(queue);
      assert.deepEqual([sizes.ready, sizes.scheduled, sizes.reserved], [5, 0, 0]);
      assert.equal(sizes.nextMatureAt, await nextDueAt(storage, queue, ''));
      const seen: string[] = [];
      let next: string | null = null;
      do {
        const page = await storage.scan(queue, {
          group: '',
          states: ['ready'],
          bodies: true,
          after: next,
          limit: 2,
        });
        seen.push(...bodyTexts(page.deliveries));
        next = page.next;
      } while (next !== null);
      assert.deepEqual(seen, ['a', 'b', 'c', 'd', 'e']);
      const before = await storage.usage(queue.ns);
      assert.equal(await purge(storage, queue, ['reserved']), 0);
      assert.equal(await purge(storage, queue), 5);
      assert.equal((await storage.usage(queue.ns)).elements, before.elements - 5);
      assert.equal(await nextDueAt(storage, queue, ''), null);
      assert.equal(await storage.sweep(), null);
      assert.deepEqual(storage.takeAffected(), []);
    });

    it('behaves like an array under random inserts, pops and undone pops', async () => {
      const step = fc.oneof(
        fc.record({ insert: fc.array(fc.string(), { minLength: 1, maxLength: 4 }) }),
        fc.record({ pop: fc.integer({ min: 1, max: 5 }), back: fc.boolean() }),
      );
      const property = fc.asyncProperty(fc.array(step, { maxLength: 20 }), async (steps) => {
        const queue = freshQueue();
        const model: string[] = [];
        for (const each of steps) {
          if ('insert' in each) {
            await storage.insert(queue, newElements(...each.insert));
            model.push(...each.insert);
          } else {
            const { deliveries } = await pop(queue, each.pop);
            assert.deepEqual(bodyTexts(deliveries), model.slice(0, each.pop));
            if (each.back) await storage.undoTake(queue, deliveries);
            else model.splice(0, each.pop);
          }
          assert.equal((await storage.counts(queue)).ready, model.length);
        }
      });
      await fc.assert(property, { numRuns: 30 });
    });
  });
}

describe('The Redis list variant on a bad network', () => {
  it('never repeats a call: without a reply it is rejected with outcome-unknown', async () => {
    const { url, port } = await standalone();
    const proxy = await TcpProxy.start(port);
    const common = { namespaces: [plain('plain')], clock: null, prefix: freshPrefix() };
    const far = redisEngine({
      ...common,
      url: `redis://127.0.0.1:${proxy.port}`,
      settings: { variant: 'list' },
    });
    const near = redisEngine({ ...common, url, settings: { variant: 'list' } });
    await Promise.all([far.start(), near.start()]);
    const queue = { ns: 'plain', name: 'lossy' };
    const withAnswerLost = async (command: RegExp, call: () => Promise<unknown>): Promise<void> => {
      const caught = proxy.catch(command, 'mute');
      const called = assert.rejects(call(), { code: 'outcome-unknown' });
      await caught;
      proxy.reset();
      await called;
    };
    await far.storage.insert(queue, newElements('a'));
    await withAnswerLost(/LPUSH/i, () => far.storage.insert(queue, newElements('b')));
    assert.equal((await near.storage.counts(queue)).ready, 2, 'stored once');
    const pop = { group: '', count: 1, leaseMs: null };
    await withAnswerLost(/RPOP/i, () => far.storage.take(queue, pop));
    assert.deepEqual(bodyTexts((await near.storage.take(queue, { ...pop, count: 9 })).deliveries), ['b']);
    await Promise.all([far.stop(), near.stop()]);
    await proxy.stop();
  });
});

describe('A Redis list with an item that cannot be decoded', () => {
  const queue = { ns: 'plain', name: 'foreign' };
  const POP = { group: '', count: 10, leaseMs: null };

  for (const item of ['x', 'an item that another program pushed into the list']) {
    it(`delivers all other elements, and keeps "${item}" behind them`, async () => {
      const { port, url } = await standalone();
      const [prefix, warnings] = [freshPrefix(), [] as string[]];
      const log = { info: () => {}, warn: (_fields: object, message: string) => void warnings.push(message) };
      const settings = { variant: 'list' };
      const engine = redisEngine({ url, namespaces: [plain('plain')], clock: null, prefix, settings, log });
      const { storage } = engine;
      await engine.start();
      try {
        const key = new Keys(prefix).list(queue);
        const push = (): string => redisCli(port, 'LPUSH', key, item);
        push();
        await storage.insert(queue, newElements('a'));
        push();
        await storage.insert(queue, newElements('b'));
        const page = { group: '', states: ['ready'], bodies: true, after: null, limit: 10 } as const;
        assert.deepEqual(bodyTexts((await storage.scan(queue, page)).deliveries), ['a', 'b']);
        assert.equal((await storage.counts(queue)).ready, 4);
        await assert.rejects(storage.take(queue, { ...POP, count: 1 }), { code: 'storage-unavailable' });
        const pops = [storage.take(queue, { ...POP, count: 2 }), storage.take(queue, POP)];
        const [first, second] = await Promise.allSettled(pops);
        assert.ok(first?.status === 'fulfilled' && second?.status === 'rejected');
        assert.deepEqual(bodyTexts(first.value.deliveries), ['a', 'b']);
        assert.equal((await storage.counts(queue)).ready, 2);
        await storage.insert(queue, newElements('c'));
        assert.deepEqual(bodyTexts((await storage.take(queue, POP)).deliveries), ['c']);
        assert.ok(warnings.includes('the content of an element cannot be decoded; it is postponed'));
      } finally {
        await engine.stop();
      }
    });
  }

  for (const failure of ['is rejected', 'has no reply'] as const) {
    it(`does not lose the other elements of a pop if moving the item behind them ${failure}`, async (t) => {
      const { port, url } = await standalone();
      const proxy = await TcpProxy.start(Number(new URL(url).port));
      const [prefix, settings] = [freshPrefix(), { variant: 'list' }];
      const through = `redis://127.0.0.1:${proxy.port}`;
      const engine = redisEngine({
        url: through,
        namespaces: [plain('plain')],
        clock: null,
        prefix,
        settings,
      });
      const { storage } = engine;
      await engine.start();
      t.after(async () => {
        await engine.stop();
        await proxy.stop();
      });
      const key = new Keys(prefix).list(queue);
      const length = (): number => Number(redisCli(port, 'LLEN', key));
      /** A pop whose command to move an item behind the others fails. */
      const failing = async (count: number): Promise<string[]> => {
        const call = Batchers.prototype.call;
        const rejects = failure === 'is rejected';
        const mocked = t.mock.method(Batchers.prototype, 'call', function (this: Batchers, ...args: never) {
          const [, { name }] = args as Parameters<typeof call>;
          const full = new QuaysideError('storage-full', 'It is full.');
          return rejects && name === 'lpush' ? Promise.reject(full) : call.apply(this, args);
        });
        const caught = rejects ? null : proxy.catch(/\r\nlpush\r\n/, 'deaf');
        const popping = storage.take(queue, { ...POP, count });
        popping.catch(() => {});
        await caught;
        if (!rejects) proxy.reset();
        try {
          return bodyTexts((await popping).deliveries);
        } finally {
          mocked.mock.restore();
        }
      };
      const foreign = (): string => redisCli(port, 'LPUSH', key, 'x');
      foreign();
      await storage.insert(queue, newElements('a', 'b'));
      assert.deepEqual(await failing(2), ['a']);
      assert.equal(length(), 1);
      assert.deepEqual(bodyTexts((await storage.take(queue, POP)).deliveries), ['b']);
      // An item that was certainly not stored behind the others is stored there by the next pop.
      const kept = failure === 'is rejected' ? 1 : 0;
      assert.equal(length(), kept);
      if (kept === 0) foreign();
      await assert.rejects(failing(1), { code: 'outcome-unknown' });
      assert.equal(length(), 0);
      assert.deepEqual((await storage.take(queue, POP)).deliveries, []);
      assert.equal(length(), kept);
    });
  }
});
