import { randomInt } from 'node:crypto';
import type { DatabaseSync } from 'node:sqlite';

/** Facts about the file itself. */
export class Meta {
  readonly #db: DatabaseSync;

  constructor(db: DatabaseSync) {
    this.#db = db;
  }

  /** Six random characters, made with the file, that begin every id of it. */
  tag(): string {
    const fresh = randomInt(36 ** 5, 36 ** 6).toString(36);
    this.#db.prepare('INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)').run('tag', fresh);
    return String(this.#db.prepare('SELECT value FROM meta WHERE key = ?').get('tag')?.value);
  }

  /** Counts the openings of the file, durably: each begins its own range of element numbers. */
  nextEpoch(): number {
    const row = this.#db
      .prepare(
        `INSERT INTO meta (key, value) VALUES ('epoch', 1)
         ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value`,
      )
      .get();
    return Number(row?.value);
  }
}
