import { DatabaseSync, type StatementSync } from 'node:sqlite';

/**
 * The least that the embedded engine's work can cost: its own schema, prepared statements, one transaction a
 * batch, one thread, nothing else. No ids as text, no checksums, no counts, no names.
 */
export class RawSqlite {
  readonly #db: DatabaseSync;
  readonly #begin: StatementSync;
  readonly #commit: StatementSync;
  readonly #insertElement: StatementSync;
  readonly #insertDelivery: StatementSync;
  readonly #ready: StatementSync;
  readonly #deleteDelivery: StatementSync;
  readonly #deleteElement: StatementSync;
  #seq = 0;

  /** @param model a file that the engine made and closed; its schema is copied */
  constructor(file: string, model: string) {
    this.#db = new DatabaseSync(file);
    this.#db.exec(
      'PRAGMA locking_mode = EXCLUSIVE; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -16384',
    );
    for (const statement of schemaOf(model)) this.#db.exec(statement);
    this.#begin = this.#db.prepare('BEGIN IMMEDIATE');
    this.#commit = this.#db.prepare('COMMIT');
    this.#insertElement = this.#db.prepare(
      'INSERT INTO element (seq, queue, groups, inserted_at, type, more, crc, body) VALUES (?, 1, 0, ?, ?, NULL, 0, ?)',
    );
    this.#insertDelivery = this.#db.prepare(
      'INSERT INTO delivery (seq, lane, due_at, tries) VALUES (?, 1, ?, 0)',
    );
    this.#ready = this.#db.prepare(
      `SELECT d.seq, d.due_at, d.tries, e.type, e.more, e.body FROM delivery d CROSS JOIN element e ON e.seq = d.seq
       WHERE d.lane = 1 AND d.lease_until IS NULL AND d.due_at <= ? ORDER BY d.due_at, d.seq LIMIT ?`,
    );
    this.#ready.setReturnArrays(true);
    this.#deleteDelivery = this.#db.prepare('DELETE FROM delivery WHERE seq = ? AND lane = 1');
    this.#deleteElement = this.#db.prepare('DELETE FROM element WHERE seq = ?');
  }

  insert(count: number, contentType: string, body: Uint8Array): void {
    const now = Date.now();
    this.#begin.run();
    for (let left = count; left > 0; left--) {
      const seq = ++this.#seq;
      this.#insertElement.run(seq, now, contentType, body);
      this.#insertDelivery.run(seq, now);
    }
    this.#commit.run();
  }

  /** Answers how many were taken. */
  take(count: number): number {
    this.#begin.run();
    const rows = this.#ready.all(Date.now(), count) as unknown as [seq: number][];
    for (const [seq] of rows) {
      this.#deleteDelivery.run(seq);
      this.#deleteElement.run(seq);
    }
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
