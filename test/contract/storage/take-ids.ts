import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { TakeResult } from '../../../src/engine/storage.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit } from '../../support/settle.ts';
import { byToken, Fixture } from '../fixture.ts';

export function takeIdsContract({ open }: EngineUnderTest): void {
  describe('take by ids', () => {
    const on = new Fixture(open);
    const take = (
      queue: QueueKey,
      ids: readonly string[],
      { group = '', count = 100, leaseMs = null as number | null } = {},
    ): Promise<TakeResult> => on.storage.take(queue, { group, count, ids, leaseMs });

    it('pops the eligible elements, ordered by maturity, then by insertion, and leaves the others', async () => {
      const queue = on.queue();
      const now = on.opened.now();
      const [a = '', b = '', c = '', d = ''] = await on.storage.insert(queue, [
        newElement({ body: 'a' }),
        newElement({ body: 'b', matureAt: now - 5000 }),
        newElement({ body: 'c', delayMs: 3_600_000 }),
        newElement({ body: 'd' }),
      ]);
      const taken = await take(queue, [d, c, a, b]);
      assert.deepEqual(bodyTexts(taken.deliveries), ['b', 'a', 'd']);
      assert.equal(taken.nextDueAt, null, 'the next maturity is not looked up');
      assert.equal((await on.storage.counts(queue)).scheduled, 1);
    });

    it('takes elements although thousands of others have expired, but no expired one', async () => {
      const queue = on.queue();
      const expiresAt = on.opened.now() + 1000;
      const expiring = Array.from({ length: 1000 }, () => newElement({ expiresAt }));
      const [expired = ''] = await on.storage.insert(queue, expiring);
      for (let i = 0; i < 2; i++) await on.storage.insert(queue, expiring);
      const ids = await on.storage.insert(queue, [
        newElement({ body: 'stays' }),
        newElement({ body: 'expires with them', expiresAt }),
      ]);
      await on.opened.passTime(1000);
      const { deliveries } = await take(queue, [...ids, expired], { leaseMs: 1000 });
      assert.deepEqual(bodyTexts(deliveries), ['stays']);
    });

    it('takes at most count elements, each once', async () => {
      const queue = on.queue();
      const ids = await on.storage.insert(queue, newElements('a', 'b', 'c'));
      assert.deepEqual(bodyTexts((await take(queue, [...ids, ...ids], { count: 2 })).deliveries), ['a', 'b']);
      assert.deepEqual(bodyTexts((await take(queue, [...ids, ...ids])).deliveries), ['c']);
    });

    it('reserves elements with tokens that settle them, and skips reserved ones', async () => {
      const queue = on.queue();
      const [a = '', b = ''] = await on.storage.insert(queue, newElements('a', 'b'));
      const [held] = (await take(queue, [b], { leaseMs: 60_000 })).deliveries;
      assert.equal(held?.id, b);
      assert.deepEqual(bodyTexts((await take(queue, [a, b], { leaseMs: 60_000 })).deliveries), ['a']);
      assert.ok(held?.lease);
      assert.deepEqual(await commit(on.storage, queue, [byToken({ ...held, lease: held.lease })]), ['done']);
    });

    it('does not find ids of another queue or group, or unknown ids', async () => {
      const [queue, other, stream] = [on.queue(), on.queue(), on.queue('stream')];
      const ids = await on.storage.insert(queue, newElements('a'));
      await on.storage.insert(other, newElements('b'));
      const shared = await on.storage.insert(stream, [newElement({ body: 's', groups: ['g1'] })]);
      for (const [where, wanted, group] of [
        [other, ids, ''],
        [{ ...queue, ns: 'jobs' }, ids, ''],
        [stream, shared, 'g2'],
        [queue, ['', 'none', '__proto__', `${ids[0]}0`], ''],
      ] as const) {
        assert.deepEqual((await take(where, wanted, { group })).deliveries, []);
      }
      assert.deepEqual(bodyTexts((await take(stream, shared, { group: 'g1' })).deliveries), ['s']);
      assert.deepEqual((await take(queue, [])).deliveries, []);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['a']);
    });

    it('takes a thousand elements in one call', async () => {
      const queue = on.queue();
      const bodies = Array.from({ length: 1000 }, (_, i) => String(i));
      const ids = await on.storage.insert(queue, newElements(...bodies));
      const { deliveries } = await take(queue, ids.toReversed(), { count: 1000 });
      assert.deepEqual(bodyTexts(deliveries), bodies);
    });
  });
}
