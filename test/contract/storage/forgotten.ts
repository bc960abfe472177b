import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { QueueKey } from '../../../src/model/names.ts';
import type { EngineUnderTest, TestEngine } from '../../engines.ts';
import { bodyTexts, newElement, newElements } from '../../support/elements.ts';
import { rollback } from '../../support/settle.ts';
import { DEAD_LETTERS, Fixture, MAX_TRIES } from '../fixture.ts';

const HOUR_MS = 3_600_000;
const POP = { group: '', count: 10, leaseMs: null };
const queueNamed = (name: string, ns = 'plain'): QueueKey => ({ ns, name });

/** Lets hours pass, and sweeps the engine in each, as a node does. */
export async function passHours({ engine, passTime }: TestEngine, hours: number): Promise<void> {
  for (let i = 0; i < hours; i += 1) {
    await passTime(HOUR_MS);
    await engine.storage.sweep();
  }
}

/** Empty, unused queues are forgotten. This suite also runs for lists, which have no leases. */
export function forgottenContract(open: EngineUnderTest['open']): void {
  describe('a queue that is empty and unused for a day', () => {
    const on = new Fixture(open);

    it('is forgotten with its statistics, and created again by its next use', async () => {
      await on.alone(async (opened) => {
        const { storage, stats } = opened.engine;
        await storage.insert(queueNamed('gone'), newElements('a'));
        await storage.take(queueNamed('gone'), POP);
        stats.add(queueNamed('gone'), '', { put: 1, get: 1 });
        await stats.flush();
        await storage.declare([queueNamed('only declared')]);
        await passHours(opened, 20);
        assert.deepEqual(await storage.queues('plain'), ['gone', 'only declared']);
        // Reading does not count as use.
        await storage.counts(queueNamed('gone'));
        assert.equal((await stats.read(queueNamed('gone'))).get('')?.put, 1);
        await passHours(opened, 8);
        assert.deepEqual(await storage.queues('plain'), []);
        assert.deepEqual([...(await stats.read(queueNamed('gone')))], []);
        assert.deepEqual((await storage.take(queueNamed('gone'), POP)).deliveries, []);
        assert.equal((await storage.counts(queueNamed('gone'))).ready, 0);
        assert.deepEqual(await storage.queues('plain'), []);
        await storage.insert(queueNamed('gone'), newElements('b'));
        assert.deepEqual(await storage.queues('plain'), ['gone']);
        assert.deepEqual(bodyTexts((await storage.take(queueNamed('gone'), POP)).deliveries), ['b']);
      });
    });

    it('is kept if it holds an element, is paused, remembers a dedup key, or is polled by a consumer', async () => {
      await on.alone(async (opened) => {
        const { storage, definitions } = opened.engine;
        const { reserve } = storage.capabilities;
        await storage.insert(queueNamed('full'), newElements('a'));
        if (reserve) {
          await storage.insert(queueNamed('held'), newElements('b'));
          await storage.take(queueNamed('held'), { group: '', count: 1, leaseMs: 1000 * HOUR_MS });
        }
        await storage.declare([queueNamed('paused'), queueNamed('polled'), queueNamed('resumed')]);
        await definitions.put('queue', JSON.stringify(['plain', 'paused']), { paused: true }, 'any');
        await definitions.put('queue', JSON.stringify(['plain', 'resumed']), { paused: false }, 'any');
        for (let day = 0; day < 3; day += 1) {
          await storage.take(queueNamed('polled'), POP);
          await storage.insert(queueNamed('keyed'), [newElement({ dedupKey: `k${day}` })]);
          await storage.take(queueNamed('keyed'), POP);
          await passHours(opened, 23);
        }
        const expected = ['full', ...(reserve ? ['held'] : []), 'keyed', 'paused', 'polled'];
        assert.deepEqual(await storage.queues('plain'), expected);
        assert.equal(await definitions.get('queue', JSON.stringify(['plain', 'resumed'])), null);
        assert.deepEqual(bodyTexts((await storage.take(queueNamed('full'), POP)).deliveries), ['a']);
      });
    });

    it('is kept while paused, whatever characters its name has', async () => {
      await on.alone(async (opened) => {
        const { storage, definitions } = opened.engine;
        const names = ['"quoted"', '%', 'a/b', 'back\\slash', 'é€😀'];
        await storage.declare(names.map((name) => queueNamed(name)));
        for (const name of names) {
          await definitions.put('queue', JSON.stringify(['plain', name]), { paused: true }, 'any');
        }
        await passHours(opened, 30);
        assert.deepEqual(await storage.queues('plain'), names);
      });
    });

    it('works like a new one when it is used again days later', async () => {
      await on.alone(async (opened) => {
        const { storage } = opened.engine;
        await storage.insert(queueNamed('q'), newElements('a'));
        await storage.take(queueNamed('q'), POP);
        await passHours(opened, 60);
        await storage.insert(queueNamed('q'), newElements('b'));
        assert.deepEqual(await storage.queues('plain'), ['q']);
        assert.equal((await storage.counts(queueNamed('q'))).ready, 1);
        assert.equal((await storage.usage('plain')).elements, 1);
        assert.deepEqual(bodyTexts((await storage.take(queueNamed('q'), POP)).deliveries), ['b']);
      });
    });

    it('loses no element that is inserted while it is being forgotten', async () => {
      await on.alone(async (opened) => {
        const { storage } = opened.engine;
        const names = Array.from({ length: 100 }, (_, i) => `q${i}`).sort();
        await storage.declare(names.map((name) => queueNamed(name)));
        await opened.passTime(40 * HOUR_MS);
        const sweeping = storage.sweep();
        const inserting = names.map((name) => storage.insert(queueNamed(name), newElements(name)));
        await Promise.all([sweeping, ...inserting]);
        assert.deepEqual(await storage.queues('plain'), names);
        for (const name of names) {
          assert.deepEqual(bodyTexts((await storage.take(queueNamed(name), POP)).deliveries), [name]);
        }
      });
    });
  });
}

/** The same for streams and dead-letter queues, which not every engine has. */
export function forgottenStreamsContract(open: EngineUnderTest['open']): void {
  describe('a stream, or a dead-letter queue, that is empty and unused for a day', () => {
    const on = new Fixture(open);

    it('works like a new one when it is used again days later', async () => {
      await on.alone(async (opened) => {
        const { storage } = opened.engine;
        const queue = queueNamed('q', 'stream');
        const insert = (body: string) => storage.insert(queue, [newElement({ body, groups: ['g1', 'g2'] })]);
        const pop = async (group: string) =>
          bodyTexts((await storage.take(queue, { ...POP, group })).deliveries);
        await insert('a');
        assert.deepEqual([await pop('g1'), await pop('g2')], [['a'], ['a']]);
        await passHours(opened, 60);
        assert.deepEqual(await storage.queues('stream'), []);
        await insert('b');
        assert.deepEqual(await storage.queues('stream'), ['q']);
        assert.equal((await storage.counts(queue)).ready, 1);
        assert.deepEqual([await pop('g1'), await pop('g2')], [['b'], ['b']]);
      });
    });

    it('receives dead letters again after it was forgotten', async () => {
      await on.alone(async (opened) => {
        const { storage } = opened.engine;
        const queue = queueNamed('q', 'jobs');
        const fail = async (body: string): Promise<void> => {
          await storage.insert(queue, newElements(body));
          for (let tries = 0; tries < MAX_TRIES; tries += 1) {
            const { deliveries } = await storage.take(queue, { ...POP, leaseMs: HOUR_MS });
            const refs = deliveries.map(({ id }) => {
              return { id, group: '', token: null, delayMs: 0, countTry: true };
            });
            await rollback(storage, queue, refs);
          }
        };
        const deadLetters = async () =>
          bodyTexts((await storage.take(queueNamed(DEAD_LETTERS, 'jobs'), POP)).deliveries);
        await fail('a');
        assert.deepEqual(await deadLetters(), ['a']);
        await passHours(opened, 60);
        assert.ok(!(await storage.queues('jobs')).includes('q'));
        await fail('b');
        assert.deepEqual(await storage.queues('jobs'), [DEAD_LETTERS, 'q']);
        assert.deepEqual(await deadLetters(), ['b']);
      });
    });
  });
}
