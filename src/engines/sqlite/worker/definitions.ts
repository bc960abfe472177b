import type { DatabaseSync, StatementSync } from 'node:sqlite';

export interface DefinitionRow {
  readonly key: string;
  readonly value: string;
  readonly version: number;
}

/** The table of small documents. Versions come from the same sequence as element numbers. */
export class Definitions {
  readonly #get: StatementSync;
  readonly #list: StatementSync;
  readonly #put: StatementSync;
  readonly #delete: StatementSync;

  constructor(db: DatabaseSync) {
    this.#get = db.prepare('SELECT key, value, version FROM definition WHERE kind = ? AND key = ?');
    this.#list = db.prepare('SELECT key, value, version FROM definition WHERE kind = ? ORDER BY key');
    this.#put = db.prepare(
      'INSERT OR REPLACE INTO definition (kind, key, value, version) VALUES (?, ?, ?, ?)',
    );
    this.#delete = db.prepare('DELETE FROM definition WHERE kind = ? AND key = ?');
  }

  get(kind: string, key: string): DefinitionRow | null {
    return (this.#get.get(kind, key) as unknown as DefinitionRow | undefined) ?? null;
  }

  list(kind: string): DefinitionRow[] {
    return this.#list.all(kind) as unknown as DefinitionRow[];
  }

  put(kind: string, key: string, value: string, version: number): void {
    this.#put.run(kind, key, value, version);
  }

  delete(kind: string, key: string): boolean {
    return this.#delete.run(kind, key).changes === 1;
  }
}
