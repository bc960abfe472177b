import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { isKeySeen } from '../../../src/engine/request-keys.ts';
import type { NewElement } from '../../../src/model/element.ts';
import { QuaysideError } from '../../../src/model/errors.ts';
import { contentFingerprint } from '../../../src/model/fingerprint.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, nextDueAt } from '../../support/settle.ts';
import { Fixture } from '../fixture.ts';

const DAY_MS = 24 * 3600 * 1000;

export function insertContract(open: EngineUnderTest['open']): void {
  describe('declare, queues and insert', () => {
    const on = new Fixture(open);

    it('lists a declared queue once, and empty', async () => {
      await on.alone(async ({ engine: { storage } }) => {
        const queue = { ns: 'plain', name: 'declared' };
        await storage.declare([queue]);
        await storage.declare([queue, { ns: 'plain', name: 'another' }]);
        assert.deepEqual(await storage.queues('plain'), ['another', 'declared']);
        assert.equal((await storage.counts(queue)).ready, 0);
      });
    });

    it('lists the queues of one namespace, sorted, including those created by an insert', async () => {
      await on.alone(async ({ engine: { storage } }) => {
        for (const name of ['b', 'é', 'B', 'a'])
          await storage.insert({ ns: 'plain', name }, newElements('x'));
        await storage.declare([{ ns: 'jobs', name: 'elsewhere' }]);
        assert.deepEqual(await storage.queues('plain'), ['B', 'a', 'b', 'é']);
        assert.deepEqual(await storage.queues('unheard of'), []);
      });
    });

    it('does not create a queue that is only read', async () => {
      await on.alone(async ({ engine: { storage } }) => {
        const queue = { ns: 'plain', name: 'only read' };
        const taken = await storage.take(queue, { group: '', count: 1, leaseMs: null });
        assert.deepEqual([taken.deliveries, taken.nextDueAt], [[], null]);
        assert.equal(await nextDueAt(storage, queue, ''), null);
        assert.equal((await storage.counts(queue)).ready, 0);
        assert.deepEqual(await commit(storage, queue, [{ id: 'x', group: '', token: null }]), ['not-found']);
        assert.deepEqual(await storage.queues('plain'), []);
      });
    });

    it('publishes the signal of an insert if the engine supports it, once per batch of calls', async () => {
      const { storage, signaller } = on.opened.engine;
      assert.ok(storage.insertSignaller === null || storage.insertSignaller === signaller);
      if (storage.insertSignaller === null) return;
      const queue = on.queue();
      const counts: number[] = [];
      const heard = Promise.withResolvers<void>();
      const end = signaller.subscribe('ready', (message) => {
        counts.push(message as number);
        if (counts.reduce((sum, count) => sum + count) === 4) heard.resolve();
      });
      const signal = { topic: 'ready', messageFor: (count: number) => count };
      await Promise.all([
        storage.insert(queue, newElements('a', 'b'), { signal }),
        storage.insert(queue, newElements('c'), { signal }),
      ]);
      await storage.insert(queue, newElements('d'), { signal });
      await heard.promise;
      assert.deepEqual(counts, [3, 1]);
      end();
    });

    it('publishes one signal for concurrent inserts with different groups', async () => {
      const { storage, signaller } = on.opened.engine;
      if (storage.insertSignaller === null) return;
      const queue = on.queue('stream');
      const heard = Promise.withResolvers<unknown>();
      const end = signaller.subscribe('groups', heard.resolve);
      const signal = {
        topic: 'groups',
        messageFor: (count: number, groups: ReadonlySet<string>) => [count, ...[...groups].sort()],
      };
      const inserts = ['g1', 'g2', 'g1', 'g2'].map((group) =>
        storage.insert(queue, [newElement({ groups: [group] })], { signal }),
      );
      await Promise.all(inserts);
      assert.deepEqual(await heard.promise, [4, 'g1', 'g2']);
      end();
    });

    it('returns one id per element: unique, URL-safe, at most 64 characters', async () => {
      const queues = [on.queue(), on.queue()] as const;
      const ids = [
        ...(await on.storage.insert(queues[0], newElements('a', 'b', 'c'))),
        ...(await on.storage.insert(queues[1], newElements('a'))),
        ...(await on.storage.insert(queues[0], newElements('a'))),
      ];
      assert.equal(new Set(ids).size, 5);
      for (const id of ids) assert.match(id, /^[A-Za-z0-9._~-]{1,64}$/);
      assert.deepEqual(
        (await on.pop(queues[0])).map(({ id }) => id),
        [ids[0], ids[1], ids[2], ids[4]],
      );
    });

    it('stores nothing for an empty array', async () => {
      const queue = on.queue();
      assert.deepEqual(await on.storage.insert(queue, []), []);
      assert.deepEqual(await on.pop(queue), []);
    });

    it('keeps queues of the same name in two namespaces apart', async () => {
      const queue = on.queue('plain');
      const namesake = { ...queue, ns: 'jobs' };
      await on.storage.insert(queue, newElements('here'));
      assert.deepEqual(await on.pop(namesake), []);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['here']);
    });

    it('accepts any valid queue name', async () => {
      const names = [
        "it's",
        '"quoted"',
        '100%',
        '{brace}',
        '*?[a]',
        '日本語',
        '../up',
        'a/b',
        '__proto__',
        'a,b',
      ];
      for (const name of names) {
        const queue = { ns: 'plain', name };
        await on.storage.insert(queue, newElements(`in ${name}`));
      }
      for (const name of names) {
        assert.deepEqual(bodyTexts(await on.pop({ ns: 'plain', name })), [`in ${name}`]);
      }
      const known = new Set(await on.storage.queues('plain'));
      assert.deepEqual(
        names.filter((name) => !known.has(name)),
        [],
      );
    });

    it('returns the first id for a repeated dedup key, even after the element was consumed', async () => {
      const queue = on.queue();
      const [first] = await on.storage.insert(queue, [newElement({ body: 'first', dedupKey: 'k' })]);
      assert.deepEqual(await on.storage.insert(queue, [newElement({ body: 'again', dedupKey: 'k' })]), [
        first,
      ]);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['first']);
      assert.deepEqual(await on.storage.insert(queue, [newElement({ body: 'late', dedupKey: 'k' })]), [
        first,
      ]);
      assert.deepEqual(await on.pop(queue), []);
    });

    it('recognizes a dedup key that is repeated within one call, and stores the other elements', async () => {
      const queue = on.queue();
      const ids = await on.storage.insert(queue, [
        newElement({ body: 'a', dedupKey: 'k' }),
        newElement({ body: 'b', dedupKey: 'k' }),
        newElement({ body: 'c', dedupKey: 'other' }),
        newElement({ body: 'd' }),
        newElement({ body: 'e' }),
      ]);
      assert.equal(ids[0], ids[1]);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['a', 'c', 'd', 'e']);
    });

    it('reports whether a repeat has the same content; if not, the call stores nothing', async () => {
      const queue = on.queue();
      const element = (body: string, dedupKey = 'k'): NewElement => {
        const plain = newElement({ body, dedupKey });
        return { ...plain, fingerprint: contentFingerprint(plain) };
      };
      const repeats: (readonly [number, boolean])[] = [];
      const insert = (...elements: NewElement[]): Promise<string[]> =>
        on.storage.insert(queue, elements, { onRepeat: (index, isSame) => repeats.push([index, isSame]) });
      const [first] = await insert(element('a'), newElement({ body: 'no key' }));
      assert.equal(repeats.length, 0);
      const ids = await insert(newElement({ body: 'before' }), element('a'), element('a'));
      assert.deepEqual(ids.slice(1), [first, first]);
      assert.deepEqual(repeats.splice(0), [
        [1, true],
        [2, true],
      ]);
      assert.deepEqual(await insert(element('b')), []);
      assert.deepEqual(repeats.splice(0), [[0, false]]);
      assert.deepEqual(await insert(newElement({ body: 'lost' }), element('new', 'k2'), element('b')), []);
      assert.deepEqual(
        repeats.splice(0).filter(([, isSame]) => !isSame),
        [[2, false]],
      );
      const alone = newElement({ body: 'c', dedupKey: 'twice' });
      const [twice] = await insert(alone, { ...alone, fingerprint: contentFingerprint(alone) });
      assert.ok(twice);
      assert.deepEqual(repeats.splice(0), [[1, true]]);
      assert.deepEqual(await insert(element('new', 'k2')).then(({ length }) => length), 1);
      assert.equal(repeats.length, 0);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['a', 'no key', 'before', 'c', 'new']);
    });

    it('reports whether a dedup key was seen, with or without a fingerprint, and stores nothing', async () => {
      const queue = on.queue();
      const elements = ['with', 'without'].map((dedupKey) => {
        const plain = newElement({ body: dedupKey, dedupKey });
        return dedupKey === 'with' ? { ...plain, fingerprint: contentFingerprint(plain) } : plain;
      });
      await on.storage.insert(queue, elements);
      for (const [key, isSeen] of [
        ['with', true],
        ['without', true],
        ['new', false],
        ['new', false],
      ] as const) {
        assert.equal(await isKeySeen(on.storage, queue, key), isSeen, key);
      }
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['with', 'without']);
    });

    it('stores nothing of a call that has one dedup key with different content, without affecting concurrent calls', async () => {
      const queue = on.queue();
      const element = (body: string, dedupKey: string): NewElement => {
        const plain = newElement({ body, dedupKey });
        return { ...plain, fingerprint: contentFingerprint(plain) };
      };
      const outcomes: (readonly [string, number, boolean])[] = [];
      const insert = (name: string, ...elements: NewElement[]): Promise<string[]> =>
        on.storage.insert(queue, elements, {
          onRepeat: (index, isSame) => outcomes.push([name, index, isSame]),
        });
      const ids = await Promise.all([
        insert('first', newElement({ body: 'a' }), element('b', 'k')),
        insert('bad', newElement({ body: 'c' }), element('d', 'own'), element('e', 'own')),
        insert('next', newElement({ body: 'f' })),
        insert('late', element('g', 'later'), element('h', 'k')),
        insert('repeat', element('b', 'k'), newElement({ body: 'i' })),
      ]);
      assert.deepEqual(
        ids.map(({ length }) => length),
        [2, 0, 1, 0, 2],
      );
      assert.equal(ids[4]?.[0], ids[0]?.[1]);
      assert.deepEqual(
        outcomes.sort(([a], [b]) => (a < b ? -1 : 1)),
        [
          ['bad', 2, false],
          ['late', 1, false],
          ['repeat', 0, true],
        ],
      );
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['a', 'b', 'f', 'i']);
    });

    it('creates no queue for a call that has one dedup key with different content', async () => {
      await on.alone(async ({ engine: { storage } }) => {
        const queue = { ns: 'plain', name: 'contradictory' };
        const elements = ['a', 'b'].map((body) => {
          const plain = newElement({ body, dedupKey: 'k' });
          return { ...plain, fingerprint: contentFingerprint(plain) };
        });
        assert.deepEqual(await storage.insert(queue, elements), []);
        assert.deepEqual(await storage.queues('plain'), []);
      });
    });

    it('stores different kinds of elements of one call unchanged and in order', async () => {
      const queue = on.queue();
      const now = on.opened.now();
      const elements = Array.from({ length: 42 }, (_, i) => {
        const fields: Partial<NewElement>[] = [
          {},
          { body: Buffer.alloc(2000 + i, i), contentType: null },
          { contentEncoding: 'gzip', headers: ['a', `${i}`] },
          { headers: ['a', 'b'] },
          { tries: i, expiresAt: now + DAY_MS },
          { tries: 7 },
          { contentType: 'application/json' },
        ];
        // Two of a kind follow each other.
        return newElement({ body: `${i}`, ...fields[(i >> 1) % fields.length] });
      });
      const ids = await on.storage.insert(queue, [
        ...elements,
        newElement({ body: 'later', delayMs: 60_000 }),
      ]);
      assert.equal(new Set(ids).size, 43);
      const { ready, scheduled } = await on.storage.counts(queue);
      assert.deepEqual([ready, scheduled], [42, 1]);
      const popped = await on.pop(queue);
      assert.deepEqual(
        popped.map(({ id }) => id),
        ids.slice(0, 42),
      );
      for (const [i, { body, contentType, contentEncoding, headers, tries }] of popped.entries()) {
        const given = elements[i] as NewElement;
        assert.ok(Buffer.from(body).equals(given.body), `body ${i}`);
        assert.deepEqual(
          { contentType, contentEncoding, headers: [...headers], tries },
          {
            contentType: given.contentType,
            contentEncoding: given.contentEncoding,
            headers: given.headers,
            tries: given.tries,
          },
        );
      }
    });

    it('accepts ten thousand elements in one call, some with dedup keys', async () => {
      const queue = on.queue();
      const elements = Array.from({ length: 10_000 }, (_, i) => {
        const plain = newElement({ body: String(i), dedupKey: i % 100 === 50 ? `k${i % 1000}` : null });
        return plain.dedupKey === null ? plain : { ...plain, fingerprint: 'x'.repeat(22) };
      });
      const repeats: number[] = [];
      const ids = await on.storage.insert(queue, elements, { onRepeat: (index) => repeats.push(index) });
      // Ten keys, each of which repeats every thousand elements.
      assert.equal(new Set(ids).size, 10_000 - 90);
      assert.equal(repeats.length, 90);
      assert.deepEqual([repeats[0], ids[repeats[0] ?? 0]], [1050, ids[50]]);
      const { ready } = await on.storage.counts(queue);
      assert.equal(ready, 10_000 - 90);
      let step = await on.storage.purge(queue);
      while (!step.isDone) step = await on.storage.purge(queue);
    });

    it('stores 16 MiB in one call, once even if the call is repeated', async () => {
      const queue = on.queue();
      const body = new Uint8Array(1024 * 1024).fill(120);
      const elements = Array.from({ length: 16 }, (_, i) => newElement({ body, dedupKey: `k${i}` }));
      // On a busy machine, replicas may take longer than the engine waits for them; then the caller repeats the call.
      let ids: readonly string[] = [];
      while (ids.length === 0) {
        ids = await on.storage.insert(queue, elements).catch((error: unknown) => {
          if (error instanceof QuaysideError && error.code === 'outcome-unknown') return [];
          throw error;
        });
      }
      assert.equal(new Set(ids).size, 16);
      assert.equal((await on.storage.counts(queue)).ready, 16);
      await on.storage.purge(queue);
    });

    it('keeps the dedup keys of two queues apart', async () => {
      const [one, two] = [on.queue(), on.queue()];
      await on.storage.insert(one, [newElement({ dedupKey: 'k' })]);
      await on.storage.insert(two, [newElement({ body: 'not a repeat', dedupKey: 'k' })]);
      assert.deepEqual(bodyTexts(await on.pop(two)), ['not a repeat']);
    });

    it('forgets a dedup key after the dedup window', async () => {
      await on.alone(async ({ engine: { storage }, passTime }) => {
        const queue = { ns: 'plain', name: 'window' };
        const insert = (): Promise<string[]> => storage.insert(queue, [newElement({ dedupKey: 'k' })]);
        const [first] = await insert();
        await passTime(DAY_MS - 1);
        await storage.sweep();
        assert.deepEqual(await insert(), [first]);
        await passTime(2);
        assert.notDeepEqual(await insert(), [first]);
      });
    });
  });
}
