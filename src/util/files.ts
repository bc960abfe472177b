import { randomBytes } from 'node:crypto';
import {
  closeSync,
  constants,
  copyFileSync,
  existsSync,
  fchmodSync,
  fchownSync,
  fsyncSync,
  mkdirSync,
  openSync,
  statSync,
} from 'node:fs';
import { type FileHandle, open, realpath, rename, rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

// File operations for which Node's own calls are not enough.

/** Mode of a folder that only its owner may enter. */
const PRIVATE_FOLDER = 0o700;

/**
 * Creates a folder that only its owner may enter, and its missing parents. Node's recursive `mkdir` never returns if
 * the parent exists and `mkdir` nevertheless fails with ENOENT, as below /proc.
 * @throws Error of the system
 */
export function makeFolder(path: string): void {
  const parent = dirname(path);
  if (parent !== path && statSync(parent, { throwIfNoEntry: false }) === undefined) makeFolder(parent);
  try {
    mkdirSync(path, PRIVATE_FOLDER);
  } catch (error) {
    // The error code for a folder that already exists depends on the system.
    if (statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true) throw error;
  }
}

/** Mode of a file that only its owner may read. */
export const PRIVATE_MODE = 0o600;

/**
 * Creates or truncates a file and opens it for writing. Does not follow symbolic links: other users who may write to
 * the folder could choose their target.
 * @returns the file descriptor @throws Error of the system
 */
export function openPrivateFile(path: string): number {
  const { O_WRONLY, O_CREAT, O_TRUNC, O_NOFOLLOW = 0 } = constants;
  return openForOwner(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
}

function openForOwner(path: string, flags: string | number): number {
  const descriptor = openSync(path, flags, PRIVATE_MODE);
  try {
    leaveToOwnerOf(descriptor, dirname(path));
  } catch (error) {
    closeSync(descriptor);
    throw error;
  }
  return descriptor;
}

/**
 * Creates an empty file that only its owner may read. Returns false if the file exists or its folder is missing.
 * @throws Error of the system, for any other reason
 */
export function createPrivateFile(path: string): boolean {
  try {
    closeSync(openForOwner(path, 'wx'));
    return true;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EEXIST' && code !== 'ENOENT') throw error;
    return false;
  }
}

/**
 * Copies a file to a new path, readable by its owner alone. The content is synced to disk before this returns.
 * @throws Error of the system, also if the target exists
 */
export function copyPrivateFile(from: string, to: string): void {
  // Node copies the mode of the original and, on some systems, its owner.
  copyFileSync(from, to, constants.COPYFILE_EXCL);
  const descriptor = openSync(to, 'r');
  try {
    fchmodSync(descriptor, PRIVATE_MODE);
    leaveToOwnerOf(descriptor, dirname(to));
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}

/**
 * Gives a file that root creates to the owner of its folder, or of the file it replaces. That is the user who runs the
 * server: a backup or restore by root must not prevent the server from opening its own files.
 */
function leaveToOwnerOf(descriptor: number, path: string): void {
  if (process.getuid?.() !== 0) return;
  const { uid, gid } = statSync(path);
  fchownSync(descriptor, uid, gid);
}

/**
 * The mode of a file, such as `0644`, if users other than its owner may read or write it; null if only the owner may.
 */
export function widerMode(path: string): string | null {
  // Windows has another permission model, which Node does not expose.
  if (process.platform === 'win32') return null;
  const mode = (statSync(path, { throwIfNoEntry: false })?.mode ?? 0) & 0o777;
  return (mode & 0o077) === 0 ? null : `0${mode.toString(8)}`;
}

/**
 * Replaces a file atomically, readable by its owner alone: after a crash, it is the old or the new one.
 * @throws Error of the system
 */
export async function replaceFile(path: string, content: string): Promise<void> {
  makeFolder(dirname(path));
  await replaceBy(path, content, async ({ fd }) => {
    leaveToOwnerOf(fd, existsSync(path) ? path : dirname(path));
  });
}

/**
 * Replaces an existing file atomically and preserves its mode and owner. If `path` is a symbolic link, its target is
 * replaced.
 * @throws Error of the system, also if the owner cannot be preserved
 */
export async function rewriteFile(path: string, content: string): Promise<void> {
  const target = await realpath(path);
  const { mode, uid, gid } = await stat(target);
  await replaceBy(target, content, async (draft) => {
    const created = await draft.stat();
    if (created.uid !== uid || created.gid !== gid) await draft.chown(uid, gid);
    await draft.chmod(mode & 0o777);
  });
}

/** Replaces a file by a synced draft next to it. `prepare` sets the mode and owner of the draft while it is empty. */
async function replaceBy(
  path: string,
  content: string,
  prepare: (draft: FileHandle) => Promise<void>,
): Promise<void> {
  const draft = `${path}.${randomBytes(6).toString('hex')}.tmp`;
  try {
    const file = await open(draft, 'wx', PRIVATE_MODE);
    try {
      await prepare(file);
      await file.writeFile(content);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(draft, path);
  } catch (error) {
    await rm(draft, { force: true });
    throw error;
  }
}

/** How long to wait for processes that change the same file, which takes each of them milliseconds. */
const LOCK_WAIT_MS = 10_000;
const LOCK_RETRY_MS = 20;

/** The file is locked by another process, or by one that was killed. */
export class FileLocked extends Error {}

/**
 * Runs a read-modify-write of a file while no other process does so through this function. The lock is a file next to
 * it, as in git. A lock that a killed process left must be removed by hand, because it cannot be reliably distinguished
 * from one that is held.
 * @throws FileLocked if the lock is not free within `waitMs`; Error of the system
 */
export async function whileLocked<T>(
  path: string,
  run: () => Promise<T>,
  waitMs: number = LOCK_WAIT_MS,
): Promise<T> {
  const target = await realpath(path);
  const lock = `${target}.lock`;
  for (let leftMs = waitMs; !createPrivateFile(lock); leftMs -= LOCK_RETRY_MS) {
    if (leftMs <= 0) {
      throw new FileLocked(
        `${target} is locked by another command. If none is running, remove the lock of one that was killed, ${lock}, and try again.`,
      );
    }
    await delay(LOCK_RETRY_MS);
  }
  try {
    return await run();
  } finally {
    await rm(lock, { force: true });
  }
}

/** Makes created and renamed entries of a folder durable; syncing the files themselves does not. */
export function syncFolder(path: string): void {
  // Windows cannot open a folder; its entries become durable with the files.
  if (process.platform === 'win32') return;
  const descriptor = openSync(path, 'r');
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}
