import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { copyFile, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { installTools } from '../../scripts/install-tools.ts';
import { freePort } from '../support/free-port.ts';
import { InstalledPackage } from '../support/installed-package.ts';
import { insert, pop, type Started, start } from '../support/started.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const CHECKERS = join(import.meta.dirname, 'checkers');
const PROGRAM = 'program.js';
const run = promisify(execFile);

/** Deno and Bun have a different npm package for each platform; this is the one of CI. */
const RUNTIMES: Readonly<Record<string, readonly string[]>> = {
  Node: [process.execPath],
  Deno: [
    join(CHECKERS, 'node_modules/@deno/linux-x64-glibc/deno'),
    'run',
    '--no-prompt',
    '--allow-net',
    '--allow-env',
  ],
  Bun: [join(CHECKERS, 'node_modules/@oven/bun-linux-x64/bin/bun')],
};

const DEAD_LETTERS = {
  QUAYSIDE_NAMESPACES__N__URL: 'sqlite:N.db',
  QUAYSIDE_NAMESPACES__N__DEAD_LETTER__MAX_TRIES: '3',
};

const EXPECTED = `different ids 102
handled 102 tries of 7 2
left 0
browsed ready raw
reserved 0,255,128
twice already-settled
popped undefined
lost true
aborted enough
unreachable connection-failed nothing-changed
`;

describe('The package built by npm pack', () => {
  let installed: InstalledPackage;
  let folder: string;
  let env: NodeJS.ProcessEnv;

  before(async () => {
    installed = await InstalledPackage.create();
    ({ folder, env } = installed);
    await installTools(CHECKERS);
    await copyFile(join(import.meta.dirname, 'runtimes', PROGRAM), join(folder, PROGRAM));
  });
  after(() => installed.dispose());

  it('starts a server by npx quayside without optional packages', async () => {
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

  it('contains the client library with its types', async () => {
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

  it('contains no sources or tests', async () => {
    const found = await readdir(join(folder, 'node_modules', 'quayside'), { recursive: true });
    const wrong = found.filter((name) => /(?<!\.d)\.ts$|^(src|test|bench|scripts)\b/.test(name));
    assert.deepEqual(wrong, []);
  });

  it('has exports that publint and attw accept', async () => {
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

  it('takes at most 25 MiB with its dependencies, without the drivers of engines', async () => {
    const { stdout } = await run('du', ['-sk', join(folder, 'node_modules')]);
    const kib = Number(stdout.split('\t')[0]);
    assert.ok(kib > 0 && kib <= 25 * 1024, `${kib} KiB`);
  });

  for (const [name, [command = '', ...args]] of Object.entries(RUNTIMES)) {
    it(`has a client that behaves in ${name} as in the other runtimes`, async () => {
      const server: Started = await start('npx', ['--no', 'quayside'], {
        cwd: folder,
        env: { ...env, QUAYSIDE_HTTP__PORT: '0', QUAYSIDE_DATA_DIR: join(folder, name), ...DEAD_LETTERS },
      });
      try {
        const login = [server.url, 'admin', server.password ?? '', `http://127.0.0.1:${await freePort()}`];
        const { stdout } = await run(command, [...args, PROGRAM, ...login], {
          cwd: folder,
          env: { ...env, NO_COLOR: '1', DENO_NO_UPDATE_CHECK: '1' },
        });
        assert.equal(stdout, EXPECTED);
      } finally {
        await server.stop();
      }
    });
  }
});
