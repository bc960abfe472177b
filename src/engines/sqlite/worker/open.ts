import { DatabaseSync } from 'node:sqlite';
import type { Durability } from '../settings.ts';
import { isBusy, isDamage, sqliteCode } from './faults.ts';
import { migrate } from './schema.ts';

export interface OpenOptions {
  /** A path, or ':memory:'. */
  readonly file: string;
  readonly durability: Durability;
  readonly cacheBytes: number;
}

/** A file that cannot be served; the message names it and the remedy. */
export class OpenError extends Error {}

/**
 * Opens the file for this process alone and brings its schema up to date.
 *
 * `locking_mode=EXCLUSIVE` takes the file's lock at the first access and keeps it: a second owner is refused,
 * the lock goes with the process however that ends, and no shared-memory file is needed.
 * @throws OpenError
 */
export function openDatabase(options: OpenOptions): DatabaseSync {
  const { file, durability, cacheBytes } = options;
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
      migrate(db);
      return db;
    } catch (error) {
      db.close();
      throw error;
    }
  } catch (error) {
    throw new OpenError(refusal(file, error), { cause: error });
  }
}

function refusal(file: string, error: unknown): string {
  const why = error instanceof Error ? error.message : String(error);
  if (isBusy(error)) {
    return `SQLite file ${file} is in use by another process; stop that one or give this one a file of its own.`;
  }
  if (isDamage(error)) {
    return `SQLite file ${file} is damaged or not a database (${why}); restore it from a backup or move it away.`;
  }
  if (sqliteCode(error) !== null) {
    return `SQLite file ${file} cannot be opened (${why}); check that its folder exists, may be written and has space.`;
  }
  return `SQLite file ${file} cannot be used: ${why}.`;
}
