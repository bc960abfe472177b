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

/** Inserts one element after the other; returns how many were acknowledged before the first that was refused. */
async function insertsUntilRefused({ storage }: Engine): Promise<number> {
  for (let acknowledged = 0; ; acknowledged++) {
    const code = await codeOf(storage.insert(QUEUE, newElements('a')));
    if (code === 'storage-unavailable') return acknowledged;
    assert.equal(code, 'done');
    assert.ok(acknowledged < 100, 'inserts are acknowledged although the file is gone');
  }
}

/** Ways in which a file is no longer the one that was opened. */
const LOSSES: Readonly<Record<string, (path: string) => void>> = {
  deleted: (path) => rmSync(path),
  'moved away': (path) => renameSync(path, `${path}.old`),
  'replaced by a copy': (path) => {
    copyFileSync(path, `${path}.copy`);
    renameSync(`${path}.copy`, path);
  },
};

describe('the files of a SQLite engine that runs', () => {
  for (const suffix of ['', '-wal']) {
    for (const [what, lose] of Object.entries(LOSSES)) {
      it(`stop it within five transactions once N.db${suffix} is ${what}`, async () => {
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

  it('stop it with the first call after a quiet second', async () => {
    await withFolder(async (folder) => {
      const engine = await folder.started();
      await engine.storage.insert(QUEUE, newElements('a'));
      rmSync(folder.file);
      folder.clock.advance(1000);
      assert.equal(await insertsUntilRefused(engine), 0);
    });
  });

  it('are left alone at its end once others are in their place', async () => {
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

  it('end the server with an error that names the deleted one', async () => {
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

describe('who may read the files of a SQLite engine', () => {
  const SETTINGS = { ballastBytes: MIB };

  async function used(folder: SqliteFolder): Promise<Engine> {
    const engine = await folder.started(SETTINGS);
    await engine.storage.insert(QUEUE, [newElement()]);
    return engine;
  }

  it('is their owner alone, whatever the umask', async () => {
    const before = process.umask(0);
    try {
      await withFolder(async (folder) => {
        await used(folder);
        for (const suffix of ['', '-wal', '.ballast']) assert.equal(modeOf(`${folder.file}${suffix}`), '600');
        assert.deepEqual(folder.warnings, []);
      });
    } finally {
      process.umask(before);
    }
  });

  it('is warned of at the start if it is others as well; their modes stay', async () => {
    await withFolder(async (folder) => {
      await (await used(folder)).stop();
      const paths = [folder.file, `${folder.file}.ballast`];
      for (const path of paths) chmodSync(path, 0o644);
      const engine = await folder.started(SETTINGS);
      assert.deepEqual(
        folder.warnings.map(({ fields }) => fields),
        // The log has the rights of its file.
        [folder.file, `${folder.file}-wal`, `${folder.file}.ballast`].map((file) => ({ file, mode: '0644' })),
      );
      await engine.stop();
      for (const path of paths) assert.equal(modeOf(path), '644');
    });
  });

  it('is not widened by a link in the place of the ballast file, and its target is not written to', async () => {
    await withFolder(async (folder) => {
      const target = join(folder.path, 'precious');
      const ballast = `${folder.file}.ballast`;
      writeFileSync(target, 'precious');
      symlinkSync(target, ballast);
      await used(folder);
      assert.equal(readFileSync(target, 'utf8'), 'precious');
      assert.ok(lstatSync(ballast).isFile());
      assert.equal(modeOf(ballast), '600');
    });
  });
});
