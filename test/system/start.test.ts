import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, open, readFile, stat, statfs, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { SERVER_ARGS } from '../support/server-command.ts';
import { mountSmallDisk } from '../support/small-disk.ts';
import { Folder, type Program } from './program.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const run = promisify(execFile);

describe('A start', () => {
  let folder: Folder;

  beforeEach(async () => {
    folder = await Folder.create();
  });

  afterEach(() => folder.dispose());

  it('creates an administrator the first time, prints the password once and stores its hash', async () => {
    const first = await folder.serve([]);
    const password = passwordOf(first);
    assert.match(password, /^[\w-]{24}$/);
    assert.equal(await statusAs(first, `admin:${password}`), 200);
    assert.equal(await statusAs(first, 'admin:wrong'), 401);
    assert.equal(await first.stop(), 0);

    const kept = await readFile(folder.file('data/users.json'), 'utf8');
    assert.match(kept, /"\$argon2id\$v=19\$m=19456,t=2,p=1\$/);
    assert.ok(!`${kept}${first.stderr}`.includes(password));
    if (process.platform !== 'win32') {
      assert.equal((await stat(folder.file('data/users.json'))).mode & 0o777, 0o600);
    }

    const second = await folder.serve([]);
    assert.match(second.stdout, /listens on http:\/\/127\.0\.0\.1:\d+\n.*\n.*shown at the first start/);
    // An installed package has no `npm start`. Like one, the bundle of a whole run consists of JavaScript.
    const isClone = SERVER_ARGS.some((arg) => arg.endsWith('.ts'));
    assert.match(second.stdout, isClone ? /`npm start -- reset-admin`/ : /`quayside reset-admin`/);
    assert.ok(!second.stdout.includes('password  '));
    assert.equal(await statusAs(second, `admin:${password}`), 200);
    assert.equal(await second.stop(), 0);
  });

  it('ends with exit code 1, so that it is repeated, if the SQLite file cannot be used now', async () => {
    const disk = mountSmallDisk(1024 ** 2);
    assert.ok(disk !== null || process.env.CI === undefined, 'no small disk could be mounted');
    const started = async (dataDir: string): Promise<readonly [number | null, string]> => {
      const config = {
        http: { port: 0, users: { u: 'p' } },
        dataDir,
        namespaces: { N: { url: 'sqlite:N.db' } },
      };
      await folder.write('q.yaml', JSON.stringify(config));
      const { code, stderr } = await folder.run(['--config', 'q.yaml']);
      return [code, stderr];
    };
    const first = await folder.serve([]);
    const [inUse, whoHasIt] = await started('data');
    assert.match(
      whoHasIt,
      /N\.db is in use by another process\. Stop that process, or configure another file\.\n/,
    );
    assert.equal(inUse, 1);
    assert.equal(await first.stop(), 0);
    if (disk === null) return;
    try {
      await writeFile(join(disk.path, 'other'), Buffer.alloc(1024 ** 2));
      const [full, why] = await started(join(disk.path, 'data'));
      assert.match(
        why,
        /N\.db cannot be opened \(database or disk is full\)\. Check that its folder .* has space\.\n/,
      );
      assert.equal(full, 1);
      await mkdir(join(disk.path, 'new'));
      const { files, ffree } = await statfs(disk.path);
      await run('mount', ['-o', `remount,nr_inodes=${files - ffree}`, disk.path]);
      const [noInode, whyNot] = await started(join(disk.path, 'new'));
      assert.match(whyNot, /N\.db cannot be opened \(ENOSPC: .*\)\. Check that its folder .* has space\.\n/);
      assert.equal(noInode, 1);
      await run('mount', ['-o', 'remount,ro', disk.path]);
      const [readOnly, what] = await started(join(disk.path, 'data'));
      assert.match(what, /data is on a file system that is mounted read-only\. Mount that for writing, /);
      assert.equal(readOnly, 1);
    } finally {
      disk.remove();
    }
  });

  it('prints shell commands that insert, get, reserve and commit', async () => {
    const program = await folder.serve([]);
    const lines = program.stdout.split('\n').filter((line) => /^(export|curl|JOB=)/.test(line));
    assert.equal(lines.length, 6);
    const { stdout } = await run('sh', ['-c', lines.join('\n')]);
    assert.match(stdout, /^\{"id":"[^"]+"\}HTTP\/1\.1 200 OK\r\n/);
    assert.match(stdout, /\r\n\r\n\{"hello": "world"\}\{"id":"[^"]+"\}\{\}$/);
    const client = new QueueClient({ url: program.url, credentials: `admin:${passwordOf(program)}` });
    const status = jsonOf<{ totalSize: number; stats: object }>(await client.status('N', 'first'));
    client.close();
    assert.equal(status.totalSize, 0);
    assert.deepEqual(status.stats, { put: 2, get: 1, reserve: 1, commit: 1, rollback: 0, deadletter: 0 });
  });

  it('serves a simple namespace N and a stream namespace events', async () => {
    const program = await folder.serve([], { ownProcess: false });
    const client = new QueueClient({ url: program.url, credentials: `admin:${passwordOf(program)}` });
    const types: string[] = [];
    for (const namespace of jsonOf<string[]>(await client.namespaces())) {
      types.push(jsonOf<{ type: string }>(await client.status(namespace, 'q')).type);
    }
    client.close();
    assert.deepEqual(types, ['sqlite:simple', 'sqlite:stream']);
  });

  it('survives SIGHUP while it reads the configuration, and reloads it once it serves', async () => {
    await run('mkfifo', [folder.file('q.yaml')]);
    const program = folder.launch(['--config', 'q.yaml'], { env: { QUAYSIDE_HTTP__PORT: '0' } });
    // Opening the pipe waits until the program reads it.
    const first = await open(folder.file('q.yaml'), 'w');
    program.signal('SIGHUP');
    await first.writeFile('http: { users: { ann: first } }');
    await first.close();
    await program.untilPrinted(/listens on/);
    const second = await open(folder.file('q.yaml'), 'w');
    await second.writeFile('http: { users: { bob: second } }');
    await second.close();
    await program.untilLogged((lines) => lines.some(({ event }) => event === 'reload'));
    assert.equal(await statusAs(program, 'bob:second'), 200);
    assert.equal(await statusAs(program, 'ann:first'), 401);
    assert.equal(await program.stop(), 0);
  });

  it('accepts the new password of reset-admin after SIGHUP and after a restart', async () => {
    const program = await folder.serve([]);
    const before = passwordOf(program);
    assert.equal(await statusAs(program, `admin:${before}`), 200);
    const reset = await folder.run(['reset-admin']);
    assert.equal(reset.code, 0);
    const after = passwordOf(reset);
    assert.equal(
      await statusAs(program, `admin:${before}`),
      200,
      'the old password must be valid until the reload',
    );
    program.signal('SIGHUP');
    await program.untilPrinted(/were reloaded/);
    assert.equal(await statusAs(program, `admin:${before}`), 401);
    assert.equal(await statusAs(program, `admin:${after}`), 200);
    await program.stop();
    const next = await folder.serve([]);
    assert.equal(await statusAs(next, `admin:${after}`), 200);
  });

  it('creates no user if the configuration has users, which reset-admin then refers to', async () => {
    await folder.write('q.yaml', 'http: { users: { test1: test1 } }');
    const program = await folder.serve(['--config', 'q.yaml']);
    assert.equal(program.stdout.split('\n')[0], `Quayside 0.1.0 listens on ${program.url}`);
    await assert.rejects(stat(folder.file('data/users.json')), { code: 'ENOENT' });
    assert.match(program.stderr, /plain passwords of test1.*hash-password/);
    const reset = await folder.run(['--config', 'q.yaml', 'reset-admin']);
    assert.equal(reset.code, 2);
    assert.match(reset.stderr, /http\.users: names the users.*hash-password/);
  });

  it('warns of users in users.json that the users of the configuration replace', async () => {
    const first = await folder.serve([], { ownProcess: false });
    const password = passwordOf(first);
    await first.stop();
    await folder.write('q.yaml', 'http: { users: { test1: test1 } }');
    const program = await folder.serve(['--config', 'q.yaml'], { ownProcess: false });
    assert.equal(await statusAs(program, `admin:${password}`), 401);
    const isWarning = ({ msg }: Record<string, unknown>): boolean =>
      String(msg).includes('users.json is not used');
    await program.untilLogged((lines) => lines.some(isWarning));
    const warnings = program.logged().filter(isWarning);
    assert.equal(warnings.length, 1);
    assert.match(
      String(warnings[0]?.msg),
      /^http\.users names the users, so .*: admin cannot log in\. Name them there/,
    );
    assert.equal(await program.stop(), 0);
    await folder.write('q.yaml', 'http: { users: { admin: other } }');
    const named = await folder.serve(['--config', 'q.yaml'], { ownProcess: false });
    assert.ok(!named.stderr.includes('users.json is not used'));
    assert.equal(await named.stop(), 0);
  });

  it('keeps the users of the configuration if that is empty at SIGHUP, as while it is written', async () => {
    const first = await folder.serve([], { ownProcess: false });
    const password = passwordOf(first);
    await first.stop();
    await folder.write('q.yaml', 'http: { users: { test1: test1 } }');
    const program = await folder.serve(['--config', 'q.yaml'], { ownProcess: false });
    await folder.write('q.yaml', '');
    program.signal('SIGHUP');
    await program.untilLogged((lines) => lines.some(({ event }) => event === 'reload'));
    const line = program.logged().find(({ event }) => event === 'reload');
    assert.equal(line?.msg, 'the configuration could not be reloaded; nothing was changed');
    assert.match(JSON.stringify(line?.err), /http\.users: names no users, but named some before/);
    assert.deepEqual(
      [await statusAs(program, 'test1:test1'), await statusAs(program, `admin:${password}`)],
      [200, 401],
    );
    assert.equal(await program.stop(), 0);
  });

  it('keeps users that the configuration names since a reload if it names none at the next', async () => {
    await folder.write('q.yaml', '');
    const program = await folder.serve(['--config', 'q.yaml'], { ownProcess: false });
    const reloads = (): Record<string, unknown>[] =>
      program.logged().filter(({ event }) => event === 'reload');
    await folder.write('q.yaml', 'http: { users: { test1: test1 } }');
    program.signal('SIGHUP');
    await program.untilLogged(() => reloads().length === 1);
    await folder.write('q.yaml', '');
    program.signal('SIGHUP');
    await program.untilLogged(() => reloads().length === 2);
    assert.match(JSON.stringify(reloads()[1]?.err), /http\.users: names no users, but named some before/);
    assert.equal(await statusAs(program, 'test1:test1'), 200);
    assert.equal(await program.stop(), 0);
  });

  it('through npm prints the version with --version', async () => {
    const { stdout } = await run('npm', ['start', '--silent', '--', '--version'], { cwd: ROOT });
    assert.match(stdout, /^\d+\.\d+\.\d+\n$/);
  });
});

describe('hash-password', () => {
  let folder: Folder;

  beforeEach(async () => {
    folder = await Folder.create({ ownProcesses: false });
  });

  afterEach(() => folder.dispose());

  it('reads a password from standard input and prints a hash that logs in', async () => {
    const { code, stdout, stderr } = await folder.run(['hash-password'], {
      input: 'a long enough password\n',
      ownProcess: true,
    });
    assert.equal(code, 0);
    assert.equal(stderr, '');
    assert.match(stdout, /^\$argon2id\$\S+\n$/);
    // Fewer connections than any limit of open files, of which the start would warn.
    await folder.write('q.json', { http: { maxSockets: 100, users: { u: { password: stdout.trim() } } } });
    const program = await folder.serve(['--config', 'q.json']);
    assert.equal(await statusAs(program, 'u:a long enough password'), 200);
    assert.equal(program.logged().filter(({ level }) => level === 'warn').length, 0);
  });

  it('rejects a password on the command line, an empty one, one that is too long, and one that is not in UTF-8', async () => {
    const cases = [
      { args: ['hash-password', 'CANARY'], input: '', code: 2 },
      { args: ['hash-password'], input: '', code: 1 },
      { args: ['hash-password'], input: 'x'.repeat(257), code: 1 },
      { args: ['hash-password'], input: Buffer.from('a long enough p\u00e4ssword\n', 'latin1'), code: 1 },
    ];
    for (const { args, input, code } of cases) {
      const program = await folder.run(args, { input });
      assert.equal(program.code, code);
      assert.equal(program.stdout, '');
      assert.notEqual(program.stderr, '');
      assert.ok(!program.stderr.includes('CANARY'));
    }
  });
});

function passwordOf({ stdout }: Program): string {
  return /password {2}(\S+)/.exec(stdout)?.[1] ?? '';
}

async function statusAs({ url }: Program, credentials: string): Promise<number> {
  const client = new QueueClient({ url, credentials });
  const { status } = await client.namespaces();
  client.close();
  return status;
}
