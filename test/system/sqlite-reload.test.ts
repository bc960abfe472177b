import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { NamespacePolicy } from '../../src/engine/engine.ts';
import type { NewElement } from '../../src/model/element.ts';
import { Faults } from '../engines/sqlite-faults.ts';
import { withFolder } from '../engines/sqlite-folder.ts';
import { newElement } from '../support/elements.ts';
import { commit, type DeliveryRef } from '../support/settle.ts';

const SQLITE_NOMEM = 7;
const SQLITE_FULL = 13;
const HOUR_MS = 3_600_000;

const FIRST = { ns: 'first', name: 'q' };
const SECOND = { ns: 'second', name: 'q' };

/** Two streams, of which the first has these additional options. */
function namespaces(terms: Partial<NamespacePolicy>): NamespacePolicy[] {
  const stream = { groups: ['g'], deadLetter: null, retentionMs: null };
  return [
    { ...stream, name: FIRST.ns, ...terms },
    { ...stream, name: SECOND.ns },
  ];
}

function element(): NewElement {
  return newElement({ groups: ['g'] });
}

/** SQLite reuses the row id of a rolled-back queue for the next one. */
describe('A SQLite transaction that is rolled back', () => {
  it('leaves no retention behind for the next new queue', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const { storage } = await folder.started(
        { testThread: faults.thread },
        namespaces({ retentionMs: HOUR_MS }),
      );
      faults.arm('commit', SQLITE_FULL);
      await assert.rejects(storage.insert(FIRST, [element()]), { code: 'storage-full' });
      assert.deepEqual(await storage.queues(FIRST.ns), []);
      for (let i = 0; i < 3; i++) {
        // The first inserts may be rejected, because the disk was full a moment ago.
        await storage.insert(SECOND, [element()]).catch(() => {});
      }
      const { ready } = await storage.counts(SECOND);
      assert.ok(ready > 0);
      folder.clock.advance(HOUR_MS + 1000);
      await storage.sweep();
      assert.equal((await storage.counts(SECOND)).ready, ready);
    });
  });

  it('leaves no lease behind for the next new queue', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const deadLetter = { maxTries: 1, queue: 'dead' };
      const { storage } = await folder.started({ testThread: faults.thread }, namespaces({ deadLetter }));
      faults.arm('commit', SQLITE_FULL);
      await Promise.allSettled([
        storage.insert(FIRST, [element()]),
        storage.take(FIRST, { group: 'g', count: 1, leaseMs: 1000 }),
      ]);
      await storage.insert(SECOND, [element()]);
      const { deliveries } = await storage.take(SECOND, { group: 'g', count: 1, leaseMs: 1000 });
      assert.equal(deliveries.length, 1);
      folder.clock.advance(2000);
      await storage.sweep();
      const { ready, reserved } = await storage.counts(SECOND);
      assert.deepEqual({ ready, reserved }, { ready: 1, reserved: 0 });
      assert.equal((await storage.counts({ ns: FIRST.ns, name: 'dead' })).ready, 0);
    });
  });

  it('ends an expired lease and a retention again after their end was rolled back', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const { storage } = await folder.started(
        { testThread: faults.thread },
        namespaces({ retentionMs: HOUR_MS }),
      );
      await storage.insert(FIRST, [element()]);
      await storage.insert(SECOND, [element()]);
      await storage.take(SECOND, { group: 'g', count: 1, leaseMs: HOUR_MS });
      folder.clock.advance(HOUR_MS + 1000);
      faults.arm('commit', SQLITE_NOMEM);
      await storage.sweep();
      assert.equal((await storage.counts(FIRST)).ready, 0);
      const { ready, reserved } = await storage.counts(SECOND);
      assert.deepEqual({ ready, reserved }, { ready: 1, reserved: 0 });
    });
  });

  it('ends an expired lease again after its end was rolled back, without a sweep', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const { storage } = await folder.started({ testThread: faults.thread });
      await storage.insert(SECOND, [element()]);
      await storage.take(SECOND, { group: 'g', count: 1, leaseMs: 1000 });
      folder.clock.advance(1000);
      faults.arm('commit', SQLITE_NOMEM);
      const { ready, reserved } = await storage.counts(SECOND);
      assert.deepEqual({ ready, reserved }, { ready: 1, reserved: 0 });
    });
  });

  it('does not restore the state in memory of a queue that was deleted before', async () => {
    await withFolder(async (folder) => {
      const faults = new Faults();
      const { storage } = await folder.started({ testThread: faults.thread });
      const { clock } = folder;
      const queue = { ns: 'N', name: 'forgotten' };
      const reserve = async (name: string, leaseMs: number): Promise<DeliveryRef> => {
        await storage.insert({ ns: 'N', name }, [newElement()]);
        const { deliveries } = await storage.take({ ns: 'N', name }, { group: '', count: 1, leaseMs });
        return { id: deliveries[0]?.id ?? '', group: '', token: deliveries[0]?.lease?.token ?? '' };
      };
      // The element is committed at once, but its lease end stays in memory until it comes or no other lease ends
      // earlier.
      await reserve('other', 50 * HOUR_MS);
      await commit(storage, queue, [await reserve(queue.name, 60 * HOUR_MS)]);
      clock.advance(27 * HOUR_MS);
      await storage.sweep();
      assert.deepEqual(await storage.queues('N'), ['other']);
      await storage.insert(queue, [newElement()]);
      clock.advance(40 * HOUR_MS);
      faults.arm('commit', SQLITE_NOMEM);
      await storage.counts({ ns: 'N', name: 'other' });
      await storage.take(queue, { group: '', count: 1, leaseMs: null });
      await reserve(queue.name, 1000);
      clock.advance(2000);
      const { ready, reserved } = await storage.counts(queue);
      assert.deepEqual({ ready, reserved }, { ready: 1, reserved: 0 });
    });
  });
});
