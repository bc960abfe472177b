import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, rollback, settle } from '../../support/settle.ts';
import { sweepAffected } from '../../support/sweep.ts';
import { byToken, DEAD_LETTERS, Fixture, MAX_TRIES } from '../fixture.ts';

export function dropContract({ open }: Pick<EngineUnderTest, 'open'>): void {
  describe('drop', () => {
    const on = new Fixture(open);
    const isListed = async ({ ns, name }: { ns: string; name: string }): Promise<boolean> =>
      (await on.storage.queues(ns)).includes(name);

    it('deletes an empty queue with its statistics and dedup keys; its next use creates it again', async () => {
      const queue = on.queue();
      const { stats } = on.opened.engine;
      const keyed = newElement({ body: 'a', dedupKey: 'k' });
      const [first] = await on.storage.insert(queue, [keyed]);
      await on.pop(queue);
      stats.add(queue, '', { put: 1, get: 1 });
      await stats.flush();
      assert.equal(await on.storage.drop(queue), true);
      assert.equal(await isListed(queue), false);
      assert.deepEqual([...(await stats.read(queue))], []);
      const [second] = await on.storage.insert(queue, [keyed]);
      assert.notEqual(second, first);
      assert.ok(await isListed(queue));
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['a']);
      assert.equal(await on.storage.drop(queue), true);
    });

    it('does nothing to a queue that holds a ready, scheduled or reserved element', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      assert.equal(await on.storage.drop(queue), false);
      const held = await on.reserveOne(queue);
      assert.equal(await on.storage.drop(queue), false);
      assert.deepEqual(await commit(on.storage, queue, [byToken(held)]), ['done']);
      const [late = ''] = await on.storage.insert(queue, [newElement({ delayMs: 3_600_000 })]);
      assert.equal(await on.storage.drop(queue), false);
      assert.ok(await isListed(queue));
      assert.equal((await on.storage.counts(queue)).scheduled, 1);
      const item = {
        queue,
        id: late,
        group: '',
        from: 'waiting',
        token: null,
        action: { kind: 'finish' },
      } as const;
      await on.storage.settle([item]);
      assert.equal(await on.storage.drop(queue), true);
    });

    it('deletes a stream with its groups once every group has finished all elements', async () => {
      const queue = on.queue('stream');
      await on.storage.insert(queue, [newElement({ body: 'e', groups: ['g1', 'g2'] })]);
      await on.pop(queue, 1, 'g1');
      assert.equal(await on.storage.drop(queue), false);
      await on.pop(queue, 1, 'g2');
      assert.equal(await on.storage.drop(queue), true);
      assert.equal(await isListed(queue), false);
      await on.storage.insert(queue, [newElement({ body: 'f', groups: ['g2'] })]);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, 'g2')), ['f']);
    });

    it('deletes a queue that was only declared, and succeeds for one that does not exist', async () => {
      const queue = on.queue('jobs');
      await on.storage.declare([queue], { deadLetter: { maxTries: 1, queue: 'elsewhere' } });
      assert.equal(await on.storage.drop(queue), true);
      assert.equal(await isListed(queue), false);
      assert.equal(await on.storage.drop(on.queue()), true);
    });

    it('lets no later sweep report the queue, although elements had been moved to it', async () => {
      const queue = on.queue('jobs');
      const dead = { ns: queue.ns, name: DEAD_LETTERS };
      const moved = on.queue('jobs');
      await on.storage.insert(queue, [newElement({ tries: MAX_TRIES - 1 }), newElement({})]);
      const [first, second] = [await on.reserveOne(queue), await on.reserveOne(queue)];
      await rollback(on.storage, queue, [{ ...byToken(first), delayMs: 0, countTry: true }]);
      const move = { kind: 'move', to: moved, groups: [''], tries: null, head: null } as const;
      assert.deepEqual(await settle(on.storage, queue, [byToken(second)], move), ['done']);
      for (const dropped of [dead, moved]) {
        assert.equal((await on.pop(dropped)).length, 1);
        assert.equal(await on.storage.drop(dropped), true);
      }
      const affected = await sweepAffected(on.storage);
      const names = affected.map(({ name }) => name);
      assert.ok(![dead.name, moved.name].some((name) => names.includes(name)), names.join());
    });

    it('lets the next sweep report the queue if an element was moved to it since', async () => {
      const dead = { ns: 'jobs', name: DEAD_LETTERS };
      for (let turns = 0; turns < 20; turns += 1) {
        const queue = on.queue(dead.ns);
        await on.storage.insert(queue, [newElement({ tries: MAX_TRIES - 1 })]);
        const held = await on.reserveOne(queue);
        const dropping = on.storage.drop(dead);
        for (let i = 0; i < turns; i += 1) await turn();
        await rollback(on.storage, queue, [{ ...byToken(held), delayMs: 0, countTry: true }]);
        await dropping;
        await on.sweepInto(dead);
        assert.equal((await on.pop(dead)).length, 1);
      }
    });

    it('loses no element that is inserted concurrently', async () => {
      for (let round = 0; round < 20; round += 1) {
        const queue = on.queue();
        await on.storage.insert(queue, newElements('a'));
        await on.pop(queue);
        const dropping = on.storage.drop(queue);
        const inserting = on.storage.insert(queue, newElements('b'));
        await Promise.all([dropping, inserting]);
        assert.deepEqual(bodyTexts(await on.pop(queue)), ['b']);
        assert.ok(await isListed(queue));
      }
    });
  });
}
