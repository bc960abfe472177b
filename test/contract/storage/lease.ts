import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElements } from '../../support/elements.ts';
import { commit, extend, rollback } from '../../support/settle.ts';
import { byId, byToken, Fixture } from '../fixture.ts';

export function leaseContract(open: EngineUnderTest['open']): void {
  describe('leases', () => {
    const on = new Fixture(open);

    it('hide an element until they end; then a try counts and the element waits again', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const reserved = await on.reserveOne(queue, '', 10_000);
      await on.opened.passTime(reserved.lease.until - on.opened.now() - 1);
      assert.deepEqual(await on.pop(queue), []);
      await on.opened.passTime(1);
      await on.storage.sweep();
      const [again] = await on.pop(queue);
      assert.equal(again?.id, reserved.id);
      assert.equal(again?.tries, 1);
      assert.equal(again?.matureAt, reserved.lease.until);
    });

    it('can still be committed after they end, by id or token, until the element is reserved again', async () => {
      for (const name of [byId, byToken]) {
        const queue = on.queue();
        await on.storage.insert(queue, newElements('a'));
        const reserved = await on.reserveOne(queue, '', 1000);
        await on.opened.passTime(1001);
        await on.storage.sweep();
        assert.deepEqual(await commit(on.storage, queue, [name(reserved)]), ['done']);
        assert.deepEqual(await on.pop(queue), []);
        assert.equal((await on.storage.counts(queue)).ready, 0);
      }
    });

    it('are lost once the element is reserved again: the old token commits nothing, but the id does', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const late = await on.reserveOne(queue, '', 1000);
      await on.opened.passTime(1001);
      const next = await on.reserveOne(queue);
      assert.deepEqual(await commit(on.storage, queue, [byToken(late)]), ['lease-lost']);
      assert.deepEqual(await commit(on.storage, queue, [byId(late)]), ['done']);
      assert.deepEqual(await commit(on.storage, queue, [byToken(next)]), ['not-found']);
    });

    it('cannot be rolled back or extended after they end', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const reserved = await on.reserveOne(queue, '', 1000);
      await on.opened.passTime(1001);
      await on.storage.sweep();
      const back = { delayMs: 0, countTry: true };
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byId(reserved), ...back }]), ['not-reserved']);
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byToken(reserved), ...back }]), [
        'lease-lost',
      ]);
      assert.deepEqual(await extend(on.storage, queue, [{ ...byId(reserved), leaseMs: 5000 }]), [
        { outcome: 'not-reserved', until: null },
      ]);
      assert.deepEqual(await extend(on.storage, queue, [{ ...byToken(reserved), leaseMs: 5000 }]), [
        { outcome: 'lease-lost', until: null },
      ]);
      assert.equal((await on.pop(queue))[0]?.tries, 1);
    });

    it('end the given time from now after an extend, earlier or later than before, by id or token', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const reserved = await on.reserveOne(queue, '', 10_000);
      await on.opened.passTime(5000);
      const before = on.opened.now();
      const [longer] = await extend(on.storage, queue, [{ ...byToken(reserved), leaseMs: 20_000 }]);
      assert.ok(longer?.outcome === 'done' && (longer.until ?? 0) >= before + 20_000);
      await on.opened.passTime(10_000);
      await on.storage.sweep();
      assert.deepEqual(await on.pop(queue), []);
      const [shorter] = await extend(on.storage, queue, [{ ...byId(reserved), leaseMs: 1000 }]);
      assert.equal(shorter?.outcome, 'done');
      await on.opened.passTime(1001);
      await on.storage.sweep();
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['a']);
    });

    it('keep their token when extended', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const reserved = await on.reserveOne(queue);
      await extend(on.storage, queue, [{ ...byToken(reserved), leaseMs: 120_000 }]);
      assert.deepEqual(await commit(on.storage, queue, [byToken(reserved)]), ['done']);
    });

    it('cannot be extended for an unknown id: the outcome is not-found', async () => {
      const queue = on.queue();
      const missing = { id: 'none', group: '', token: null, leaseMs: 1 };
      assert.deepEqual(await extend(on.storage, queue, [missing]), [{ outcome: 'not-found', until: null }]);
    });

    it('return elements, in the order in which they end, behind those that were due before', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b', 'c'));
      await on.reserveOne(queue, '', 2000);
      await on.reserveOne(queue, '', 1000);
      await on.opened.passTime(3000);
      await on.storage.sweep();
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['c', 'b', 'a']);
    });
  });
}
