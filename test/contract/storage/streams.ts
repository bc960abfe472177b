import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement } from '../../support/elements.ts';
import { commit, rollback } from '../../support/settle.ts';
import { byId, byToken, Fixture } from '../fixture.ts';

export function streamContract(open: EngineUnderTest['open']): void {
  describe('streams', () => {
    const on = new Fixture(open);

    it('give each group of an element its own delivery, under one id', async () => {
      const queue = on.queue('stream');
      const [id] = await on.storage.insert(queue, [newElement({ body: 'both', groups: ['g1', 'g2'] })]);
      for (const group of ['g1', 'g2']) {
        const [delivery] = await on.pop(queue, 9, group);
        assert.equal(delivery?.id, id);
        assert.equal(delivery?.group, group);
        assert.deepEqual(await on.pop(queue, 9, group), []);
      }
    });

    it('deliver an element only to its own groups, which may differ between the elements of a queue', async () => {
      const queue = on.queue('stream');
      await on.storage.insert(queue, [
        newElement({ body: 'one', groups: ['g1'] }),
        newElement({ body: 'two', groups: ['g2'] }),
        newElement({ body: 'both', groups: ['g2', 'g1'] }),
      ]);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, 'g1')), ['one', 'both']);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, 'g2')), ['two', 'both']);
      assert.deepEqual(await on.pop(queue, 9, 'g3'), []);
      assert.deepEqual(await on.pop(queue, 9, ''), []);
    });

    it('deliver an element once to a group that is named twice', async () => {
      const queue = on.queue('stream');
      await on.storage.insert(queue, [newElement({ groups: ['g1', 'g1', 'g2', 'g1'] })]);
      assert.equal((await on.pop(queue, 9, 'g1')).length, 1);
      assert.equal((await on.pop(queue, 9, 'g2')).length, 1);
    });

    it('keep tries, maturity and lease separately for each group', async () => {
      const queue = on.queue('stream');
      await on.storage.insert(queue, [newElement({ groups: ['g1', 'g2'] })]);
      const failed = await on.reserveOne(queue, 'g1');
      const back = { delayMs: 3_600_000, countTry: true };
      await rollback(on.storage, queue, [{ ...byToken(failed), ...back }]);
      assert.deepEqual(await on.pop(queue, 9, 'g1'), []);
      const [other] = await on.pop(queue, 9, 'g2');
      assert.equal(other?.tries, 0);
      await on.opened.passTime(3_600_000);
      assert.equal((await on.pop(queue, 9, 'g1'))[0]?.tries, 1);
    });

    it('allow settling only for the group that reserved the element', async () => {
      const queue = on.queue('stream');
      await on.storage.insert(queue, [newElement({ groups: ['g1', 'g2'] })]);
      const mine = await on.reserveOne(queue, 'g1');
      for (const group of ['', 'g3']) {
        assert.deepEqual(await commit(on.storage, queue, [{ ...byToken(mine), group }]), ['not-found']);
      }
      assert.deepEqual(await commit(on.storage, queue, [{ ...byId(mine), group: 'g2' }]), ['not-reserved']);
      const theirs = await on.reserveOne(queue, 'g2');
      assert.deepEqual(await commit(on.storage, queue, [{ ...byToken(mine), group: 'g2' }]), ['lease-lost']);
      assert.deepEqual(await commit(on.storage, queue, [byToken(theirs), byToken(mine)]), ['done', 'done']);
    });

    it('keep an element until its last group has finished it', async () => {
      const queue = on.queue('stream');
      await on.storage.insert(queue, [newElement({ groups: ['g1', 'g2', 'g3'] })]);
      await commit(on.storage, queue, [byToken(await on.reserveOne(queue, 'g2'))]);
      await on.pop(queue, 9, 'g1');
      assert.equal((await on.storage.counts(queue)).ready, 1);
      await on.pop(queue, 9, 'g3');
      assert.equal((await on.storage.counts(queue)).ready, 0);
      assert.equal((await on.storage.counts(queue)).groups.size, 0);
    });

    it('support elements with 64 groups', async () => {
      const queue = on.queue('stream');
      const groups = Array.from({ length: 64 }, (_, index) => `group ${index} of many with é`);
      await on.storage.insert(queue, [newElement({ groups })]);
      for (const group of groups) assert.equal((await on.pop(queue, 9, group)).length, 1, group);
      assert.equal((await on.storage.counts(queue)).groups.size, 0);
    });

    it('drop waiting elements after the retention of their namespace, but no reserved or younger ones', async () => {
      await on.alone(async ({ engine: { storage }, passTime }) => {
        const queue = { ns: 'kept', name: 'q' };
        const unkept = { ns: 'stream', name: 'q' };
        const old = [
          newElement({ body: 'reserved', groups: ['g1'] }),
          newElement({ body: 'old', groups: ['g1', 'g2'] }),
          newElement({ body: 'old and delayed', groups: ['g1'], delayMs: 3_600_000 }),
        ];
        await storage.insert(queue, old);
        await storage.insert(unkept, old);
        const taken = await storage.take(queue, { group: 'g1', count: 1, leaseMs: 3_600_000 });
        assert.deepEqual(bodyTexts(taken.deliveries), ['reserved']);
        await passTime(30_000);
        await storage.insert(queue, [newElement({ body: 'young', groups: ['g1'] })]);
        await passTime(30_001);
        await storage.sweep();
        const { ready, scheduled, reserved } = await storage.counts(queue);
        assert.deepEqual({ ready, scheduled, reserved }, { ready: 1, scheduled: 0, reserved: 1 });
        const left = await storage.take(queue, { group: 'g1', count: 9, leaseMs: null });
        assert.deepEqual(bodyTexts(left.deliveries), ['young']);
        assert.equal((await storage.counts(unkept)).ready, 2);
        const ids = taken.deliveries.map(({ id }) => ({ id, group: 'g1', token: null }));
        assert.deepEqual(await commit(storage, queue, ids), ['done']);
      });
    });

    it('drop a reserved element past its retention once it is rolled back', async () => {
      await on.alone(async ({ engine: { storage }, passTime }) => {
        const queue = { ns: 'kept', name: 'q' };
        await storage.insert(queue, [newElement({ groups: ['g1'] })]);
        const { deliveries } = await storage.take(queue, { group: 'g1', count: 1, leaseMs: 3_600_000 });
        await passTime(60_001);
        await storage.sweep();
        const back = { group: 'g1', token: null, delayMs: 0, countTry: true };
        await rollback(
          storage,
          queue,
          deliveries.map(({ id }) => ({ id, ...back })),
        );
        await storage.sweep();
        assert.equal((await storage.counts(queue)).ready, 0);
      });
    });
  });
}
