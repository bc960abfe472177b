import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyText, bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { commit, remove, rollback } from '../../support/settle.ts';
import { byId, Fixture } from '../fixture.ts';

export function batchContract(open: EngineUnderTest['open']): void {
  describe('calls that overlap', () => {
    const on = new Fixture(open);

    it('take effect in the order in which they were made', async () => {
      const queue = on.queue();
      const take = (count: number) => on.storage.take(queue, { group: '', count, leaseMs: null });
      const calls = [
        on.storage.insert(queue, newElements('a', 'b')),
        take(1),
        on.storage.counts(queue),
        on.storage.insert(queue, newElements('c')),
        take(5),
        on.storage.counts(queue),
        take(1),
      ] as const;
      const [, first, between, , rest, after, none] = await Promise.all(calls);
      assert.deepEqual(bodyTexts(first.deliveries), ['a']);
      assert.equal(between.ready, 1);
      assert.deepEqual(bodyTexts(rest.deliveries), ['b', 'c']);
      assert.equal(after.ready, 0);
      assert.deepEqual(none.deliveries, []);
    });

    it('settle in the order in which they were made', async () => {
      const queue = on.queue();
      await on.storage.insert(queue, newElements('a'));
      const reserved = await on.reserveOne(queue);
      const back = { ...byId(reserved), delayMs: 0, countTry: true };
      const outcomes = await Promise.all([
        rollback(on.storage, queue, [back]),
        commit(on.storage, queue, [byId(reserved)]),
        remove(on.storage, queue, [reserved.id]),
        remove(on.storage, queue, [reserved.id]),
      ]);
      assert.deepEqual(outcomes, [['done'], ['not-reserved'], ['done'], ['not-found']]);
    });

    it('insert a thousand elements into a hundred queues without losing or mixing up any', async () => {
      const queues = Array.from({ length: 100 }, () => on.queue());
      const inserts = Array.from({ length: 1000 }, (_, index) => {
        const queue = queues[index % 100] ?? on.queue();
        return on.storage.insert(queue, [newElement({ body: `${queue.name} ${index}` })]);
      });
      const ids = (await Promise.all(inserts)).flat();
      assert.equal(new Set(ids).size, 1000);
      const taken = await Promise.all(queues.map((queue) => on.pop(queue)));
      for (const [index, deliveries] of taken.entries()) {
        const expected = Array.from(
          { length: 10 },
          (_, round) => `${queues[index]?.name} ${round * 100 + index}`,
        );
        assert.deepEqual(bodyTexts(deliveries), expected);
      }
    });

    it('return their own results when several round trips are in flight', async () => {
      const queue = on.queue();
      const inserts: Promise<string[]>[] = [];
      for (let turn = 0; turn < 60; turn++) {
        inserts.push(on.storage.insert(queue, [newElement({ body: `turn ${turn}` })]));
        await new Promise((resolve) => setImmediate(resolve));
      }
      const ids = (await Promise.all(inserts)).flat();
      const bodyOf = new Map((await on.pop(queue)).map((delivery) => [delivery.id, bodyText(delivery)]));
      assert.deepEqual(
        ids.map((id) => bodyOf.get(id)),
        inserts.map((_, turn) => `turn ${turn}`),
      );
    });

    it('may have more bytes together than fit into one round trip', async () => {
      const queue = on.queue();
      const body = Buffer.alloc(1_048_576, 'm');
      const inserts = Array.from({ length: 24 }, (_, tries) =>
        on.storage.insert(queue, [newElement({ body, tries })]),
      );
      await Promise.all(inserts);
      const tries: number[] = [];
      for (let due: number | null = 0; due !== null; ) {
        const { deliveries, nextDueAt } = await on.storage.take(queue, {
          group: '',
          count: 100,
          leaseMs: null,
        });
        tries.push(...deliveries.map((delivery) => delivery.tries));
        assert.ok(deliveries.length > 0);
        due = nextDueAt;
      }
      assert.deepEqual(
        tries,
        Array.from({ length: 24 }, (_, index) => index),
      );
    });

    it('may include a ping of the engine', async () => {
      const queue = on.queue();
      const [, , { deliveries }] = await Promise.all([
        on.storage.insert(queue, newElements('a')),
        on.opened.engine.ping(),
        on.storage.take(queue, { group: '', count: 1, leaseMs: null }),
      ]);
      assert.equal(deliveries.length, 1);
    });
  });
}
