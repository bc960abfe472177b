import { existsSync, renameSync, rmSync } from 'node:fs';
import { dirname } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { copyPrivateFile, makeFolder, syncFolder } from '../../util/files.ts';
import { openError } from './worker/errors.ts';
import { markCopy } from './worker/ids.ts';
import { checkIntegrity, draftOf, throwIfInUse } from './worker/open.ts';
import { hasSchema } from './worker/schema.ts';

/** A backup, and the database file that it replaces. */
interface PlannedRestore {
  readonly backup: string;
  readonly file: string;
}

/**
 * Replaces database files, which no process may have open, with backups. All backups are copied and checked before the
 * first file is replaced.
 * @param replacedAt part of the new names of existing files; null: existing files are not replaced
 * @returns for each backup, the new paths of the files that it replaced
 * @throws Error that names the file in the way, or what is wrong with a backup
 */
export function restore(planned: readonly PlannedRestore[], replacedAt: string | null): string[][] {
  for (const { file } of planned) checkTarget(file, replacedAt !== null);
  try {
    for (const { backup, file } of planned) {
      makeFolder(dirname(file));
      draftCopy(backup, file);
    }
    return planned.map(({ file }) => {
      const kept = existingFiles(file).map((path) => {
        const aside = `${file}.replaced-${replacedAt}${path.slice(file.length)}`;
        renameSync(path, aside);
        return aside;
      });
      renameSync(draftOf(file), file);
      syncFolder(dirname(file));
      return kept;
    });
  } catch (error) {
    for (const { file } of planned) dropDraft(file);
    throw error;
  }
}

/** @throws Error if the file exists and may not be replaced, or if a process has it open */
function checkTarget(file: string, mayReplace: boolean): void {
  if (existsSync(file)) {
    try {
      throwIfInUse(file);
    } catch (error) {
      throw openError(file, error);
    }
  }
  const [first] = existingFiles(file);
  if (first === undefined || mayReplace) return;
  throw new Error(`${first} already exists. Move it, or use --replace, which keeps it under another name.`);
}

/** The files of a database. Those of one database must never be combined with those of another. */
const SUFFIXES = ['', '-wal', '-shm'];

/** The files of the database that exist. */
function existingFiles(file: string): string[] {
  return SUFFIXES.map((suffix) => file + suffix).filter((path) => existsSync(path));
}

/**
 * Copies a backup to a draft next to its target, checks all of the copy, and marks it, so that its first start begins a
 * range of ids that the lost file cannot have issued.
 * @throws Error that names the backup, if it is damaged or of another version
 */
function draftCopy(backup: string, file: string): void {
  const draft = draftOf(file);
  try {
    for (const suffix of SUFFIXES) rmSync(draft + suffix, { force: true });
    copyPrivateFile(backup, draft);
    const db = new DatabaseSync(draft);
    try {
      // Avoids a shared-memory file, which closing would have to remove.
      db.exec('PRAGMA locking_mode = EXCLUSIVE');
      checkIntegrity(db, '1');
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

function dropDraft(file: string): void {
  for (const suffix of SUFFIXES) rmSync(draftOf(file) + suffix, { force: true });
}
