import assert from 'node:assert/strict';
import {
  chownSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { headerOf, jsonOf, QueueClient } from '../support/http-client.ts';
import { mountSmallDisk } from '../support/small-disk.ts';
import { Folder, type Program, type ProgramOptions } from './program.ts';

const CONFIG = {
  http: { users: { test1: 'test1' } },
  namespaces: { N: { url: 'sqlite:N.db' }, S: { url: 'sqlite:S.db', variant: 'stream' } },
};
const WITH_CONFIG = ['--config', 'config.json'];

describe('npm run backup and npm run restore', () => {
  let folder: Folder;
  let client: QueueClient | null = null;

  beforeEach(async () => {
    folder = await Folder.create({ ownProcesses: false });
    await folder.write('config.json', CONFIG);
  });

  afterEach(async () => {
    client?.close();
    client = null;
    await folder.dispose();
  });

  async function serve(): Promise<Program> {
    const server = await folder.serve(WITH_CONFIG, { ownProcess: true });
    client?.close();
    client = new QueueClient({ url: server.url });
    return server;
  }

  async function insert(body: string): Promise<string> {
    const answer = await client?.insert('N', 'orders', body);
    assert.equal(answer?.status, 200);
    return jsonOf<{ id: string }>(answer).id;
  }

  /** The bodies of the remaining elements by id. */
  async function popAll(): Promise<Map<string, string>> {
    const found = new Map<string, string>();
    for (;;) {
      const answer = await client?.get('N', 'orders', { to: 0 });
      if (answer?.status !== 200) return found;
      found.set(String(headerOf(answer, 'x-ks-id')), answer.body.toString());
    }
  }

  const run = (args: readonly string[], input = '', options: ProgramOptions = {}): Promise<Program> =>
    folder.run([...args, ...WITH_CONFIG], { ...options, input });
  /** The files in the data folder, without logs: checking whether a database is in use leaves an empty log. */
  const data = (): string[] =>
    readdirSync(folder.file('data'))
      .filter((name) => !name.endsWith('-wal'))
      .sort();

  it('back up a running server and restore it to that moment, without reusing ids', async () => {
    const server = await serve();
    const kept = await insert('before the backup');
    const args = ['backup', 'saved/monday', '--user', 'test1', '--url', server.url];
    const backup = await run(args, 'test1\n', { ownProcess: true });
    assert.equal(backup.code, 0, backup.stderr);
    assert.match(backup.stdout, /Backed up to \S+monday:\n {2}N\.db: N \(\d+ bytes\)\n {2}S\.db: S /);
    assert.deepEqual(readdirSync(folder.file('saved/monday')).sort(), ['N.db', 'S.db', 'backup.json']);
    assert.equal(statSync(folder.file('saved/monday')).mode & 0o777, 0o700);
    const lost = await insert('after the backup');

    for (const args of [[], ['--replace']]) {
      const refused = await run(['restore', 'saved/monday', ...args]);
      assert.equal(refused.code, 1);
      assert.match(refused.stderr, /N\.db is in use by another process/);
    }
    assert.equal(await server.stop(), 0);
    const refused = await run(['restore', 'saved/monday'], '', { ownProcess: true });
    assert.equal(refused.code, 1);
    assert.match(refused.stderr, /N\.db already exists\. Move it, or use --replace/);
    const before = readFileSync(folder.file('data/N.db'));
    const restored = await run(['restore', 'saved/monday', '--replace'], '', { ownProcess: true });
    assert.equal(restored.code, 0, restored.stderr);
    const [aside = ''] = data().filter((name) => name.startsWith('N.db.replaced-'));
    assert.ok(readFileSync(join(folder.file('data'), aside)).equals(before));

    const after = await serve();
    const next = await insert('after the restore');
    assert.ok(![kept, lost].includes(next));
    assert.deepEqual(
      [...(await popAll())],
      [
        [kept, 'before the backup'],
        [next, 'after the restore'],
      ],
    );
    assert.equal(await after.stop(), 0);
  });

  describe('run by root', { skip: process.getuid?.() !== 0 && 'these tests need root' }, () => {
    const [SERVER, GROUP] = [12_345, 12_346];

    it('make the owner of the data folder the owner of all its files', async () => {
      const server = await serve();
      await insert('kept');
      assert.equal(await server.stop(), 0);
      assert.equal((await run(['backup', 'monday'])).code, 0);
      rmSync(folder.file('data'), { recursive: true });
      mkdirSync(folder.file('data'));
      chownSync(folder.file('data'), SERVER, GROUP);
      assert.equal((await run(['restore', 'monday'])).code, 0);
      assert.equal((await run(['restore', 'monday', '--replace'])).code, 0);
      // A backup opens all configured databases and creates missing ones.
      rmSync(folder.file('data/S.db'));
      assert.equal((await run(['backup', 'tuesday'])).code, 0);
      const names = readdirSync(folder.file('data'));
      assert.ok(
        ['N.db', 'S.db', 'N.db.ballast'].every((name) => names.includes(name)),
        names.join(' '),
      );
      for (const name of names) {
        const { uid, gid, mode } = statSync(folder.file(`data/${name}`));
        assert.deepEqual([uid, gid, mode & 0o777], [SERVER, GROUP, 0o600], name);
      }
    });
  });

  it('move a backup to another disk completely or not at all', async (t) => {
    const disks = [mountSmallDisk(524_288), mountSmallDisk(8_388_608)];
    const [small = null, large = null] = disks;
    if (small === null || large === null) return t.skip('this process may not mount');
    try {
      const server = await serve();
      await insert('x'.repeat(900_000));
      const backUpTo = (folder: string): Promise<Program> =>
        run(['backup', join(folder, 'monday'), '--user', 'test1', '--url', server.url], 'test1\n');
      const failed = await backUpTo(small.path);
      assert.equal(failed.code, 1);
      const [, kept = ''] =
        /^quayside: The backup is in (\S+); it cannot be moved \(ENOSPC/.exec(failed.stderr) ?? [];
      assert.ok(readdirSync(kept).includes('backup.json'), failed.stderr);
      assert.deepEqual(readdirSync(small.path), []);
      const moved = await backUpTo(large.path);
      assert.equal(moved.code, 0, moved.stderr);
      assert.deepEqual(readdirSync(large.path), ['monday']);
      const files = readdirSync(join(large.path, 'monday')).sort();
      assert.deepEqual(files, ['N.db', 'S.db', 'backup.json']);
      for (const name of ['', ...files])
        assert.equal(statSync(join(large.path, 'monday', name)).mode & 0o077, 0);
      assert.deepEqual(readdirSync(folder.file('data/backups')), [basename(kept)]);
      assert.equal(await server.stop(), 0);
      assert.equal((await run(['restore', join(large.path, 'monday'), '--replace'])).code, 0);
    } finally {
      for (const disk of disks) disk?.remove();
    }
    return undefined;
  });

  it('back up and restore a stopped server without a password, even to a data folder with an unusual name', async () => {
    const server = await serve();
    const id = await insert('kept');
    await server.kill();
    const backup = await run(['backup', 'monday']);
    assert.equal(backup.code, 0, backup.stderr);
    const elsewhere = 'else $& where';
    await folder.write('config.json', { ...CONFIG, dataDir: elsewhere });
    const restored = await run(['restore', 'monday']);
    assert.equal(restored.code, 0, restored.stderr);
    assert.deepEqual(readdirSync(folder.file(elsewhere)).sort(), ['N.db', 'S.db']);
    const replaced = await run(['restore', 'monday', '--replace']);
    assert.equal(replaced.code, 0, replaced.stderr);
    const kept = readdirSync(folder.file(elsewhere)).filter((name) => /\.db\.replaced-[^w]+$/.test(name));
    assert.equal(kept.length, 2);
    const after = await serve();
    assert.deepEqual([...(await popAll())], [[id, 'kept']]);
    assert.equal(await after.stop(), 0);
  });

  it('reject a wrong password, an existing target and a missing backup with an exit code and a message', async () => {
    const nothing = await run(['backup', 'monday']);
    assert.equal(nothing.code, 1);
    assert.match(nothing.stderr, /There is no SQLite file to back up in \S+data\./);
    assert.ok(!existsSync(folder.file('data')));
    const server = await serve();
    const wrong = await run(['backup', 'monday', '--user', 'test1', '--url', server.url], 'wrong\n');
    assert.equal(wrong.code, 1);
    assert.match(wrong.stderr, /The server answered 401/);
    assert.ok(!existsSync(folder.file('monday')));
    const there = await run(['backup', 'data']);
    assert.equal(there.code, 1);
    assert.match(there.stderr, /data exists already; name a new folder/);
    for (const [args, message] of [
      [['backup'], /^quayside: Missing required argument 'folder'/],
      [['restore'], /^quayside: Missing required argument 'folder'/],
      [['backup', 'a', 'b'], /^quayside: The command backup takes no further argument/],
    ] as const) {
      const usage = await run(args);
      assert.equal(usage.code, 2);
      assert.match(usage.stderr, message);
    }
    await server.stop();
    const missing = await run(['restore', 'nowhere']);
    assert.equal(missing.code, 1);
    assert.match(missing.stderr, /nowhere\/backup\.json is not the manifest of a backup/);
    mkdirSync(folder.file('empty'));
    writeFileSync(folder.file('empty/backup.json'), '{"files": []}');
    const empty = await run(['restore', 'empty']);
    assert.equal(empty.code, 1);
    assert.match(empty.stderr, /The backup in \S+empty contains no file to restore/);
    writeFileSync(folder.file('empty/backup.json'), '{"files": [{"file": "N.db"}]}');
    const incomplete = await run(['restore', 'empty']);
    assert.equal(incomplete.code, 1);
    assert.match(
      incomplete.stderr,
      /is not the manifest of a backup \(files\[0\]\.namespaces is missing; it must be an array/,
    );
  });

  it('restore a file that contains only statistics, if a namespace still has its statistics there', async () => {
    const namespaces = { N: { url: 'sqlite:N.db', stats: { url: 'sqlite:stats.db' } } };
    await folder.write('config.json', { ...CONFIG, namespaces });
    const server = await serve();
    await insert('kept');
    assert.equal(await server.stop(), 0);
    const backup = await run(['backup', 'monday']);
    assert.match(backup.stdout, / {2}stats\.db: statistics \(\d+ bytes\)\n/);
    rmSync(folder.file('data'), { recursive: true });
    const restored = await run(['restore', 'monday']);
    assert.match(restored.stdout, / {2}statistics: \S+data\/stats\.db\n/);
    const after = await serve();
    const { body } = (await client?.request('GET', '/q/N/orders/status')) ?? {};
    assert.equal(JSON.parse(String(body)).stats.put, 1);
    assert.equal(await after.stop(), 0);
    await folder.write('config.json', { ...CONFIG, namespaces: { N: { url: 'sqlite:N.db' } } });
    const without = await run(['restore', 'monday', '--replace']);
    assert.match(
      without.stdout,
      / {2}not restored: stats\.db, since no namespace has statistics in sqlite:stats\.db\n/,
    );
  });

  it('change nothing if a file of the backup is damaged, belongs to an unknown namespace, or shares its target', async () => {
    const server = await serve();
    await insert('kept');
    await server.stop();
    assert.equal((await run(['backup', 'monday'])).code, 0);
    const files = data();
    const manifest = readFileSync(folder.file('monday/backup.json'), 'utf8');
    writeFileSync(folder.file('monday/backup.json'), manifest.replace('"S"', '"T"'));
    const unknown = await run(['restore', 'monday', '--replace']);
    assert.equal(unknown.code, 1);
    assert.match(unknown.stderr, /The backup contains a namespace "T", which is not in the configuration/);
    writeFileSync(folder.file('monday/backup.json'), manifest);
    const merged = { N: { url: 'sqlite:N.db' }, S: { url: 'sqlite:N.db', variant: 'stream' } };
    await folder.write('merged.json', { ...CONFIG, namespaces: merged });
    const shared = await folder.run(['restore', 'monday', '--replace', '--config', 'merged.json']);
    assert.equal(shared.code, 1);
    assert.match(shared.stderr, /"N\.db" and "S\.db" cannot be merged into one file, \S+data\/N\.db/);
    const bytes = readFileSync(folder.file('monday/S.db'));
    bytes.fill(0xa5, 4 * 4096, 8 * 4096);
    writeFileSync(folder.file('monday/S.db'), bytes);
    const damaged = await run(['restore', 'monday', '--replace']);
    assert.equal(damaged.code, 1);
    assert.match(
      damaged.stderr,
      /monday\/S\.db is damaged or not a database [\s\S]*\)\. Nothing was replaced; restore another backup\.\n$/,
    );
    writeFileSync(folder.file('monday/S.db'), '');
    const empty = await run(['restore', 'monday', '--replace']);
    assert.match(empty.stderr, /monday\/S\.db is damaged or not a database \(it has no tables\)\. /);
    rmSync(folder.file('monday/S.db'));
    const missing = await run(['restore', 'monday', '--replace']);
    assert.match(missing.stderr, /The backup lacks the file \S+monday\/S\.db\. Nothing was replaced; /);
    assert.deepEqual(data(), files);
  });

  it('change nothing if a restore finds no space, and say so', async (t) => {
    const disk = mountSmallDisk(64 * 1024);
    if (disk === null) return t.skip('this process may not mount');
    try {
      const server = await serve();
      await server.stop();
      assert.equal((await run(['backup', 'monday'])).code, 0);
      await folder.write('small.json', { ...CONFIG, dataDir: disk.path });
      const full = await folder.run(['restore', 'monday', '--config', 'small.json']);
      assert.equal(full.code, 1);
      assert.match(
        full.stderr,
        new RegExp(
          `^quayside: There is no space for a copy of \\S+monday/N\\.db in ${disk.path}\\. Nothing was replaced; make space, and repeat the restore\\.\n$`,
        ),
      );
      assert.deepEqual(readdirSync(disk.path), []);
    } finally {
      disk.remove();
    }
    return undefined;
  });

  it('can repeat a restore that was killed between its renames; until then the server refuses to start', async () => {
    let server = await serve();
    const id = await insert('kept');
    await server.stop();
    assert.equal((await run(['backup', 'monday'])).code, 0);
    // The state after such a kill.
    renameSync(folder.file('data/N.db'), folder.file('data/N.db.replaced-then'));
    copyFileSync(folder.file('monday/N.db'), folder.file('data/N.db.restoring'));
    const refused = await run(['serve']);
    assert.equal(refused.code, 2);
    assert.match(
      refused.stderr,
      /N\.db is missing, and \S+N\.db\.restoring shows that a restore was interrupted/,
    );
    assert.ok(!data().includes('N.db'));
    assert.equal((await run(['restore', 'monday', '--replace'])).code, 0);
    server = await serve();
    assert.deepEqual(await popAll(), new Map([[id, 'kept']]));
  });
});
