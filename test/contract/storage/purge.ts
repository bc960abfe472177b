import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { EngineUnderTest } from '../../engines.ts';
import { newElement } from '../../support/elements.ts';
import { Fixture } from '../fixture.ts';

/** More than an engine removes in one step. */
const MANY = 12_000;
const BATCH = 1000;

export function purgeContract({ open }: EngineUnderTest): void {
  describe('purge in steps', () => {
    const on = new Fixture(open);
    const batch = Array.from({ length: BATCH }, () => newElement({ body: '' }));

    it('removes some elements in each step until it is done, despite inserts in between', async () => {
      const queue = on.queue();
      for (let i = 0; i < MANY / BATCH; i += 1) await on.storage.insert(queue, batch);
      let inserted = MANY;
      let removed = 0;
      let steps = 0;
      for (let isDone = false; !isDone; steps += 1) {
        const step = await on.storage.purge(queue, ['ready']);
        ({ isDone } = step);
        removed += step.removed;
        assert.ok(isDone || step.removed > 0, 'each step but the last removes something');
        if (steps === 0) {
          assert.equal(isDone, false, 'one step does not remove all');
          const [id = ''] = await on.storage.insert(queue, [newElement({ body: 'in between' })]);
          assert.notEqual(id, '');
          inserted += 1;
        }
        assert.ok(steps < MANY, 'the purge terminates');
      }
      const { ready } = await on.storage.counts(queue);
      assert.equal(removed + ready, inserted, 'each element is removed and counted once, or left');
      assert.ok(ready <= 1, 'at most what was inserted in between is left');
      assert.equal((await on.pop(queue)).length, ready);
    });

    it('is done in one step if the queue is unknown or has no element in these states', async () => {
      const queue = on.queue();
      assert.deepEqual(await on.storage.purge(queue), { removed: 0, isDone: true });
      assert.ok(!(await on.storage.queues(queue.ns)).includes(queue.name));
      await on.storage.insert(queue, [newElement()]);
      assert.deepEqual(await on.storage.purge(queue, ['scheduled', 'reserved']), {
        removed: 0,
        isDone: true,
      });
      assert.deepEqual(await on.storage.purge(queue, []), { removed: 0, isDone: true });
      assert.equal((await on.storage.counts(queue)).ready, 1);
    });
  });
}
