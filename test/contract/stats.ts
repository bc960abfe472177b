import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { MAX_COUNTED_GROUPS, type Stats, zeroCounters } from '../../src/engine/stats.ts';
import type { EngineUnderTest } from '../engines.ts';
import { Fixture } from './fixture.ts';

/** Every promise that the comments of `src/engine/stats.ts` make. */
export function statsContract(name: string, open: EngineUnderTest['open']): void {
  describe(`Stats port: ${name}`, () => {
    const on = new Fixture(open);
    const stats = (): Stats => on.opened.engine.stats;

    it('returns no counters for an unknown queue', async () => {
      assert.equal((await stats().read(on.queue())).size, 0);
    });

    it('reads flushed and unflushed counters', async () => {
      const queue = on.queue();
      stats().add(queue, '', { put: 2, get: 1 });
      stats().add(queue, '', { put: 1, deadletter: 4 });
      const expected = { ...zeroCounters(), put: 3, get: 1, deadletter: 4 };
      assert.deepEqual((await stats().read(queue)).get(''), expected);
      await stats().flush();
      assert.deepEqual((await stats().read(queue)).get(''), expected);
      stats().add(queue, '', { put: 1 });
      assert.deepEqual((await stats().read(queue)).get(''), { ...expected, put: 4 });
    });

    it('returns counters for each group that has any, and for no other', async () => {
      const queue = on.queue('stream');
      stats().add(queue, 'g1', { put: 1 });
      stats().add(queue, 'g2', { put: 1, reserve: 1, commit: 1, rollback: 1 });
      await stats().flush();
      const read = await stats().read(queue);
      assert.deepEqual([...read.keys()].sort(), ['g1', 'g2']);
      assert.deepEqual(read.get('g2'), { ...zeroCounters(), put: 1, reserve: 1, commit: 1, rollback: 1 });
    });

    it('keeps the counters of queues and namespaces apart', async () => {
      const queue = on.queue();
      stats().add(queue, '', { put: 1 });
      assert.equal((await stats().read({ ...queue, ns: 'jobs' })).size, 0);
      assert.equal((await stats().read({ ...queue, name: 'other' })).size, 0);
    });

    it('discards the counters of one queue that are not stored yet', async () => {
      const [queue, kept] = [on.queue(), on.queue()];
      stats().add(queue, '', { put: 1 });
      await stats().flush();
      stats().add(queue, '', { put: 1 });
      stats().add(queue, 'group', { put: 1 });
      stats().add(kept, '', { put: 1 });
      stats().discard(queue);
      stats().discard(on.queue());
      await stats().flush();
      assert.deepEqual([...(await stats().read(queue))], [['', { ...zeroCounters(), put: 1 }]]);
      assert.deepEqual([...(await stats().read(kept))], [['', { ...zeroCounters(), put: 1 }]]);
    });

    it('counts each addition once while a flush is in progress', async () => {
      const queue = on.queue();
      stats().add(queue, '', { put: 5 });
      const flushed = stats().flush();
      stats().add(queue, '', { put: 1 });
      const [read] = await Promise.all([stats().read(queue), flushed]);
      assert.equal(read.get('')?.put, 6);
      await stats().flush();
      assert.equal((await stats().read(queue)).get('')?.put, 6);
    });

    it("keeps the queue's own counters and those of the busiest groups when there are too many groups", async () => {
      const queue = on.queue('stream');
      const names = (prefix: string) =>
        Array.from({ length: MAX_COUNTED_GROUPS }, (_, i) => `${prefix} ${i}`);
      stats().add(queue, '', { put: 1 });
      for (const group of ['often', ...names('once')]) stats().add(queue, group, { put: 1 });
      stats().add(queue, 'often', { get: 1, reserve: 1, commit: 1 });
      await stats().flush();
      for (const group of names('twice')) stats().add(queue, group, { put: 1, get: 1 });
      await stats().flush();
      const read = await stats().read(queue);
      assert.equal(read.size, MAX_COUNTED_GROUPS + 1);
      assert.deepEqual(read.get('often'), { ...zeroCounters(), put: 1, get: 1, reserve: 1, commit: 1 });
      assert.equal(read.get('')?.put, 1);
      assert.equal([...read.keys()].filter((group) => group.startsWith('once')).length, 0);
    });

    it('returns a snapshot that later counts do not change', async () => {
      const queue = on.queue();
      stats().add(queue, '', { put: 1 });
      const read = await stats().read(queue);
      stats().add(queue, '', { put: 1 });
      assert.equal(read.get('')?.put, 1);
    });
  });
}
