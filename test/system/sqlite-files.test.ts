import assert from 'node:assert/strict';
import {
  chmodSync,
  copyFileSync,
  lstatSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { QUEUE, type SqliteFolder, withFolder } from '../engines/sqlite-folder.ts';
import { newElement, newElements } from '../support/elements.ts';
import { QueueClient } from '../support/http-client.ts';
import { codeOf } from '../support/outcome.ts';
import { ServerProcess } from '../support/server-process.ts';

const MIB = 1024 * 1024;

const modeOf = (path: string): string => (statSync(path).mode & 0o777).toString(8);

/** Inserts elements one by one until an insert is rejected. Returns the number of acknowledged inserts. */
async function insertsUntilRefused({ storage }: Engine): Promise<number> {
  for (let acknowledged = 0; ; acknowledged++) {
    const code = await codeOf(storage.insert(QUEUE, newElements('a')));
    if (code === 'storage-unavailable') return acknowledged;
    assert.equal(code, 'done');
    assert.ok(acknowledged < 100, 'inserts are acknowledged although the file is missing');
  }
}

/** Ways to lose the opened file. */
const LOSSES: Readonly<Record<string, (path: string) => void>> = {
  deleted: (path) => rmSync(path),
  'moved away': (path) => renameSync(path, `${path}.old`),
  'replaced by a copy': (path) => {
    copyFileSync(path, `${path}.copy`);
    renameSync(`${path}.copy`, path);
  },
};

describe('The files of a running SQLite engine', () => {
  for (const suffix of ['', '-wal']) {
    for (const [what, lose] of Object.entries(LOSSES)) {
      it(`make it fail within five transactions if N.db${suffix} is ${what}`, async () => {
        await withFolder(async (folder) => {
          const engine = await folder.started();
          await engine.storage.insert(QUEUE, newElements('a'));
          const path = `${folder.file}${suffix}`;
          lose(path);
          assert.ok((await insertsUntilRefused(engine)) < 5);
          assert.match((await engine.failed).message, new RegExp(`${path} was deleted or replaced`));
          await assert.rejects(engine.ping(), { code: 'storage-unavailable' });
        });
      });
    }
  }

  it('make it fail with the first call after an idle second if the database is deleted', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      await engine.storage.insert(QUEUE, newElements('a'));
      rmSync(folder.file);
      folder.clock.advance(1000);
      assert.equal(await insertsUntilRefused(engine), 0);
    });
  });

  it('are not touched at its stop if they have been replaced', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      await engine.storage.insert(QUEUE, newElements('a'));
      for (const path of [folder.file, `${folder.file}-wal`]) {
        rmSync(path);
        writeFileSync(path, `a restored ${path}`);
      }
      await insertsUntilRefused(engine);
      await engine.stop();
      for (const path of [folder.file, `${folder.file}-wal`]) {
        assert.equal(readFileSync(path, 'utf8'), `a restored ${path}`);
      }
    });
  });

  it('end the server with an error that names a deleted file', async () => {
    await using server = await ServerProcess.start();
    const client = new QueueClient({ url: server.url });
    await client.insert('N', 'orders', 'before');
    rmSync(join(server.dataDir, 'N.db'));
    const exited = server.exited();
    let acknowledged = 0;
    while (acknowledged < 10) {
      const answer = await client.insert('N', 'orders', 'after').catch(() => null);
      if (answer?.status !== 200) break;
      acknowledged++;
    }
    assert.ok(acknowledged < 10, 'the server continues without its file');
    assert.notEqual((await exited).code, 0);
    client.close();
    assert.match(server.output, /N\.db was deleted or replaced while it was in use/);
  });
});

describe('Access to the files of a SQLite engine', () => {
  const SETTINGS = { ballastBytes: MIB };

  async function startedAndUsed(folder: SqliteFolder): Promise<Engine> {
    const engine = await folder.started(SETTINGS);
    await engine.storage.insert(QUEUE, [newElement()]);
    return engine;
  }

  it('is limited to their owner, whatever the umask', async () => {
    const before = process.umask(0);
    try {
      await withFolder(async (folder) => {
        await startedAndUsed(folder);
        for (const suffix of ['', '-wal', '.ballast']) assert.equal(modeOf(`${folder.file}${suffix}`), '600');
        assert.deepEqual(folder.warnings, []);
      });
    } finally {
      process.umask(before);
    }
  });

  it('by others causes a warning at the start, but modes stay unchanged', async () => {
    await withFolder(async (folder) => {
      await (await startedAndUsed(folder)).stop();
      const paths = [folder.file, `${folder.file}.ballast`];
      for (const path of paths) chmodSync(path, 0o644);
      const engine = await folder.started(SETTINGS);
      assert.deepEqual(
        folder.warnings.map(({ fields }) => fields),
        // The log has the mode of its database file.
        [folder.file, `${folder.file}-wal`, `${folder.file}.ballast`].map((file) => ({ file, mode: '0644' })),
      );
      await engine.stop();
      for (const path of paths) assert.equal(modeOf(path), '644');
    });
  });

  it('is not widened by a symbolic link in place of the ballast file, whose target is not written', async () => {
    await withFolder(async (folder) => {
      const target = join(folder.path, 'precious');
      const ballast = `${folder.file}.ballast`;
      writeFileSync(target, 'precious');
      symlinkSync(target, ballast);
      await startedAndUsed(folder);
      assert.equal(readFileSync(target, 'utf8'), 'precious');
      assert.ok(lstatSync(ballast).isFile());
      assert.equal(modeOf(ballast), '600');
    });
  });
});
