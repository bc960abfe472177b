import { existsSync, statSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { type Durability, type FileCheck, MEMORY } from '../settings.ts';
import { isBusy, isDamage, messageOf, SQLITE_CORRUPT, SQLITE_ERROR, sqliteCode } from './faults.ts';
import { migrate } from './schema.ts';

export interface OpenOptions {
  /** A path, or ':memory:'. */
  readonly file: string;
  readonly durability: Durability;
  readonly cacheBytes: number;
  readonly check: FileCheck;
}

/** A file that cannot be served; the message names it and the remedy. */
export class OpenError extends Error {}

/** Before it, a checkpoint could corrupt the file when two connections met (WAL-reset bug of 3.7.0 to 3.51.2). */
const OLDEST_SQLITE = '3.51.3';

/**
 * Files up to this size are checked page by page at each start: 3 ms a MiB, so at most 0.2 s. It holds about
 * half a million small elements. Larger ones are checked where they are used: SQLite notices a damaged page
 * when it reads it, and each element has its checksum.
 */
const CHECKED_BYTES = 64 * 1024 * 1024;

/** @throws OpenError for a SQLite that is too old to be trusted with a log */
export function checkSqliteVersion(version: string): void {
  const [given, oldest] = [version, OLDEST_SQLITE].map((text) =>
    text.split('.').reduce((number, part) => number * 1000 + Number(part), 0),
  );
  if (given !== undefined && oldest !== undefined && given >= oldest) return;
  throw new OpenError(
    `This Node brings SQLite ${version}, which can corrupt its files; use a Node with SQLite ${OLDEST_SQLITE} or newer.`,
  );
}

/**
 * Opens the file for this process alone and brings its schema up to date.
 *
 * `locking_mode=EXCLUSIVE` takes the file's lock at the first access and keeps it: a second owner is refused,
 * the lock goes with the process however that ends, and no shared-memory file is needed.
 * @throws OpenError
 */
export function openDatabase(options: OpenOptions): DatabaseSync {
  const { file, durability, cacheBytes, check } = options;
  checkSqliteVersion(process.versions.sqlite ?? '0');
  try {
    const db = new DatabaseSync(file);
    try {
      db.exec(`
        PRAGMA locking_mode = EXCLUSIVE;
        PRAGMA auto_vacuum = INCREMENTAL;
        PRAGMA journal_mode = WAL;
        PRAGMA synchronous = ${durability === 'full' ? 'FULL' : 'NORMAL'};
        PRAGMA wal_autocheckpoint = 0;
        PRAGMA journal_size_limit = ${64 * 1024 * 1024};
        PRAGMA cache_size = ${-Math.floor(cacheBytes / 1024)};
        PRAGMA temp_store = MEMORY;
        PRAGMA foreign_keys = OFF;`);
      if (file !== MEMORY) checkFile(db, file, check);
      migrate(db);
      return db;
    } catch (error) {
      db.close();
      throw error;
    }
  } catch (error) {
    throw openError(file, error);
  }
}

/**
 * Looks for damage that would else show up later, under load.
 * @throws Error as SQLite does for a damaged file
 */
function checkFile(db: DatabaseSync, file: string, check: FileCheck): void {
  // Brings the log in, so that the file is as long as its header says.
  db.exec('PRAGMA wal_checkpoint(PASSIVE)');
  const bytes = existsSync(file) ? statSync(file).size : 0;
  const pages = Number(db.prepare('PRAGMA page_count').get()?.page_count);
  const pageBytes = Number(db.prepare('PRAGMA page_size').get()?.page_size);
  if (bytes < pages * pageBytes) throw damage(`${pages * pageBytes - bytes} bytes are missing at its end`);
  if (check === 'never' || (check === 'auto' && bytes > CHECKED_BYTES)) return;
  const found = db.prepare('PRAGMA quick_check(1)').get()?.quick_check;
  if (found !== 'ok') throw damage(String(found));
}

function damage(what: string): Error {
  return Object.assign(new Error(what), { errcode: SQLITE_CORRUPT });
}

/** Why a file cannot be served, by what failed. */
export function openError(file: string, error: unknown): OpenError {
  return new OpenError(refusal(file, error), { cause: error });
}

function refusal(file: string, error: unknown): string {
  const why = messageOf(error);
  if (isBusy(error)) {
    return `SQLite file ${file} is in use by another process; stop that one or give this one a file of its own.`;
  }
  if (isDamage(error)) {
    return `SQLite file ${file} is damaged or not a database (${why}); restore it from a backup or move it away.`;
  }
  // Our statements do not fit its tables.
  if (sqliteCode(error) === SQLITE_ERROR) {
    return `SQLite file ${file} has other tables than it should (${why}): it is damaged; restore it from a backup or move it away.`;
  }
  if (sqliteCode(error) !== null) {
    return `SQLite file ${file} cannot be opened (${why}); check that its folder exists, may be written and has space.`;
  }
  return `SQLite file ${file} cannot be used: ${why}.`;
}
