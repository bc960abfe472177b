import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { InstalledPackage } from '../../test/support/installed-package.ts';
import { insert, start } from '../../test/support/started.ts';
import { ELEMENT } from '../quayside.ts';
import { median, type Scenario } from '../scenario.ts';
import { limit } from '../shared.ts';

const LIMIT_MS = 2_000;

/** A new user's first steps: from `npx quayside`, with the package installed, to the answer of the first insert. */
export const firstInsert: Scenario = {
  name: 'first-insert',
  async run({ quick, note }) {
    const installed = await InstalledPackage.create();
    try {
      const times: number[] = [];
      // The first start fills the caches of the disk and npm.
      for (let round = quick ? 0 : -1; round < (quick ? 1 : 5); round++) {
        const ms = await timeFirstInsert(installed);
        note(`${round < 0 ? 'cold: ' : ''}${ms.toFixed(0)} ms`);
        if (round >= 0) times.push(ms);
      }
      const ms = median(times);
      const what = 'npx quayside to the first insert stored, warm cache';
      return [limit(what, `${ms.toFixed(0)} ms`, `${LIMIT_MS} ms`, ms / LIMIT_MS)];
    } finally {
      await installed.dispose();
    }
  },
};

async function timeFirstInsert({ folder, env }: InstalledPackage): Promise<number> {
  const dataDir = await mkdtemp(join(tmpdir(), 'quayside-bench-'));
  try {
    const from = performance.now();
    const server = await start('npx', ['--no', 'quayside'], {
      cwd: folder,
      env: { ...env, QUAYSIDE_HTTP__PORT: '0', QUAYSIDE_DATA_DIR: dataDir },
    });
    try {
      await insert({ url: server.url, password: server.password ?? '' }, 'first', ELEMENT);
      return performance.now() - from;
    } finally {
      await server.stop();
    }
  } finally {
    await rm(dataDir, { recursive: true, force: true });
  }
}
