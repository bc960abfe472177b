import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { retryDelayMs } from '../../../src/engine/queue-policy.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, rollback, settle } from '../../support/settle.ts';
import { byId, byToken, CONSTANT_DELAY, DEAD_LETTERS, Fixture, JITTERED_DELAY } from '../fixture.ts';

/** A rollback without a delay from the client. */
const FAILURE = { delayMs: 0, isDefaultDelay: true, countTry: true };

let byFirstDelay: Map<number, number[]> | null = null;

/** The numbers of elements, up to multiples of 65,536, by the delay of {@link JITTERED_DELAY} after their first try. */
function elementsByFirstDelay(): ReadonlyMap<number, readonly number[]> {
  byFirstDelay ??= Map.groupBy(Array(65_536).keys(), (element) => retryDelayMs(JITTERED_DELAY, 1, element));
  return byFirstDelay;
}

export function retryDelayContract(open: EngineUnderTest['open']): void {
  describe('retry delay', () => {
    const on = new Fixture(open);

    /** Rolls the first element back, and returns how long it has to wait. */
    async function delayAfterFailure(queue: QueueKey, terms = FAILURE): Promise<number> {
      const reserved = await on.reserveOne(queue);
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byToken(reserved), ...terms }]), ['done']);
      return delayOf(queue, on.opened.now());
    }

    async function delayOf(queue: QueueKey, from: number): Promise<number> {
      const { nextMatureAt } = await on.storage.counts(queue);
      return (nextMatureAt ?? Number.NaN) - from;
    }

    it('grows with the tries up to its maximum, if the rollback names no delay', async () => {
      const queue = on.queue('patient');
      await on.storage.insert(queue, newElements('a'));
      for (const expected of [1000, 2000, 3000, 3000]) {
        assert.equal(await delayAfterFailure(queue), expected);
        await on.opened.passTime(expected - 1);
        assert.deepEqual(await on.pop(queue), []);
        await on.opened.passTime(1);
      }
      const last = await on.reserveOne(queue);
      assert.deepEqual(await rollback(on.storage, queue, [{ ...byToken(last), ...FAILURE }]), [
        'dead-lettered',
      ]);
      const [dead] = await on.pop({ ns: 'patient', name: DEAD_LETTERS });
      assert.equal(dead?.tries, 0, 'a dead letter does not wait');
    });

    it('does not apply if the rollback names a delay or counts no try', async () => {
      const queue = on.queue('patient');
      await on.storage.insert(queue, newElements('a'));
      assert.equal(
        await delayAfterFailure(queue, { ...FAILURE, delayMs: 5000, isDefaultDelay: false }),
        5000,
      );
      await on.opened.passTime(5000);
      assert.equal(await delayAfterFailure(queue, { ...FAILURE, isDefaultDelay: false }), 0);
      const before = await on.reserveOne(queue);
      const uncounted = { ...byToken(before), ...FAILURE, countTry: false };
      assert.deepEqual(await rollback(on.storage, queue, [uncounted]), ['done']);
      assert.equal(await delayOf(queue, before.matureAt), 0, 'its maturity is unchanged');
    });

    it('replaces the default delay of a front end, which applies if there is no retry delay', async () => {
      const [plain, patient] = [on.queue(), on.queue('patient')];
      for (const queue of [plain, patient]) await on.storage.insert(queue, newElements('a'));
      const terms = { ...FAILURE, delayMs: 5000 };
      assert.equal(await delayAfterFailure(plain, terms), 5000);
      assert.equal(await delayAfterFailure(patient, terms), 1000);
    });

    it('starts at the end of an expired lease, and a late commit still succeeds', async () => {
      const queue = on.queue('patient');
      await on.storage.insert(queue, newElements('a', 'b'));
      const [first, second] = [
        await on.reserveOne(queue, '', 10_000),
        await on.reserveOne(queue, '', 10_000),
      ];
      await on.opened.passTime(10_400);
      await on.storage.sweep();
      assert.deepEqual(await commit(on.storage, queue, [byToken(second)]), ['done']);
      assert.equal(await delayOf(queue, first.lease.until), 1000);
      assert.deepEqual(await on.pop(queue), []);
      await on.opened.passTime(600);
      const [again] = await on.pop(queue);
      assert.deepEqual([again?.id, again?.tries, again?.matureAt], [first.id, 1, first.lease.until + 1000]);
    });

    it('applies to a waiting element that is released with a counted try', async () => {
      const queue = on.queue('patient');
      const [id = ''] = await on.storage.insert(queue, newElements('a'));
      const action = { kind: 'release', ...FAILURE } as const;
      await on.storage.settle([{ queue, id, group: '', from: 'waiting', token: null, action }]);
      assert.equal(await delayOf(queue, on.opened.now()), 1000);
    });

    it('is shortened by a jitter that differs between elements and tries, and is the same on every engine', async () => {
      const queue = { ns: 'patient', name: 'own jitter' };
      const bodies = Array.from({ length: 20 }, (_, i) => `${i}`);
      await on.storage.insert(queue, newElements(...bodies));
      const delaysOf = new Map<string, number[]>();
      for (let tries = 1; tries <= 3; tries++) {
        const reserved = await on.reserve(queue, 20);
        await rollback(
          on.storage,
          queue,
          reserved.map((one) => ({ ...byId(one), ...FAILURE })),
        );
        const now = on.opened.now();
        await on.opened.passTime(60_000);
        const { deliveries } = await on.storage.scan(queue, {
          group: '',
          states: ['ready'],
          after: null,
          limit: 100,
          bodies: false,
        });
        for (const { id, matureAt } of deliveries)
          delaysOf.set(id, [...(delaysOf.get(id) ?? []), matureAt - now]);
      }
      assert.equal(delaysOf.size, 20);
      for (const delays of delaysOf.values()) {
        assert.equal(new Set(delays).size, 3, `${delays}: the tries differ`);
        const [first = 0, ...further] = delays;
        const couldBe = (element: number): boolean =>
          further.every((delay, i) => retryDelayMs(JITTERED_DELAY, i + 2, element) === delay);
        // Only two or three of 65,536 classes of numbers have a given first delay.
        assert.ok(elementsByFirstDelay().get(first)?.some(couldBe), `${delays} are those of no element`);
      }
      assert.equal(new Set([...delaysOf.values()].map(([first]) => first)).size, 20, 'the elements differ');
    });

    it('comes from the most specific pattern that matches the queue name, whatever characters it has', async () => {
      const delayed = [
        [{ ns: 'patient', name: 'own 100% a_b' }, 0],
        [{ ns: 'patient', name: 'own 100% axb' }, null],
        [{ ns: 'patient', name: 'an own one' }, 1000],
      ] as const;
      for (const [queue, expected] of delayed) {
        await on.storage.insert(queue, newElements('a'));
        const delay = await delayAfterFailure(queue);
        if (expected === null) assert.ok(delay > 30_000 && delay <= 60_000);
        else assert.equal(delay, expected);
      }
    });

    it('comes with the other options of that pattern, such as the dead letter', async () => {
      const fewTries = { ns: 'patient', name: 'mails: few tries' };
      const noDeadLetter = { ns: 'patient', name: 'own dead letters' };
      for (const queue of [fewTries, noDeadLetter])
        await on.storage.insert(queue, [newElement({ tries: 4 })]);
      const outcome = async (queue: QueueKey): Promise<string[]> =>
        rollback(on.storage, queue, [{ ...byId(await on.reserveOne(queue)), ...FAILURE }]);
      assert.deepEqual(await outcome(fewTries), ['dead-lettered']);
      assert.equal((await on.pop({ ns: 'patient', name: 'few' })).length, 1);
      assert.deepEqual(await outcome(noDeadLetter), ['done']);
    });

    it('stored with a queue takes precedence over that of its namespace, also if it is null', async () => {
      const [own, none] = [on.queue(), on.queue('patient')];
      await on.storage.insert(own, newElements('a'));
      await on.storage.insert(none, newElements('a'));
      assert.equal(await delayAfterFailure(own), 0);
      await on.storage.declare([own], { retryDelay: CONSTANT_DELAY });
      await on.storage.declare([none], { retryDelay: null });
      assert.equal(await delayAfterFailure(own), 60_000, 'also for elements that waited before');
      assert.equal(await delayAfterFailure(none), 0);
      await on.storage.declare([own, none], null);
      await on.opened.passTime(60_000);
      assert.equal(await delayAfterFailure(own), 0);
      assert.equal(await delayAfterFailure(none), 2000, 'that of the namespace, after two tries');
    });

    it('declared while an element is reserved applies when its lease expires', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const reserved = await on.reserveOne(queue, '', 1000);
      await on.storage.declare([queue], { retryDelay: CONSTANT_DELAY });
      await on.opened.passTime(1000);
      await on.storage.sweep();
      assert.equal(await delayOf(queue, reserved.lease.until), 60_000);
    });

    it('of a stream applies only to the group whose try failed', async () => {
      const queue = on.queue('stream');
      await on.storage.declare([queue], { retryDelay: CONSTANT_DELAY });
      await on.storage.insert(queue, [newElement({ body: 'a', groups: ['g1', 'g2'] })]);
      const reserved = await on.reserveOne(queue, 'g1');
      await settle(on.storage, queue, [byToken(reserved)], { kind: 'release', ...FAILURE });
      assert.deepEqual(await on.pop(queue, 9, 'g1'), []);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, 'g2')), ['a']);
      await on.opened.passTime(60_000);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, 'g1')), ['a']);
    });

    it('stays at its maximum after any number of tries', async () => {
      const queue = on.queue();
      const steep = { firstMs: 1, factor: 100, maxMs: 3_600_000, jitter: 0 };
      await on.storage.declare([queue], { retryDelay: steep });
      await on.storage.insert(queue, [newElement({ tries: 1_000_000 })]);
      assert.equal(await delayAfterFailure(queue), 3_600_000);
      assert.equal(retryDelayMs(steep, 4, 0), 1_000_000);
    });

    it('is not the only option of a pattern: it may also set the retention of streams', () =>
      on.alone(async ({ engine: { storage }, passTime, now }) => {
        const [kept, other] = ['kept orders', 'other'].map((name) => ({ ns: 'kept by name', name }));
        assert.ok(kept !== undefined && other !== undefined);
        for (const queue of [kept, other]) await storage.insert(queue, [newElement({ groups: ['g1'] })]);
        await passTime(61_000);
        let nextAt: number | null;
        do nextAt = await storage.sweep();
        while (nextAt !== null && nextAt <= now());
        assert.deepEqual([(await storage.counts(kept)).ready, (await storage.counts(other)).ready], [0, 1]);
      }));
  });
}
