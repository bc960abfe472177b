import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const run = promisify(execFile);

describe('the package that npm pack makes', () => {
  let folder: string;
  /** This Node goes first, as on a machine where it is the system's. */
  const env = { ...process.env, PATH: [dirname(process.execPath), process.env.PATH].join(delimiter) };

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'quayside-package-'));
    await run('npm', ['pack', '--pack-destination', folder], { cwd: ROOT, env });
    const [tarball] = await readdir(folder);
    await writeFile(join(folder, 'package.json'), '{}');
    const flags = ['--omit=optional', '--prefer-offline', '--no-audit', '--no-fund'];
    await run('npm', ['install', ...flags, join(folder, tarball ?? '')], { cwd: folder, env });
  });
  after(() => rm(folder, { recursive: true, force: true }));

  it('serves by npx quayside without optional packages', async () => {
    const server = spawn('npx', ['--no', 'quayside'], {
      cwd: folder,
      env: { ...env, QUAYSIDE_HTTP__PORT: '0' },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const said = new Map<string, string>();
    for await (const line of createInterface({ input: server.stdout })) {
      const [, what, value] = /(address|password|process is)\s+(\S+)/.exec(line) ?? [];
      if (what !== undefined && value !== undefined) said.set(what, value);
      if (said.size === 3) break;
    }
    server.stdout.resume();
    try {
      const queue = new URL('/q/N/first', said.get('address'));
      const authorization = `Basic ${btoa(`admin:${said.get('password')}`)}`;
      const body = '{"order":1}';
      const headers = { authorization, 'content-type': 'application/json' };
      const stored = await fetch(queue, { method: 'PUT', headers, body });
      assert.equal(stored.status, 200);
      const element = await fetch(queue, { headers });
      assert.equal(await element.text(), body);
    } finally {
      // npx runs it below a shell.
      process.kill(Number(said.get('process is')), 'SIGTERM');
      await once(server, 'close');
    }
  });

  it('holds no source and no test', async () => {
    const found = await readdir(join(folder, 'node_modules', 'quayside'), { recursive: true });
    const wrong = found.filter((name) => /(?<!\.d)\.ts$|^(src|test|bench|scripts)\b/.test(name));
    assert.deepEqual(wrong, []);
  });
});
