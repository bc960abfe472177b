import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { isAlive } from '../support/server-process.ts';
import { Folder } from './program.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const PATIENCE_MS = 60_000;
/** The flags of ADR 6. */
const V8_FLAGS = ['--max-semi-space-size=8', '--no-allocation-site-pretenuring'];

/** Runs `npm start`, as a terminal or a service manager does. */
class NpmStart {
  readonly npm: ChildProcess;
  readonly ended: Promise<{ code: number | null; signal: string | null }>;
  output = '';
  readonly #listeners = new Set<() => void>();

  constructor(dataDir: string) {
    this.npm = spawn('npm', ['start'], {
      cwd: ROOT,
      env: { ...process.env, QUAYSIDE_DATA_DIR: dataDir, QUAYSIDE_HTTP__PORT: '0' },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    for (const stream of [this.npm.stdout, this.npm.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        this.output += text;
        for (const listener of this.#listeners) listener();
      });
    }
    this.ended = once(this.npm, 'close').then(([code, signal]) => ({ code, signal }));
  }

  async untilPrinted(pattern: RegExp): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const patience = setTimeout(
      () => reject(new Error(`npm start did not print ${pattern}.\n${this.output}`)),
      PATIENCE_MS,
    );
    const check = (): void => {
      if (pattern.test(this.output)) resolve();
    };
    this.#listeners.add(check);
    check();
    await promise.finally(() => clearTimeout(patience));
    this.#listeners.delete(check);
  }

  /** The process id that the server prints; npm's process is another one. */
  get serverPid(): number {
    return Number(/Its process is (\d+)/.exec(this.output)?.[1]);
  }
}

describe('npm start', () => {
  let folder: string;
  let dataDir: string;
  let started: NpmStart | null = null;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'quayside-npm-'));
    dataDir = join(folder, 'data');
  });

  afterEach(async () => {
    if (started === null) return;
    const { npm, serverPid, ended } = started;
    started = null;
    if (npm.exitCode === null && npm.signalCode === null) npm.kill('SIGKILL');
    if (serverPid > 0 && isAlive(serverPid)) process.kill(serverPid, 'SIGKILL');
    await ended;
  });

  after(() => rm(folder, { recursive: true, force: true }));

  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    it(`stops the server on ${signal} to npm and leaves no process or pid file`, async () => {
      started = new NpmStart(dataDir);
      await started.untilPrinted(/listens on .*\n.*reloads/);
      const { serverPid } = started;
      assert.notEqual(serverPid, started.npm.pid);
      assert.equal((await readFile(join(dataDir, 'quayside.pid'), 'utf8')).trim(), String(serverPid));
      started.npm.kill(signal);
      const { code } = await started.ended;
      assert.equal(code, 0, started.output);
      assert.match(started.output, /"stopped"/);
      assert.equal(isAlive(serverPid), false, 'the server process is still running');
      assert.ok(!(await readdir(dataDir)).includes('quayside.pid'));
    });
  }

  it("runs the server with the start script's flags and its console, directly as a child of npm", async () => {
    started = new NpmStart(dataDir);
    await started.untilPrinted(/listens on .*\n.*reloads/);
    const { serverPid, npm } = started;
    const [, url = ''] = /listens on (\S+)/.exec(started.output) ?? [];
    assert.equal((await fetch(new URL('/console/', url))).status, 200, 'the console was not built');
    if (process.platform === 'linux') {
      const words = (await readFile(`/proc/${serverPid}/cmdline`, 'utf8')).split('\0');
      for (const flag of V8_FLAGS) assert.ok(words.includes(flag), words.join(' '));
      const status = await readFile(`/proc/${serverPid}/status`, 'utf8');
      assert.equal(Number(/^PPid:\s+(\d+)/m.exec(status)?.[1]), npm.pid);
    }
    process.kill(Number(await readFile(join(dataDir, 'quayside.pid'), 'utf8')), 'SIGHUP');
    await started.untilPrinted(/were reloaded/);
    npm.kill('SIGTERM');
    await started.ended;
    assert.equal(isAlive(serverPid), false);
  });

  it('has an exec.cmd, which cmd.exe runs for the `exec` of the start script on Windows', async () => {
    const { scripts } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8'));
    assert.equal(scripts.start, `node scripts/console.ts && exec node ${V8_FLAGS.join(' ')} src/main.ts`);
    assert.match(await readFile(join(ROOT, 'exec.cmd'), 'utf8'), /^@rem [^\r\n]*\r\n@%\*\r\n$/);
  });
});

describe('The pid file', () => {
  let folder: Folder;
  const pidFile = (): string => folder.file('data/quayside.pid');

  before(async () => {
    folder = await Folder.create();
    await folder.write('q.json', {
      http: { users: { test1: 'test1' } },
      namespaces: { N: { url: 'sqlite::memory:' } },
    });
    await mkdir(folder.file('data'));
  });

  after(() => folder.dispose());

  it("contains the server's process id, is readable only by its owner, and is removed at the stop", async () => {
    const program = await folder.serve(['--config', 'q.json']);
    await program.untilPrinted(/reloads/);
    assert.equal(await readFile(pidFile(), 'utf8'), `${program.pid}\n`);
    if (process.platform !== 'win32') assert.equal((await stat(pidFile())).mode & 0o777, 0o600);
    assert.equal(await program.stop(), 0);
    await assert.rejects(stat(pidFile()), { code: 'ENOENT' });
  });

  for (const [what, content] of [
    ['of a process that has ended', '999999999\n'],
    ['that is not a number', 'x\n'],
    ['that a kill left empty', ''],
  ] as const) {
    it(`${what} is overwritten without a warning`, async () => {
      await writeFile(pidFile(), content);
      const program = await folder.serve(['--config', 'q.json'], { ownProcess: false });
      await program.untilPrinted(/reloads/);
      assert.equal(await readFile(pidFile(), 'utf8'), `${program.pid}\n`);
      assert.ok(!program.stderr.includes('quayside.pid'), program.stderr);
      assert.equal(await program.stop(), 0);
    });
  }

  it('of two servers on one dataDir names the later one, which logs a warning, and survives the stop of the earlier one', async () => {
    const first = await folder.serve(['--config', 'q.json']);
    await first.untilPrinted(/reloads/);
    const second = await folder.serve(['--config', 'q.json']);
    await second.untilPrinted(/reloads/);
    await second.untilLogged((lines) =>
      lines.some(({ msg }) => String(msg).includes(`named process ${first.pid}`)),
    );
    assert.equal(await first.stop(), 0);
    assert.equal(await readFile(pidFile(), 'utf8'), `${second.pid}\n`);
    assert.equal(await second.stop(), 0);
    await assert.rejects(stat(pidFile()), { code: 'ENOENT' });
  });

  it('that cannot be written causes a warning, but the server runs', async () => {
    await mkdir(join(pidFile(), 'x'), { recursive: true });
    const program = await folder.serve(['--config', 'q.json'], { ownProcess: false });
    await program.untilPrinted(/reloads/);
    await program.untilLogged((lines) => lines.some(({ msg }) => String(msg).includes('cannot be written')));
    assert.equal(await program.stop(), 0);
    await rm(pidFile(), { recursive: true });
  });
});
