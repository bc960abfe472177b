import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import type { ScannedDelivery, ScanPage } from '../../src/engine/storage.ts';
import { DELIVERY_STATES } from '../../src/model/element.ts';
import type { Line } from '../engines/sqlite-caller.ts';
import { QUEUE, withFolder } from '../engines/sqlite-folder.ts';
import { losePower, powerLossEnvironment } from '../support/power-loss.ts';
import { freshSeed, seededRandom } from '../support/random.ts';
import { sqliteCaller } from '../support/server-command.ts';
import { purge } from '../support/settle.ts';

const CALLER = sqliteCaller();

interface Reservation {
  /** The number of elements found at the start. */
  readonly found: number;
  readonly id: string;
  readonly token: string;
}

/** Runs a process that stores and reserves an element, then simulates a power loss. */
async function runAndLosePower(
  folder: string,
  durability: string,
  env: Readonly<Record<string, string>>,
): Promise<Reservation> {
  const holder = spawn(process.execPath, [CALLER, folder, 'hold', durability], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, ...env },
  });
  const exit = once(holder, 'exit');
  const lines = createInterface({ input: holder.stdout });
  const first = await Promise.race([once(lines, 'line'), exit.then(() => [])]);
  holder.kill('SIGKILL');
  await exit;
  losePower(folder);
  assert.equal(typeof first[0], 'string', 'the process ended before its reservation');
  return JSON.parse(String(first[0])) as Reservation;
}

describe('A SQLite store whose power fails soon after each start', () => {
  for (const durability of ['normal', 'full']) {
    it(`never issues an id or a lease token twice: durability ${durability}`, async () => {
      await withFolder(async (folder) => {
        const { path } = folder;
        // A new file starts its ids at random, which would hide that a counter was reset.
        await (await folder.started()).stop();
        const env = powerLossEnvironment(path);
        const runs: Reservation[] = [];
        for (let run = 0; run < 4; run++) runs.push(await runAndLosePower(path, durability, env));
        assert.equal(new Set(runs.flatMap(({ id, token }) => [id, token])).size, 8, JSON.stringify(runs));
        // Proves the power loss: commits without fsync are lost.
        const kept = durability === 'full' ? [0, 1, 2, 3] : [0, 0, 0, 0];
        assert.deepEqual(
          runs.map(({ found }) => found),
          kept,
        );
      });
    });
  }
});

/** `npm run test:crash:sqlite` simulates 100 power losses. */
const LOSSES = Number(process.env.SQLITE_POWER_LOSSES ?? 4);

/** The acknowledged effects of one run, and the call in flight at the power loss. */
interface Acknowledged {
  readonly stored: Set<string>;
  readonly finished: Set<string>;
  readonly tokens: readonly string[];
  readonly inFlight: Line | null;
}

/**
 * Runs a process that calls the engine, at random or by a script, until a number of lines or the end of the script;
 * then simulates a power loss.
 */
async function callAndLosePower(
  folder: string,
  how: readonly [mode: 'random' | 'script', argument: string],
  env: Readonly<Record<string, string>>,
  after: number,
): Promise<Line[]> {
  const caller = spawn(process.execPath, [CALLER, folder, ...how], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, ...env },
  });
  const exit = once(caller, 'exit');
  const lines: Line[] = [];
  for await (const text of createInterface({ input: caller.stdout })) {
    lines.push(JSON.parse(text) as Line);
    if (lines.length === after || lines.at(-1)?.call === 'script') caller.kill('SIGKILL');
  }
  assert.deepEqual(await exit, [null, 'SIGKILL'], `the process ended by itself after ${lines.length} lines`);
  losePower(folder);
  return lines;
}

function acknowledgedBy(lines: readonly Line[]): Acknowledged {
  const stored = new Set<string>();
  const finished = new Set<string>();
  const tokens: string[] = [];
  for (const { is, call, id = '', token } of lines) {
    if (is === 'calling') continue;
    if (token !== undefined) tokens.push(token);
    if (call === 'insert' || call === 'undo') stored.add(id);
    else if (call === 'pop' || call === 'commit') stored.delete(id);
    if (call === 'pop' || call === 'commit') finished.add(id);
    else finished.delete(id);
  }
  const last = lines.at(-1);
  return { stored, finished, tokens, inFlight: last?.is === 'calling' ? last : null };
}

describe('A SQLite store that acknowledges some calls before their fsync', () => {
  it(`loses no element, delivers no popped element again and repeats no token in ${LOSSES} power losses`, async (t) => {
    const seed = freshSeed();
    t.diagnostic(`seed ${seed}`);
    const random = seededRandom(seed);
    await withFolder(async (folder) => {
      const env = powerLossEnvironment(folder.path);
      const tokens = new Set<string>();
      let reserved = 0;
      for (let loss = 0; loss < LOSSES; loss++) {
        const lines = await callAndLosePower(
          folder.path,
          ['random', `${seed + loss}`],
          env,
          random.between(60, 400),
        );
        const { stored, finished, tokens: given, inFlight } = acknowledgedBy(lines);
        for (const token of given) assert.ok(!tokens.has(token), 'a token was issued twice');
        for (const token of given) tokens.add(token);
        reserved += given.length;
        const files = filesIn(folder.path);
        folder.clock.setWallTime(Date.now());
        const engine = await folder.started();
        assert.deepEqual(folder.warnings, []);
        const left = new Set((await everything(engine)).map(({ id }) => id));
        const missing = [...stored].filter((id) => !left.has(id));
        const mayBeMissing = inFlight?.call === 'pop' || inFlight?.call === 'commit' ? 1 : 0;
        const seen = `loss ${loss} after ${lines.length} lines, ${left.size} left, ${JSON.stringify(inFlight)}, ${files}`;
        assert.ok(missing.length <= mayBeMissing, `${missing} of ${stored.size}: ${seen}`);
        for (const id of finished) assert.ok(!left.has(id) || inFlight?.id === id, `${id} is back`);
        while ((await purge(engine.storage, QUEUE)) > 0);
        await engine.stop();
      }
      assert.ok(reserved > LOSSES);
    });
  });

  /** The remaining elements, as state and tries, after these calls and a power loss. */
  const CALLS: Readonly<Record<string, readonly string[]>> = {
    insert: ['ready 0'],
    'insert,pop': [],
    'insert,pop,undo': ['ready 0'],
    'insert,reserve,commit': [],
    'insert,reserve,rollback': ['ready 1'],
    // The last reservation is lost, which proves that it cost no fsync; elements stored before it are kept.
    'insert,reserve': ['ready 0'],
    'insert,reserve,extend': ['ready 0'],
    'insert,reserve,release,reserve': ['ready 0'],
    // The fsync of a later call covers it.
    'insert,insert,reserve,pop': ['reserved 0'],
    'insert,reserve,extend,insert': ['ready 0', 'reserved 0'],
  };

  it('keeps the effects of each call, except the last reservations, extensions and releases', async () => {
    await withFolder(async ({ path }) => {
      const env = powerLossEnvironment(path);
      for (const [script, expected] of Object.entries(CALLS)) await check(env, script, expected);
    });
    async function check(env: Readonly<Record<string, string>>, script: string, expected: readonly string[]) {
      await withFolder(async (folder) => {
        await callAndLosePower(folder.path, ['script', script], env, Number.POSITIVE_INFINITY);
        folder.clock.setWallTime(Date.now());
        const left = await everything(await folder.started());
        assert.deepEqual(
          left.map(({ state, tries }) => `${state} ${tries}`),
          expected,
          script,
        );
      });
    }
  });
});

/** Each file of a folder with its size, as a start finds it. */
function filesIn(folder: string): string {
  const sizes = readdirSync(folder).map((name) => `${name}: ${statSync(join(folder, name)).size}`);
  return sizes.join(', ');
}

async function everything({ storage }: Engine): Promise<ScannedDelivery[]> {
  const found: ScannedDelivery[] = [];
  for (let after: string | null = null, isFirst = true; isFirst || after !== null; isFirst = false) {
    const page: ScanPage = await storage.scan(QUEUE, {
      group: '',
      states: DELIVERY_STATES,
      after,
      limit: 100,
      bodies: false,
    });
    found.push(...page.deliveries);
    after = page.next;
  }
  return found;
}
