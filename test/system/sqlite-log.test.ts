import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { QUEUE, type SqliteFolder, withFolder } from '../engines/sqlite-folder.ts';
import { bodyTexts, newElement } from '../support/elements.ts';
import { freshSeed, type Random, seededRandom } from '../support/random.ts';
import { extend } from '../support/settle.ts';

/** `npm run test:crash:sqlite` flips 200 bits. */
const FLIPS = Number(process.env.SQLITE_FLIPS ?? 30);
const HEADER_BYTES = 32;
const FRAME_HEADER_BYTES = 24;
const FRAME_BYTES = FRAME_HEADER_BYTES + 4096;

/** The files of a killed engine, and the elements that it had acknowledged. */
interface CrashedFiles {
  readonly file: Buffer;
  readonly log: Buffer;
  /** The stored bodies, one per transaction. */
  readonly bodies: readonly string[];
}

/** A body of one to three pages, so that a transaction has several frames. */
function bodyOf(random: Random, name: string): string {
  return `${name} `.padEnd(random.between(20, 9000), name);
}

/** Stores one element per transaction and copies the files as `kill -9` would leave them. */
async function killedAfter(folder: SqliteFolder, random: Random, count: number): Promise<CrashedFiles> {
  const engine = await folder.started();
  const bodies = Array.from({ length: count }, (_, index) => bodyOf(random, `element ${index}`));
  for (const body of bodies) await engine.storage.insert(QUEUE, [newElement({ body })]);
  return crash(folder, bodies, engine);
}

/** The number of transactions at the log's end that only extend leases. */
const LEASES = 6;

/** Stores elements, then extends the lease of another element repeatedly, and finally inserts `last` if given. */
async function killedAfterLeases(folder: SqliteFolder, random: Random, last = ''): Promise<CrashedFiles> {
  const engine = await folder.started();
  const { storage } = engine;
  const other = { ns: 'N', name: 'leased' };
  await storage.insert(other, [newElement()]);
  const [held] = (await storage.take(other, { group: '', count: 1, leaseMs: 600_000 })).deliveries;
  const bodies = Array.from({ length: 8 }, (_, index) => bodyOf(random, `element ${index}`));
  for (const body of bodies) await storage.insert(QUEUE, [newElement({ body })]);
  const ref = { id: held?.id ?? '', group: '', token: held?.lease?.token ?? '' };
  for (let i = 0; i < LEASES; i++) await extend(storage, other, [{ ...ref, leaseMs: 700_000 }]);
  if (last !== '') {
    bodies.push(last);
    await storage.insert(QUEUE, [newElement({ body: last })]);
  }
  return crash(folder, bodies, engine);
}

async function crash(
  folder: SqliteFolder,
  bodies: readonly string[],
  engine: { stop(): Promise<void> },
): Promise<CrashedFiles> {
  const crashed = { file: readFileSync(folder.file), log: readFileSync(`${folder.file}-wal`), bodies };
  await engine.stop();
  return crashed;
}

/** Returns a restarted log: current frames, followed by valid frames of the previous generation. */
async function killedWithReusedLog(folder: SqliteFolder, random: Random): Promise<CrashedFiles> {
  const engine = await folder.started();
  const filler = Buffer.alloc(1_000_000, 'x');
  for (let megabyte = 0; megabyte < 5; megabyte++) {
    await engine.storage.insert({ ns: 'N', name: 'filler' }, [newElement({ body: filler })]);
  }
  const bodies = Array.from({ length: 20 }, (_, index) => bodyOf(random, `element ${index}`));
  for (const body of bodies) await engine.storage.insert(QUEUE, [newElement({ body })]);
  return crash(folder, bodies, engine);
}

function writeFiles({ file }: SqliteFolder, crashed: Pick<CrashedFiles, 'file' | 'log'>): void {
  for (const [path, bytes] of [
    [file, crashed.file],
    [`${file}-wal`, crashed.log],
  ] as const) {
    rmSync(path, { force: true });
    writeFileSync(path, bytes, { mode: 0o600 });
  }
}

/** The bodies delivered after a start with these files, or the message of the error that prevents the start. */
async function startedOn(
  folder: SqliteFolder,
  crashed: Pick<CrashedFiles, 'file' | 'log'>,
  settings: Readonly<Record<string, unknown>> = {},
): Promise<readonly string[] | string> {
  writeFiles(folder, crashed);
  const engine = folder.engine(settings);
  try {
    await engine.start();
  } catch (error) {
    await engine.stop();
    return error instanceof Error ? error.message : String(error);
  }
  const { deliveries } = await engine.storage.take(QUEUE, { group: '', count: 1000, leaseMs: null });
  await engine.stop();
  return bodyTexts(deliveries);
}

function flipped(log: Buffer, bit: number): Buffer {
  const copy = Buffer.from(log);
  copy[bit >> 3] = (copy[bit >> 3] ?? 0) ^ (1 << (bit & 7));
  return copy;
}

function assertRefused(outcome: readonly string[] | string, where: string): void {
  assert.ok(typeof outcome === 'string', `${where}: started with ${outcome.length} elements`);
  assert.match(
    outcome,
    /test\.db is damaged at byte \d+ of \S+test\.db-wal.* keep a copy.*damagedLog/,
    where,
  );
}

/** The frames of the log's current generation, and which of them commit, according to the file format. */
function framesOf(log: Buffer): { offset: number; isCommit: boolean }[] {
  const salts = log.subarray(16, 24);
  const frames = [];
  for (let offset = HEADER_BYTES; offset + FRAME_BYTES <= log.length; offset += FRAME_BYTES) {
    if (!log.subarray(offset + 8, offset + 16).equals(salts)) break;
    frames.push({ offset, isCommit: log.readUInt32BE(offset + 4) !== 0 });
  }
  return frames;
}

/** The byte range of each transaction. */
function transactionsOf(log: Buffer): { start: number; end: number }[] {
  let start = HEADER_BYTES;
  return framesOf(log).flatMap(({ offset, isCommit }) => {
    if (!isCommit) return [];
    const transaction = { start, end: offset + FRAME_BYTES };
    start = transaction.end;
    return [transaction];
  });
}

function lastTransaction(log: Buffer): { start: number; end: number } {
  return transactionsOf(log).at(-1) ?? { start: 0, end: 0 };
}

describe("SQLite's write-ahead log after a kill", () => {
  for (const [name, make] of [
    ['a new log', (folder: SqliteFolder, random: Random) => killedAfter(folder, random, 30)],
    ['a restarted log', killedWithReusedLog],
  ] as const) {
    it(`prevents a start after a bit flip before the last transaction, and otherwise loses at most that one: ${name}`, async (t) => {
      const seed = freshSeed();
      t.diagnostic(`seed ${seed}`);
      const random = seededRandom(seed);
      await withFolder(async (folder) => {
        const crashed = await make(folder, random);
        const { start, end } = lastTransaction(crashed.log);
        assert.ok(start > 40 * FRAME_BYTES, 'the log has too few frames');
        assert.deepEqual(await startedOn(folder, crashed), crashed.bodies);
        for (let flip = 0; flip < FLIPS; flip++) {
          // Flips mostly bits before the last transaction, which must be detected.
          const most = random.chance(0.7) ? start : crashed.log.length;
          const bit = random.between(0, most * 8 - 1);
          const outcome = await startedOn(folder, { ...crashed, log: flipped(crashed.log, bit) });
          const where = `bit ${bit}, last transaction from byte ${start} to ${end}`;
          if (bit < start * 8) assertRefused(outcome, where);
          else if (bit < end * 8) assert.deepEqual(outcome, crashed.bodies.slice(0, -1), where);
          else assert.deepEqual(outcome, crashed.bodies, where);
        }
        assert.deepEqual(folder.warnings, []);
      });
    });
  }

  it('prevents a start after a bit flip in any byte of its header or of a frame header', async () => {
    await withFolder(async (folder) => {
      const random = seededRandom(1);
      const crashed = await killedAfter(folder, random, 20);
      const frame = framesOf(crashed.log)[15]?.offset ?? 0;
      const header = Array.from({ length: HEADER_BYTES }, (_, at) => at);
      const ofFrame = Array.from({ length: FRAME_HEADER_BYTES }, (_, at) => frame + at);
      for (const at of [...header, ...ofFrame]) {
        const bit = at * 8 + random.between(0, 7);
        assertRefused(await startedOn(folder, { ...crashed, log: flipped(crashed.log, bit) }), `bit ${bit}`);
      }
    });
  });

  it('prevents a start if one of its pages, even the first, consists of zeros', async () => {
    await withFolder(async (folder) => {
      const crashed = await killedAfter(folder, seededRandom(2), 20);
      for (const from of [0, 4096, 8 * 4096]) {
        const log = Buffer.from(crashed.log);
        log.fill(0, from, from + 4096);
        assertRefused(await startedOn(folder, { ...crashed, log }), `zeros from ${from}`);
      }
    });
  });

  it('allows a start without a warning, without its last transaction, however a power loss tore that', async (t) => {
    const seed = freshSeed();
    t.diagnostic(`seed ${seed}`);
    const random = seededRandom(seed);
    await withFolder(async (folder) => {
      const crashed = await killedAfter(folder, random, 20);
      const { start, end } = lastTransaction(crashed.log);
      for (let round = 0; round < 20; round++) {
        const log = Buffer.from(crashed.log);
        // Any part of the write may have reached the disk, with or without the new file length.
        const lost = random.between(start, end - 1);
        log.fill(0, lost, Math.min(end, lost + random.between(1, end - start)));
        const torn = random.chance(0.5) ? log : log.subarray(0, random.between(start, end - 1));
        if (log.equals(crashed.log)) continue;
        assert.deepEqual(await startedOn(folder, { ...crashed, log: torn }), crashed.bodies.slice(0, -1));
      }
      assert.deepEqual(folder.warnings, []);
    });
  });

  it('allows a start without a warning if a power loss tore only final transactions that moved leases', async (t) => {
    const seed = freshSeed();
    t.diagnostic(`seed ${seed}`);
    const random = seededRandom(seed);
    await withFolder(async (folder) => {
      const crashed = await killedAfterLeases(folder, random);
      const transactions = transactionsOf(crashed.log);
      const end = transactions.at(-1)?.end ?? 0;
      for (let round = 0; round < 20; round++) {
        const first = random.between(transactions.length - LEASES, transactions.length - 1);
        const { start = 0 } = transactions[first] ?? {};
        const log = Buffer.from(crashed.log);
        const lost = random.between(start, end - 1);
        log.fill(0, lost, Math.min(end, lost + random.between(1, end - start)));
        assert.deepEqual(await startedOn(folder, { ...crashed, log }), crashed.bodies, `zeros from ${lost}`);
      }
      assert.deepEqual(folder.warnings, []);
    });
  });

  it('stays near 4 MiB with many small or few large transactions', async () => {
    for (const [count, bytes] of [
      [500, 10],
      [12, 900_000],
    ] as const) {
      await withFolder(async (folder) => {
        const { storage } = await folder.started({ durability: 'normal' });
        let pages = 0;
        for (let i = 0; i < count; i++) {
          await storage.insert(QUEUE, [newElement({ body: Buffer.alloc(bytes, 'x') })]);
          pages = Math.floor(statSync(`${folder.file}-wal`).size / FRAME_BYTES);
        }
        assert.ok(pages > 900 && pages < 1500, `${pages} pages after ${count} transactions`);
      });
    }
  });

  it('allows a start without its last synced transaction if a power loss tore that one and lease changes before it', async () => {
    await withFolder(async (folder) => {
      const random = seededRandom(8);
      const crashed = await killedAfterLeases(folder, random, 'in progress');
      const transactions = transactionsOf(crashed.log);
      for (let lost = 2; lost <= LEASES + 1; lost++) {
        const { start = 0, end = 0 } = transactions.at(-lost) ?? {};
        const log = Buffer.from(crashed.log);
        log.fill(0, start, end);
        assert.deepEqual(await startedOn(folder, { ...crashed, log }), crashed.bodies.slice(0, -1));
      }
    });
  });

  it('allows a start without a warning after two power losses, which tore the first and then the last transaction', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      const { storage } = engine;
      await storage.insert(QUEUE, [newElement({ body: 'first' })]);
      // This fills the log: it is checkpointed, and the next transaction restarts it.
      const filler = newElement({ body: Buffer.alloc(1_000_000) });
      await storage.insert({ ns: 'N', name: 'filler' }, Array(5).fill(filler));
      await storage.insert(QUEUE, [newElement({ body: 'x'.repeat(200_000) })]);
      const first = await crash(folder, [], engine);
      assert.equal(transactionsOf(first.log).length, 1);
      first.log.fill(0, HEADER_BYTES, HEADER_BYTES + FRAME_BYTES);
      writeFiles(folder, first);
      const again = await folder.started();
      await again.storage.insert(QUEUE, [newElement({ body: 'second' })]);
      await again.storage.insert(QUEUE, [newElement({ body: 'y'.repeat(20_000) })]);
      const second = await crash(folder, [], again);
      const { start } = transactionsOf(second.log).find(
        ({ end, start: from }) => end - from > 5 * FRAME_BYTES,
      ) ?? { start: 0 };
      second.log.fill(0, start, start + FRAME_BYTES);
      assert.deepEqual(await startedOn(folder, second), ['first', 'second']);
      assert.deepEqual(folder.warnings, []);
    });
  });

  it('prevents a start if the commit of a lease transaction before two synced transactions is damaged', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      const { storage } = engine;
      const other = { ns: 'N', name: 'leased' };
      await storage.insert(other, [newElement()]);
      await storage.take(other, { group: '', count: 1, leaseMs: 600_000 });
      for (const body of ['first', 'second']) await storage.insert(QUEUE, [newElement({ body })]);
      const crashed = await crash(folder, [], engine);
      const { end } = transactionsOf(crashed.log).at(-3) ?? { end: 0 };
      crashed.log.fill(0, end - FRAME_BYTES, end);
      assertRefused(await startedOn(folder, crashed), 'the commit of a reservation');
    });
  });

  it('prevents a start after a bit flip in a transaction before two synced ones and later lease changes', async () => {
    await withFolder(async (folder) => {
      const random = seededRandom(9);
      const crashed = await killedAfterLeases(folder, random);
      const { start, end } = transactionsOf(crashed.log).at(-LEASES - 2) ?? { start: 0, end: 0 };
      for (let round = 0; round < 20; round++) {
        const bit = random.between(start * 8, end * 8 - 1);
        assertRefused(await startedOn(folder, { ...crashed, log: flipped(crashed.log, bit) }), `bit ${bit}`);
      }
    });
  });

  it('is also read and checked with checksums in the other byte order', async () => {
    await withFolder(async (folder) => {
      const crashed = await killedAfter(folder, seededRandom(3), 20);
      const log = withBigEndianSums(crashed.log);
      assert.deepEqual(await startedOn(folder, { ...crashed, log }), crashed.bodies);
      assertRefused(await startedOn(folder, { ...crashed, log: flipped(log, 50_000) }), 'a frame');
      assertRefused(await startedOn(folder, { ...crashed, log: flipped(log, 24) }), 'the byte order');
    });
  });

  it('is left unchanged with its database by a failed start', async () => {
    await withFolder(async (folder) => {
      const crashed = await killedAfter(folder, seededRandom(4), 20);
      const log = flipped(crashed.log, 50_000);
      assertRefused(await startedOn(folder, { ...crashed, log }), 'refused');
      assert.ok(readFileSync(folder.file).equals(crashed.file));
      assert.ok(readFileSync(`${folder.file}-wal`).equals(log));
      assert.deepEqual(readdirSync(folder.path).sort(), ['test.db', 'test.db-wal']);
    });
  });

  it('is copied and truncated at the damage if damagedLog is drop', async () => {
    await withFolder(async (folder) => {
      const crashed = await killedAfter(folder, seededRandom(5), 20);
      const log = flipped(crashed.log, (lastTransaction(crashed.log).start - 10) * 8);
      const outcome = await startedOn(folder, { ...crashed, log }, { damagedLog: 'drop' });
      assert.deepEqual(outcome, crashed.bodies.slice(0, -2));
      const copies = readdirSync(folder.path).filter((name) => name.startsWith('test.db-wal.damaged-'));
      assert.equal(copies.length, 1);
      assert.ok(readFileSync(`${folder.path}/${copies[0]}`).equals(log));
      assert.match(folder.warnings[0]?.message ?? '', /is damaged at byte \d+.* with 2 commits/);
    });
  });

  it('is truncated at the damage with a warning if durability is normal', async () => {
    await withFolder(async (folder) => {
      const crashed = await killedAfter(folder, seededRandom(6), 20);
      const log = flipped(crashed.log, (lastTransaction(crashed.log).start - 10) * 8);
      const outcome = await startedOn(folder, { ...crashed, log }, { durability: 'normal' });
      assert.deepEqual(outcome, crashed.bodies.slice(0, -2));
      assert.match(folder.warnings[0]?.message ?? '', /log ends early/);
    });
  });

  it('prevents a start, and is not deleted, if its database file is missing', async () => {
    await withFolder(async (folder) => {
      const crashed = await killedAfter(folder, seededRandom(7), 3);
      writeFiles(folder, crashed);
      rmSync(folder.file);
      await assert.rejects(
        folder.engine().start(),
        /test\.db is missing although its log \S+-wal holds commits/,
      );
      assert.ok(readFileSync(`${folder.file}-wal`).equals(crashed.log));
      assert.ok(!existsSync(folder.file));
    });
  });
});

/** The same log with checksums in the other byte order. */
function withBigEndianSums(log: Buffer): Buffer {
  const copy = Buffer.from(log);
  copy.writeUInt32BE(0x377f0683, 0);
  let sum = checksum(copy.subarray(0, 24), [0, 0]);
  writePair(copy, 24, sum);
  for (const { offset } of framesOf(log)) {
    sum = checksum(copy.subarray(offset, offset + 8), sum);
    sum = checksum(copy.subarray(offset + FRAME_HEADER_BYTES, offset + FRAME_BYTES), sum);
    writePair(copy, offset + 16, sum);
  }
  return copy;
}

function checksum(bytes: Buffer, [one, two]: readonly [number, number]): [number, number] {
  let sums: [number, number] = [one, two];
  for (let at = 0; at < bytes.length; at += 8) {
    const first = (sums[0] + bytes.readUInt32BE(at) + sums[1]) >>> 0;
    sums = [first, (sums[1] + bytes.readUInt32BE(at + 4) + first) >>> 0];
  }
  return sums;
}

function writePair(bytes: Buffer, at: number, [one, two]: readonly [number, number]): void {
  bytes.writeUInt32BE(one, at);
  bytes.writeUInt32BE(two, at + 4);
}
