import {
  closeSync,
  existsSync,
  fdatasync,
  openSync,
  renameSync,
  rmSync,
  statfsSync,
  statSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { backup, DatabaseSync } from 'node:sqlite';
import { QuaysideError } from '../../../model/errors.ts';
import { copyPrivateFile, createPrivateFile, makeFolder, syncFolder } from '../../../util/files.ts';
import { isBusy, isFull, messageOf, openError, sqliteCode } from './errors.ts';
import { markCopy } from './ids.ts';
import { checkAgree, draftOf, refuseIfInUse } from './open.ts';
import { hasSchema } from './schema.ts';

/**
 * Pages copied at a time, on a thread of Node's pool. Statements of this connection wait for a step: 0.5 ms at the
 * median and 7 ms at the 99th percentile while 120 MB are copied in 0.6 s.
 */
const PAGES_A_STEP = 100;
/** The copy is synced each time that it has grown by this, so that its end does not hold up others: 22 ms, not 130. */
const PAGES_A_SYNC = 2000;
/** A start while a transaction runs is refused, which is never for long. */
const STARTS = 1000;
const SQLITE_OK = 0;

/**
 * Copies the database into a file by SQLite's backup API. What the same connection writes during the copy goes to both,
 * so the copy is the database as it is at the end of copying.
 */
export class Backup {
  readonly #db: DatabaseSync;
  readonly #minFreeBytes: number;
  #running: Promise<number> | null = null;
  #isStopped = false;

  constructor(db: DatabaseSync, minFreeBytes: number) {
    this.#db = db;
    this.#minFreeBytes = minFreeBytes;
  }

  /** @returns the bytes of the file @throws QuaysideError `storage-full`, `storage-unavailable` */
  async run(file: string): Promise<number> {
    const partial = `${file}.partial`;
    try {
      this.#checkSpace(file);
      this.#running = this.#copy(partial);
      await this.#running;
      // The mark is in the copy alone. Its log is gone with the close, and what it held is synced.
      const copy = new DatabaseSync(partial);
      try {
        markCopy(copy);
      } finally {
        copy.close();
      }
      renameSync(partial, file);
      return statSync(file).size;
    } catch (error) {
      rmSync(partial, { force: true });
      if (error instanceof QuaysideError) throw error;
      const code = isFull(error) ? 'storage-full' : 'storage-unavailable';
      throw new QuaysideError(code, `The backup to ${file} failed: ${messageOf(error)}.`);
    } finally {
      this.#running = null;
    }
  }

  /** Ends a backup that runs, if any. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    await this.#running?.catch(() => {});
  }

  #checkSpace(file: string): void {
    const pages = Number(this.#db.prepare('PRAGMA page_count').get()?.page_count);
    const pageBytes = Number(this.#db.prepare('PRAGMA page_size').get()?.page_size);
    const { bavail, bsize } = statfsSync(dirname(file));
    const needed = pages * pageBytes + this.#minFreeBytes;
    if (bavail * bsize >= needed) return;
    throw new QuaysideError(
      'storage-full',
      `The backup to ${file} needs ${needed} free bytes; there are ${bavail * bsize}.`,
    );
  }

  async #copy(file: string): Promise<number> {
    createPrivateFile(file);
    const descriptor = openSync(file, 'r+');
    let syncing: Promise<void> | null = null;
    let synced = 0;
    const progress = ({
      totalPages,
      remainingPages,
    }: {
      totalPages: number;
      remainingPages: number;
    }): void => {
      if (this.#isStopped) throw new QuaysideError('shutting-down', 'The server stops.');
      const copied = totalPages - remainingPages;
      if (syncing !== null || copied - synced < PAGES_A_SYNC) return;
      synced = copied;
      const { promise, resolve } = Promise.withResolvers<void>();
      syncing = promise;
      // An error is met again, and reported, by the sync at the end.
      fdatasync(descriptor, () => {
        syncing = null;
        resolve();
      });
    };
    try {
      for (let start = 1; ; start++) {
        try {
          return await backup(this.#db, file, { rate: PAGES_A_STEP, progress });
        } catch (error) {
          // Node takes the first SQLITE_BUSY for a failure and then reports that there was no error.
          const isRefused = isBusy(error) || sqliteCode(error) === SQLITE_OK;
          if (!isRefused || start === STARTS) throw error;
        }
      }
    } finally {
      await syncing;
      closeSync(descriptor);
    }
  }
}

/** A file of a backup, and the file of which it takes the place. */
interface Restored {
  readonly backup: string;
  readonly file: string;
}

/**
 * Puts backups in the places of files that no process has open. Everything is copied and checked before the first
 * file gets its place.
 * @param replacedAt part of the names that files which are in the way are given; null: they are not replaced
 * @returns per backup, where the files that were in its place are now
 * @throws Error that says what is in the way, or wrong with a backup
 */
export function restore(planned: readonly Restored[], replacedAt: string | null): string[][] {
  for (const { file } of planned) checkPlace(file, replacedAt !== null);
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

/** @throws Error if the file may not be replaced, or cannot be as a process has it open */
function checkPlace(file: string, mayReplace: boolean): void {
  if (existsSync(file)) {
    try {
      refuseIfInUse(file);
    } catch (error) {
      throw openError(file, error);
    }
  }
  const [first] = existingFiles(file);
  if (first === undefined || mayReplace) return;
  throw new Error(
    `${first} is there already. Move it away, or give --replace, which keeps it under another name.`,
  );
}

/** What belongs to a database and must not meet another one. */
const SUFFIXES = ['', '-wal', '-shm'];

/** Paths of the database that are there. */
function existingFiles(file: string): string[] {
  return SUFFIXES.map((suffix) => file + suffix).filter((path) => existsSync(path));
}

/**
 * Copies a backup to a draft next to its target, checks the whole copy, and marks it, so that its first start
 * gives ids that the lost file never gave.
 * @throws Error that names the backup, if it is damaged or of another version
 */
function draftCopy(backup: string, file: string): void {
  const draft = draftOf(file);
  try {
    for (const suffix of SUFFIXES) rmSync(draft + suffix, { force: true });
    copyPrivateFile(backup, draft);
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

function dropDraft(file: string): void {
  for (const suffix of SUFFIXES) rmSync(draftOf(file) + suffix, { force: true });
}
