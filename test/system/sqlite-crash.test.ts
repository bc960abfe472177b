import assert from 'node:assert/strict';
import type { ChildProcessByStdio } from 'node:child_process';
import { once } from 'node:events';
import { DatabaseSync } from 'node:sqlite';
import type { Readable } from 'node:stream';
import { it } from 'node:test';
import { QUEUE, type SqliteFolder, withFolder } from '../engines/sqlite-folder.ts';
import { bodyTexts } from '../support/elements.ts';
import { spawnOwned } from '../support/owned-process.ts';
import { freshSeed, seededRandom } from '../support/random.ts';
import { sqliteCaller } from '../support/server-command.ts';

const CALLER = sqliteCaller();
/** `npm run test:crash:sqlite` kills the process 100 times. */
const KILLS = Number(process.env.SQLITE_KILLS ?? 4);
/** Maximum number of acknowledged inserts before a kill. */
const MAX_ANSWERS = 600;

it(`A SQLite engine loses no acknowledged insert in ${KILLS} kills, some of them during recovery`, async (t) => {
  const seed = freshSeed();
  t.diagnostic(`seed ${seed}`);
  const random = seededRandom(seed);
  await withFolder(async (folder) => {
    const acknowledged = new Set<number>();
    for (let kill = 0; kill < KILLS; kill++) {
      // Every fourth kill comes after a random time, which may hit the start and recovery.
      const when =
        kill % 4 === 1
          ? { afterMs: random.between(50, 500) }
          : { afterAnswers: random.between(1, MAX_ANSWERS) };
      for (const number of await runAndKill(folder, kill * 1_000_000, when)) acknowledged.add(number);
    }
    const db = new DatabaseSync(folder.file);
    assert.equal(db.prepare('PRAGMA integrity_check').get()?.integrity_check, 'ok');
    db.close();
    const stored = await storedNumbers(folder);
    assert.equal(new Set(stored).size, stored.length, 'stored twice');
    assert.deepEqual(
      [...acknowledged].filter((number) => !stored.includes(number)),
      [],
      'acknowledged and lost',
    );
    assert.ok(acknowledged.size > 0);
  });
});

interface KillMoment {
  readonly afterAnswers?: number;
  readonly afterMs?: number;
}

/** Starts the inserting process, kills it, and returns the numbers that it printed. */
async function runAndKill({ path }: SqliteFolder, first: number, when: KillMoment): Promise<number[]> {
  const { afterAnswers = Number.POSITIVE_INFINITY, afterMs } = when;
  const owner: ChildProcessByStdio<null, Readable, null> = spawnOwned(
    process.execPath,
    [CALLER, path, 'insert', String(first)],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  let printed = '';
  let lines = 0;
  owner.stdout.setEncoding('utf8').on('data', (text: string) => {
    printed += text;
    lines += text.split('\n').length - 1;
    if (lines >= afterAnswers) owner.kill('SIGKILL');
  });
  const timer = afterMs === undefined ? undefined : setTimeout(() => owner.kill('SIGKILL'), afterMs);
  await once(owner, 'close');
  clearTimeout(timer);
  // An incomplete last line may be half a number.
  return printed
    .slice(0, printed.lastIndexOf('\n') + 1)
    .split('\n')
    .filter((line) => line !== '')
    .map(Number);
}

async function storedNumbers(folder: SqliteFolder): Promise<number[]> {
  const { storage } = await folder.started();
  const numbers: number[] = [];
  folder.clock.setWallTime(Date.now() + 60_000);
  for (;;) {
    const { deliveries } = await storage.take(QUEUE, { group: '', count: 1000, leaseMs: null });
    if (deliveries.length === 0) return numbers;
    for (const body of bodyTexts(deliveries)) numbers.push(Number.parseInt(body, 10));
  }
}
