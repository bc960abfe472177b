import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { SettleAction, SettleItem, SettleOutcome } from '../../../src/engine/storage.ts';
import type { GroupName } from '../../../src/model/element.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { byToken, DEAD_LETTERS, Fixture, MAX_TRIES, type Reserved } from '../fixture.ts';

export function settleWaitingContract({ open }: EngineUnderTest): void {
  describe('settle of waiting elements and of several queues', () => {
    const on = new Fixture(open);
    const FINISH: SettleAction = { kind: 'finish' };

    const waiting = (
      queue: QueueKey,
      id: string,
      action: SettleAction,
      group: GroupName = '',
    ): SettleItem => ({ queue, id, group, from: 'waiting', token: null, action });

    const reserved = (queue: QueueKey, delivery: Reserved, action: SettleAction): SettleItem => ({
      queue,
      ...byToken(delivery),
      from: 'reserved',
      action,
    });

    const settle = async (...items: readonly SettleItem[]): Promise<SettleOutcome[]> =>
      (await on.storage.settle(items)).map(({ outcome }) => outcome);

    it('finishes a waiting delivery of one group and keeps those of the other groups', async () => {
      const queue = on.queue('stream');
      const [id = ''] = await on.storage.insert(queue, [newElement({ body: 'e', groups: ['g1', 'g2'] })]);
      assert.deepEqual(await settle(waiting(queue, id, FINISH, 'g1')), ['done']);
      assert.deepEqual(await settle(waiting(queue, id, FINISH, 'g1')), ['not-found']);
      assert.deepEqual(await on.pop(queue, 9, 'g1'), []);
      assert.deepEqual(bodyTexts(await on.pop(queue, 9, 'g2')), ['e']);
    });

    it('rejects reserved and unknown elements, and changes nothing', async () => {
      const [queue, to] = [on.queue('jobs'), on.queue('jobs')];
      const [id = ''] = await on.storage.insert(queue, newElements('held'));
      const held = await on.reserveOne(queue);
      const actions: SettleAction[] = [
        FINISH,
        { kind: 'release', delayMs: 0, countTry: true },
        { kind: 'dead-letter', countTry: false, reason: null },
        { kind: 'move', to, groups: [''], tries: null, head: null },
      ];
      const outcomes = await settle(
        ...actions.map((action) => waiting(queue, id, action)),
        ...actions.map((action) => waiting(queue, 'none', action)),
        ...actions.map((action) => waiting(to, id, action)),
      );
      const expected = ['reserved', 'not-found', 'not-found'].flatMap((one) => actions.map(() => one));
      assert.deepEqual(outcomes, expected);
      assert.deepEqual(await settle(reserved(queue, held, FINISH)), ['done']);
      assert.deepEqual(await on.pop(to), []);
    });

    it('releases waiting elements immediately, after a delay or at a given time, with unchanged tries', async () => {
      const queue = on.queue();
      const [a = '', b = '', c = ''] = await on.storage.insert(queue, [
        newElement({ body: 'a', delayMs: 3_600_000, tries: 2 }),
        newElement({ body: 'b' }),
        newElement({ body: 'c' }),
      ]);
      const dueAt = on.opened.now() + 7_200_000;
      const outcomes = await settle(
        waiting(queue, a, { kind: 'release', delayMs: 0, countTry: false }),
        waiting(queue, b, { kind: 'release', delayMs: 3_600_000, countTry: false }),
        waiting(queue, c, { kind: 'release', delayMs: 0, dueAt, countTry: false }),
      );
      assert.deepEqual(outcomes, ['done', 'done', 'done']);
      const [now] = await on.pop(queue);
      assert.deepEqual([now?.id, now?.tries], [a, 2]);
      assert.equal((await on.storage.counts(queue)).scheduled, 2);
      await on.opened.passTime(3_600_000);
      assert.deepEqual(bodyTexts(await on.pop(queue)), ['b']);
      assert.equal((await on.storage.counts(queue, '')).nextMatureAt, dueAt);
      await on.opened.passTime(3_600_000);
      const [last] = await on.pop(queue);
      assert.deepEqual([last?.id, last?.matureAt], [c, dueAt]);
    });

    it('releases a reserved element at a given time, even one in the past', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b'));
      const [a, b] = [await on.reserveOne(queue), await on.reserveOne(queue)];
      const later = on.opened.now() + 3_600_000;
      const passed = on.opened.now() - 5000;
      const outcomes = await settle(
        reserved(queue, a, { kind: 'release', delayMs: 0, dueAt: later, countTry: true }),
        reserved(queue, b, { kind: 'release', delayMs: 0, dueAt: passed, countTry: false }),
      );
      assert.deepEqual(outcomes, ['done', 'done']);
      const [first] = await on.pop(queue);
      assert.deepEqual([first?.id, first?.matureAt, first?.tries], [b.id, passed, 0]);
      await on.opened.passTime(3_600_000);
      const [second] = await on.pop(queue);
      assert.deepEqual([second?.id, second?.matureAt, second?.tries], [a.id, later, 1]);
    });

    it('counts tries of a waiting element, up to the dead letter', async () => {
      const queue = on.queue('jobs');
      const fields = { body: 'tired', tries: MAX_TRIES - 2 };
      const [id = ''] = await on.storage.insert(queue, [newElement(fields)]);
      const fail = waiting(queue, id, { kind: 'release', delayMs: 0, countTry: true, reason: 'r' });
      assert.deepEqual(await settle(fail), ['done']);
      assert.deepEqual(await settle(fail), ['dead-lettered']);
      assert.deepEqual(await on.pop(queue), []);
      assert.deepEqual(bodyTexts(await on.pop({ ns: 'jobs', name: DEAD_LETTERS })), ['tired']);
    });

    it('applies mixed actions to several queues in one call, and returns the results in order', async () => {
      const [one, two, jobs, to] = [on.queue(), on.queue('stream'), on.queue('jobs'), on.queue()];
      await on.storage.insert(one, newElements('commit', 'extend', 'release'));
      const [waits = ''] = await on.storage.insert(one, [newElement({ body: 'waits', delayMs: 3_600_000 })]);
      await on.storage.insert(two, [newElement({ body: 'moved', groups: ['g1'] })]);
      await on.storage.insert(jobs, newElements('hopeless'));
      const commit = await on.reserveOne(one);
      const extend = await on.reserveOne(one);
      const release = await on.reserveOne(one);
      const moved = await on.reserveOne(two, 'g1');
      const hopeless = await on.reserveOne(jobs);
      const before = on.opened.now();
      const copy = { queue: to, element: newElement({ body: 'copy' }) };
      const results = await on.storage.settle([
        reserved(jobs, hopeless, { kind: 'dead-letter', countTry: true, reason: 'hopeless' }),
        reserved(one, commit, { kind: 'finish', inserts: [copy] }),
        waiting(one, waits, FINISH),
        reserved(two, moved, { kind: 'move', to, groups: [''], tries: null, head: null }),
        reserved(one, { ...extend, id: 'none' }, { kind: 'extend', leaseMs: 1 }),
        reserved(one, extend, { kind: 'extend', leaseMs: 500_000 }),
        reserved(one, release, { kind: 'release', delayMs: 0, countTry: true }),
      ]);
      assert.deepEqual(
        results.map(({ outcome }) => outcome),
        ['dead-lettered', 'done', 'done', 'done', 'not-found', 'done', 'done'],
      );
      const until = results[5]?.until ?? 0;
      assert.ok(until >= before + 500_000 && until <= on.opened.now() + 500_000);
      assert.deepEqual(results.map((result) => result.until !== null).indexOf(true), 5);
      assert.deepEqual(bodyTexts(await on.pop(to)).sort(), ['copy', 'moved']);
      assert.deepEqual(bodyTexts(await on.pop(one)), ['release']);
      assert.deepEqual(bodyTexts(await on.pop({ ns: 'jobs', name: DEAD_LETTERS })), ['hopeless']);
      assert.deepEqual(await settle(reserved(one, extend, FINISH)), ['done']);
    });

    it('applies several items for one delivery in order', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a', 'b'));
      const [a, b] = [await on.reserveOne(queue), await on.reserveOne(queue)];
      const outcomes = await settle(
        reserved(queue, a, { kind: 'extend', leaseMs: 90_000 }),
        reserved(queue, a, FINISH),
        reserved(queue, a, FINISH),
        reserved(queue, b, { kind: 'release', delayMs: 0, countTry: true }),
        reserved(queue, b, FINISH),
        waiting(queue, b.id, { kind: 'release', delayMs: 3_600_000, countTry: false }),
        waiting(queue, b.id, FINISH),
        waiting(queue, b.id, FINISH),
      );
      const expected = ['done', 'done', 'not-found', 'done', 'lease-lost', 'done', 'done', 'not-found'];
      assert.deepEqual(outcomes, expected);
      const { ready, scheduled, reserved: held } = await on.storage.counts(queue);
      assert.deepEqual([ready, scheduled, held], [0, 0, 0]);
    });
  });
}
