import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { installTools } from '../../scripts/install-tools.ts';
import { InstalledPackage } from '../support/installed-package.ts';
import { insert, pop, start } from '../support/started.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const CHECKERS = join(import.meta.dirname, 'checkers');
const run = promisify(execFile);

describe('the package that npm pack makes', () => {
  let installed: InstalledPackage;
  let folder: string;
  let env: NodeJS.ProcessEnv;

  before(async () => {
    installed = await InstalledPackage.create();
    ({ folder, env } = installed);
    await installTools(CHECKERS);
  });
  after(() => installed.dispose());

  it('serves by npx quayside without optional packages', async () => {
    const server = await start('npx', ['--no', 'quayside'], {
      cwd: folder,
      env: { ...env, QUAYSIDE_HTTP__PORT: '0' },
    });
    try {
      const login = { url: server.url, password: server.password ?? '' };
      await insert(login, 'first', '{"order":1}');
      assert.equal(await pop(login, 'first'), '{"order":1}');
    } finally {
      await server.stop();
    }
  });

  it('brings the client library with its types', async () => {
    const program = `import { Quayside } from 'quayside/client';
const quayside: Quayside = new Quayside({ url: 'http://127.0.0.1:1' });
console.log(typeof quayside.queue('N/orders').insert);
await quayside.close();
`;
    await writeFile(join(folder, 'sample.mts'), program);
    const tsc = join(ROOT, 'node_modules/typescript/bin/tsc');
    const flags = ['--noEmit', '--strict', '--module', 'nodenext', '--lib', 'esnext,dom', '--ignoreConfig'];
    await run(process.execPath, [tsc, ...flags, 'sample.mts'], { cwd: folder });
    const { stdout } = await run(process.execPath, ['sample.mts'], { cwd: folder });
    assert.equal(stdout, 'function\n');
  });

  it('holds no source and no test', async () => {
    const found = await readdir(join(folder, 'node_modules', 'quayside'), { recursive: true });
    const wrong = found.filter((name) => /(?<!\.d)\.ts$|^(src|test|bench|scripts)\b/.test(name));
    assert.deepEqual(wrong, []);
  });

  it('exports what publint and attw find nothing wrong with', async () => {
    const check = (name: string, ...args: string[]): Promise<unknown> =>
      run(process.execPath, [join(CHECKERS, 'node_modules', name), ...args], { cwd: folder, env }).catch(
        ({ stdout, stderr }) => assert.fail(`${stdout}${stderr}`),
      );
    await check('publint/src/cli.js', '--strict', installed.tarball);
    await check(
      '@arethetypeswrong/cli/dist/index.js',
      installed.tarball,
      '--profile=esm-only',
      '--exclude-entrypoints=./package.json',
    );
  });

  it('takes at most 25 MiB with all that it needs, without the drivers of engines', async () => {
    const { stdout } = await run('du', ['-sk', join(folder, 'node_modules')]);
    const kib = Number(stdout.split('\t')[0]);
    assert.ok(kib > 0 && kib <= 25 * 1024, `${kib} KiB`);
  });
});
