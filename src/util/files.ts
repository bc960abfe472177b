import { randomBytes } from 'node:crypto';
import {
  closeSync,
  constants,
  copyFileSync,
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

// What Node's own calls on files do not do well enough.

/** What only the owner of a folder may enter. */
const PRIVATE_FOLDER = 0o700;

/**
 * Creates a folder for its owner alone, and those above it that are missing. Node's own recursive `mkdir` never ends if
 * the folder above exists and `mkdir` fails with ENOENT all the same, as below /proc.
 * @throws Error of the system
 */
export function makeFolder(path: string): void {
  const parent = dirname(path);
  if (parent !== path && statSync(parent, { throwIfNoEntry: false }) === undefined) makeFolder(parent);
  try {
    mkdirSync(path, PRIVATE_FOLDER);
  } catch (error) {
    // Systems reject in several ways what exists already.
    if (statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true) throw error;
  }
}

/** What only the owner of a file may read. */
export const PRIVATE_MODE = 0o600;

/**
 * Opens a file for writing, made or emptied. Follows no link: others who may write to the folder could choose its
 * target.
 */
export function openPrivateFile(path: string): number {
  const { O_WRONLY, O_CREAT, O_TRUNC, O_NOFOLLOW = 0 } = constants;
  const descriptor = openSync(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, PRIVATE_MODE);
  try {
    leaveToFolderOwner(descriptor, path);
  } catch (error) {
    closeSync(descriptor);
    throw error;
  }
  return descriptor;
}

/**
 * Creates an empty file that only its owner, that of its folder, may read. Does nothing, and returns false, if it
 * exists, or if its folder is missing.
 */
export function createPrivateFile(path: string): boolean {
  try {
    const descriptor = openSync(path, 'wx', PRIVATE_MODE);
    try {
      leaveToFolderOwner(descriptor, path);
    } finally {
      closeSync(descriptor);
    }
    return true;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EEXIST' && code !== 'ENOENT') throw error;
    return false;
  }
}

/**
 * Copies a file to where none is, readable by its owner, that of its folder, alone; it is on disk then.
 * @throws Error of the system
 */
export function copyPrivateFile(from: string, to: string): void {
  // Node's copy gives it the mode of the original, and on some systems its owner.
  copyFileSync(from, to, constants.COPYFILE_EXCL);
  const descriptor = openSync(to, 'r');
  try {
    fchmodSync(descriptor, PRIVATE_MODE);
    leaveToFolderOwner(descriptor, to);
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}

/**
 * A file that root creates is for the user that the server runs as, whose folder it is: a backup, or a restore, by root
 * must not keep the server from opening its own files.
 */
function leaveToFolderOwner(descriptor: number, path: string): void {
  if (process.getuid?.() !== 0) return;
  const { uid, gid } = statSync(dirname(path));
  fchownSync(descriptor, uid, gid);
}

/** The mode of a file that others than its owner may read or write, such as `0644`; null if only its owner may. */
export function widerMode(path: string): string | null {
  // Windows has other rights, which Node does not show.
  if (process.platform === 'win32') return null;
  const mode = (statSync(path, { throwIfNoEntry: false })?.mode ?? 0) & 0o777;
  return (mode & 0o077) === 0 ? null : `0${mode.toString(8)}`;
}

/**
 * Replaces a file, readable by its owner alone, as one step: a crash leaves the old one or the new one.
 * @throws Error of the system
 */
export async function replaceFile(path: string, content: string): Promise<void> {
  makeFolder(dirname(path));
  const draft = `${path}.${randomBytes(6).toString('hex')}.tmp`;
  try {
    const file = await open(draft, 'wx', PRIVATE_MODE);
    try {
      await leaveToOwner(file, path);
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

/**
 * Replaces a file that exists as one step, and leaves it its mode and its owner. A link stays one: its target is
 * replaced.
 * @throws Error of the system, also if the owner cannot be kept
 */
export async function rewriteFile(path: string, content: string): Promise<void> {
  const target = await realpath(path);
  const { mode, uid, gid } = await stat(target);
  const draft = `${target}.${randomBytes(6).toString('hex')}.tmp`;
  try {
    const file = await open(draft, 'wx', PRIVATE_MODE);
    try {
      const own = await file.stat();
      if (own.uid !== uid || own.gid !== gid) await file.chown(uid, gid);
      await file.chmod(mode & 0o777);
      await file.writeFile(content);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(draft, target);
  } catch (error) {
    await rm(draft, { force: true });
    throw error;
  }
}

/** How long one waits for others who change the same file, each of them for milliseconds. */
const LOCK_WAIT_MS = 10_000;
const LOCK_RETRY_MS = 20;

/** A file that another process is changing, or that one which was killed left locked. */
export class FileLocked extends Error {}

/**
 * Runs what reads a file and then replaces it, while no other process does so by this function. The lock is a file
 * next to it, as those of git are. One that a killed process left is removed by hand: nothing tells it for certain from
 * one that is held.
 * @throws FileLocked if the lock is not free in time; Error of the system
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
        `Another command is changing ${target}. If none runs, one was killed: remove ${lock}, and try again.`,
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

/** What root writes is for the user that the server runs as. */
async function leaveToOwner(draft: FileHandle, path: string): Promise<void> {
  if (process.getuid?.() !== 0) return;
  const kept = await stat(path).catch(() => stat(dirname(path)));
  await draft.chown(kept.uid, kept.gid);
}

/** Makes names that were given in a folder durable; the files' own syncs do not. */
export function syncFolder(path: string): void {
  // Windows opens no folder; its names are durable with the files.
  if (process.platform === 'win32') return;
  const descriptor = openSync(path, 'r');
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}
