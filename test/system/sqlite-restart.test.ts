import assert from 'node:assert/strict';
import { statSync } from 'node:fs';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { QUEUE, withFolder } from '../engines/sqlite-folder.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { commit, purge, remove, rollback } from '../support/settle.ts';
import { sweepAffected } from '../support/sweep.ts';

const MIB = 1024 * 1024;
const popping = { group: '', leaseMs: null };

describe('A SQLite file across restarts', () => {
  it('keeps elements, maturities, tries, leases, tokens and order', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started();
      const now = folder.clock.now();
      await first.storage.insert(QUEUE, [
        newElement({ body: 'held', headers: ['h', 'v'] }),
        newElement({ body: 'ready', tries: 1 }),
        newElement({ body: 'late', matureAt: now + 90_000 }),
      ]);
      const [held] = (await first.storage.take(QUEUE, { group: '', count: 1, leaseMs: 60_000 })).deliveries;
      assert.ok(held?.lease);
      await first.stop();

      const second = await folder.started();
      const { ready, scheduled, reserved, nextMatureAt } = await second.storage.counts(QUEUE);
      assert.deepEqual({ ready, scheduled, reserved }, { ready: 1, scheduled: 1, reserved: 1 });
      assert.equal(nextMatureAt, now);
      assert.equal(await second.storage.sweep(), held.lease.until);
      const ref = { id: held.id, group: '', token: held.lease.token };
      assert.deepEqual(await rollback(second.storage, QUEUE, [{ ...ref, delayMs: 0, countTry: false }]), [
        'done',
      ]);
      const { deliveries, nextDueAt } = await second.storage.take(QUEUE, { ...popping, count: 9 });
      assert.deepEqual(bodyTexts(deliveries), ['held', 'ready']);
      assert.deepEqual(deliveries[0]?.headers, ['h', 'v']);
      assert.equal(deliveries[1]?.tries, 1);
      assert.equal(nextDueAt, now + 90_000);
    });
  });

  it('makes elements ready that had transient reservations, without a failed try', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started();
      await first.storage.insert(QUEUE, newElements('done', 'held', 'next'));
      const reserving = { group: '', count: 2, leaseMs: 60_000, isTransient: true };
      const [done, held] = (await first.storage.take(QUEUE, reserving)).deliveries;
      assert.ok(done?.lease && held?.lease);
      const ref = { id: done.id, group: '', token: done.lease.token };
      assert.deepEqual(await commit(first.storage, QUEUE, [ref]), ['done']);
      await first.stop();

      const second = await folder.started();
      const { ready, reserved } = await second.storage.counts(QUEUE);
      assert.deepEqual({ ready, reserved }, { ready: 2, reserved: 0 });
      const { deliveries } = await second.storage.take(QUEUE, { ...popping, count: 9 });
      assert.deepEqual(bodyTexts(deliveries), ['held', 'next']);
      assert.deepEqual(
        deliveries.map(({ tries }) => tries),
        [0, 0],
      );
    });
  });

  for (const sweeps of [true, false]) {
    it(`ends leases that expired while it was closed, ${sweeps ? 'at a sweep' : 'at the first take'}`, async () => {
      await withFolder(async (folder) => {
        const first = await folder.started();
        await first.storage.insert(QUEUE, newElements('a'));
        await first.storage.take(QUEUE, { group: '', count: 1, leaseMs: 1000 });
        await first.stop();
        folder.clock.advance(5000);
        const second = await folder.started();
        if (sweeps) assert.deepEqual(await sweepAffected(second.storage), [QUEUE]);
        const [again] = (await second.storage.take(QUEUE, { ...popping, count: 1 })).deliveries;
        assert.equal(again?.tries, 1);
      });
    });
  }

  it('counts the elements of a stream after a restart in steps, between which other calls run', async () => {
    await withFolder(async (folder) => {
      const stream = { ns: 'S', name: 'stream' };
      const count = 50_000;
      const first = await folder.started();
      const batch = Array.from({ length: 1000 }, () => newElement({ body: '', groups: ['a', 'b'] }));
      for (let i = 0; i < count; i += batch.length) await first.storage.insert(stream, batch);
      await first.stop();
      const second = await folder.started();
      const answers: string[] = [];
      const counting = second.storage.counts(stream).finally(() => answers.push('counts'));
      const pinging = second.ping().finally(() => answers.push('ping'));
      const [{ ready }] = await Promise.all([counting, pinging]);
      assert.equal(ready, count);
      assert.deepEqual(answers, ['ping', 'counts']);
    });
  });

  it('never issues an id, a token or a version twice', async () => {
    await withFolder(async (folder) => {
      const seen = new Set<string>();
      for (let opening = 0; opening < 4; opening++) {
        const engine = await folder.started();
        await engine.storage.insert(QUEUE, newElements('a', 'b'));
        const { deliveries } = await engine.storage.take(QUEUE, { group: '', count: 2, leaseMs: 1000 });
        for (const { id, lease } of deliveries) {
          seen.add(id);
          seen.add(lease?.token ?? '');
          await commit(engine.storage, QUEUE, [{ id, group: '', token: null }]);
        }
        seen.add(await engine.definitions.put('queue', 'k', opening, 'any'));
        await engine.stop();
      }
      assert.equal(seen.size, 4 * 5);
    });
  });

  it('does not accept ids of another file', async () => {
    await withFolder(async (folder) => {
      await withFolder(async (other) => {
        const [here, there] = [await folder.started(), await other.started()];
        const [id = ''] = await here.storage.insert(QUEUE, newElements('here'));
        await there.storage.insert(QUEUE, newElements('there'));
        assert.deepEqual(await remove(there.storage, QUEUE, [id]), ['not-found']);
        assert.deepEqual(await remove(here.storage, QUEUE, [id]), ['done']);
      });
    });
  });

  it('keeps queues, definitions, counts and dedup keys', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started();
      await first.storage.declare([{ ns: 'N', name: 'empty' }]);
      const [id] = await first.storage.insert(QUEUE, [newElement({ dedupKey: 'k' })]);
      const version = await first.definitions.put('exchange', 'x', { src: 'a' }, null);
      first.stats.add(QUEUE, '', { put: 3 });
      await first.stop();
      const second = await folder.started();
      assert.deepEqual(await second.storage.queues('N'), ['empty', 'orders']);
      assert.deepEqual(await second.storage.insert(QUEUE, [newElement({ dedupKey: 'k' })]), [id]);
      assert.deepEqual(await second.definitions.list('exchange'), [
        { key: 'x', value: { src: 'a' }, version },
      ]);
      assert.equal((await second.stats.read(QUEUE)).get('')?.put, 3);
    });
  });

  it('applies a changed policy to stored elements', async () => {
    await withFolder(async (folder) => {
      const lenient = { name: 'N', groups: null, deadLetter: null, retentionMs: null };
      const first = await folder.started({}, [lenient]);
      await first.storage.insert(QUEUE, [newElement({ body: 'old', tries: 7 })]);
      await first.stop();
      const strict = { ...lenient, deadLetter: { maxTries: 3, queue: 'dead' } };
      const second = await folder.started({}, [strict]);
      const [held] = (await second.storage.take(QUEUE, { group: '', count: 1, leaseMs: 1000 })).deliveries;
      const back = { id: held?.id ?? '', group: '', token: null, delayMs: 0, countTry: true };
      assert.deepEqual(await rollback(second.storage, QUEUE, [back]), ['dead-lettered']);
    });
  });

  it('deletes purged elements, even after a restart, and returns their disk space', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started();
      const body = Buffer.alloc(20_000, 'x');
      for (let batch = 0; batch < 20; batch++) {
        await first.storage.insert(
          QUEUE,
          Array.from({ length: 100 }, () => newElement({ body })),
        );
      }
      const { deliveries } = await first.storage.take(QUEUE, { group: '', count: 3, leaseMs: 600_000 });
      assert.equal(await purge(first.storage, QUEUE), 2000);
      await first.stop();
      const full = statSync(folder.file).size;
      assert.ok(full > 30 * MIB);
      const second = await folder.started();
      const left = await second.storage.take(QUEUE, { ...popping, count: 1 });
      assert.deepEqual([left.deliveries, left.nextDueAt], [[], null]);
      const ref = { id: deliveries[0]?.id ?? '', group: '', token: null };
      assert.deepEqual(await commit(second.storage, QUEUE, [ref]), ['not-found']);
      await second.storage.insert(QUEUE, newElements('one that stays'));
      await swept(second);
      assert.ok(statSync(folder.file).size < 20 * MIB);
      assert.equal(await second.storage.sweep(), null);
      assert.deepEqual(second.storage.takeAffected(), []);
      await second.stop();
      assert.ok(statSync(folder.file).size < 20 * MIB);
      const third = await folder.started();
      assert.equal((await third.storage.counts(QUEUE)).ready, 1);
    });
  });

  it('returns the disk space of a drained queue even if one old element remains', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      await engine.storage.insert(QUEUE, [newElement({ body: 'old', delayMs: 3_600_000 })]);
      const body = Buffer.alloc(20_000, 'x');
      for (let batch = 0; batch < 20; batch++) {
        await engine.storage.insert(
          QUEUE,
          Array.from({ length: 100 }, () => newElement({ body })),
        );
      }
      for (let left = 2000; left > 0; ) {
        left -= (await engine.storage.take(QUEUE, { ...popping, count: 100 })).deliveries.length;
      }
      await swept(engine);
      assert.ok(statSync(folder.file).size < 20 * MIB);
      await engine.stop();
      assert.ok(statSync(folder.file).size < 20 * MIB);
    });
  });

  it('keeps its log short under continuous load', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started({ durability: 'normal' });
      const elements = Array.from({ length: 100 }, () => newElement({ body: Buffer.alloc(2000) }));
      let largest = 0;
      const load = async (): Promise<void> => {
        for (let round = 0; round < 60; round++) {
          await engine.storage.insert(QUEUE, elements);
          await engine.storage.take(QUEUE, { ...popping, count: 100 });
          largest = Math.max(largest, statSync(`${folder.file}-wal`).size);
        }
      };
      await Promise.all([load(), load(), load(), load()]);
      // 48 MiB were written to the log.
      assert.ok(largest < 16 * MIB, `the log grew to ${largest} bytes`);
    });
  });
});

/** Sweeps until no further sweep is due, as a node does, but at most 1000 times. */
async function swept({ storage }: Engine): Promise<void> {
  for (let sweeps = 0; sweeps < 1000; sweeps++) {
    const nextAt = await storage.sweep();
    if (nextAt === null || nextAt > storage.now()) return;
  }
  assert.fail('a sweep was still due after 1000 sweeps');
}
