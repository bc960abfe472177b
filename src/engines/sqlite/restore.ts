import { chmodSync, copyFileSync, existsSync, rmSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { PRIVATE_MODE } from '../../util/files.ts';
import { checkAgree } from './worker/check.ts';
import { markCopy } from './worker/ids.ts';
import { openError, refuseIfInUse } from './worker/open.ts';
import { hasSchema } from './worker/schema.ts';

/** What belongs to a database and must not meet another one. */
const SUFFIXES = ['', '-wal', '-shm'];

/** Where a copy waits until all of a restore are complete. */
export function draftOf(file: string): string {
  return `${file}.restoring`;
}

/** Paths of the database that are there. */
export function existingFiles(file: string): string[] {
  return SUFFIXES.map((suffix) => file + suffix).filter((path) => existsSync(path));
}

/**
 * Copies a backup to a draft next to its target, checks the whole copy, and marks it, so that its first start
 * gives ids that the lost file never gave.
 * @throws Error that names the backup, if it is damaged or of another version
 */
export function draftCopy(backup: string, file: string): void {
  const draft = draftOf(file);
  try {
    for (const suffix of SUFFIXES) rmSync(draft + suffix, { force: true });
    copyFileSync(backup, draft);
    chmodSync(draft, PRIVATE_MODE);
    const db = new DatabaseSync(draft);
    try {
      // No file for shared memory, which its close would have to remove.
      db.exec('PRAGMA locking_mode = EXCLUSIVE');
      checkAgree(db, '1');
      hasSchema(db);
      markCopy(db);
    } finally {
      db.close();
    }
  } catch (error) {
    dropDraft(file);
    throw openError(backup, error);
  }
}

export function dropDraft(file: string): void {
  for (const suffix of SUFFIXES) rmSync(draftOf(file) + suffix, { force: true });
}

/** @throws Error that names the file, if a process has it open */
export function checkNotInUse(file: string): void {
  if (!existsSync(file)) return;
  try {
    refuseIfInUse(file);
  } catch (error) {
    throw openError(file, error);
  }
}
