import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { GroupCounts } from '../../../src/engine/storage.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { newElement, newElements } from '../../support/elements.ts';
import { commit, nextDueAt, purge, remove, rollback } from '../../support/settle.ts';
import { until } from '../../support/until.ts';
import { byToken, DEAD_LETTERS, Fixture, MAX_TRIES } from '../fixture.ts';

export function sizesContract(open: EngineUnderTest['open']): void {
  describe('counts and usage', () => {
    const on = new Fixture(open);

    const counts = ({ ready, scheduled, reserved }: GroupCounts): number[] => [ready, scheduled, reserved];
    const countsOf = async (queue: QueueKey): Promise<number[]> => counts(await on.storage.counts(queue));

    it('are zero for an unknown queue', async () => {
      const sizes = await on.storage.counts(on.queue());
      assert.deepEqual(sizes, { ready: 0, scheduled: 0, reserved: 0, nextMatureAt: null, groups: new Map() });
    });

    it('follow every operation on a plain queue', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b', 'c', 'd'));
      await on.storage.insert(queue, [newElement({ delayMs: 3_600_000 })]);
      assert.deepEqual(await countsOf(queue), [4, 1, 0]);
      await on.pop(queue, 1);
      const [b, c] = [await on.reserveOne(queue), await on.reserveOne(queue)];
      assert.deepEqual(await countsOf(queue), [1, 1, 2]);
      await commit(on.storage, queue, [byToken(b)]);
      await rollback(on.storage, queue, [{ ...byToken(c), delayMs: 3_600_000, countTry: true }]);
      assert.deepEqual(await countsOf(queue), [1, 2, 0]);
      const [d] = await on.pop(queue, 1);
      assert.deepEqual(await countsOf(queue), [0, 2, 0]);
      await on.storage.undoTake(queue, d === undefined ? [] : [d]);
      assert.deepEqual(await countsOf(queue), [1, 2, 0]);
      await remove(on.storage, queue, [c.id]);
      assert.deepEqual(await countsOf(queue), [1, 1, 0]);
      await purge(on.storage, queue);
      assert.deepEqual(await countsOf(queue), [0, 0, 0]);
      assert.equal((await on.storage.counts(queue)).groups.size, 0);
    });

    it('yield, together with now(), for how long the oldest ready element has been ready', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, [newElement({ delayMs: 1_000 }), newElement({ delayMs: 3_600_000 })]);
      await on.opened.passTime(5_000);
      const before = on.opened.now();
      const { ready, nextMatureAt } = await on.storage.counts(queue);
      assert.equal(ready, 1);
      const age = on.storage.now(queue) - (nextMatureAt ?? 0);
      // Allows for the response time of a real engine, and for the known error of its clock.
      assert.ok(age >= 3_900 && age <= 4_100 + on.opened.now() - before + 2_000, `${age}`);
    });

    it('include a scheduled element as ready from its maturity on', async () => {
      const queue = on.queue();
      const now = on.opened.now();
      const delays = [10_000, 20_000, 20_000, 30_000];
      await on.storage.insert(
        queue,
        delays.map((delay) => newElement({ matureAt: now + delay })),
      );
      assert.deepEqual(await countsOf(queue), [0, 4, 0]);
      await on.opened.passTime(now + 10_000 - on.opened.now());
      assert.deepEqual(await countsOf(queue), [1, 3, 0]);
      await on.opened.passTime(10_000);
      await on.storage.insert(queue, newElements('now'));
      assert.deepEqual(await countsOf(queue), [4, 1, 0]);
      assert.equal((await on.pop(queue, 2)).length, 2);
      await on.opened.passTime(10_000);
      assert.deepEqual(await countsOf(queue), [3, 0, 0]);
    });

    it('include an element as ready again after its lease expired', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      await on.reserveOne(queue, '', 1000);
      assert.deepEqual(await countsOf(queue), [0, 0, 1]);
      await on.opened.passTime(1001);
      await on.storage.sweep();
      assert.deepEqual(await countsOf(queue), [1, 0, 0]);
    });

    it('include the earliest maturity of the waiting elements, due or not', async () => {
      const queue = on.queue();
      const now = on.opened.now();
      const next = async (): Promise<(number | null)[]> => [
        (await on.storage.counts(queue)).nextMatureAt,
        await nextDueAt(on.storage, queue, ''),
      ];
      assert.deepEqual(await next(), [null, null]);
      await on.storage.insert(queue, [newElement({ matureAt: now + 3_600_000 })]);
      assert.deepEqual(await next(), [now + 3_600_000, now + 3_600_000]);
      await on.storage.insert(queue, [newElement({ matureAt: now - 5 })]);
      assert.deepEqual(await next(), [now - 5, now - 5]);
      await on.reserveOne(queue);
      assert.deepEqual(await next(), [now + 3_600_000, now + 3_600_000]);
    });

    it('of a stream include each element once, in its most advanced state, and the deliveries of each group', async () => {
      const queue = on.queue('stream');
      await on.storage.insert(queue, [
        newElement({ body: 'a', groups: ['g1', 'g2'] }),
        newElement({ body: 'b', groups: ['g1', 'g2'] }),
        newElement({ body: 'c', groups: ['g3'] }),
        newElement({ body: 'd', groups: ['g3', 'g1'], delayMs: 3_600_000 }),
      ]);
      await on.reserve(queue, 1, 'g1');
      await on.reserve(queue, 1, 'g2');
      await on.reserve(queue, 1, 'g1');
      // a: reserved twice. b: reserved for g1, ready for g2. c: ready. d: scheduled.
      const sizes = await on.storage.counts(queue);
      assert.deepEqual(counts(sizes), [2, 1, 1]);
      assert.deepEqual([...sizes.groups].map(([name, of]) => [name, ...counts(of)]).sort(), [
        ['g1', 0, 1, 2],
        ['g2', 1, 0, 1],
        ['g3', 1, 1, 0],
      ]);
    });

    it('of a group include only its deliveries', async () => {
      const queue = on.queue('stream');
      const matureAt = on.opened.now() + 3_600_000;
      await on.storage.insert(queue, [
        newElement({ groups: ['g1', 'g2'] }),
        newElement({ groups: ['g2'], matureAt }),
      ]);
      await on.pop(queue, 1, 'g2');
      const g2 = await on.storage.counts(queue, 'g2');
      assert.deepEqual(counts(g2), [0, 1, 0]);
      assert.equal(g2.nextMatureAt, matureAt);
      assert.equal(g2.groups.size, 0);
      assert.deepEqual(counts(await on.storage.counts(queue, 'g1')), [1, 0, 0]);
      assert.deepEqual(counts(await on.storage.counts(queue, 'none')), [0, 0, 0]);
      assert.equal(await nextDueAt(on.storage, queue, 'g2'), matureAt);
    });

    it('of a namespace include the ready, scheduled and reserved elements of all its queues', async () => {
      await on.alone(async ({ engine: { storage } }) => {
        const [one, two] = [
          { ns: 'plain', name: 'one' },
          { ns: 'plain', name: 'two' },
        ];
        assert.equal((await storage.usage('plain')).elements, 0);
        await storage.insert(one, [
          newElement(),
          newElement({ dedupKey: 'k' }),
          newElement({ delayMs: 60_000 }),
        ]);
        await storage.insert(two, [newElement()]);
        await storage.insert({ ns: 'jobs', name: 'elsewhere' }, [newElement()]);
        const { deliveries } = await storage.take(one, { group: '', count: 1, leaseMs: 60_000 });
        assert.equal((await storage.usage('plain')).elements, 4);
        await commit(storage, one, [{ id: deliveries[0]?.id ?? '', group: '', token: null }]);
        await storage.take(two, { group: '', count: 1, leaseMs: null });
        const { elements, bytes } = await storage.usage('plain');
        assert.equal(elements, 2);
        assert.ok(bytes === null || bytes > 0);
      });
    });

    it('of a namespace include stored bytes, until the elements are purged, committed or popped', async () => {
      await on.alone(async ({ engine, passTime }) => {
        const { storage } = engine;
        const usedBytes = async (): Promise<number> => (await storage.usage('jobs')).bytes ?? Number.NaN;
        const before = await usedBytes();
        // An engine that does not count bytes does not support `maxBytes`.
        if (Number.isNaN(before)) return;
        const [jobs, dead] = ['busy', DEAD_LETTERS].map((name) => ({ ns: 'jobs', name }));
        assert.ok(jobs && dead);
        const store = (): Promise<unknown> =>
          storage.insert(
            jobs,
            Array.from({ length: 20 }, () => newElement({ body: 'x'.repeat(50_000) })),
          );
        const assertFreed = async (): Promise<void> => {
          for (let i = 0; i < 20 && (await usedBytes()) > before + 400_000; i += 1) {
            await passTime(6_000);
            await storage.sweep();
          }
          assert.ok((await usedBytes()) <= before + 400_000, `${await usedBytes()} bytes, ${before} before`);
        };
        const assertStored = async (): Promise<void> => {
          const held = (await usedBytes()) - before;
          assert.ok(held >= 1_000_000 && held < 2_400_000, `${held} bytes are held`);
        };
        await store();
        await assertStored();
        await purge(storage, jobs);
        await assertFreed();
        await store();
        for (let i = 0; i < MAX_TRIES; i += 1) {
          await storage.take(jobs, { group: '', count: 100, leaseMs: 1_000 });
          await assertStored();
          await passTime(1_001);
          await storage.sweep();
        }
        // On a Redis cluster, a sweep sends dead letters to another server and does not wait for their arrival.
        await until(async () => (await storage.counts(dead)).ready === 20);
        await assertStored();
        const { deliveries } = await storage.take(dead, { group: '', count: 100, leaseMs: 60_000 });
        await commit(
          storage,
          dead,
          deliveries.map(({ id, lease }) => ({ id, group: '', token: lease?.token ?? null })),
        );
        await assertFreed();
        await store();
        await storage.take(jobs, { group: '', count: 100, leaseMs: null });
        await storage.take(jobs, { group: '', count: 100, leaseMs: null });
        await assertFreed();
      });
    });
  });
}
