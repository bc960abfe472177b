import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Delivery } from '../../../src/model/element.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, extend, purge, remove, rollback, transfer } from '../../support/settle.ts';
import { byId, byToken, Fixture, type Reserved } from '../fixture.ts';

/** A transient reservation is like any other as long as the process runs, wherever an engine keeps it. */
export function transientContract(open: EngineUnderTest['open']): void {
  describe('transient reservations', () => {
    const on = new Fixture(open);

    const take = async (queue: QueueKey, count = 100, leaseMs = 60_000): Promise<Reserved[]> => {
      const options = { group: '', count, leaseMs, tids: 'tid', isTransient: true };
      const { deliveries } = await on.storage.take(queue, options);
      return deliveries.map(reserved);
    };

    it('are passed over by other takes, and finished by their tokens in any order', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('1', '2', '3', '4', '5', '6', '7', '8'));
      const [first, second] = [await take(queue, 3), await take(queue, 2)];
      const [held] = await on.reserve(queue, 1);
      assert.deepEqual(bodyTexts(await on.pop(queue, 1)), ['7']);
      assert.deepEqual(bodyTexts(first), ['1', '2', '3']);
      assert.deepEqual(bodyTexts(second), ['4', '5']);
      const [one, two, three] = first as [Reserved, Reserved, Reserved];
      const [four, five] = second as [Reserved, Reserved];
      const wrong = { ...byToken(five), token: four.lease.token };
      const refs = [byToken(four), wrong, byToken(two), byToken(two), byToken(one), byToken(three)];
      const outcomes = await commit(on.storage, queue, refs);
      assert.deepEqual(outcomes, ['done', 'lease-lost', 'done', 'not-found', 'done', 'done']);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['8']);
      assert.deepEqual(await commit(on.storage, queue, [byId(five), byToken(reserved(held))]), [
        'done',
        'done',
      ]);
      const { ready, reserved: left } = await on.storage.counts(queue);
      assert.deepEqual([ready, left], [0, 0]);
    });

    it('are finished once if a call names one of them twice', async () => {
      const [queue, to] = [on.queue(), on.queue()];
      await on.storage.insert(queue, newElements('1', '2', '3', '4'));
      const [one, two, three] = (await take(queue, 3)) as [Reserved, Reserved, Reserved];
      const moves = [two, two, one, three].map((delivery) => ({
        from: queue,
        finish: byToken(delivery),
        inserts: [{ queue: to, element: newElement({ body: delivery.body }) }],
      }));
      assert.deepEqual(await transfer(on.storage, moves), ['done', 'not-found', 'done', 'done']);
      assert.deepEqual(bodyTexts(await on.pop(to)), ['2', '1', '3']);
      const { ready, reserved: left } = await on.storage.counts(queue);
      assert.deepEqual([ready, left], [1, 0]);
    });

    it('do not hide elements that become ready before them', async () => {
      const queue = on.queue();
      const early = on.opened.now() - 10_000;
      await on.storage.insert(queue, newElements('1', '2', '3', '4'));
      const [one, two, three] = (await take(queue, 3)) as [Reserved, Reserved, Reserved];
      await on.storage.insert(queue, [newElement({ body: 'early', matureAt: early })]);
      assert.deepEqual(bodyTexts(await on.pop(queue, 1)), ['early']);
      const back = { delayMs: 0, countTry: false };
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byToken(two), ...back }]), ['done']);
      assert.deepEqual(bodyTexts(await take(queue, 2)), ['2', '4']);
      assert.deepEqual(await commit(on.storage, queue, [byToken(one), byToken(three)]), ['done', 'done']);
    });

    it('do not hide an earlier element that another call moves to their queue', async () => {
      const [from, queue] = [on.queue(), on.queue()];
      await on.storage.insert(queue, newElements('1', '2'));
      await on.storage.insert(from, newElements('source'));
      await take(queue, 1);
      const element = newElement({ body: 'early', matureAt: on.opened.now() - 10_000 });
      const finish = byToken(await on.reserveOne(from));
      assert.deepEqual(await transfer(on.storage, [{ from, finish, inserts: [{ queue, element }] }]), [
        'done',
      ]);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['early', '2']);
    });

    it('leave the next maturity to the elements behind them', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, [newElement({ body: 'a' }), newElement({ body: 'b', delayMs: 60_000 })]);
      const options = { group: '', count: 5, leaseMs: 1000, isTransient: true };
      const { deliveries, nextDueAt } = await on.storage.take(queue, options);
      assert.deepEqual(bodyTexts(deliveries), ['a']);
      const again = await on.storage.take(queue, options);
      assert.equal(again.deliveries.length, 0);
      assert.equal(again.nextDueAt, nextDueAt);
      assert.ok((nextDueAt ?? 0) > on.opened.now() + 50_000);
    });

    it('are counted and listed, with their tids', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('1', '2', '3'));
      await take(queue, 2);
      const { ready, reserved: held } = await on.storage.counts(queue);
      assert.deepEqual([ready, held], [1, 2]);
      await take(queue, 1);
      const options = { group: '', states: ['reserved'], after: null, limit: 10, bodies: false } as const;
      const { deliveries } = await on.storage.scan(queue, options);
      assert.deepEqual(
        deliveries.map(({ holder }) => holder?.tid),
        ['tid', 'tid', 'tid'],
      );
    });

    it('end with their leases, which counts a try', async () => {
      const queue = on.queue('jobs');
      await on.storage.insert(queue, newElements('1', '2'));
      const [one, two] = (await take(queue, 2, 1000)) as [Reserved, Reserved];
      const extended = await extend(on.storage, queue, [{ ...byToken(two), leaseMs: 60_000 }]);
      assert.equal(extended[0]?.outcome, 'done');
      await on.opened.passTime(1001);
      await on.storage.sweep();
      const [again, ...others] = await on.pop(queue);
      assert.deepEqual([again?.id, again?.tries, others.length], [one.id, 1, 0]);
    });

    it('end with their leases, also if a take is the first call after that', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('1', '2'));
      await take(queue, 2, 1000);
      await on.opened.passTime(1001);
      assert.deepEqual(
        (await on.reserve(queue)).map(({ tries }) => tries),
        [1, 1],
      );
    });

    it('are rejected by what needs a waiting element, and purged with the others', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('1', '2', '3', '4', '5'));
      const [one] = (await take(queue, 4)) as [Reserved];
      assert.deepEqual(await remove(on.storage, queue, [one.id]), ['reserved']);
      await take(queue, 1);
      assert.equal(await purge(on.storage, queue, ['reserved']), 5);
    });
  });
}

function reserved(delivery: Delivery | undefined): Reserved {
  if (delivery?.lease == null) throw new Error('The delivery is not reserved.');
  return { ...delivery, lease: delivery.lease };
}
