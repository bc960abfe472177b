import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { needDebian } from '../support/python.ts';

const run = promisify(execFile);

export interface DebianArchive {
  /** For whatever else the test makes. */
  readonly folder: string;
  readonly archive: string;
  remove(): Promise<void>;
}

/**
 * A folder for the run with the root of a small Debian in it, as an archive. mmdebstrap takes what it needs from
 * Debian's mirror. What else these tests need of this machine's Debian is installed as well.
 */
export async function debianArchive(): Promise<DebianArchive> {
  needDebian('buildah', 'mmdebstrap', 'systemd');
  const folder = await mkdtemp(join(tmpdir(), 'quayside-install-'));
  const archive = join(folder, 'debian.tar');
  await run('mmdebstrap', [
    '--quiet',
    '--variant=essential',
    '--include=adduser,libstdc++6',
    'bookworm',
    archive,
  ]);
  return { folder, archive, remove: () => rm(folder, { recursive: true, force: true }) };
}

/** The archive unpacked: a root to change into. */
export async function unpack(archive: string, root: string): Promise<void> {
  await mkdir(root);
  await run('tar', ['-xf', archive, '-C', root, '--exclude=./dev/*']);
  // What a server's runtime opens; the machine's own /dev would outlive the test if a removal went astray.
  await run('mknod', ['-m', '666', join(root, 'dev/null'), 'c', '1', '3']);
  await run('mknod', ['-m', '666', join(root, 'dev/urandom'), 'c', '1', '9']);
}
