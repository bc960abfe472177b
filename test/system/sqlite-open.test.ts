import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import {
  appendFileSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { describe, it } from 'node:test';
import { StoreInUse } from '../../src/engine/engine.ts';
import { checkSqliteVersion } from '../../src/engines/sqlite/worker/open.ts';
import { SCHEMA_VERSION } from '../../src/engines/sqlite/worker/schema.ts';
import { QUEUE, type SqliteFolder, withFolder } from '../engines/sqlite-folder.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { spawnOwned } from '../support/owned-process.ts';
import { sqliteCaller } from '../support/server-command.ts';

const CALLER = sqliteCaller();

describe('Opening a SQLite file', () => {
  it('creates the file and its parent folders, from a relative or an absolute path', async () => {
    await withFolder(async (folder) => {
      const absolute = join(folder.path, 'deep', 'er', 'a.db');
      for (const url of ['sqlite:below/it/b.db', `sqlite:${absolute}`]) {
        const engine = folder.engine({}, [], url);
        await engine.start();
        await engine.storage.insert(QUEUE, newElements('a'));
        await engine.stop();
      }
      assert.ok(existsSync(absolute));
      assert.ok(existsSync(join(folder.path, 'below', 'it', 'b.db')));
    });
  });

  it('follows a symbolic link, also to a file that does not exist yet, in whose folder it creates all other files', async () => {
    await withFolder(async (folder) => {
      for (const name of ['data', 'disk']) mkdirSync(join(folder.path, name));
      const link = join(folder.path, 'data', 'test.db');
      symlinkSync('../disk/test.db', link);
      for (const expected of [['first'], ['first', 'second']]) {
        const engine = folder.engine({ ballastBytes: 1 }, undefined, `sqlite:${link}`);
        await engine.start();
        await engine.storage.insert(QUEUE, newElements(expected.at(-1) ?? ''));
        assert.deepEqual(readdirSync(join(folder.path, 'data')), ['test.db']);
        const files = readdirSync(join(folder.path, 'disk')).sort();
        assert.deepEqual(files, ['test.db', 'test.db-wal', 'test.db.ballast']);
        assert.ok(((await engine.disk?.())?.fileBytes ?? 0) > 4096);
        const options = { group: '', states: ['ready'], bodies: true, after: null, limit: 2 } as const;
        const { deliveries } = await engine.storage.scan(QUEUE, options);
        assert.deepEqual(bodyTexts(deliveries), expected);
        await engine.stop();
      }
      assert.ok(lstatSync(link).isSymbolicLink());
    });
  });

  it('creates no file named after a queue or namespace', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      for (const name of ['../up', '/etc/x', 'a/b', '..']) {
        await engine.storage.insert({ ns: name, name }, newElements('a'));
      }
      await engine.stop();
      assert.deepEqual(readdirSync(folder.path), ['test.db']);
    });
  });

  it('rejects a second owner in this process with an error that names the file', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started();
      await assert.rejects(folder.engine().start(), (error: Error) => {
        assert.ok(error instanceof StoreInUse);
        assert.match(error.message, /test\.db is in use by another process/);
        return true;
      });
      await first.storage.insert(QUEUE, newElements('still served'));
      await first.stop();
      const second = await folder.started();
      assert.equal((await second.storage.counts(QUEUE)).ready, 1);
    });
  });

  it('is rejected while another process owns the file, until that process is killed', async () => {
    await withFolder(async (folder) => {
      const owner = await startOwner(folder);
      await assert.rejects(folder.engine().start(), StoreInUse);
      owner.kill('SIGKILL');
      await once(owner, 'exit');
      const engine = await folder.started();
      await engine.ping();
    });
  });

  it('rejects a file that is not a database and leaves it unchanged', async () => {
    await withFolder(async (folder) => {
      const text = 'This is a shopping list, not a database.\n'.repeat(200);
      writeFileSync(folder.file, text);
      await assert.rejects(folder.engine().start(), (error: Error) => {
        assert.ok(!(error instanceof StoreInUse));
        assert.match(error.message, /test\.db is damaged or not a database .*backup/);
        return true;
      });
      assert.equal(readFileSync(folder.file, 'utf8'), text);
    });
  });

  it('rejects a file with unexpected tables', async () => {
    await withFolder(async (folder) => {
      await (await folder.started()).stop();
      const db = new DatabaseSync(folder.file);
      db.exec('ALTER TABLE damaged RENAME COLUMN queue TO qveue');
      db.close();
      await assert.rejects(folder.engine().start(), /test\.db has unexpected tables .*backup/);
    });
  });

  it('rejects a truncated file', async () => {
    await withFolder(async (folder) => {
      await fill(folder);
      truncateSync(folder.file, 40_960);
      await assert.rejects(folder.engine().start(), /test\.db is damaged/);
    });
  });

  it('rejects a file with a corrupt page', async () => {
    await withFolder(async (folder) => {
      await fill(folder);
      const bytes = readFileSync(folder.file);
      bytes.fill(0xa5, 20 * 4096, 21 * 4096);
      writeFileSync(folder.file, bytes);
      await assert.rejects(folder.engine().start(), /test\.db is damaged/);
    });
  });

  it('succeeds if the log ends with garbage, and keeps what was stored', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      await engine.storage.insert(QUEUE, newElements('a'));
      await engine.stop();
      appendFileSync(`${folder.file}-wal`, Buffer.alloc(5000, 1));
      const again = await folder.started();
      assert.equal((await again.storage.counts(QUEUE)).ready, 1);
    });
  });

  it('rejects a file of a newer schema version with an error that names both versions', async () => {
    await withFolder(async (folder) => {
      await fill(folder);
      changeFile(folder, `PRAGMA user_version = ${SCHEMA_VERSION + 1}`);
      await assert.rejects(
        folder.engine().start(),
        /has schema \d+, and this version of Quayside needs schema \d+; use the version that wrote it/,
      );
    });
  });

  it('upgrades a file of an older schema, which older versions reject from then on', async () => {
    await withFolder(async (folder) => {
      await fill(folder);
      changeFile(folder, 'ALTER TABLE delivery ADD COLUMN owner INTEGER; PRAGMA user_version = 1');
      const engine = await folder.started();
      assert.ok((await engine.storage.counts(QUEUE)).ready > 0);
      await engine.stop();
      assert.equal(markOf(folder).schema, SCHEMA_VERSION);
    });
  });

  it('leaves a file of an older schema unchanged if it cannot use its tables', async () => {
    await withFolder(async (folder) => {
      await fill(folder);
      changeFile(folder, 'ALTER TABLE delivery DROP COLUMN holder; PRAGMA user_version = 1');
      const before = markOf(folder);
      await assert.rejects(folder.engine().start(), /test\.db has unexpected tables/);
      assert.deepEqual(markOf(folder), before);
    });
  });

  it('rejects the file of another program, and leaves it as it is', async () => {
    for (const version of [0, SCHEMA_VERSION, 7]) {
      await withFolder(async (folder) => {
        const db = new DatabaseSync(folder.file);
        db.exec(`CREATE TABLE customer (name TEXT); PRAGMA user_version = ${version}`);
        db.close();
        const before = readFileSync(folder.file);
        await assert.rejects(
          folder.engine().start(),
          /test\.db cannot be .*it has tables of another program/,
        );
        assert.ok(readFileSync(folder.file).equals(before));
      });
    }
  });

  it('rejects the path of a folder', async () => {
    await withFolder(async (folder) => {
      mkdirSync(folder.file);
      await assert.rejects(folder.engine().start(), /test\.db cannot be opened .*folder/);
    });
  });

  it('rejects a SQLite version that is too old', () => {
    for (const version of ['3.51.2', '3.7.0', '3.9.99', '2.99.99', '0']) {
      assert.throws(() => checkSqliteVersion(version), /use one with SQLite 3\.51\.3/);
    }
    for (const version of ['3.51.3', '3.52.0', '3.100.0', '4.0.0']) checkSqliteVersion(version);
  });

  it('rejects unknown and invalid settings with an error that names them', async () => {
    await withFolder(async (folder) => {
      const wrong = [
        { colour: 'blue' },
        { durability: 'off' },
        { cacheBytes: 5 },
        { ballastBytes: -1 },
        { minFreeBytes: 1.5 },
      ];
      for (const settings of wrong) {
        const [name = ''] = Object.keys(settings);
        assert.throws(() => folder.engine(settings), new RegExp(`sqlite:test\\.db.*${name}`));
      }
      assert.throws(() => folder.engine({ colour: 'blue' }), /allowed: [\w, ]+, minFreeBytes$/);
      assert.throws(() => folder.engine({}, [], 'sqlite:'), /name a file/);
    });
  });

  it('can be stopped before, during and after the start, and repeatedly', async () => {
    await withFolder(async (folder) => {
      const never = folder.engine();
      await never.stop();
      await assert.rejects(never.start());
      const starting = folder.engine();
      const started = starting.start();
      await Promise.all([starting.stop(), starting.stop(), started.catch(() => {})]);
      const last = await folder.started();
      await last.stop();
      await last.stop();
      await assert.rejects(last.storage.insert(QUEUE, newElements('late')), { code: 'storage-unavailable' });
      await assert.rejects(last.ping(), { code: 'storage-unavailable' });
    });
  });

  it('completes calls that precede the stop', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      const inserts = Array.from({ length: 50 }, () => engine.storage.insert(QUEUE, newElements('a')));
      const stopped = engine.stop();
      assert.equal((await Promise.all(inserts)).flat().length, 50);
      await stopped;
      const again = await folder.started();
      assert.equal((await again.storage.counts(QUEUE)).ready, 50);
    });
  });
});

async function fill(folder: SqliteFolder): Promise<void> {
  const engine = await folder.started();
  const elements = Array.from({ length: 500 }, (_, index) => newElement({ body: `${index} `.repeat(200) }));
  await engine.storage.insert(QUEUE, elements);
  const { deliveries } = await engine.storage.take(QUEUE, { group: '', count: 1, leaseMs: null });
  assert.ok(bodyTexts(deliveries)[0]?.startsWith('0 0 0'));
  await engine.stop();
}

/** Executes statements on the file of a stopped engine. */
function changeFile({ file }: SqliteFolder, sql: string): void {
  const db = new DatabaseSync(file);
  db.exec(sql);
  db.close();
}

/** What each start that succeeds writes to the file. */
function markOf({ file }: SqliteFolder): { readonly schema: unknown; readonly epoch: unknown } {
  const db = new DatabaseSync(file);
  const schema = db.prepare('PRAGMA user_version').get()?.user_version;
  const epoch = db.prepare(`SELECT value FROM meta WHERE key = 'epoch'`).get()?.value;
  db.close();
  return { schema, epoch };
}

/** Starts another process that owns the file. Resolves once it does. */
async function startOwner({ path }: SqliteFolder): Promise<ChildProcess> {
  const owner = spawnOwned(process.execPath, [CALLER, path], { stdio: ['pipe', 'pipe', 'inherit'] });
  await once(owner.stdout, 'data');
  return owner;
}
