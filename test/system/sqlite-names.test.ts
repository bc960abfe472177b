import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { describe, it } from 'node:test';
import { promisify } from 'node:util';
import { withFolder } from '../engines/sqlite-folder.ts';
import { newElement } from '../support/elements.ts';

const READER = new URL('../engines/sqlite-reader.ts', import.meta.url).pathname;

/** 75,000 names of 255 bytes need more than each thread's heap, which is as small as the program permits. */
const NAMES = 75_000;
const HEAP_MIB = 16;
/** With the one that belongs to so small a heap, collections take two thirds of the processor time. */
const YOUNG_MIB = 2;
/** The reader inserts one element per 250 names. */
const INSERTED = NAMES / 250;

describe('The names of queues in calls to SQLite', () => {
  it('use no permanent memory on either thread, however many a reader invents', async () => {
    const young = ['min', 'max'].map((bound) => `--${bound}-semi-space-size=${YOUNG_MIB}`);
    const args = [`--max-old-space-size=${HEAP_MIB}`, ...young, READER, String(NAMES)];
    const { stdout } = await promisify(execFile)(process.execPath, args);
    assert.deepEqual(JSON.parse(stdout), { size: INSERTED, put: INSERTED, queues: ['used'] });
  });

  it('create no queue by an insert that is rejected because of one key with different content', async () => {
    await withFolder(async (folder) => {
      const { storage } = await folder.started();
      const queue = { ns: 'N', name: 'none' };
      const elements = ['a', 'b'].map((fingerprint) => newElement({ dedupKey: 'key', fingerprint }));
      assert.deepEqual(await storage.insert(queue, elements), []);
      assert.deepEqual(await storage.queues('N'), []);
    });
  });

  it('identify the right queues if thousands are used in one turn', async () => {
    await withFolder(async (folder) => {
      const { storage, stats } = await folder.started();
      const queues = Array.from({ length: 5_000 }, (_, i) => ({ ns: 'N', name: `q${i}` }));
      const ids = await Promise.all(queues.map((queue) => storage.insert(queue, [newElement()])));
      const taken = await Promise.all(
        queues.map((queue) => storage.take(queue, { group: '', count: 2, leaseMs: null })),
      );
      assert.deepEqual(
        taken.map(({ deliveries }) => deliveries.map(({ id }) => id)),
        ids,
      );
      for (const queue of queues) stats.add(queue, '', { get: 1 });
      await stats.flush();
      const counters = await Promise.all(queues.map((queue) => stats.read(queue)));
      assert.ok(counters.every((groups) => groups.get('')?.get === 1));
    });
  });
});
