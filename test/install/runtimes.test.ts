import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { copyFile } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { promisify } from 'node:util';
import { installTools } from '../../scripts/install-tools.ts';
import { InstalledPackage } from '../support/installed-package.ts';
import { type Started, start } from '../support/started.ts';

const CHECKERS = join(import.meta.dirname, 'checkers');
const PROGRAM = 'program.js';
const run = promisify(execFile);

/** Deno and Bun are npm packages of their own for each machine; CI has this one. */
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

/** Where nobody listens. */
async function unusedAddress(): Promise<string> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return `http://127.0.0.1:${port}`;
}

describe('the client library as it is installed', () => {
  let installed: InstalledPackage;
  before(async () => {
    await installTools(CHECKERS);
    installed = await InstalledPackage.create();
    await copyFile(join(import.meta.dirname, 'runtimes', PROGRAM), join(installed.folder, PROGRAM));
  });
  after(() => installed.dispose());

  for (const [name, [command = '', ...args]] of Object.entries(RUNTIMES)) {
    it(`inserts, takes, works and fails in ${name} as in the others`, async () => {
      const { folder, env } = installed;
      const server: Started = await start('npx', ['--no', 'quayside'], {
        cwd: folder,
        env: { ...env, QUAYSIDE_HTTP__PORT: '0', QUAYSIDE_DATA_DIR: join(folder, name), ...DEAD_LETTERS },
      });
      try {
        const login = [server.url, 'admin', server.password ?? '', await unusedAddress()];
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
