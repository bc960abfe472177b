import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, remove } from '../../support/settle.ts';
import { byId, byToken, Fixture } from '../fixture.ts';

export function undoTakeContract(open: EngineUnderTest['open']): void {
  describe('undoTake', () => {
    const on = new Fixture(open);

    it('returns popped elements unchanged to their places', async () => {
      const queue = on.queue();
      const content = { contentType: null, contentEncoding: 'gzip', headers: ['a', '1', 'a', '2'] };
      await on.storage.insert(queue, [
        newElement({ body: 'first', tries: 4, ...content }),
        newElement({ body: 'second' }),
        newElement({ body: 'third' }),
      ]);
      await on.opened.passTime(10);
      const popped = await on.pop(queue, 2);
      await on.storage.undoTake(queue, popped);
      const again = await on.pop(queue);
      assert.deepEqual(bodyTexts(again), ['first', 'second', 'third']);
      for (const [index, delivery] of popped.entries()) {
        assert.deepEqual({ ...again[index], body: null }, { ...delivery, body: null });
      }
    });

    it('keeps the order among equal maturities when only one of several elements is returned', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b', 'c', 'd'));
      const [, b] = await on.pop(queue, 2);
      await on.storage.undoTake(queue, b === undefined ? [] : [b]);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['b', 'c', 'd']);
    });

    it('returns the delivery to its group, whether or not other groups still have the element', async () => {
      const queue = on.queue('stream');
      const [id] = await on.storage.insert(queue, [newElement({ body: 'x', groups: ['g1', 'g2'] })]);
      const first = await on.pop(queue, 1, 'g1');
      await on.storage.undoTake(queue, first);
      assert.equal((await on.storage.counts(queue)).ready, 1);
      await on.pop(queue, 1, 'g1');
      const last = await on.pop(queue, 1, 'g2');
      assert.equal((await on.storage.counts(queue)).ready, 0);
      await on.storage.undoTake(queue, last);
      assert.deepEqual(await on.pop(queue, 1, 'g1'), []);
      const [again] = await on.pop(queue, 1, 'g2');
      assert.equal(again?.id, id);
      assert.deepEqual(again === undefined ? [] : bodyTexts([again]), ['x']);
    });

    it('makes an element count once after it was returned to several groups one by one', async () => {
      for (const order of [
        ['g1', 'g2'],
        ['g2', 'g1'],
      ]) {
        const queue = on.queue('stream');
        const [id] = await on.storage.insert(queue, [newElement({ body: 'x', groups: ['g1', 'g2'] })]);
        const popped = new Map([
          ['g1', await on.pop(queue, 1, 'g1')],
          ['g2', await on.pop(queue, 1, 'g2')],
        ]);
        assert.equal((await on.storage.counts(queue)).ready, 0);
        for (const group of order) await on.storage.undoTake(queue, popped.get(group) ?? []);
        const { ready, scheduled, reserved, groups } = await on.storage.counts(queue);
        assert.deepEqual({ ready, scheduled, reserved }, { ready: 1, scheduled: 0, reserved: 0 });
        for (const group of order) {
          assert.equal(groups.get(group)?.ready, 1, group);
          const again = await on.pop(queue, 9, group);
          assert.deepEqual(
            again.map((delivery) => delivery.id),
            [id],
          );
        }
        assert.equal((await on.storage.counts(queue)).ready, 0);
      }
    });

    it('returns an element that can be reserved, committed and removed like any other', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b'));
      const popped = await on.pop(queue);
      await on.storage.undoTake(queue, popped);
      assert.equal((await on.storage.counts(queue)).ready, 2);
      const reserved = await on.reserveOne(queue);
      assert.deepEqual(await commit(on.storage, queue, [byToken(reserved)]), ['done']);
      const [, second] = popped;
      assert.deepEqual(await remove(on.storage, queue, [second?.id ?? '']), ['done']);
      assert.deepEqual(await commit(on.storage, queue, popped.map(byId)), ['not-found', 'not-found']);
    });

    it('changes no statistics', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      await on.storage.undoTake(queue, await on.pop(queue));
      assert.equal((await on.opened.engine.stats.read(queue)).size, 0);
      await on.pop(queue);
    });
  });
}
