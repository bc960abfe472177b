import { existsSync, renameSync, rmSync } from 'node:fs';
import { dirname } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { copyPrivateFile, makeFolder, syncFolder } from '../../util/files.ts';
import { messageOf } from '../../util/message-of.ts';
import { damageError, isDamage, isFull, openError } from './worker/errors.ts';
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
      if (!hasSchema(db)) throw damageError('it has no tables');
      markCopy(db);
    } finally {
      db.close();
    }
  } catch (error) {
    dropDraft(file);
    throw draftError({ backup, file }, error);
  }
}

/** Converts an error while a backup is copied and checked to one for the operator. */
function draftError({ backup, file }: PlannedRestore, error: unknown): Error {
  if (isFull(error)) {
    return new Error(
      `There is no space for a copy of ${backup} in ${dirname(file)}. Nothing was replaced; make space, and repeat the restore.`,
    );
  }
  if (isDamage(error)) {
    return new Error(
      `${backup} is damaged or not a database (${messageOf(error)}). Nothing was replaced; restore another backup.`,
    );
  }
  if (!existsSync(backup)) {
    return new Error(`The backup lacks the file ${backup}. Nothing was replaced; restore another backup.`);
  }
  return openError(backup, error);
}

function dropDraft(file: string): void {
  for (const suffix of SUFFIXES) rmSync(draftOf(file) + suffix, { force: true });
}
