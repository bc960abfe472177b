import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { closeSync, constants, openSync, writeSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { Folder } from './program.ts';

const USERS = { test1: 'test1' };

describe('A log that cannot be written', {
  skip: process.platform !== 'linux' && 'only Linux has /dev/full',
  // Fails a test whose process never ends.
  timeout: 120_000,
}, () => {
  let folder: Folder;
  /** File descriptors for standard error on which every write fails or would block forever. */
  const opened: number[] = [];

  before(async () => {
    folder = await Folder.create();
    await folder.write('q.json', { http: { users: USERS }, namespaces: { N: { url: 'sqlite:N.db' } } });
    await folder.write('bad.json', {
      http: { users: USERS },
      namespaces: { N: { url: 'redis://127.0.0.1:1' } },
    });
  });

  after(async () => {
    await folder.dispose();
    for (const fd of opened) closeSync(fd);
  });

  const places: [name: string, open: () => number][] = [
    ['a full disk', () => openSync('/dev/full', 'w')],
    ['a full pipe', () => fullPipe(folder, opened)],
  ];
  for (const [name, open] of places) {
    const errorTo = (): number => {
      const fd = open();
      opened.push(fd);
      return fd;
    };

    it(`to ${name} does not prevent a stop, with exit code 0`, async () => {
      const program = await folder.serve(['--config', 'q.json'], { errorTo: errorTo() });
      assert.equal(await program.stop(), 0);
    });

    it(`to ${name} does not prevent a failed start from ending, with exit code 1`, async () => {
      const program = await folder.run(['--config', 'bad.json'], { errorTo: errorTo() });
      assert.equal(program.code, 1);
    });

    it(`to ${name} does not prevent a second signal from ending the process, with exit code 1`, async () => {
      // A stop that never ends.
      const hanging = `
        import { Server } from 'node:net';
        Server.prototype.close = function () { return this; };
      `;
      const program = await folder.serve(['--config', 'q.json'], {
        errorTo: errorTo(),
        nodeArgs: ['--import', `data:text/javascript,${encodeURIComponent(hanging)}`],
      });
      assert.equal(await program.signalUntilEnded('SIGTERM'), 1);
    });
  }
});

/** A full pipe: a write to the returned end would block. */
function fullPipe(folder: Folder, opened: number[]): number {
  const path = folder.file(`pipe ${opened.length}`);
  execFileSync('mkfifo', [path]);
  const filling = openSync(path, constants.O_RDWR | constants.O_NONBLOCK);
  opened.push(filling);
  const piece = Buffer.alloc(4096, '\n');
  try {
    for (;;) writeSync(filling, piece);
  } catch (error) {
    assert.equal((error as NodeJS.ErrnoException).code, 'EAGAIN');
  }
  return openSync(path, constants.O_RDWR);
}
