import { DatabaseSync, type StatementSync } from 'node:sqlite';

/**
 * The minimal cost of the embedded engine's work: its schema, prepared statements, one transaction per batch and one
 * thread, without ids, checksums, counts or names.
 */
export class RawSqlite {
  readonly #db: DatabaseSync;
  readonly #begin: StatementSync;
  readonly #commit: StatementSync;
  readonly #insert: StatementSync;
  readonly #ready: StatementSync;
  readonly #delete: StatementSync;
  #seq = 0;

  /** @param model a file that the engine created and closed; its schema is copied */
  constructor(file: string, model: string) {
    this.#db = new DatabaseSync(file);
    this.#db.exec(
      'PRAGMA locking_mode = EXCLUSIVE; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -16384',
    );
    for (const statement of schemaOf(model)) this.#db.exec(statement);
    this.#begin = this.#db.prepare('BEGIN IMMEDIATE');
    this.#commit = this.#db.prepare('COMMIT');
    this.#insert = this.#db.prepare(
      `INSERT INTO delivery (seq, subscription, due_at, tries, crc, inserted_at, type, content_crc, body)
       VALUES (?, 1, ?, 0, 0, ?, ?, 0, ?)`,
    );
    this.#ready = this.#db.prepare(
      `SELECT seq, due_at, tries, type, more, body FROM delivery
       WHERE subscription = 1 AND lease_until IS NULL AND due_at <= ? ORDER BY due_at, seq LIMIT ?`,
    );
    this.#ready.setReturnArrays(true);
    this.#delete = this.#db.prepare('DELETE FROM delivery WHERE seq = ?');
  }

  insert(count: number, contentType: string, body: Uint8Array): void {
    const now = Date.now();
    this.#begin.run();
    for (let left = count; left > 0; left--) {
      this.#insert.run(++this.#seq, now, now, contentType, body);
    }
    this.#commit.run();
  }

  /** Returns the number of taken elements. */
  take(count: number): number {
    this.#begin.run();
    const rows = this.#ready.all(Date.now(), count) as unknown as [seq: number][];
    for (const [seq] of rows) this.#delete.run(seq);
    this.#commit.run();
    return rows.length;
  }

  close(): void {
    this.#db.close();
  }
}

function schemaOf(file: string): string[] {
  const model = new DatabaseSync(file, { readOnly: true });
  try {
    const rows = model.prepare('SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rootpage').all();
    return rows.map(({ sql }) => String(sql));
  } finally {
    model.close();
  }
}
