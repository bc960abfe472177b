import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { describe, it } from 'node:test';
import { withFolder } from '../engines/sqlite-folder.ts';
import { losePower, powerLossEnvironment } from '../support/power-loss.ts';

const HOLDER = new URL('../engines/sqlite-holder.ts', import.meta.url).pathname;

interface Held {
  /** Elements that were there at the start. */
  readonly found: number;
  readonly id: string;
  readonly token: string;
}

/** One run: it stores and reserves an element, then the power fails. */
async function runAndLosePower(
  folder: string,
  durability: string,
  env: Readonly<Record<string, string>>,
): Promise<Held> {
  const holder = spawn(process.execPath, [HOLDER, folder, durability], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, ...env },
  });
  const exit = once(holder, 'exit');
  const lines = createInterface({ input: holder.stdout });
  const first = await Promise.race([once(lines, 'line'), exit.then(() => [])]);
  holder.kill('SIGKILL');
  await exit;
  losePower(folder);
  assert.equal(typeof first[0], 'string', 'the process came as far as its reservation');
  return JSON.parse(String(first[0])) as Held;
}

describe('a SQLite store whose power fails soon after each start', () => {
  for (const durability of ['normal', 'full']) {
    it(`never issues an id or a lease token twice: durability ${durability}`, async () => {
      await withFolder(async (folder) => {
        const { path } = folder;
        // A new file has a random beginning of its ids, which hides that a count was taken back.
        await (await folder.started()).stop();
        const env = powerLossEnvironment(path);
        const runs: Held[] = [];
        for (let run = 0; run < 4; run++) runs.push(await runAndLosePower(path, durability, env));
        assert.equal(new Set(runs.flatMap(({ id, token }) => [id, token])).size, 8, JSON.stringify(runs));
        // What shows that the power failed: without the fsync of each commit its elements are gone.
        const kept = durability === 'full' ? [0, 1, 2, 3] : [0, 0, 0, 0];
        assert.deepEqual(
          runs.map(({ found }) => found),
          kept,
        );
      });
    });
  }
});
