import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Storage } from '../../../src/engine/storage.ts';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { rollback } from '../../support/settle.ts';
import { DEAD_LETTERS, Fixture, MAX_TRIES, NAMESPACES } from '../fixture.ts';

export function optionsContract({ open, openDurable }: EngineUnderTest): void {
  describe('options of a queue', () => {
    const on = new Fixture(open);

    /** Rolls the first element back with a counted try. Returns the outcome. */
    async function failOnce(storage: Storage, queue: QueueKey): Promise<string | undefined> {
      const options = { group: '', count: 1, leaseMs: 60_000 };
      const [first] = (await storage.take(queue, options)).deliveries;
      const ref = { id: first?.id ?? '', group: '', token: null, delayMs: 0, countTry: true };
      return (await rollback(storage, queue, [ref]))[0];
    }

    it('give it a dead-letter queue that its namespace does not have', async () => {
      const [queue, other, target] = [on.queue(), on.queue(), on.queue()];
      await on.storage.declare([queue], { deadLetter: { maxTries: 2, queue: target.name } });
      await on.storage.insert(queue, newElements('a'));
      await on.storage.insert(other, [newElement({ tries: 5 })]);
      assert.equal(await failOnce(on.storage, queue), 'done');
      assert.equal(await failOnce(on.storage, queue), 'dead-lettered');
      assert.equal(await failOnce(on.storage, other), 'done', 'another queue has no dead letter');
      assert.deepEqual(bodyTexts(await on.pop(target)), ['a']);
    });

    it('disable or replace the dead-letter queue of its namespace, also for expired leases', async () => {
      const [none, own, target] = [on.queue('jobs'), on.queue('jobs'), on.queue('jobs')];
      await on.storage.declare([none], { deadLetter: null });
      await on.storage.declare([own], { deadLetter: { maxTries: 1, queue: target.name } });
      await on.storage.insert(none, [newElement({ tries: MAX_TRIES })]);
      assert.equal(await failOnce(on.storage, none), 'done');
      await on.storage.insert(own, newElements('abandoned'));
      await on.reserveOne(own, '', 1000);
      await on.opened.passTime(1001);
      await on.sweepInto(target);
      assert.deepEqual(bodyTexts(await on.pop(target)), ['abandoned']);
      assert.deepEqual(await on.pop({ ns: 'jobs', name: DEAD_LETTERS }), []);
    });

    it('are kept by a declaration without options, and replaced as a whole by one with options', async () => {
      const [queue, target] = [on.queue('jobs'), on.queue('jobs')];
      await on.storage.declare([queue], { deadLetter: { maxTries: 1, queue: target.name } });
      await on.storage.declare([queue]);
      await on.storage.insert(queue, newElements('a', 'b'));
      assert.equal(await failOnce(on.storage, queue), 'dead-lettered');
      await on.storage.declare([queue], { retentionMs: null });
      assert.equal(await failOnce(on.storage, queue), 'done', 'the options of the namespace apply again');
    });

    it('are removed by a declaration with null', async () => {
      const [queue, target] = [on.queue(), on.queue()];
      await on.storage.declare([queue], { deadLetter: { maxTries: 1, queue: target.name } });
      await on.storage.declare([queue], null);
      await on.storage.insert(queue, newElements('a'));
      assert.equal(await failOnce(on.storage, queue), 'done');
    });

    it('apply to elements that were inserted before they were declared', async () => {
      const [queue, target] = [on.queue(), on.queue()];
      await on.storage.insert(queue, newElements('a'));
      await on.storage.declare([queue], { deadLetter: { maxTries: 1, queue: target.name } });
      assert.equal(await failOnce(on.storage, queue), 'dead-lettered');
    });

    it('can be declared for several queues in one call, which creates the queues', async () => {
      const queues = [on.queue(), on.queue()];
      await on.storage.declare(queues, { deadLetter: { maxTries: 1, queue: 'elsewhere' } });
      const names = await on.storage.queues('plain');
      for (const queue of queues) {
        assert.ok(names.includes(queue.name));
        await on.storage.insert(queue, newElements('a'));
        assert.equal(await failOnce(on.storage, queue), 'dead-lettered');
      }
    });

    it('set the retention of a stream', () =>
      on.alone(async ({ engine: { storage }, passTime, now }) => {
        const short = { ns: 'stream', name: 'short' };
        const usual = { ns: 'stream', name: 'usual' };
        const long = { ns: 'kept', name: 'long' };
        await storage.declare([short], { retentionMs: 10_000 });
        await storage.declare([long], { retentionMs: null });
        for (const queue of [short, usual, long]) {
          await storage.insert(queue, [newElement({ groups: ['g1'] })]);
        }
        await passTime(3_600_000);
        let nextAt: number | null;
        do nextAt = await storage.sweep();
        while (nextAt !== null && nextAt <= now());
        const left = async (queue: QueueKey): Promise<number> => (await storage.counts(queue)).ready;
        assert.deepEqual([await left(short), await left(usual), await left(long)], [0, 1, 1]);
      }));

    if (openDurable !== null) {
      it('survive a crash', async () => {
        const opened = await openDurable({ namespaces: NAMESPACES });
        let current = opened;
        try {
          const queue = { ns: 'jobs', name: 'q' };
          const { storage } = opened.engine;
          await storage.declare([queue], { deadLetter: { maxTries: 1, queue: 'own' } });
          await storage.insert(queue, newElements('a'));
          current = await opened.crash('before-commit', () => {
            storage.insert(queue, newElements('lost')).catch(() => {});
          });
          assert.equal(await failOnce(current.engine.storage, queue), 'dead-lettered');
          assert.equal((await current.engine.storage.counts({ ns: 'jobs', name: 'own' })).ready, 1);
        } finally {
          await current.close();
        }
      });
    }
  });
}
