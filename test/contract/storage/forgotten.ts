import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest, TestEngine } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { Fixture } from '../fixture.ts';

const HOUR_MS = 3_600_000;
const POP = { group: '', count: 10, leaseMs: null };
const named = (name: string): QueueKey => ({ ns: 'plain', name });

/** Hours pass, and the engine is swept in each, as a node does. */
export async function passHours({ engine, passTime }: TestEngine, hours: number): Promise<void> {
  for (let i = 0; i < hours; i += 1) {
    await passTime(HOUR_MS);
    await engine.storage.sweep();
  }
}

/** Queues that are empty and unused are forgotten. Lists hold no leases. */
export function forgottenContract(open: EngineUnderTest['open']): void {
  describe('a queue that is empty and unused for a day', () => {
    const on = new Fixture(open);

    it('is forgotten with its statistics, and is made again by its next use', async () => {
      await on.alone(async (opened) => {
        const { storage, stats } = opened.engine;
        await storage.insert(named('gone'), newElements('a'));
        await storage.take(named('gone'), POP);
        stats.add(named('gone'), '', { put: 1, get: 1 });
        await stats.flush();
        await storage.declare([named('only declared')]);
        await passHours(opened, 20);
        assert.deepEqual(await storage.queues('plain'), ['gone', 'only declared']);
        // Reading is no use.
        await storage.sizes(named('gone'));
        assert.equal((await stats.read(named('gone'))).get('')?.put, 1);
        await passHours(opened, 8);
        assert.deepEqual(await storage.queues('plain'), []);
        assert.deepEqual([...(await stats.read(named('gone')))], []);
        await storage.insert(named('gone'), newElements('b'));
        assert.deepEqual(await storage.queues('plain'), ['gone']);
        assert.deepEqual(bodyTexts((await storage.take(named('gone'), POP)).deliveries), ['b']);
      });
    });

    it('stays while it holds something, is paused, remembers a key, or a consumer takes from it', async () => {
      await on.alone(async (opened) => {
        const { storage, definitions } = opened.engine;
        const { reserve } = storage.capabilities;
        await storage.insert(named('full'), newElements('a'));
        if (reserve) {
          await storage.insert(named('held'), newElements('b'));
          await storage.take(named('held'), { group: '', count: 1, leaseMs: 1000 * HOUR_MS });
        }
        await storage.declare([named('paused'), named('polled'), named('resumed')]);
        await definitions.put('queue', JSON.stringify(['plain', 'paused']), { paused: true }, 'any');
        await definitions.put('queue', JSON.stringify(['plain', 'resumed']), { paused: false }, 'any');
        for (let day = 0; day < 3; day += 1) {
          await storage.take(named('polled'), POP);
          await storage.insert(named('keyed'), [newElement({ dedupKey: `k${day}` })]);
          await storage.take(named('keyed'), POP);
          await passHours(opened, 23);
        }
        const expected = ['full', ...(reserve ? ['held'] : []), 'keyed', 'paused', 'polled'];
        assert.deepEqual(await storage.queues('plain'), expected);
        assert.equal(await definitions.get('queue', JSON.stringify(['plain', 'resumed'])), null);
        assert.deepEqual(bodyTexts((await storage.take(named('full'), POP)).deliveries), ['a']);
      });
    });

    it('keeps what is inserted in the same moment as it would be forgotten', async () => {
      await on.alone(async (opened) => {
        const { storage } = opened.engine;
        const names = Array.from({ length: 100 }, (_, i) => `q${i}`).sort();
        await storage.declare(names.map(named));
        await opened.passTime(40 * HOUR_MS);
        const sweeping = storage.sweep();
        const inserting = names.map((name) => storage.insert(named(name), newElements(name)));
        await Promise.all([sweeping, ...inserting]);
        assert.deepEqual(await storage.queues('plain'), names);
        for (const name of names) {
          assert.deepEqual(bodyTexts((await storage.take(named(name), POP)).deliveries), [name]);
        }
      });
    });
  });
}
