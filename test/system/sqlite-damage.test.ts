import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { describe, it } from 'node:test';
import type { Delivery } from '../../src/model/element.ts';
import { QUEUE, type SqliteFolder, withFolder } from '../engines/sqlite-folder.ts';
import { bodyText, bodyTexts, newElement } from '../support/elements.ts';
import { freshSeed, seededRandom } from '../support/random.ts';
import { rollback } from '../support/settle.ts';

const popping = { group: '', leaseMs: null };
/** `npm run test:crash:sqlite` flips 200 bits. */
const FLIPS = Number(process.env.SQLITE_FLIPS ?? 25);

/** Distinctive bodies, so that a changed one is recognized. */
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

/** Changes the last byte of the first occurrence of `text` in the file. */
function damage({ file }: SqliteFolder, text: string): void {
  const bytes = readFileSync(file);
  const at = bytes.indexOf(text);
  assert.ok(at > 0);
  bytes[at + text.length - 1] = 0x21;
  writeFileSync(file, bytes);
}

describe('A SQLite file with changed bytes', () => {
  it('never delivers a changed body: the element is set aside, and a warning names its id', async () => {
    await withFolder(async (folder) => {
      const texts = bodies(5);
      const ids = await fill(folder, texts);
      damage(folder, texts[2] ?? '');
      const engine = await folder.started();
      const { storage } = engine;
      const shown = await storage.scan(QUEUE, {
        group: '',
        states: ['ready'],
        bodies: true,
        after: null,
        limit: 9,
      });
      assert.equal(shown.deliveries.length, 4);
      const { deliveries } = await storage.take(QUEUE, { ...popping, count: 9 });
      assert.deepEqual(bodyTexts(deliveries), [texts[0], texts[1], texts[3], texts[4]]);
      assert.equal((await storage.counts(QUEUE)).ready, 0);
      assert.equal(folder.warnings.length, 1);
      assert.deepEqual(folder.warnings[0]?.fields, {
        element: ids[2],
        namespace: QUEUE.ns,
        queue: QUEUE.name,
      });
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

  it('never moves a changed body to the dead-letter queue', async () => {
    await withFolder(async (folder) => {
      const [text = ''] = bodies(1);
      const first = await folder.started();
      const [id = ''] = await first.storage.insert(QUEUE, [newElement({ body: text, tries: 5 })]);
      await first.storage.take(QUEUE, { group: '', count: 1, leaseMs: 600_000 });
      await first.stop();
      damage(folder, text);
      const { storage } = await folder.started();
      const back = { id, group: '', token: null, delayMs: 0, countTry: true };
      assert.deepEqual(await rollback(storage, QUEUE, [back]), ['not-found']);
      assert.equal((await storage.counts({ ns: 'N', name: '__deadletter__' })).ready, 0);
      assert.equal((await storage.counts(QUEUE)).reserved, 0);
      assert.equal(folder.warnings.length, 1);
    });
  });

  it('sets a changed element of a stream aside only once if the last tries of several groups end together', async () => {
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
        const { ready, reserved } = await storage.counts(QUEUE, group);
        assert.deepEqual({ ready, reserved }, { ready: 0, reserved: 0 }, group);
      }
      assert.equal((await storage.counts({ ns: QUEUE.ns, name: '__deadletter__' }, 'a')).ready, 3);
      assert.deepEqual(
        folder.warnings.map(({ fields }) => fields),
        [{ element: id, namespace: QUEUE.ns, queue: QUEUE.name }],
      );
    });
  });

  it(`delivers no changed body after any of ${FLIPS} random bit flips`, async (t) => {
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
        const delivered = await deliveredBodies(folder);
        assert.ok(
          delivered.every((text) => texts.has(text)),
          `a changed body was delivered after a flip in byte ${at}`,
        );
      }
    });
  });
});

/** Changes the stopped file by SQL, which keeps indices consistent, so that only checksums can detect the change. */
function change({ file }: SqliteFolder, sql: string): void {
  const db = new DatabaseSync(file);
  db.exec(sql);
  db.close();
}

const LEASE_MS = 600_000;

describe('A changed delivery in a SQLite file', () => {
  const changes = {
    tries: 'tries = tries + 1',
    maturity: 'due_at = due_at - 1',
    group: "subscription = (SELECT id FROM subscription WHERE grp = 'b')",
    expiry: 'expires_at = due_at + 1',
  };
  for (const [what, set] of Object.entries(changes)) {
    it(`is set aside instead of delivered with a changed ${what}`, async () => {
      await withFolder(async (folder) => {
        const queue = { ns: 'S', name: 'orders' };
        const first = await folder.started();
        const elements = bodies(3).map((body) => newElement({ body, groups: ['a'] }));
        const ids = await first.storage.insert(queue, elements);
        await first.storage.insert(queue, [newElement({ body: 'of b', groups: ['b'] })]);
        await first.stop();
        change(
          folder,
          `UPDATE delivery SET ${set} WHERE element = (SELECT seq FROM element ORDER BY seq LIMIT 1 OFFSET 1)`,
        );
        const { storage } = await folder.started();
        const ofGroup = async (group: string): Promise<string[]> => {
          const page = await storage.scan(queue, {
            group,
            states: ['ready'],
            bodies: true,
            after: null,
            limit: 9,
          });
          const { deliveries } = await storage.take(queue, { group, leaseMs: null, count: 9 });
          assert.deepEqual(bodyTexts(page.deliveries), bodyTexts(deliveries));
          return bodyTexts(deliveries);
        };
        assert.deepEqual(await ofGroup('a'), [bodies(3)[0], bodies(3)[2]]);
        assert.deepEqual(await ofGroup('b'), ['of b']);
        for (const group of ['a', 'b']) {
          const { ready, scheduled, reserved } = await storage.counts(queue, group);
          assert.deepEqual({ ready, scheduled, reserved }, { ready: 0, scheduled: 0, reserved: 0 });
        }
        assert.deepEqual(
          folder.warnings.map(({ fields }) => fields),
          [{ element: ids[1], namespace: 'S', queue: 'orders' }],
        );
      });
    });
  }

  for (const [what, element] of [
    ['the one of another delivery', '(SELECT max(seq) FROM element)'],
    ['missing', '12345'],
  ]) {
    it(`is set aside without affecting other deliveries if its element is ${what}`, async () => {
      await withFolder(async (folder) => {
        const stream = { ns: 'S', name: 'orders' };
        const large = bodies(3).map((body) => body.padEnd(3000, '.'));
        const first = await folder.started();
        const shared = [...bodies(3), 'of b'].map((body) =>
          newElement({ body, groups: [body === 'of b' ? 'b' : 'a'] }),
        );
        await first.storage.insert(stream, shared);
        await first.storage.insert(
          QUEUE,
          large.map((body) => newElement({ body })),
        );
        await first.stop();
        change(
          folder,
          `CREATE TEMP TABLE hit AS SELECT seq FROM delivery WHERE element IN (
             SELECT seq FROM element WHERE groups > 0 ORDER BY seq LIMIT 1 OFFSET 1) OR element IN (
             SELECT seq FROM element WHERE groups = 0 ORDER BY seq LIMIT 1 OFFSET 1);
           UPDATE delivery SET element = ${element} WHERE seq IN hit`,
        );
        const { storage } = await folder.started();
        const rest = async (queue: typeof QUEUE, group: string): Promise<string[]> =>
          bodyTexts((await storage.take(queue, { group, leaseMs: null, count: 9 })).deliveries);
        assert.deepEqual(await rest(stream, 'a'), [bodies(3)[0], bodies(3)[2]]);
        assert.deepEqual(await rest(QUEUE, ''), [large[0], large[2]]);
        assert.deepEqual(await rest(stream, 'b'), ['of b']);
        for (const queue of [stream, QUEUE]) assert.equal((await storage.counts(queue)).ready, 0);
        assert.equal(folder.warnings.length, 2);
      });
    });
  }

  const unreadable = {
    'whose element is missing': 'DELETE FROM element WHERE seq = hit.seq',
    'whose checksum has more than 53 bits': 'UPDATE element SET crc = 1 << 60 WHERE seq = hit.seq',
    'whose maturity has more than 53 bits': 'UPDATE delivery SET due_at = 1 << 60 WHERE seq = hit.seq',
  };
  for (const [what, sql] of Object.entries(unreadable)) {
    it(`${what} blocks neither its queue nor others`, async () => {
      await withFolder(async (folder) => {
        const large = bodies(3).map((body) => body.padEnd(3000, '.'));
        const first = await folder.started();
        await first.storage.insert(
          QUEUE,
          large.map((body) => newElement({ body, tries: 1 })),
        );
        await first.storage.take(QUEUE, { group: '', count: 2, leaseMs: LEASE_MS });
        await first.stop();
        change(folder, sql.replace('hit.seq', '(SELECT seq FROM element ORDER BY seq LIMIT 1 OFFSET 1)'));
        const { storage } = await folder.started();
        const other = { ns: 'N', name: 'other' };
        await storage.insert(other, [newElement()]);
        folder.clock.advance(LEASE_MS);
        assert.equal((await storage.take(other, { ...popping, count: 9 })).deliveries.length, 1);
        const { deliveries } = await storage.take(QUEUE, { ...popping, count: 9 });
        assert.deepEqual(bodyTexts(deliveries), [large[2]]);
        const dead = await storage.take({ ns: 'N', name: '__deadletter__' }, { ...popping, count: 9 });
        assert.deepEqual(bodyTexts(dead.deliveries), [large[0]]);
        const { ready, scheduled, reserved } = await storage.counts(QUEUE);
        assert.deepEqual({ ready, scheduled, reserved }, { ready: 0, scheduled: 0, reserved: 0 });
        assert.equal(folder.warnings.length, 1);
      });
    });
  }

  it('is removed by a purge, even if its maturity is before all moments', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started();
      await first.storage.insert(QUEUE, [newElement(), newElement(), newElement()]);
      await first.stop();
      change(folder, 'UPDATE delivery SET due_at = -1 << 60 WHERE seq = (SELECT min(seq) FROM delivery)');
      const { storage } = await folder.started();
      assert.deepEqual(await storage.purge(QUEUE), { removed: 3, isDone: true });
      assert.equal(await storage.drop(QUEUE), true);
    });
  });

  it('is set aside, and shown by no scan, if its content is missing', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started();
      await first.storage.insert(QUEUE, [newElement({ body: Buffer.alloc(3000) }), newElement()]);
      await first.stop();
      change(folder, 'DELETE FROM element');
      const { storage } = await folder.started();
      for (const withBodies of [true, false]) {
        const page = { group: '', states: ['ready'], bodies: withBodies, after: null, limit: 9 } as const;
        assert.equal((await storage.scan(QUEUE, page)).deliveries.length, 1);
      }
      assert.equal((await storage.take(QUEUE, { ...popping, count: 9 })).deliveries.length, 1);
      assert.match(folder.warnings[0]?.message ?? '', /its content is missing/);
    });
  });

  it('is not swept repeatedly if it has expired and its subscription is missing', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started();
      const expiresAt = folder.clock.now() + 1000;
      await first.storage.insert(QUEUE, [newElement({ expiresAt }), newElement({ expiresAt })]);
      await first.stop();
      change(folder, 'UPDATE delivery SET subscription = 999 WHERE seq = (SELECT min(seq) FROM delivery)');
      const { storage } = await folder.started();
      assert.equal(await storage.sweep(), expiresAt);
      folder.clock.advance(1000);
      assert.equal(await storage.sweep(), null);
    });
  });

  for (const end of ['rollback', 'lease expiry'] as const) {
    it(`is set aside at the ${end} of its reservation instead of counting from changed tries`, async () => {
      await withFolder(async (folder) => {
        const first = await folder.started();
        const [id = ''] = await first.storage.insert(QUEUE, [newElement()]);
        await first.storage.take(QUEUE, { group: '', count: 1, leaseMs: LEASE_MS });
        await first.stop();
        change(folder, 'UPDATE delivery SET tries = 7');
        const { storage } = await folder.started();
        if (end === 'rollback') {
          const item = { id, group: '', token: null, delayMs: 0, countTry: false };
          assert.deepEqual(await rollback(storage, QUEUE, [item]), ['not-found']);
        } else folder.clock.advance(LEASE_MS);
        assert.deepEqual((await storage.take(QUEUE, { ...popping, count: 9 })).deliveries, []);
        const { ready, reserved } = await storage.counts(QUEUE);
        assert.deepEqual({ ready, reserved }, { ready: 0, reserved: 0 });
        assert.equal((await storage.counts({ ns: 'N', name: '__deadletter__' })).ready, 0);
        assert.equal(folder.warnings.length, 1);
      });
    });
  }

  it(`neither hides nor changes an element, whichever bit of deliveries and indices is flipped`, async (t) => {
    const seed = freshSeed();
    t.diagnostic(`seed ${seed}`);
    const random = seededRandom(seed);
    await withFolder(async (folder) => {
      const first = await folder.started();
      const matureAt = folder.clock.now() - 1000;
      const elements = Array.from({ length: 300 }, (_, index) =>
        newElement({ body: `element ${index}`, matureAt: matureAt + index, tries: index % 5 }),
      );
      const ids = await first.storage.insert(QUEUE, elements);
      await first.stop();
      const expected = new Map(
        elements.map(({ tries, matureAt: due }, index) => [ids[index], `${tries} at ${due}`]),
      );
      const pages = pagesOf(folder, [
        'delivery',
        'delivery_waiting',
        'subscription',
        'sqlite_autoindex_subscription_1',
      ]);
      const sound = readFileSync(folder.file);
      const deliveriesAfterFlip = (at: number, bit: number): Promise<readonly Delivery[] | null> => {
        const bytes = Buffer.from(sound);
        bytes[at] = (bytes[at] ?? 0) ^ (1 << bit);
        writeFileSync(folder.file, bytes);
        folder.warnings.length = 0;
        return deliveriesOf(folder);
      };
      for (const page of pages) {
        const kind = (page - 1) * 4096;
        assert.equal(await deliveriesAfterFlip(kind, 7), null, `a page of no kind: byte ${kind}`);
      }
      for (let flip = 0; flip < FLIPS * 2; flip++) {
        const at = (random.pick(pages) - 1) * 4096 + random.between(0, 4095);
        const out = await deliveriesAfterFlip(at, random.between(0, 7));
        if (out === null) continue;
        for (const { id, tries, matureAt: due } of out) {
          assert.equal(`${tries} at ${due}`, expected.get(id), `changed by a bit of byte ${at}`);
        }
        // A bit of the moment that the file was last used, in `subscription`, is reported as a clock that was set back.
        const damaged = folder.warnings.filter(({ message }) => !message.startsWith('the clock is behind'));
        const seen = out.length + damaged.length;
        assert.equal(seen, elements.length, `hidden by a bit of byte ${at}`);
      }
    });
  });

  it('prevents the start if an index hides it', async () => {
    await withFolder(async (folder) => {
      await fill(folder, ['hidden', 'shown']);
      hideFirst(folder);
      await assert.rejects(folder.engine().start(), /test\.db is damaged/);
    });
  });

  it('prevents the start if an index hides it, even in a file that is too large for a full check', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started({ durability: 'normal' });
      const large = newElement({ body: Buffer.alloc(1_000_000, 'x') });
      for (let megabytes = 0; megabytes < 70; megabytes += 10) {
        await first.storage.insert(QUEUE, Array(10).fill(large));
      }
      await first.stop();
      assert.ok(readFileSync(folder.file).length > 64 * 1024 * 1024);
      hideFirst(folder);
      await assert.rejects(folder.engine().start(), /test\.db is damaged/);
    });
  });
});

/** The page numbers of these tables and indices. */
function pagesOf({ file }: SqliteFolder, names: readonly string[]): number[] {
  const db = new DatabaseSync(file, { readOnly: true });
  const rows = db.prepare('SELECT name, pageno FROM dbstat').all();
  db.close();
  return rows.filter(({ name }) => names.includes(String(name))).map(({ pageno }) => Number(pageno));
}

/** Changes the maturity of the first entry in the index of waiting deliveries. */
function hideFirst(folder: SqliteFolder): void {
  const [page = 0] = pagesOf(folder, ['delivery_waiting']);
  const bytes = readFileSync(folder.file);
  // The last cell of an index leaf is its first entry; this byte belongs to its maturity.
  bytes[page * 4096 - 6] = (bytes[page * 4096 - 6] ?? 0) ^ 1;
  writeFileSync(folder.file, bytes);
}

/** All deliveries that the file yields; null if the start or the take fails with an error that names the file. */
async function deliveriesOf(folder: SqliteFolder): Promise<readonly Delivery[] | null> {
  const engine = folder.engine();
  try {
    await engine.start();
    return (await engine.storage.take(QUEUE, { ...popping, count: 1000 })).deliveries;
  } catch (error) {
    assert.match(error instanceof Error ? error.message : '', /test\.db/);
    return null;
  } finally {
    await engine.stop();
  }
}

/** All bodies that the file yields; empty if the start or the take fails with an error that names the file. */
async function deliveredBodies(folder: SqliteFolder): Promise<string[]> {
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
