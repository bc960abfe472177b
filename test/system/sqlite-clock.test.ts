import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { QUEUE, type SqliteFolder, withFolder } from '../engines/sqlite-folder.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';

const HOUR_MS = 3_600_000;
const popping = { group: '', leaseMs: null, count: 9 };

function setBack({ clock }: SqliteFolder, byMs: number): void {
  clock.setWallTime(clock.now() - byMs);
}

async function popBodies({ storage }: Engine): Promise<string[]> {
  return bodyTexts((await storage.take(QUEUE, popping)).deliveries);
}

describe('A SQLite engine whose clock is changed while it runs', () => {
  it('delivers ready elements even if the clock is repeatedly set back by an hour', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      const { storage } = engine;
      for (let round = 0; round < 3; round++) {
        await storage.insert(QUEUE, newElements('ready'));
        setBack(folder, HOUR_MS);
        const { ready, scheduled } = await storage.counts(QUEUE);
        assert.deepEqual({ ready, scheduled }, { ready: 1, scheduled: 0 });
        assert.deepEqual(await popBodies(engine), ['ready']);
      }
    });
  });

  it('ends leases and delays after their length, at most 1 % late', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      const { storage } = engine;
      await storage.insert(QUEUE, [newElement({ body: 'reserved' })]);
      await storage.take(QUEUE, { group: '', count: 1, leaseMs: 10_000 });
      await storage.insert(QUEUE, [newElement({ body: 'delayed', delayMs: 10_000 })]);
      setBack(folder, HOUR_MS);
      folder.clock.advance(9_990);
      assert.deepEqual(await popBodies(engine), []);
      folder.clock.advance(120);
      assert.deepEqual((await popBodies(engine)).sort(), ['delayed', 'reserved']);
    });
  });

  it('interprets a maturity given after the clock was set back by the new clock, and never delivers early', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      setBack(folder, HOUR_MS);
      const matureAt = folder.clock.now() + 10_000;
      await engine.storage.insert(QUEUE, [newElement({ body: 'at that moment', matureAt })]);
      folder.clock.advance(9_999);
      assert.deepEqual(await popBodies(engine), []);
      folder.clock.advance(121);
      assert.deepEqual(await popBodies(engine), ['at that moment']);
    });
  });

  it('follows a clock that is set forward, and gradually returns to a clock that was set back', async () => {
    await withFolder(async (folder) => {
      const { clock } = folder;
      const engine = await folder.started();
      await engine.storage.insert(QUEUE, [newElement({ body: 'delayed', delayMs: HOUR_MS })]);
      clock.setWallTime(clock.now() + HOUR_MS);
      assert.deepEqual(await popBodies(engine), ['delayed']);
      setBack(folder, HOUR_MS);
      assert.ok(engine.storage.now() >= clock.now() + HOUR_MS - 1);
      for (let hour = 0; hour < 101; hour++) {
        clock.advance(HOUR_MS);
        engine.storage.now();
      }
      assert.equal(engine.storage.now(), clock.now());
      setBack(folder, HOUR_MS);
      engine.storage.now();
      clock.setWallTime(clock.now() + HOUR_MS);
      assert.equal(engine.storage.now(), clock.now());
    });
  });

  it('starts with a warning if the clock is behind, and counts and delivers stored elements by the current clock', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started();
      await first.storage.insert(QUEUE, newElements('ready'));
      assert.equal((await first.storage.counts(QUEUE)).ready, 1);
      await first.stop();
      setBack(folder, HOUR_MS);
      const second = await folder.started();
      assert.match(folder.warnings[0]?.message ?? '', /clock is behind the time when the file was last used/);
      assert.deepEqual(folder.warnings[0]?.fields, { file: folder.file, behindMs: HOUR_MS });
      const { ready, scheduled } = await second.storage.counts(QUEUE);
      assert.deepEqual({ ready, scheduled }, { ready: 0, scheduled: 1 });
      assert.deepEqual(await popBodies(second), []);
      folder.clock.advance(HOUR_MS);
      assert.deepEqual(await popBodies(second), ['ready']);
      await second.stop();
      await folder.started();
      assert.equal(folder.warnings.length, 1);
    });
  });
});
