import assert from 'node:assert/strict';
import { cp, mkdir, mkdtemp, readdir, rm, symlink, utimes } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { run } from '../support/python.ts';
import { until } from '../support/until.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

describe('scripts/console.ts', () => {
  it('replaces the pages without a gap, even if several processes build them while a server reads', async (t) => {
    const folder = await mkdtemp(path.join(tmpdir(), 'quayside-console-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    for (const name of [
      'scripts/console.ts',
      'src/console',
      'vite.config.ts',
      'tsconfig.json',
      'package.json',
      'package-lock.json',
    ])
      await cp(path.join(ROOT, name), path.join(folder, name), { recursive: true });
    await symlink(path.join(ROOT, 'node_modules'), path.join(folder, 'node_modules'));
    const built = path.join(folder, 'dist', 'console');
    await mkdir(path.join(folder, 'dist'));
    const build = (): Promise<string> => run(process.execPath, ['scripts/console.ts'], {}, folder);
    await build();
    const before = await filesIn(built);
    assert.ok(before.includes('index.html'));
    await utimes(path.join(folder, 'vite.config.ts'), new Date(), new Date(Date.now() + 60_000));
    let isBuilding = true;
    const builds = Promise.all([build(), build()]).finally(() => {
      isBuilding = false;
    });
    const seen = new Set<string>();
    await until(async () => {
      seen.add((await filesIn(built)).join(' '));
      return !isBuilding;
    });
    await builds;
    assert.deepEqual([...seen], [before.join(' ')]);
    assert.deepEqual(await readdir(path.join(folder, 'dist')), ['console']);
  });
});

async function filesIn(built: string): Promise<readonly string[]> {
  return (await readdir(built, { recursive: true })).sort();
}
