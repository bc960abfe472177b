import { randomInt } from 'node:crypto';
import type { DatabaseSync } from 'node:sqlite';
import type { Tag } from './ids.ts';

/** Keys of tags: `tag` for the first epoch's, then `tag@<epoch>`. */
const TAG = 'tag';
const EPOCH = 'epoch';
/** Present in a file that was copied and not opened since. */
const IS_COPY = 'is_copy';

/** Marks a backup, so that the first start with it gives other ids than the file that was copied. */
export function markCopy(db: DatabaseSync): void {
  db.prepare('INSERT OR REPLACE INTO meta (key, value) VALUES (?, 1)').run(IS_COPY);
}

/** Whether a commit waits for its fsync. Takes effect outside a transaction only. */
export function setSync(db: DatabaseSync, isSynced: boolean): void {
  db.exec(`PRAGMA synchronous = ${isSynced ? 'FULL' : 'NORMAL'}`);
}

/** Facts about the file itself. */
export class Meta {
  readonly #db: DatabaseSync;

  constructor(db: DatabaseSync) {
    this.#db = db;
  }

  /** Random characters that start every id of the file, by the epochs that have them. */
  tags(): Tag[] {
    return this.#db
      .prepare(`SELECT key, value FROM meta WHERE key GLOB '${TAG}*'`)
      .all()
      .map(({ key, value }) => ({ from: Number(String(key).slice(TAG.length + 1)), text: String(value) }));
  }

  /**
   * Counts the openings of the file: each starts its own range of element numbers. A new file is given a tag, and a copy
   * another one. To be called while commits wait for their fsync, whatever the durability: a power loss that took the
   * count back would have ids issued twice.
   */
  nextEpoch(): number {
    this.#db.exec('BEGIN IMMEDIATE');
    const row = this.#db
      .prepare(
        `INSERT INTO meta (key, value) VALUES ('${EPOCH}', 1)
         ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value`,
      )
      .get();
    const epoch = Number(row?.value);
    const isCopy = this.#db.prepare('DELETE FROM meta WHERE key = ?').run(IS_COPY).changes > 0;
    const add = this.#db.prepare('INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)');
    add.run(isCopy ? `${TAG}@${epoch}` : TAG, randomInt(36 ** 5, 36 ** 6).toString(36));
    this.#db.exec('COMMIT');
    return epoch;
  }
}
