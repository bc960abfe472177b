import assert from 'node:assert/strict';
import { DatabaseSync } from 'node:sqlite';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { type SqliteFolder, withFolder } from '../engines/sqlite-folder.ts';
import { plain } from '../support/broker.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { commit } from '../support/settle.ts';

const HOUR_MS = 3_600_000;
const POP = { group: '', count: 10, leaseMs: null };
const named = (name: string): QueueKey => ({ ns: 'N', name });

/** Advances the clock hour by hour and sweeps the engine each time, as a node does. */
async function passHours(folder: SqliteFolder, { storage }: Engine, hours: number): Promise<void> {
  for (let i = 0; i < hours; i += 1) {
    folder.clock.advance(HOUR_MS);
    await storage.sweep();
  }
}

describe('A SQLite queue that is empty and unused for a day', () => {
  it('is deleted with its statistics, even across restarts, and created again by its next use', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      await engine.storage.insert(named('gone'), newElements('a'));
      await engine.storage.take(named('gone'), POP);
      engine.stats.add(named('gone'), '', { put: 1, get: 1 });
      await engine.storage.declare([named('only declared')]);
      await passHours(folder, engine, 20);
      assert.deepEqual(await engine.storage.queues('N'), ['gone', 'only declared']);
      await engine.stop();
      const again = await folder.started();
      // Reading does not count as use.
      await again.storage.counts(named('gone'));
      await again.stats.read(named('gone'));
      await passHours(folder, again, 8);
      assert.deepEqual(await again.storage.queues('N'), []);
      assert.deepEqual([...(await again.stats.read(named('gone')))], []);
      await again.storage.insert(named('gone'), newElements('b'));
      assert.deepEqual(await again.storage.queues('N'), ['gone']);
      assert.deepEqual(bodyTexts((await again.storage.take(named('gone'), POP)).deliveries), ['b']);
    });
  });

  it('is kept while it contains elements, is paused, remembers a key, or is polled', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      const { storage, definitions } = engine;
      await storage.insert(named('full'), newElements('a'));
      await storage.insert(named('held'), newElements('b'));
      await storage.take(named('held'), { group: '', count: 1, leaseMs: 1000 * HOUR_MS });
      await storage.declare([named('paused'), named('polled'), named('resumed')]);
      await definitions.put('queue', JSON.stringify(['N', 'paused']), { paused: true }, 'any');
      await definitions.put('queue', JSON.stringify(['N', 'resumed']), { paused: false }, 'any');
      for (let day = 0; day < 3; day += 1) {
        await storage.take(named('polled'), POP);
        await storage.insert(named('keyed'), [newElement({ dedupKey: `k${day}` })]);
        await storage.take(named('keyed'), POP);
        await passHours(folder, engine, 23);
      }
      assert.deepEqual(await storage.queues('N'), ['full', 'held', 'keyed', 'paused', 'polled']);
      assert.equal(await definitions.get('queue', JSON.stringify(['N', 'resumed'])), null);
      assert.deepEqual(bodyTexts((await storage.take(named('full'), POP)).deliveries), ['a']);
    });
  });

  it('is kept while its statistics are updated, even if this file has nothing else of it', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      for (let day = 1; day <= 3; day += 1) {
        engine.stats.add(named('elsewhere'), '', { put: 1 });
        await engine.stats.read(named('elsewhere'));
        await passHours(folder, engine, 20);
        assert.equal((await engine.stats.read(named('elsewhere'))).get('')?.put, day);
      }
    });
  });

  it('is kept for 30 days after the last count if its elements are in another engine, where they may still wait', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      const countsOf = async (name: string): Promise<number> => (await engine.stats.read(named(name))).size;
      engine.stats.add(named('elsewhere'), '', { put: 1 });
      await engine.storage.insert(named('here'), newElements('a'));
      await engine.storage.take(named('here'), POP);
      engine.stats.add(named('here'), '', { put: 1 });
      await engine.stats.flush();
      await passHours(folder, engine, 29 * 24);
      assert.deepEqual([await countsOf('elsewhere'), await countsOf('here')], [1, 0]);
      await passHours(folder, engine, 26);
      assert.equal(await countsOf('elsewhere'), 0);
    });
  });

  it('keeps an element inserted at the moment of its deletion', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      await engine.storage.declare([named('q')]);
      folder.clock.advance(40 * HOUR_MS);
      const sweeping = engine.storage.sweep();
      const inserting = engine.storage.insert(named('q'), newElements('a'));
      await Promise.all([sweeping, inserting]);
      assert.deepEqual(await engine.storage.queues('N'), ['q']);
      await engine.stop();
      const again = await folder.started();
      assert.deepEqual(bodyTexts((await again.storage.take(named('q'), POP)).deliveries), ['a']);
    });
  });
});

describe('An evicted consumer group of SQLite', () => {
  it('leaves no lease to a new group that reuses its row id', async () => {
    await withFolder(async (folder) => {
      const stream = { name: 'S', groups: [], deadLetter: null, retentionMs: null, maxGroups: 1 };
      const { storage } = await folder.started({}, [stream]);
      const queue = { ns: 'S', name: 'q' };
      const reserve = async (group: string): Promise<string> => {
        await storage.insert(queue, [newElement({ groups: [group] })]);
        const { deliveries } = await storage.take(queue, { group, count: 1, leaseMs: 1000 });
        return deliveries[0]?.id ?? '';
      };
      const first = await reserve('a');
      assert.deepEqual(await commit(storage, queue, [{ id: first, group: 'a', token: null }]), ['done']);
      const second = await reserve('b');
      folder.clock.advance(2000);
      await storage.sweep();
      const { ready, reserved } = await storage.counts(queue);
      assert.deepEqual({ ready, reserved }, { ready: 1, reserved: 0 });
      const { deliveries } = await storage.take(queue, { group: 'b', count: 1, leaseMs: null });
      assert.deepEqual([deliveries[0]?.id, deliveries[0]?.tries], [second, 1]);
    });
  });
});

describe('Stream elements of SQLite that are past their retention', () => {
  it('are removed in sweeps of about a thousand deliveries, however many groups they have', async () => {
    await withFolder(async (folder) => {
      const groups = Array.from({ length: 60 }, (_, i) => `g${i}`);
      const engine = await folder.started({}, [plain('S', { groups, retentionMs: HOUR_MS })]);
      const { storage } = engine;
      const stream = { ns: 'S', name: 'stream' };
      const elements = Array.from({ length: 100 }, () => newElement({ body: '', groups }));
      await storage.insert(stream, elements);
      folder.clock.advance(HOUR_MS);
      let left = elements.length * groups.length;
      while (left > 0) {
        const nextAt = await storage.sweep();
        const before = left;
        left = (await storage.usage('S')).elements;
        assert.ok(before - left <= 1000 + groups.length, `${before - left} deliveries in one sweep`);
        assert.ok(
          left === 0 || (left < before && nextAt === folder.clock.now()),
          'the next sweep must follow at once',
        );
      }
    });
  });
});

describe('A SQLite queue that is dropped', () => {
  it('leaves its idempotency keys, which may be millions, to the sweep; a later queue does not know them', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started();
      const keyed = Array.from({ length: 100 }, (_, i) => newElement({ dedupKey: `k${i}` }));
      const before = await first.storage.insert(named('dropped'), keyed);
      await first.storage.purge(named('dropped'));
      assert.equal(await first.storage.drop(named('dropped')), true);
      await first.stop();
      assert.equal(keysIn(folder), 100);
      const second = await folder.started();
      let repeats = 0;
      const onRepeat = (): void => {
        repeats += 1;
      };
      for (const name of ['other', 'dropped']) {
        const ids = await second.storage.insert(named(name), keyed, { onRepeat });
        assert.equal(new Set([...before, ...ids]).size, 200);
      }
      assert.equal(repeats, 0);
      await passHours(folder, second, 26);
      await second.stop();
      assert.equal(keysIn(folder), 0);
    });
  });
});

function keysIn({ file }: SqliteFolder): unknown {
  const db = new DatabaseSync(file, { readOnly: true });
  try {
    return db.prepare('SELECT count(*) AS count FROM dedup').get()?.count;
  } finally {
    db.close();
  }
}
