import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { insert, pop, start } from '../support/started.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const run = promisify(execFile);

describe('the package that npm pack makes', () => {
  let folder: string;
  /** This Node goes first, as on a machine where it is the system's. */
  const env = { ...process.env, PATH: [dirname(process.execPath), process.env.PATH].join(delimiter) };

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'quayside-package-'));
    // Also where npm is set to run no scripts.
    await run('npm', ['pack', '--ignore-scripts=false', '--pack-destination', folder], { cwd: ROOT, env });
    const [tarball] = await readdir(folder);
    await writeFile(join(folder, 'package.json'), '{}');
    const flags = ['--omit=optional', '--prefer-offline', '--no-audit', '--no-fund'];
    await run('npm', ['install', ...flags, join(folder, tarball ?? '')], { cwd: folder, env });
  });
  after(() => rm(folder, { recursive: true, force: true }));

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
});
