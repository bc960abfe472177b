import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { RequestKey, Storage } from '../../../src/engine/storage.ts';
import type { NewElement } from '../../../src/model/element.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { Fixture, MAX_GROUPS, NAMESPACES } from '../fixture.ts';

const DAY_MS = 24 * 3600 * 1000;

/** A request key whose fingerprint stands for the given content. */
function requestOf(key: string, content = 'content'): RequestKey {
  return { key: `:user:${key}`, fingerprint: content.padEnd(22, '_') };
}

interface Inserted {
  readonly ids: readonly string[];
  readonly repeats: readonly (readonly [index: number, isSame: boolean])[];
}

async function insert(
  storage: Storage,
  queue: QueueKey,
  elements: readonly NewElement[],
  request: RequestKey,
): Promise<Inserted> {
  const repeats: (readonly [number, boolean])[] = [];
  const ids = await storage.insert(queue, elements, {
    request,
    onRepeat: (index, isSame) => repeats.push([index, isSame]),
  });
  return { ids, repeats };
}

/** The repeats that a call reports if it repeats all elements. */
function allOf({ ids }: Inserted): Inserted['repeats'] {
  return ids.map((_, index) => [index, true]);
}

export function requestKeyContract({
  open,
  openDurable,
}: Pick<EngineUnderTest, 'open' | 'openDurable'>): void {
  describe('the key of a request', () => {
    const on = new Fixture(open);

    it('stores the elements once, and returns the same ids to a repeat, even after they were consumed', async () => {
      const queue = on.queue();
      const elements = newElements('a', 'b', 'c');
      await on.storage.insert(queue, newElements('before'));
      const first = await insert(on.storage, queue, elements, requestOf('k'));
      assert.deepEqual([new Set(first.ids).size, first.repeats], [3, []]);
      await on.storage.insert(queue, newElements('after'));
      const again = await insert(on.storage, queue, elements, requestOf('k'));
      assert.deepEqual(again, { ids: first.ids, repeats: allOf(first) });
      const popped = await on.pop(queue);
      assert.deepEqual(bodyTexts(popped), ['before', 'a', 'b', 'c', 'after']);
      assert.deepEqual(
        popped.slice(1, 4).map(({ id }) => id),
        first.ids,
      );
      assert.deepEqual((await insert(on.storage, queue, elements, requestOf('k'))).ids, first.ids);
      assert.deepEqual(await on.pop(queue), []);
    });

    it('returns the same ids whatever timing and groups the elements have', async () => {
      const queue = on.queue('stream');
      const elements = [
        newElement({ body: 'a', groups: ['g1', 'g2', 'g3'] }),
        newElement({ body: 'b', groups: ['g2'], delayMs: 60_000 }),
        newElement({ body: 'c', groups: ['g1', 'g1', 'g2'], tries: 1 }),
        newElement({ body: 'd', groups: ['g1'], matureAt: 1 }),
      ];
      const first = await insert(on.storage, queue, elements, requestOf('k'));
      assert.equal(new Set(first.ids).size, 4);
      const again = await insert(on.storage, queue, elements, requestOf('k'));
      assert.deepEqual(again, { ids: first.ids, repeats: allOf(first) });
      const popped = await on.pop(queue, 9, 'g1');
      assert.deepEqual(bodyTexts(popped), ['d', 'a', 'c']);
      assert.deepEqual(
        popped.map(({ id }) => id),
        [3, 0, 2].map((index) => first.ids[index]),
      );
    });

    it('makes an insert store nothing and return no ids if it was used with other content before', async () => {
      const queue = on.queue();
      const { ids } = await insert(on.storage, queue, newElements('a', 'b'), requestOf('k'));
      for (const elements of [newElements('a', 'c'), newElements('c'), newElements('a', 'b', 'c')]) {
        const other = await insert(on.storage, queue, elements, requestOf('k', 'other'));
        assert.deepEqual([other.ids, other.repeats[0]], [[], [0, false]]);
        assert.ok(other.repeats.every(([, isSame]) => !isSame));
      }
      const again = await insert(on.storage, queue, newElements('a', 'b'), requestOf('k'));
      assert.deepEqual(again.ids, ids);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['a', 'b']);
    });

    it('works for calls of one batch, with and without a key', async () => {
      const queue = on.queue();
      const keyed = newElement({ body: 'e', dedupKey: 'user:e' });
      const [plain, first, same, other, own, repeat] = await Promise.all([
        on.storage.insert(queue, newElements('a')),
        insert(on.storage, queue, newElements('b', 'c'), requestOf('k')),
        insert(on.storage, queue, newElements('b', 'c'), requestOf('k')),
        insert(on.storage, queue, newElements('x'), requestOf('k', 'other')),
        on.storage.insert(queue, [newElement({ body: 'd', delayMs: 0 }), keyed]),
        on.storage.insert(queue, [keyed]),
      ]);
      assert.deepEqual([first.repeats, same], [[], { ids: first.ids, repeats: allOf(first) }]);
      assert.deepEqual(other, { ids: [], repeats: [[0, false]] });
      assert.deepEqual(repeat, own.slice(1));
      const popped = await on.pop(queue);
      assert.deepEqual(bodyTexts(popped), ['a', 'b', 'c', 'd', 'e']);
      assert.deepEqual(
        popped.map(({ id }) => id),
        [...plain, ...first.ids, ...own],
      );
    });

    it('works for calls of one batch whose elements have neither groups nor dedup keys', async () => {
      const queue = on.queue();
      const timed = [newElement({ body: 'b', tries: 1 }), newElement({ body: 'late', delayMs: 60_000 })];
      const [first, keyed, repeat, other, last] = await Promise.all([
        on.storage.insert(queue, newElements('a')),
        insert(on.storage, queue, timed, requestOf('k')),
        insert(on.storage, queue, timed, requestOf('k')),
        insert(on.storage, queue, newElements('x'), requestOf('k', 'other')),
        on.storage.insert(queue, newElements('c', 'd')),
      ]);
      assert.deepEqual([keyed.repeats, repeat], [[], { ids: keyed.ids, repeats: allOf(keyed) }]);
      assert.deepEqual(other, { ids: [], repeats: [[0, false]] });
      const popped = await on.pop(queue);
      assert.deepEqual(bodyTexts(popped), ['a', 'b', 'c', 'd']);
      assert.deepEqual(
        popped.map(({ id }) => id),
        [...first, ...keyed.ids.slice(0, 1), ...last],
      );
      const { scheduled } = await on.storage.counts(queue);
      assert.equal(scheduled, 1);
    });

    it('can be looked up by a call without elements, which stores nothing and creates no queue', async () => {
      const queue = on.queue();
      assert.deepEqual(await insert(on.storage, queue, [], requestOf('k')), { ids: [], repeats: [] });
      assert.deepEqual(await insert(on.storage, queue, [], requestOf('k')), { ids: [], repeats: [] });
      assert.ok(!(await on.storage.queues(queue.ns)).includes(queue.name));
      const { ids } = await insert(on.storage, queue, newElements('a'), requestOf('k'));
      assert.equal(ids.length, 1);
      const look = await insert(on.storage, queue, [], requestOf('k'));
      assert.deepEqual(look, { ids: [], repeats: [[0, true]] });
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['a']);
    });

    it('belongs to one queue', async () => {
      const [one, two] = [on.queue(), on.queue()];
      await insert(on.storage, one, newElements('a'), requestOf('k'));
      const { repeats } = await insert(on.storage, two, newElements('b'), requestOf('k', 'other'));
      assert.deepEqual(repeats, []);
      assert.deepEqual(bodyTexts(await on.pop(two)), ['b']);
    });

    it('is not remembered if its call is rejected', async () => {
      const queue = on.queue('crowded');
      const full = Array.from({ length: MAX_GROUPS }, (_, index) => `full ${index}`);
      await on.storage.insert(queue, [newElement({ groups: full })]);
      const more = [newElement({ groups: full.slice(0, 1) }), newElement({ groups: ['one more'] })];
      await assert.rejects(insert(on.storage, queue, more, requestOf('k')), { code: 'too-many-groups' });
      const known = [newElement({ body: 'known', groups: full.slice(0, 1) })];
      const { ids, repeats } = await insert(on.storage, queue, known, requestOf('k', 'other'));
      assert.deepEqual([ids.length, repeats], [1, []]);
    });

    it('covers ten thousand elements', async () => {
      const queue = on.queue();
      const elements = Array.from({ length: 10_000 }, (_, index) => newElement({ body: `${index}` }));
      const first = await insert(on.storage, queue, elements, requestOf('k'));
      const again = await insert(on.storage, queue, elements, requestOf('k'));
      assert.equal(new Set(first.ids).size, 10_000);
      assert.deepEqual(again, { ids: first.ids, repeats: allOf(first) });
      let step = await on.storage.purge(queue);
      while (!step.isDone) step = await on.storage.purge(queue);
    });

    it('is forgotten after the dedup window', async () => {
      await on.alone(async ({ engine: { storage }, passTime }) => {
        const queue = { ns: 'plain', name: 'window' };
        const repeat = () => insert(storage, queue, newElements('a', 'b'), requestOf('k'));
        const { ids } = await repeat();
        await passTime(DAY_MS - 1);
        await storage.sweep();
        assert.deepEqual((await repeat()).ids, ids);
        await passTime(2);
        const later = await repeat();
        assert.deepEqual(later.repeats, []);
        assert.ok(later.ids.every((id) => !ids.includes(id)));
        assert.deepEqual((await repeat()).ids, later.ids);
      });
    });

    if (openDurable !== null) {
      it('makes an insert that a crash interrupts safe to repeat', async () => {
        let opened = await openDurable({ namespaces: NAMESPACES });
        try {
          const queue = { ns: 'plain', name: 'crash' };
          const elements = newElements('a', 'b', 'c');
          for (const moment of ['before-commit', 'after-commit'] as const) {
            opened = await opened.crash(moment, () => {
              insert(opened.engine.storage, queue, elements, requestOf(moment)).catch(() => {});
            });
            const { ids, repeats } = await insert(opened.engine.storage, queue, elements, requestOf(moment));
            assert.equal(repeats.length, moment === 'before-commit' ? 0 : 3);
            const { deliveries } = await opened.engine.storage.take(queue, {
              group: '',
              count: 9,
              leaseMs: null,
            });
            assert.deepEqual(
              deliveries.map(({ id }) => id),
              ids,
            );
          }
        } finally {
          await opened.close();
        }
      });
    }
  });
}
