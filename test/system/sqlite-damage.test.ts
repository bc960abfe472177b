import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { describe, it } from 'node:test';
import { QUEUE, type SqliteFolder, withFolder } from '../engines/sqlite-folder.ts';
import { bodyText, bodyTexts, newElement } from '../support/elements.ts';
import { freshSeed, seededRandom } from '../support/random.ts';

const popping = { group: '', leaseMs: null };
/** More by `SQLITE_FLIPS`. */
const FLIPS = Number(process.env.SQLITE_FLIPS ?? 25);

/** Bodies that are told apart at a glance, so that a changed one shows. */
function bodies(count: number): string[] {
  return Array.from({ length: count }, (_, index) => `element ${index} `.padEnd(300, `<${index}>`));
}

async function fill(folder: SqliteFolder, texts: readonly string[]): Promise<string[]> {
  const engine = await folder.started();
  const ids = await engine.storage.insert(
    QUEUE,
    texts.map((body) => newElement({ body })),
  );
  await engine.stop();
  return ids;
}

/** Changes one byte of the first place where the file holds `text`. */
function damage({ file }: SqliteFolder, text: string): void {
  const bytes = readFileSync(file);
  const at = bytes.indexOf(text);
  assert.ok(at > 0);
  bytes[at + text.length - 1] = 0x21;
  writeFileSync(file, bytes);
}

describe('a SQLite file with changed bytes', () => {
  it('never hands a changed body out: the element is set aside, and the operator told its id', async () => {
    await withFolder(async (folder) => {
      const texts = bodies(5);
      const ids = await fill(folder, texts);
      damage(folder, texts[2] ?? '');
      const engine = await folder.started();
      const { storage } = engine;
      const shown = await storage.browse(QUEUE, { group: '', state: 'ready', after: null, limit: 9 });
      assert.equal(shown.deliveries.length, 4);
      const { deliveries } = await storage.take(QUEUE, { ...popping, count: 9 });
      assert.deepEqual(bodyTexts(deliveries), [texts[0], texts[1], texts[3], texts[4]]);
      assert.equal((await storage.sizes(QUEUE)).ready, 0);
      assert.equal(folder.told.length, 1);
      assert.deepEqual(folder.told[0]?.fields, { element: ids[2], namespace: QUEUE.ns, queue: QUEUE.name });
      await engine.stop();
      const db = new DatabaseSync(folder.file);
      const kept = db.prepare('SELECT body FROM damaged').all();
      db.close();
      assert.equal(kept.length, 1);
      assert.equal(
        Buffer.from(kept[0]?.body as Uint8Array)
          .subarray(0, 9)
          .toString(),
        'element 2',
      );
    });
  });

  it('does not move a changed body to the dead-letter queue either', async () => {
    await withFolder(async (folder) => {
      const [text = ''] = bodies(1);
      const first = await folder.started();
      const [id = ''] = await first.storage.insert(QUEUE, [newElement({ body: text, tries: 5 })]);
      await first.storage.take(QUEUE, { group: '', count: 1, leaseMs: 600_000 });
      await first.stop();
      damage(folder, text);
      const { storage } = await folder.started();
      const back = { id, group: '', token: null, delayMs: 0, countTry: true };
      assert.deepEqual(await storage.rollback(QUEUE, [back]), ['not-found']);
      assert.equal((await storage.sizes({ ns: 'N', name: '__deadletter__' })).ready, 0);
      assert.equal((await storage.sizes(QUEUE)).reserved, 0);
      assert.equal(folder.told.length, 1);
    });
  });

  it('sets a changed element of a stream aside once where the last tries of several groups ended together', async () => {
    await withFolder(async (folder) => {
      const groups = ['a', 'b', 'c'];
      const deadLetter = { maxTries: 1, queue: '__deadletter__' };
      const stream = { name: QUEUE.ns, groups, deadLetter, retentionMs: null };
      const [text = '', sound = ''] = bodies(2);
      const first = await folder.started({}, [stream]);
      const elements = [text, sound].map((body) => newElement({ body, groups }));
      const [id] = await first.storage.insert(QUEUE, elements);
      for (const group of groups) await first.storage.take(QUEUE, { group, count: 2, leaseMs: 1000 });
      await first.stop();
      damage(folder, text);
      folder.clock.advance(1000);
      const { storage } = await folder.started({}, [stream]);
      await storage.sweep();
      for (const group of groups) {
        const { ready, reserved } = await storage.sizes(QUEUE, group);
        assert.deepEqual({ ready, reserved }, { ready: 0, reserved: 0 }, group);
      }
      assert.equal((await storage.sizes({ ns: QUEUE.ns, name: '__deadletter__' }, 'a')).ready, 3);
      assert.deepEqual(
        folder.told.map(({ fields }) => fields),
        [{ element: id, namespace: QUEUE.ns, queue: QUEUE.name }],
      );
    });
  });

  it(`detects each of ${FLIPS} random flips of a bit, or they harm nothing`, async (t) => {
    const seed = freshSeed();
    t.diagnostic(`seed ${seed}`);
    const random = seededRandom(seed);
    const texts = new Set(bodies(60));
    await withFolder(async (folder) => {
      await fill(folder, [...texts]);
      const sound = readFileSync(folder.file);
      for (let flip = 0; flip < FLIPS; flip++) {
        const bytes = Buffer.from(sound);
        const at = random.between(0, bytes.length - 1);
        bytes[at] = (bytes[at] ?? 0) ^ (1 << random.between(0, 7));
        writeFileSync(folder.file, bytes);
        const handedOut = await whatComesOut(folder);
        assert.ok(
          handedOut.every((text) => texts.has(text)),
          `a changed body came out: bit at ${at}`,
        );
      }
    });
  });
});

/** Everything that the file still hands out; nothing where it is refused or fails, naming the file. */
async function whatComesOut(folder: SqliteFolder): Promise<string[]> {
  const engine = folder.engine();
  try {
    await engine.start();
    const { deliveries } = await engine.storage.take(QUEUE, { ...popping, count: 1000 });
    return deliveries.map(bodyText);
  } catch (error) {
    assert.match(error instanceof Error ? error.message : '', /test\.db|SQLite/);
    return [];
  } finally {
    await engine.stop();
  }
}
