import { closeSync, fdatasync, openSync, renameSync, rmSync, statfsSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { type BackupOptions, backup, DatabaseSync } from 'node:sqlite';
import { QuaysideError } from '../../../model/errors.ts';
import { createPrivateFile } from '../../../util/files.ts';
import { messageOf } from '../../../util/message-of.ts';
import { isBusy, isFull, sqliteCode } from './errors.ts';
import { markCopy } from './ids.ts';
import { bytesOf } from './open.ts';

/**
 * Pages copied per step, on a thread of Node's pool. Statements of this connection wait for the step: 0.5 ms at the
 * median and 7 ms at the 99th percentile while 120 MB are copied in 0.6 s.
 */
const PAGES_PER_STEP = 100;
/** The copy is synced after each such number of pages, so that its end blocks others for 22 ms, not 130 ms. */
const PAGES_PER_SYNC = 2000;
/** Attempts to start a copy. SQLite refuses while a transaction runs, which is always short. */
const MAX_START_ATTEMPTS = 1000;
const SQLITE_OK = 0;

/**
 * Copies the database into a file with SQLite's backup API. Writes of the same connection during the copy go to both
 * files, so the copy is the database as it is at the end of the copy.
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

  /** @returns the size of the file in bytes @throws QuaysideError `storage-full`, `storage-unavailable` */
  async run(file: string): Promise<number> {
    const partial = `${file}.partial`;
    try {
      this.#checkSpace(file);
      this.#running = this.#copy(partial);
      await this.#running;
      // Only the copy is marked. Closing it removes its log, whose content is synced to the file before.
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

  /** Aborts the backup in progress, if there is one, and prevents further ones. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    await this.#running?.catch(() => {});
  }

  #checkSpace(file: string): void {
    const { bavail, bsize } = statfsSync(dirname(file));
    const needed = bytesOf(this.#db) + this.#minFreeBytes;
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
    const progress: BackupOptions['progress'] = ({ totalPages, remainingPages }) => {
      if (this.#isStopped) throw new QuaysideError('shutting-down', 'The server stops.');
      const copied = totalPages - remainingPages;
      if (syncing !== null || copied - synced < PAGES_PER_SYNC) return;
      synced = copied;
      const { promise, resolve } = Promise.withResolvers<void>();
      syncing = promise;
      // The sync at the end would report the same error.
      fdatasync(descriptor, () => {
        syncing = null;
        resolve();
      });
    };
    try {
      for (let attempt = 1; ; attempt++) {
        try {
          return await backup(this.#db, file, { rate: PAGES_PER_STEP, progress });
        } catch (error) {
          // Node treats the first SQLITE_BUSY as a failure, and then reports SQLITE_OK.
          const isTransactionRunning = isBusy(error) || sqliteCode(error) === SQLITE_OK;
          if (!isTransactionRunning || attempt === MAX_START_ATTEMPTS) throw error;
        }
      }
    } finally {
      await syncing;
      closeSync(descriptor);
    }
  }
}
