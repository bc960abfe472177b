import type { DatabaseSync, StatementSync } from 'node:sqlite';

/**
 * The write-ahead log. A checkpoint moves it into the database file; with one connection the next write then
 * begins the log anew, so it stays near the size at which checkpoints are made.
 *
 * Checkpoints are asked for explicitly because SQLite's automatic ones swallow their errors: a failed fsync
 * must end the engine (`faults.ts`), not be tried again. It also keeps them out of the callers' way, as they
 * run after a batch was answered.
 */
export class WriteAheadLog {
  readonly #pages: StatementSync;
  readonly #checkpoint: StatementSync;

  constructor(db: DatabaseSync) {
    this.#pages = db.prepare('PRAGMA wal_checkpoint(NOOP)');
    this.#checkpoint = db.prepare('PRAGMA wal_checkpoint(PASSIVE)');
  }

  /**
   * Moves the log if it holds more than `pages` pages.
   * @throws the error of a failed checkpoint
   */
  checkpoint(pages: number): void {
    const row = this.#pages.get();
    // -1 where the database has no log, as one in memory.
    if (Number(row?.log) - Number(row?.checkpointed) > pages) this.#checkpoint.get();
  }
}
