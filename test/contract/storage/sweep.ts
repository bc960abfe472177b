import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { EngineUnderTest } from '../../engines.ts';
import { newElements } from '../../support/elements.ts';
import { commit, extend } from '../../support/settle.ts';
import { sweepAffected } from '../../support/sweep.ts';
import { Fixture } from '../fixture.ts';

export function sweepContract(open: EngineUnderTest['open']): void {
  describe('sweep', () => {
    const on = new Fixture(open);
    const queue = { ns: 'plain', name: 'swept' };
    const other = { ns: 'jobs', name: 'other' };
    const reserve = (leaseMs: number) => ({ group: '', count: 1, leaseMs });

    it('returns no queue and no next time if there is no lease', async () => {
      await on.alone(async ({ engine: { storage } }) => {
        await storage.insert(queue, newElements('a'));
        assert.equal(await storage.sweep(), null);
        assert.deepEqual(storage.takeAffected(), []);
      });
    });

    it('returns the earliest end of a lease over all queues', async () => {
      await on.alone(async ({ engine: { storage }, passTime }) => {
        await storage.insert(queue, newElements('a', 'b'));
        await storage.insert(other, newElements('c'));
        await storage.take(queue, reserve(30_000));
        const [soonest] = (await storage.take(other, reserve(10_000))).deliveries;
        const [last] = (await storage.take(queue, reserve(20_000))).deliveries;
        assert.equal(await storage.sweep(), soonest?.lease?.until);
        assert.deepEqual(storage.takeAffected(), []);
        const id = soonest?.id ?? '';
        await commit(storage, other, [{ id, group: '', token: null }]);
        assert.equal(await storage.sweep(), last?.lease?.until);
        await passTime(1000);
        const [extended] = await extend(storage, queue, [
          { id: last?.id ?? '', group: '', token: null, leaseMs: 5000 },
        ]);
        assert.ok(extended?.outcome === 'done');
        assert.equal(await storage.sweep(), extended.until);
      });
    });

    it('returns each queue with expired leases once', async () => {
      await on.alone(async ({ engine: { storage }, passTime }) => {
        await storage.insert(queue, newElements('a', 'b', 'c'));
        await storage.insert(other, newElements('d'));
        await storage.take(queue, reserve(1000));
        await storage.take(queue, reserve(1000));
        await storage.take(queue, reserve(60_000));
        await storage.take(other, reserve(60_000));
        await passTime(1001);
        assert.notEqual(await storage.sweep(), null);
        assert.deepEqual(storage.takeAffected(), [queue]);
        assert.deepEqual(await sweepAffected(storage), []);
        await passTime(60_000);
        assert.deepEqual((await sweepAffected(storage)).map(({ name }) => name).sort(), [
          other.name,
          queue.name,
        ]);
        assert.equal(await storage.sweep(), null);
      });
    });

    it('expires thousands of leases over several calls, each of which requests the next immediately', async () => {
      await on.alone(async ({ engine: { storage }, now, passTime }) => {
        const count = 2500;
        const bodies = Array.from({ length: count }, (_, index) => `${index}`);
        await storage.insert(queue, newElements(...bodies));
        for (let taken = 0; taken < count; taken += 500) {
          await storage.take(queue, { group: '', count: 500, leaseMs: 1000 });
        }
        await passTime(2000);
        let nextAt = await storage.sweep();
        for (let calls = 1; nextAt !== null && calls < 100; calls++) {
          assert.ok(nextAt <= now(), 'the next sweep is due immediately');
          nextAt = await storage.sweep();
        }
        assert.equal((await storage.counts(queue)).ready, count);
      });
    });

    it('expires each lease once although several sweeps run concurrently', async () => {
      await on.alone(async ({ engine: { storage }, passTime }) => {
        await storage.insert(queue, newElements('a'));
        await storage.take(queue, reserve(1000));
        await passTime(1001);
        await Promise.all([storage.sweep(), storage.sweep(), storage.sweep()]);
        const [delivery] = (await storage.take(queue, { group: '', count: 1, leaseMs: null })).deliveries;
        assert.equal(delivery?.tries, 1);
      });
    });
  });
}
