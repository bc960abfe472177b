import type { DatabaseSync } from 'node:sqlite';

/**
 * Moves the write-ahead log into the database file once it holds more than `pages` pages. With one
 * connection the next write then begins the log anew, so the log stays bounded.
 *
 * It is asked for explicitly because SQLite's automatic checkpoint swallows its errors: a failed fsync must
 * end the engine (`faults.ts`), not be tried again.
 * @throws the error of a failed checkpoint
 */
export function checkpoint(db: DatabaseSync, pages: number): void {
  const log = db.prepare('PRAGMA wal_checkpoint(NOOP)').get()?.log;
  if (typeof log === 'number' && log > pages) db.exec('PRAGMA wal_checkpoint(PASSIVE)');
}
