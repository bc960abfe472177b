import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, rollback } from '../../support/settle.ts';
import { until } from '../../support/until.ts';
import { byToken, DEAD_LETTERS, Fixture, MAX_TRIES } from '../fixture.ts';

export function expiryContract({ open }: EngineUnderTest): void {
  describe('expiry', () => {
    const on = new Fixture(open);
    const dead: QueueKey = { ns: 'jobs', name: DEAD_LETTERS };
    const inMs = (ms: number): number => on.opened.now() + ms;

    /** Sweeps until nothing is due. */
    async function sweep(): Promise<void> {
      let nextAt: number | null;
      do nextAt = await on.storage.sweep();
      while (nextAt !== null && nextAt <= on.opened.now());
    }

    /**
     * On a Redis cluster, dead letters are sent to another server, and neither a take nor a sweep waits for their
     * arrival.
     */
    const untilArrived = (count: number): Promise<void> =>
      until(async () => (await on.storage.counts(dead)).ready === count);

    const countsOf = async (queue: QueueKey): Promise<number[]> => {
      const { ready, scheduled, reserved } = await on.storage.counts(queue);
      return [ready, scheduled, reserved];
    };

    it('starts exactly at its moment: the element is delivered before it, but not at or after it', async () => {
      const queue = on.queue();
      const expiresAt = inMs(10_000);
      await on.storage.insert(queue, [
        newElement({ body: 'a', expiresAt }),
        newElement({ body: 'b', expiresAt }),
        newElement({ body: 'c' }),
        newElement({ body: 'd', expiresAt: null }),
        newElement({ body: 'e', expiresAt: expiresAt + 10_000 }),
      ]);
      assert.deepEqual(bodyTexts(await on.pop(queue, 1)), ['a']);
      await on.opened.passTime(10_000);
      assert.deepEqual(bodyTexts(await on.pop(queue, 2)), ['c', 'd']);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['e']);
    });

    it('prevents delivery of an element that was inserted expired, or that expires before it is due', async () => {
      const queue = on.queue();
      const [id = ''] = await on.storage.insert(queue, [
        newElement({ body: 'stillborn', expiresAt: inMs(-1) }),
        newElement({ body: 'due too late', delayMs: 10_000, expiresAt: inMs(5000) }),
      ]);
      assert.notEqual(id, '');
      assert.deepEqual(await on.reserve(queue), []);
      await on.opened.passTime(20_000);
      assert.deepEqual(await on.pop(queue), []);
      await sweep();
      assert.deepEqual(await countsOf(queue), [0, 0, 0]);
    });

    it('makes a take report isLeft if it stops among expired elements before it reaches a ready one', async () => {
      const queue = on.queue();
      const expired = Array.from({ length: 1000 }, () => newElement({ body: '', expiresAt: inMs(-1) }));
      for (let i = 0; i < 3; i += 1) await on.storage.insert(queue, expired);
      await on.storage.insert(queue, newElements('behind'));
      const take = () => on.storage.take(queue, { group: '', count: 1, leaseMs: null });
      let taken = await take();
      for (let takes = 1; taken.deliveries.length === 0; takes += 1) {
        assert.ok(
          taken.isLeft === true && takes < 20,
          `take ${takes} returned neither an element nor isLeft`,
        );
        taken = await take();
      }
      assert.deepEqual(bodyTexts(taken.deliveries), ['behind']);
    });

    it('removes elements in a sweep, which returns when the next one expires', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, [
        newElement({ expiresAt: inMs(10_000) }),
        newElement({ delayMs: 3_600_000, expiresAt: inMs(20_000) }),
        newElement({ body: 'stays' }),
      ]);
      await sweep();
      assert.deepEqual(await countsOf(queue), [2, 1, 0]);
      const nextAt = await on.storage.sweep();
      assert.ok(nextAt !== null && nextAt <= inMs(10_000), 'an element expires then');
      await on.opened.passTime(10_000);
      await sweep();
      assert.deepEqual(await countsOf(queue), [1, 1, 0]);
      await on.opened.passTime(10_000);
      await sweep();
      assert.deepEqual(await countsOf(queue), [1, 0, 0]);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['stays']);
    });

    it('moves an element to the dead-letter queue with the reason expired and its tries; there it does not expire again', async () => {
      const queue = on.queue('jobs');
      const headers = ['own', '1'];
      const fields = { body: 'late', tries: 1, headers, expiresAt: inMs(1000) };
      const [id = ''] = await on.storage.insert(queue, [newElement(fields)]);
      await on.opened.passTime(1000);
      await on.sweepInto(dead);
      const page = { group: '', states: ['ready'], after: null, limit: 9, bodies: true } as const;
      const [deadLetter, ...more] = (await on.storage.scan(dead, page)).deliveries;
      assert.deepEqual(more, []);
      const { reason, expiresAt, tries } = deadLetter ?? {};
      assert.deepEqual({ reason, expiresAt, tries }, { reason: 'expired', expiresAt: null, tries: 0 });
      const [from, name, at, moment, ...rest] = (deadLetter?.headers ?? []).slice(2);
      assert.deepEqual([from, name, at], ['x-dl-from-queue', queue.name, 'x-dl-at']);
      assert.ok(new Date(moment ?? '').getTime() > 0);
      assert.deepEqual(rest, ['x-dl-tries', '1', 'x-dl-reason', 'expired', 'x-ks-origin-id', id]);
      await on.opened.passTime(3_600_000);
      assert.deepEqual(bodyTexts(await on.pop(dead)), ['late']);
    });

    it('moves an element to the dead-letter queue even if a take finds it before a sweep', async () => {
      const queue = on.queue('jobs');
      await on.storage.insert(queue, [newElement({ body: 'late', expiresAt: inMs(1000) })]);
      await on.opened.passTime(1000);
      assert.deepEqual(await on.pop(queue), []);
      await sweep();
      await untilArrived(1);
      assert.deepEqual(bodyTexts(await on.pop(dead)), ['late']);
      assert.deepEqual(await countsOf(queue), [0, 0, 0]);
    });

    it('removes an element that expires in the dead-letter queue itself', async () => {
      await on.storage.insert(dead, [newElement({ expiresAt: inMs(1000) })]);
      await on.opened.passTime(1000);
      await sweep();
      assert.deepEqual(await countsOf(dead), [0, 0, 0]);
    });

    it('does not affect a reserved element: it can be extended and committed', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, [newElement({ expiresAt: inMs(1000) })]);
      const held = await on.reserveOne(queue, '', 10_000);
      await on.opened.passTime(5000);
      await sweep();
      assert.deepEqual(await countsOf(queue), [0, 0, 1]);
      const extended = await on.storage.settle([
        { queue, ...byToken(held), from: 'reserved', action: { kind: 'extend', leaseMs: 10_000 } },
      ]);
      assert.equal(extended[0]?.outcome, 'done');
      await on.opened.passTime(8000);
      await sweep();
      assert.deepEqual(await commit(on.storage, queue, [byToken(held)]), ['done']);
    });

    it('applies to an element that is rolled back after its moment', async () => {
      const queue = on.queue('jobs');
      await on.storage.insert(queue, [
        newElement({ body: 'counted', expiresAt: inMs(1000) }),
        newElement({ body: 'returned', expiresAt: inMs(1000) }),
      ]);
      const [counted, returned] = [await on.reserveOne(queue), await on.reserveOne(queue)];
      await on.opened.passTime(1000);
      const outcomes = await rollback(on.storage, queue, [
        { ...byToken(counted), delayMs: 0, countTry: true, reason: 'failed' },
        { ...byToken(returned), delayMs: 0, countTry: false },
      ]);
      assert.deepEqual(outcomes, ['done', 'done']);
      assert.deepEqual(await on.pop(queue), []);
      await sweep();
      await untilArrived(2);
      const deadLetters = await on.pop(dead);
      assert.deepEqual(bodyTexts(deadLetters).sort(), ['counted', 'returned']);
      for (const { headers } of deadLetters) {
        assert.equal(headers[headers.indexOf('x-dl-reason') + 1], 'expired');
      }
    });

    it('applies to an element whose lease expired, unless that was its last try', async () => {
      const queue = on.queue('jobs');
      await on.storage.insert(queue, [
        newElement({ body: 'first try', expiresAt: inMs(500) }),
        newElement({ body: 'last try', tries: MAX_TRIES - 1, expiresAt: inMs(500) }),
      ]);
      await on.reserve(queue, 2, '', 1000);
      await on.opened.passTime(1001);
      assert.deepEqual(await on.pop(queue), []);
      await sweep();
      await untilArrived(2);
      const deadLetters = await on.pop(dead);
      const reasons = deadLetters.map(({ headers }) => headers[headers.indexOf('x-dl-reason') + 1]);
      assert.deepEqual(
        new Map(bodyTexts(deadLetters).map((body, i) => [body, reasons[i]])),
        new Map([
          ['first try', 'expired'],
          ['last try', 'lease-expired'],
        ]),
      );
    });

    it('still applies to an element whose pop is undone before its moment', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, [newElement({ body: 'undone', expiresAt: inMs(10_000) })]);
      await on.storage.undoTake(queue, await on.pop(queue));
      const again = await on.pop(queue);
      assert.deepEqual(bodyTexts(again), ['undone']);
      await on.storage.undoTake(queue, again);
      await on.opened.passTime(10_000);
      assert.deepEqual(await on.pop(queue), []);
    });

    it('applies to an element whose pop is undone long after its moment', async () => {
      const queue = on.queue();
      const other = on.queue();
      await on.storage.insert(queue, [newElement({ body: 'undone', expiresAt: inMs(5_000) })]);
      const popped = await on.pop(queue);
      await on.opened.passTime(60_000);
      // Calls in between, so that the engine has already looked for expired elements up to now.
      await on.storage.insert(other, [newElement({ body: 'other' })]);
      await sweep();
      await on.storage.undoTake(queue, popped);
      await sweep();
      assert.deepEqual(await countsOf(queue), [0, 0, 0]);
    });

    it('applies to each group’s delivery of a stream separately', async () => {
      const queue = on.queue('stream');
      const fields = { body: 'e', groups: ['g1', 'g2', 'g3'], expiresAt: inMs(1000) };
      await on.storage.insert(queue, [newElement(fields)]);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, 'g1')), ['e']);
      const held = await on.reserveOne(queue, 'g2');
      await on.opened.passTime(1000);
      await sweep();
      assert.deepEqual(await countsOf(queue), [0, 0, 1]);
      assert.deepEqual(await on.pop(queue, 9, 'g3'), []);
      assert.deepEqual(await commit(on.storage, queue, [byToken(held)]), ['done']);
      assert.deepEqual(await countsOf(queue), [0, 0, 0]);
    });

    it('does not free the dedup key: a repeat stores nothing and returns the id of the expired element', async () => {
      const queue = on.queue();
      const element = newElement({ dedupKey: 'k', expiresAt: inMs(1000) });
      const [first] = await on.storage.insert(queue, [element]);
      await on.opened.passTime(1000);
      await sweep();
      const repeats: number[] = [];
      const again = newElement({ dedupKey: 'k' });
      const [second] = await on.storage.insert(queue, [again], { onRepeat: (index) => repeats.push(index) });
      assert.deepEqual([second, repeats], [first, [0]]);
      assert.deepEqual(await on.pop(queue), []);
    });

    it('applies to an element that a commit inserts', async () => {
      const [from, to] = [on.queue(), on.queue()];
      await on.storage.insert(from, newElements('source'));
      const held = await on.reserveOne(from);
      const element = newElement({ body: 'copy', expiresAt: inMs(1000) });
      const action = { kind: 'finish', inserts: [{ queue: to, element }] } as const;
      await on.storage.settle([{ queue: from, ...byToken(held), from: 'reserved', action }]);
      await on.opened.passTime(1000);
      assert.deepEqual(await on.pop(to), []);
    });

    it('does not hide the next maturity behind expired elements', async () => {
      const queue = on.queue();
      const matureAt = inMs(60_000);
      await on.storage.insert(queue, [
        newElement({ expiresAt: inMs(1000) }),
        newElement({ body: 'next', matureAt }),
      ]);
      await on.opened.passTime(1000);
      const taken = await on.storage.take(queue, { group: '', count: 1, leaseMs: null });
      assert.deepEqual(taken.deliveries, []);
      assert.equal(taken.nextDueAt, matureAt);
      assert.equal((await on.storage.counts(queue, '')).nextMatureAt, matureAt);
    });

    it('removes thousands of elements, however few per sweep', async () => {
      const queue = on.queue();
      const many = Array.from({ length: 1000 }, () => newElement({ body: '', expiresAt: inMs(1000) }));
      for (let i = 0; i < 3; i += 1) await on.storage.insert(queue, many);
      await on.storage.insert(queue, newElements('behind'));
      await on.opened.passTime(1000);
      await sweep();
      assert.deepEqual(await countsOf(queue), [1, 0, 0]);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['behind']);
    });
  });
}
