import assert from 'node:assert/strict';
import { existsSync, rmSync, statfsSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { Faults } from '../engines/sqlite-faults.ts';
import { QUEUE, SqliteFolder, withFolder } from '../engines/sqlite-folder.ts';
import { newElement } from '../support/elements.ts';
import { commit, rollback, transfer } from '../support/settle.ts';
import { mountSmallDisk } from '../support/small-disk.ts';

const MIB = 1024 * 1024;
const DISK = 24 * MIB;
const SETTINGS = { ballastBytes: 2 * MIB, minFreeBytes: 8 * MIB };
const BODY = Buffer.alloc(10_000, 'x');
const SQLITE_FULL = 13;
const popping = { group: '', leaseMs: null };

/**
 * Whether a small disk can be mounted, which requires root. Otherwise only the tests with injected errors run, except
 * in CI, where they fail.
 */
function mayMount(): boolean {
  const disk = mountSmallDisk(MIB);
  disk?.remove();
  return disk !== null || process.env.CI !== undefined;
}

async function onSmallDisk(test: (folder: SqliteFolder) => Promise<void>, bytes = DISK): Promise<void> {
  const disk = mountSmallDisk(bytes);
  assert.ok(disk !== null, 'no small disk could be mounted');
  const folder = new SqliteFolder(disk.path);
  try {
    await test(folder);
  } finally {
    await folder.close();
    disk.remove();
  }
}

/** Inserts until an insert is rejected. Returns the number of acknowledged elements. */
async function fill({ storage }: Engine): Promise<number> {
  for (let stored = 0; ; stored += 10) {
    try {
      await storage.insert(
        QUEUE,
        Array.from({ length: 10 }, () => newElement({ body: BODY })),
      );
    } catch (error) {
      assert.ok(error instanceof QuaysideError);
      assert.equal(error.code, 'storage-full');
      return stored;
    }
  }
}

async function popAll({ storage }: Engine): Promise<number> {
  for (let popped = 0; ; ) {
    const { deliveries } = await storage.take(QUEUE, { ...popping, count: 50 });
    if (deliveries.length === 0) return popped;
    assert.ok(deliveries.every(({ body }) => BODY.equals(body)));
    popped += deliveries.length;
  }
}

/** Fills the rest of the disk with another file. Returns its path. */
function fillUp(folder: SqliteFolder): string {
  const other = join(folder.path, 'other file');
  const { bavail, bsize } = statfsSync(folder.path);
  writeFileSync(other, Buffer.alloc(bavail * bsize));
  assert.equal(statfsSync(folder.path).bavail, 0);
  return other;
}

describe('A SQLite store whose disk is reported as full', () => {
  it('rejects only inserts when free space is below the margin', async () => {
    await withFolder(async (folder) => {
      const before = await folder.started();
      await before.storage.insert(QUEUE, [newElement({ body: 'a' }), newElement({ body: 'b' })]);
      await before.stop();
      const { storage } = await folder.started({ minFreeBytes: Number.MAX_SAFE_INTEGER });
      await assert.rejects(storage.insert(QUEUE, [newElement()]), { code: 'storage-full' });
      const [held] = (await storage.take(QUEUE, { group: '', count: 1, leaseMs: 1000 })).deliveries;
      const ref = { id: held?.id ?? '', group: '', token: null };
      const inserts = [{ queue: QUEUE, element: newElement() }];
      await assert.rejects(transfer(storage, [{ from: QUEUE, finish: ref, inserts }]), {
        code: 'storage-full',
      });
      assert.deepEqual(await transfer(storage, [{ from: QUEUE, finish: ref, inserts: [] }]), ['done']);
      assert.equal((await storage.take(QUEUE, { ...popping, count: 1 })).deliveries.length, 1);
    });
  });

  it('restores its ballast file if it is deleted or truncated while the engine runs', async () => {
    await withFolder(async (folder) => {
      const { storage } = await folder.started({ ballastBytes: MIB });
      const ballast = `${folder.file}.ballast`;
      await storage.insert(QUEUE, [newElement()]);
      for (const spoil of [rmSync, truncateSync]) {
        spoil(ballast);
        folder.clock.advance(1000);
        await storage.insert(QUEUE, [newElement()]);
        assert.equal(statSync(ballast).size, MIB);
      }
      assert.deepEqual(folder.warnings, []);
    });
  });

  it('deletes its ballast for a take that finds no space, and the take succeeds', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const engine = await folder.started({ testThread: faults.thread, ballastBytes: MIB });
      await engine.storage.insert(QUEUE, [newElement({ body: 'a' })]);
      const ballast = `${folder.file}.ballast`;
      assert.ok(existsSync(ballast));
      let wasThere = true;
      faults.arm('commit', SQLITE_FULL);
      const taken = engine.storage.take(QUEUE, { ...popping, count: 1 }).then((result) => {
        wasThere = existsSync(ballast);
        return result;
      });
      assert.equal((await taken).deliveries.length, 1);
      assert.equal(wasThere, false);
      assert.ok(folder.warnings.some(({ message }) => message.includes('ballast file was deleted')));
      await engine.storage.insert(QUEUE, [newElement({ body: 'b' })]);
      assert.ok(existsSync(ballast), 'the ballast must be restored before inserts are accepted');
    });
  });
});

if (mayMount())
  describe('A SQLite store on a full disk', () => {
    it('rejects inserts early, keeps its ballast, and serves all other calls', async () => {
      await onSmallDisk(async (folder) => {
        const engine = await folder.started(SETTINGS);
        const { storage } = engine;
        const stored = await fill(engine);
        assert.ok(stored > 200);
        const { bavail, bsize } = statfsSync(folder.path);
        assert.ok(bavail * bsize > 4 * MIB, 'too little space is left');
        assert.ok(existsSync(`${folder.file}.ballast`));
        const [held] = (await storage.take(QUEUE, { group: '', count: 1, leaseMs: 1000 })).deliveries;
        const ref = { id: held?.id ?? '', group: '', token: held?.lease?.token ?? '' };
        assert.deepEqual(await rollback(storage, QUEUE, [{ ...ref, delayMs: 0, countTry: false }]), ['done']);
        await assert.rejects(
          transfer(storage, [
            { from: QUEUE, finish: ref, inserts: [{ queue: QUEUE, element: newElement() }] },
          ]),
          { code: 'storage-full' },
        );
        assert.ok(folder.warnings.some(({ message }) => message.includes('nearly full')));
        assert.equal(await popAll(engine), stored);
      });
    });

    it('delivers what many large inserts have stored that arrived together', async () => {
      await onSmallDisk(async (folder) => {
        const { storage } = await folder.started({ ballastBytes: 16 * MIB, minFreeBytes: 64 * MIB });
        const large = Array(16).fill(newElement({ body: Buffer.alloc(MIB - 2000, 'x') }));
        const inserts = Array.from({ length: 4 }, () => storage.insert(QUEUE, large));
        const results = await Promise.allSettled(inserts);
        const stored = results.filter(({ status }) => status === 'fulfilled').length;
        assert.ok(stored > 0);
        let popped = 0;
        for (let count = -1; count !== 0; popped += count) {
          count = (await storage.take(QUEUE, { ...popping, count: 1 })).deliveries.length;
        }
        assert.equal(popped, stored * large.length);
      }, 104 * MIB);
    });

    it('delivers, commits and rolls back without a free byte by deleting its ballast', async () => {
      await onSmallDisk(async (folder) => {
        const engine = await folder.started(SETTINGS);
        const { storage } = engine;
        const stored = await fill(engine);
        fillUp(folder);
        for (let settled = 0; settled < 40; settled += 2) {
          const { deliveries } = await storage.take(QUEUE, { group: '', count: 2, leaseMs: 60_000 });
          const [first, second] = deliveries.map(({ id }) => ({ id, group: '', token: null }));
          assert.ok(first !== undefined && second !== undefined);
          assert.deepEqual(await commit(storage, QUEUE, [first]), ['done']);
          const back = { ...second, delayMs: 0, countTry: false };
          assert.deepEqual(await rollback(storage, QUEUE, [back]), ['done']);
        }
        assert.equal(await popAll(engine), stored - 20);
        await engine.ping();
      });
    });

    it('delivers and commits even if there is no space for dead letters, which it moves once there is space', async () => {
      await onSmallDisk(async (folder) => {
        const { storage } = await folder.started({ ...SETTINGS, minFreeBytes: 2 * MIB });
        const large = Buffer.alloc(MIB, 'y');
        // One per call, so that the log stays small.
        for (let i = 0; i < 10; i += 1) await storage.insert(QUEUE, [newElement({ body: large, tries: 1 })]);
        const { deliveries } = await storage.take(QUEUE, { group: '', count: 10, leaseMs: 1000 });
        assert.equal(deliveries.length, 10);
        await storage.insert(QUEUE, [newElement({ body: 'a' }), newElement({ body: 'b' })]);
        const other = fillUp(folder);
        folder.clock.advance(1000);
        const [held] = (await storage.take(QUEUE, { group: '', count: 1, leaseMs: 60_000 })).deliveries;
        assert.equal(held?.body.byteLength, 1);
        assert.deepEqual(await commit(storage, QUEUE, [{ id: held.id, group: '', token: null }]), ['done']);
        assert.equal((await storage.take(QUEUE, { ...popping, count: 1 })).deliveries.length, 1);
        rmSync(other);
        for (let step = 0; step < 10; step += 1) await storage.sweep();
        const { reserved } = await storage.counts(QUEUE);
        assert.equal(reserved, 0);
        const dead = { ns: 'N', name: '__deadletter__' };
        const letters = (await storage.take(dead, { ...popping, count: 10 })).deliveries;
        assert.equal(letters.length, 10);
        assert.ok(letters.every(({ body }) => large.equals(body)));
      });
    });

    it('accepts inserts and restores its ballast once there is space', async () => {
      await onSmallDisk(async (folder) => {
        const engine = await folder.started(SETTINGS);
        const stored = await fill(engine);
        const other = fillUp(folder);
        await popAll(engine);
        await assert.rejects(engine.storage.insert(QUEUE, [newElement()]), { code: 'storage-full' });
        rmSync(other);
        // The queue is empty; sweeps return its pages to the disk.
        const end = performance.now() + 60_000;
        for (let refused = true; refused; ) {
          assert.ok(performance.now() < end, 'inserts were still rejected after a minute');
          await engine.storage.sweep();
          refused = await engine.storage.insert(QUEUE, [newElement({ body: BODY })]).then(
            () => false,
            () => true,
          );
        }
        assert.ok(existsSync(`${folder.file}.ballast`));
        assert.ok(folder.warnings.some(({ message }) => message.includes('inserts are accepted')));
        assert.ok((await fill(engine)) > stored / 2);
      });
    });

    it('opens on a disk without a free byte, so that consumers continue after a restart', async () => {
      await onSmallDisk(async (folder) => {
        const first = await folder.started(SETTINGS);
        const stored = await fill(first);
        await first.stop();
        fillUp(folder);
        const second = await folder.started(SETTINGS);
        await assert.rejects(second.storage.insert(QUEUE, [newElement()]), { code: 'storage-full' });
        assert.equal(await popAll(second), stored);
      });
    });
  });
