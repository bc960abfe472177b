import assert from 'node:assert/strict';
import { existsSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { Faults } from '../engines/sqlite-faults.ts';
import { QUEUE, type SqliteFolder, withFolder } from '../engines/sqlite-folder.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { commit, transfer } from '../support/settle.ts';

const MIB = 1024 * 1024;
const SQLITE_IOERR = 10;
const popping = { group: '', leaseMs: null };

async function backUp(engine: Engine, file: string): Promise<number> {
  assert.ok(engine.backUp !== undefined);
  return engine.backUp(file);
}

/** Stops the engine, replaces the database by a backup and starts again. */
async function restore(folder: SqliteFolder, engine: Engine, copy: string): Promise<Engine> {
  await engine.stop();
  rmSync(folder.file);
  renameSync(copy, folder.file);
  return folder.started();
}

describe('A backup of a running SQLite engine', () => {
  it('contains elements, reservations, tries, definitions and counts, readable only by its owner', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      const [id = ''] = await engine.storage.insert(QUEUE, newElements('reserved', 'ready'));
      const { deliveries } = await engine.storage.take(QUEUE, { group: '', count: 1, leaseMs: 60_000 });
      await engine.definitions.put('queue', 'N/orders', { paused: true }, null);
      const copy = join(folder.path, 'copy.db');
      assert.equal(await backUp(engine, copy), statSync(copy).size);
      assert.equal(statSync(copy).mode & 0o777, 0o600);
      assert.deepEqual(readdirSync(folder.path).sort(), ['copy.db', 'test.db', 'test.db-wal']);
      await engine.storage.insert(QUEUE, newElements('after the backup'));
      const restored = await restore(folder, engine, copy);
      const { ready, reserved } = await restored.storage.counts(QUEUE);
      assert.deepEqual({ ready, reserved }, { ready: 1, reserved: 1 });
      const ref = { id, group: '', token: deliveries[0]?.lease?.token ?? '' };
      assert.deepEqual(await commit(restored.storage, QUEUE, [ref]), ['done']);
      assert.deepEqual((await restored.definitions.get('queue', 'N/orders'))?.value, { paused: true });
      const left = await restored.storage.take(QUEUE, { ...popping, count: 9 });
      assert.deepEqual(bodyTexts(left.deliveries), ['ready']);
    });
  });

  it('leads to no reused id when it is restored, however often the lost file was opened, restored or copied', async () => {
    await withFolder(async (folder) => {
      const ids = new Set<string>();
      const insert = async ({ storage }: Engine, count: number): Promise<void> => {
        for (const id of await storage.insert(QUEUE, Array(count).fill(newElement()))) {
          assert.ok(!ids.has(id), `${id} was given twice`);
          ids.add(id);
        }
      };
      let engine = await folder.started();
      await insert(engine, 10);
      const [first, second] = ['one.db', 'two.db'].map((name) => join(folder.path, name));
      await backUp(engine, first ?? '');
      await backUp(engine, second ?? '');
      await insert(engine, 10);
      for (let start = 0; start < 3; start++) {
        await engine.stop();
        engine = await folder.started();
        await insert(engine, 10);
      }
      for (const copy of [first, second]) {
        engine = await restore(folder, engine, copy ?? '');
        await insert(engine, 10);
        await engine.stop();
        engine = await folder.started();
        await insert(engine, 10);
      }
      // Ids from before the backup still identify their elements.
      const { deliveries } = await engine.storage.take(QUEUE, { ...popping, count: 100 });
      assert.equal(deliveries.length, 30);
      assert.ok(deliveries.every(({ id }) => ids.has(id)));
    });
  });

  it('is a consistent snapshot while inserts and takes continue', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started({ durability: 'normal' });
      const { storage } = engine;
      const filler = newElement({ body: Buffer.alloc(MIB, 'x') });
      for (let megabytes = 0; megabytes < 40; megabytes += 10) {
        await storage.insert({ ns: 'N', name: 'filler' }, Array(10).fill(filler));
      }
      let isDone = false;
      let calls = 0;
      // Each transaction moves one element between the queues, so that both together always have 100.
      const other = { ns: 'N', name: 'other' };
      await storage.insert(QUEUE, Array(100).fill(newElement()));
      const load = async (): Promise<void> => {
        for (let round = 0; !isDone; round++) {
          const [from, to] = round % 2 === 0 ? [QUEUE, other] : [other, QUEUE];
          const { deliveries } = await storage.take(from, { group: '', count: 1, leaseMs: 60_000 });
          for (const { id } of deliveries) {
            const finish = { id, group: '', token: null };
            await transfer(storage, [{ from, finish, inserts: [{ queue: to, element: newElement() }] }]);
          }
          calls++;
        }
      };
      const loads = Promise.all([load(), load(), load(), load()]);
      const copy = join(folder.path, 'copy.db');
      try {
        await backUp(engine, copy);
      } finally {
        isDone = true;
        await loads;
      }
      assert.ok(calls > 10, `${calls} rounds while the backup ran`);
      const db = new DatabaseSync(copy);
      assert.equal(db.prepare('PRAGMA integrity_check').get()?.integrity_check, 'ok');
      assert.equal(db.prepare('SELECT count(*) AS n FROM delivery').get()?.n, 140);
      db.close();
    });
  });

  it('is canceled when the engine stops, and leaves no file', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started({ durability: 'normal' });
      const filler = newElement({ body: Buffer.alloc(MIB, 'x') });
      for (let megabytes = 0; megabytes < 60; megabytes += 10) {
        await engine.storage.insert(QUEUE, Array(10).fill(filler));
      }
      const copy = join(folder.path, 'copy.db');
      const backup = assert.rejects(backUp(engine, copy), { code: 'shutting-down' });
      await engine.stop();
      await backup;
      assert.deepEqual(readdirSync(folder.path), ['test.db']);
      assert.equal((await (await folder.started()).storage.counts(QUEUE)).ready, 60);
    });
  });

  it('is canceled when the store fails, and leaves no file', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const engine = await folder.started({ durability: 'normal', testThread: faults.thread });
      const filler = newElement({ body: Buffer.alloc(MIB, 'x') });
      for (let megabytes = 0; megabytes < 60; megabytes += 10) {
        await engine.storage.insert(QUEUE, Array(10).fill(filler));
      }
      const copy = join(folder.path, 'copy.db');
      const backup = assert.rejects(backUp(engine, copy), { code: 'storage-unavailable' });
      faults.arm('begin', SQLITE_IOERR);
      await assert.rejects(engine.ping(), { code: 'storage-unavailable' });
      await backup;
      await engine.stop();
      assert.deepEqual(
        readdirSync(folder.path).filter((name) => name.startsWith('copy')),
        [],
      );
    });
  });

  it('is rejected, and leaves no file, if the disk is too full or its folder is missing', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started({ minFreeBytes: Number.MAX_SAFE_INTEGER });
      const copy = join(folder.path, 'copy.db');
      await assert.rejects(backUp(engine, copy), { code: 'storage-full' });
      const second = folder.engine({}, [], 'sqlite:second.db');
      await second.start();
      await assert.rejects(backUp(second, join(folder.path, 'missing', 'copy.db')), {
        code: 'storage-unavailable',
      });
      assert.ok(!existsSync(copy));
      await second.storage.insert(QUEUE, newElements('still served'));
    });
  });

  it('is not offered by an engine in memory', async () => {
    await withFolder(async (folder) => {
      assert.equal(folder.engine({}, [], 'sqlite::memory:').backUp, undefined);
    });
  });
});
