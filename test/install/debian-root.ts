import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { needDebian } from '../support/debian.ts';

const run = promisify(execFile);

export interface DebianArchive {
  /** A temporary folder, which the test may use, too. */
  readonly folder: string;
  readonly archive: string;
  remove(): Promise<void>;
}

/**
 * Creates a temporary folder with an archive of a minimal Debian root. mmdebstrap downloads packages from Debian's
 * mirror. Debian packages that these tests need on this machine are installed, too.
 */
export async function debianArchive(): Promise<DebianArchive> {
  needDebian('binutils', 'buildah', 'mmdebstrap', 'systemd');
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

/** Unpacks the archive into a root folder for chroot. */
export async function unpack(archive: string, root: string): Promise<void> {
  await mkdir(root);
  await run('tar', ['-xf', archive, '-C', root, '--exclude=./dev/*']);
  // The devices that Node opens. The machine's /dev is not mounted: an error while the root is removed could damage it.
  await run('mknod', ['-m', '666', join(root, 'dev/null'), 'c', '1', '3']);
  await run('mknod', ['-m', '666', join(root, 'dev/urandom'), 'c', '1', '9']);
}
