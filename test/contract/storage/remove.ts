import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, nextDueAt, purge, remove } from '../../support/settle.ts';
import { byToken, Fixture } from '../fixture.ts';

export function removeContract(open: EngineUnderTest['open']): void {
  describe('remove and purge', () => {
    const on = new Fixture(open);

    it('removes waiting elements by id, ready or scheduled, and returns an outcome for each', async () => {
      const queue = on.queue();
      const [a = '', , c = ''] = await on.storage.insert(queue, [
        newElement({ body: 'a' }),
        newElement({ body: 'b' }),
        newElement({ body: 'c', delayMs: 3_600_000 }),
      ]);
      assert.deepEqual(await remove(on.storage, queue, [c, 'none', a, a]), [
        'done',
        'not-found',
        'done',
        'not-found',
      ]);
      assert.equal((await on.storage.counts(queue)).scheduled, 0);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['b']);
    });

    it('does not remove a reserved element', async () => {
      const queue = on.queue();
      const [id = ''] = await on.storage.insert(queue, newElements('a'));
      const reserved = await on.reserveOne(queue);
      assert.deepEqual(await remove(on.storage, queue, [id]), ['reserved']);
      assert.deepEqual(await commit(on.storage, queue, [byToken(reserved)]), ['done']);
      assert.deepEqual(await remove(on.storage, queue, [id]), ['not-found']);
    });

    it('finds no element of another queue', async () => {
      const [queue, other] = [on.queue(), on.queue()];
      const [id = ''] = await on.storage.insert(queue, newElements('a'));
      await on.storage.insert(other, newElements('b'));
      assert.deepEqual(await remove(on.storage, other, [id]), ['not-found']);
      assert.deepEqual(await remove(on.storage, { ...queue, ns: 'jobs' }, [id]), ['not-found']);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['a']);
    });

    it('purges everything and returns the number of removed deliveries', async () => {
      const queue = on.queue('stream');
      const both = ['g1', 'g2'];
      await on.storage.insert(queue, [
        newElement({ groups: both }),
        newElement({ groups: both, delayMs: 3_600_000 }),
        newElement({ groups: ['g1'] }),
      ]);
      const reserved = await on.reserveOne(queue, 'g1');
      assert.equal(await purge(on.storage, queue), 5);
      const { ready, scheduled, reserved: reservedCount, groups } = await on.storage.counts(queue);
      assert.deepEqual(
        { ready, scheduled, held: reservedCount, groups: groups.size },
        {
          ready: 0,
          scheduled: 0,
          held: 0,
          groups: 0,
        },
      );
      assert.deepEqual(await commit(on.storage, queue, [byToken(reserved)]), ['not-found']);
      assert.equal(await nextDueAt(on.storage, queue, 'g1'), null);
      assert.equal(await purge(on.storage, queue), 0);
    });

    it('purges the given states only', async () => {
      const queue = on.queue();
      const fill = (): Promise<string[]> =>
        on.storage.insert(queue, [
          newElement({ body: 'ready' }),
          newElement({ body: 'late', delayMs: 3_600_000 }),
        ]);
      await fill();
      const reserved = await on.reserveOne(queue);
      await fill();
      assert.equal(await purge(on.storage, queue, ['ready']), 1);
      assert.equal(await purge(on.storage, queue, ['scheduled']), 2);
      assert.deepEqual(await commit(on.storage, queue, [byToken(reserved)]), ['done']);
      await fill();
      await on.reserveOne(queue);
      assert.equal(await purge(on.storage, queue, ['reserved', 'scheduled']), 2);
      assert.equal(await purge(on.storage, queue, []), 0);
    });

    it('lets a purged queue be used like a new one, and leaves other queues untouched', async () => {
      const [queue, other] = [on.queue(), on.queue()];
      await on.storage.insert(queue, newElements('old'));
      await on.storage.insert(other, newElements('other'));
      await purge(on.storage, queue);
      await on.storage.insert(queue, newElements('new'));
      assert.equal((await on.storage.counts(queue)).ready, 1);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['new']);
      assert.deepEqual(bodyTexts(await on.pop(other)), ['other']);
      assert.ok((await on.storage.queues('plain')).includes(queue.name));
    });
  });
}
