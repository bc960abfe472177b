import { randomInt } from 'node:crypto';
import type { DatabaseSync } from 'node:sqlite';
import type { Durability } from '../settings.ts';
import { setDurability } from './durability.ts';

/** Facts about the file itself. */
export class Meta {
  readonly #db: DatabaseSync;
  readonly #durability: Durability;

  constructor(db: DatabaseSync, durability: Durability) {
    this.#db = db;
    this.#durability = durability;
  }

  /** Six random characters, made with the file, that begin every id of it. */
  tag(): string {
    const fresh = randomInt(36 ** 5, 36 ** 6).toString(36);
    this.#db.prepare('INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)').run('tag', fresh);
    return String(this.#db.prepare('SELECT value FROM meta WHERE key = ?').get('tag')?.value);
  }

  /**
   * Counts the openings of the file: each starts its own range of element numbers. The count is fsynced whatever the
   * durability, since a power loss that took it back would have ids and lease tokens issued twice.
   */
  nextEpoch(): number {
    setDurability(this.#db, 'full');
    const row = this.#db
      .prepare(
        `INSERT INTO meta (key, value) VALUES ('epoch', 1)
         ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value`,
      )
      .get();
    setDurability(this.#db, this.#durability);
    return Number(row?.value);
  }
}
