import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { TakeOptions, TakeResult } from '../../../src/engine/storage.ts';
import { LIMITS } from '../../../src/model/limits.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, nextDueAt, rollback } from '../../support/settle.ts';
import { byToken, Fixture } from '../fixture.ts';

export function takeContract(open: EngineUnderTest['open']): void {
  describe('take', () => {
    const on = new Fixture(open);

    it('pops elements of equal maturity in the order of insertion', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b'));
      await on.storage.insert(queue, newElements('c'));
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['a', 'b', 'c']);
    });

    it('delivers by maturity before order of insertion', async () => {
      const queue = on.queue();
      const now = on.opened.now();
      await on.storage.insert(queue, [
        newElement({ body: 'third', matureAt: now - 10 }),
        newElement({ body: 'fourth', matureAt: now - 10 }),
        newElement({ body: 'first', matureAt: 0 }),
        newElement({ body: 'second', matureAt: now - 20 }),
      ]);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['first', 'second', 'third', 'fourth']);
    });

    it('delivers at most count elements, and then does not return the next maturity', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b', 'c'));
      const taken = await on.storage.take(queue, { group: '', count: 2, leaseMs: null });
      assert.deepEqual(bodyTexts(taken.deliveries), ['a', 'b']);
      assert.equal(taken.nextDueAt, null);
    });

    it('keeps the estimate of the engine’s clock within 100 ms', async () => {
      const queue = on.queue();
      const [before] = [on.opened.now(), await on.storage.insert(queue, newElements('a'))];
      await on.pop(queue);
      for (const known of [on.storage.now(), on.storage.now(queue)]) {
        // The estimate lags by the time that a response takes to arrive.
        assert.ok(known >= before - 100, `${known} is long before ${before}`);
        assert.ok(known <= on.opened.now() + 100, `${known} is yet to come`);
      }
    });

    it('delivers no element before its maturity, and returns the earliest maturity', async () => {
      const queue = on.queue();
      const before = on.opened.now();
      await on.storage.insert(queue, [newElement({ body: 'later', delayMs: 3_600_000 })]);
      await on.storage.insert(queue, [newElement({ body: 'much later', delayMs: 7_200_000 })]);
      const taken = await on.storage.take(queue, { group: '', count: 1, leaseMs: null });
      assert.deepEqual(taken.deliveries, []);
      const due = taken.nextDueAt ?? 0;
      assert.ok(due >= before + 3_600_000 && due <= on.opened.now() + 3_600_000);
      assert.equal(await nextDueAt(on.storage, queue, ''), due);
    });

    it('delivers an element exactly from its maturity on', async () => {
      const queue = on.queue();
      const matureAt = on.opened.now() + 100;
      await on.storage.insert(queue, [newElement({ body: 'ripe', matureAt })]);
      while (on.opened.now() < matureAt) {
        const early = await on.pop(queue);
        assert.ok(early.length === 0 || on.opened.now() >= matureAt);
        if (early.length > 0) return;
        await on.opened.passTime(Math.max(1, matureAt - on.opened.now() - 1));
      }
      const [delivery] = await on.pop(queue);
      assert.equal(delivery?.matureAt, matureAt);
    });

    it('prefers matureAt to delayMs, and keeps a maturity in the past unchanged', async () => {
      const queue = on.queue();
      const matureAt = on.opened.now() - 86_400_000;
      await on.storage.insert(queue, [newElement({ matureAt, delayMs: 3_600_000 })]);
      const [delivery] = await on.pop(queue);
      assert.equal(delivery?.matureAt, matureAt);
    });

    it('returns the next maturity, or null, if it delivers fewer than count', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const all = await on.storage.take(queue, { group: '', count: 5, leaseMs: null });
      assert.equal(all.deliveries.length, 1);
      assert.equal(all.nextDueAt, null);
      const matureAt = on.opened.now() + 3_600_000;
      await on.storage.insert(queue, [newElement({ body: 'b' }), newElement({ body: 'c', matureAt })]);
      const some = await on.storage.take(queue, { group: '', count: 5, leaseMs: null });
      assert.deepEqual(bodyTexts(some.deliveries), ['b']);
      assert.equal(some.nextDueAt, matureAt);
    });

    describe('with maxBytes', () => {
      const body = (name: string): Buffer => Buffer.alloc(10_000, name);
      const bounded = (
        queue: QueueKey,
        maxBytes: number,
        more: Partial<TakeOptions> = {},
      ): Promise<TakeResult> =>
        on.storage.take(queue, { group: '', count: 100, leaseMs: null, maxBytes, ...more });
      const names = ({ deliveries }: TakeResult): string =>
        deliveries.map(({ body: [first = 0] }) => String.fromCharCode(first)).join('');

      for (const leaseMs of [null, 60_000]) {
        it(`${leaseMs === null ? 'pops' : 'reserves'} as many as fit, reports isCut, and leaves the others in order`, async () => {
          const queue = on.queue();
          await on.storage.insert(
            queue,
            [...'abcde'].map((name) => newElement({ body: body(name) })),
          );
          const first = await bounded(queue, 25_000, { leaseMs });
          assert.deepEqual([names(first), first.isCut], ['ab', true]);
          assert.ok(first.nextDueAt !== null && first.nextDueAt <= on.opened.now());
          assert.equal((await on.storage.counts(queue)).ready, 3);
          const exactFit = await bounded(queue, 25_000, { leaseMs, count: 2 });
          assert.deepEqual([names(exactFit), exactFit.isCut ?? false], ['cd', false]);
          const last = await bounded(queue, 25_000, { leaseMs });
          assert.deepEqual([names(last), last.isCut ?? false, last.nextDueAt], ['e', false, null]);
        });
      }

      it('takes the first element, however large it is', async () => {
        const queue = on.queue();
        await on.storage.insert(
          queue,
          [...'ab'].map((name) => newElement({ body: body(name) })),
        );
        const first = await bounded(queue, 1);
        assert.deepEqual([names(first), first.isCut], ['a', true]);
        const last = await bounded(queue, 1);
        assert.deepEqual([names(last), last.isCut ?? false], ['b', false]);
      });

      it('bounds each of several concurrent takes separately, in one queue and in several', async () => {
        const [queue, other] = [on.queue(), on.queue()];
        for (const target of [queue, other]) {
          await on.storage.insert(
            target,
            [...'abcdefgh'].map((name) => newElement({ body: body(name) })),
          );
        }
        const taken = await Promise.all([
          bounded(queue, 25_000),
          bounded(queue, 35_000),
          bounded(other, 25_000, { leaseMs: 1000 }),
          on.storage.take(queue, { group: '', count: 1, leaseMs: null }),
        ]);
        assert.deepEqual(taken.map(names), ['ab', 'cde', 'ab', 'f']);
      });

      it('bounds takes of a stream', async () => {
        const stream = on.queue('stream');
        const groups = ['g1', 'g2'];
        await on.storage.insert(
          stream,
          [...'abc'].map((name) => newElement({ body: body(name), groups })),
        );
        assert.deepEqual(names(await bounded(stream, 25_000, { group: 'g1' })), 'ab');
        assert.deepEqual(names(await bounded(stream, 25_000, { group: 'g2', leaseMs: 1000 })), 'ab');
      });

      it('takes a thousand elements in one call if they fit', async () => {
        const queue = on.queue();
        await on.storage.insert(
          queue,
          Array.from({ length: 1000 }, () => newElement()),
        );
        const all = await bounded(queue, LIMITS.takeBytes, { count: 1000 });
        assert.deepEqual([all.deliveries.length, all.isCut ?? false, all.nextDueAt], [1000, false, null]);
      });
    });

    it('delivers at most 16 MiB plus one body per call, and reports isLeft', async () => {
      const queue = on.queue();
      const count = 20;
      const MiB = 1024 * 1024;
      for (let i = 0; i < count; i++)
        await on.storage.insert(queue, [newElement({ body: Buffer.alloc(MiB, i) })]);
      const order: number[] = [];
      for (let takes = 1; order.length < count; takes++) {
        const { deliveries, nextDueAt, isLeft } = await on.storage.take(queue, {
          group: '',
          count,
          leaseMs: 60_000,
        });
        assert.ok(deliveries.length <= 17 && takes <= 3, `${deliveries.length}`);
        order.push(...deliveries.map(({ body }) => body[0] ?? -1));
        if (takes === 1) assert.ok(isLeft === true && nextDueAt !== null && nextDueAt <= on.opened.now());
      }
      assert.deepEqual(
        order,
        Array.from({ length: count }, (_, i) => i),
      );
    });

    it('finishes popped elements: they have no lease and are gone', async () => {
      const queue = on.queue();
      const [id] = await on.storage.insert(queue, newElements('a'));
      const [delivery] = await on.pop(queue);
      assert.equal(delivery?.lease, null);
      assert.equal(delivery?.group, '');
      assert.deepEqual(await on.pop(queue), []);
      assert.deepEqual(await commit(on.storage, queue, [{ id: id ?? '', group: '', token: null }]), [
        'not-found',
      ]);
    });

    it('hides a reserved element from others, and returns a token and the end of the lease', async () => {
      const queue = on.queue();
      const before = on.opened.now();
      await on.storage.insert(queue, newElements('a'));
      const [delivery] = await on.reserve(queue, 5, '', 60_000);
      assert.match(delivery?.lease?.token ?? '', /^[A-Za-z0-9._~-]{1,32}$/);
      const until = delivery?.lease?.until ?? 0;
      assert.ok(until >= before + 60_000 && until <= on.opened.now() + 60_000);
      assert.deepEqual(await on.reserve(queue), []);
      assert.deepEqual(await on.pop(queue), []);
    });

    it('gives each reservation of a delivery a new token', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b'));
      const tokens = new Set<string>();
      for (let round = 0; round < 3; round++) {
        for (let each = 0; each < 2; each++) {
          const reserved = await on.reserveOne(queue);
          tokens.add(`${reserved.id} ${reserved.lease.token}`);
        }
        const ids = (
          await on.storage.scan(queue, {
            group: '',
            states: ['reserved'],
            bodies: true,
            after: null,
            limit: 9,
          })
        ).deliveries;
        await rollback(
          on.storage,
          queue,
          ids.map(({ id }) => ({ id, group: '', token: null, delayMs: 0, countTry: true })),
        );
      }
      assert.equal(tokens.size, 6);
    });

    it('delivers each element once, however many takes run concurrently', async () => {
      const queue = on.queue();
      const count = 200;
      const bodies = Array.from({ length: count }, (_, index) => `element ${index}`);
      await on.storage.insert(queue, newElements(...bodies));
      const takes = Array.from({ length: 100 }, (_, index) =>
        on.storage.take(queue, { group: '', count: 3, leaseMs: index % 2 === 0 ? null : 60_000 }),
      );
      const taken = (await Promise.all(takes)).flatMap(({ deliveries }) => bodyTexts(deliveries));
      assert.deepEqual(taken, bodies);
    });

    it('finds an element whose insert was called just before and not awaited', async () => {
      const queue = on.queue();
      const inserted = on.storage.insert(queue, newElements('fresh'));
      const taken = on.storage.take(queue, { group: '', count: 1, leaseMs: 60_000 });
      const settled = taken.then(async ({ deliveries: [delivery] }) => delivery?.id);
      const [[id], takenId] = await Promise.all([inserted, settled]);
      assert.equal(takenId, id);
    });

    it('delivers an element again after its lease expired, without a sweep', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const first = await on.reserveOne(queue, '', 1000);
      await on.opened.passTime(1001);
      const second = await on.reserveOne(queue, '', 60_000);
      assert.equal(second.id, first.id);
      assert.equal(second.tries, 1);
      assert.notEqual(second.lease.token, first.lease.token);
      assert.equal(second.matureAt, first.lease.until);
      assert.deepEqual(await commit(on.storage, queue, [byToken(second)]), ['done']);
    });
  });
}
