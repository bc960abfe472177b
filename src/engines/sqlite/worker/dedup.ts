import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { Queue } from './names.ts';

/** The element that a key made. */
export interface Seen {
  readonly seq: number;
  readonly fingerprint: string | null;
}

/** Which dedup keys a queue has seen within the window, and which element each one made. */
export class Dedup {
  readonly #windowMs: number;
  readonly #find: StatementSync;
  readonly #remember: StatementSync;
  readonly #forget: StatementSync;
  readonly #oldest: StatementSync;

  constructor(db: DatabaseSync, windowMs: number) {
    this.#windowMs = windowMs;
    this.#find = db.prepare('SELECT seq, fingerprint FROM dedup WHERE queue = ? AND key = ? AND seen_at > ?');
    this.#remember = db.prepare(
      'INSERT OR REPLACE INTO dedup (queue, key, seq, seen_at, fingerprint) VALUES (?, ?, ?, ?, ?)',
    );
    this.#forget = db.prepare(
      'DELETE FROM dedup WHERE (queue, key) IN (SELECT queue, key FROM dedup WHERE seen_at <= ? ORDER BY seen_at LIMIT ?)',
    );
    this.#oldest = db.prepare('SELECT seen_at FROM dedup ORDER BY seen_at LIMIT 1');
  }

  /** The element that this key made, within the window. */
  find(queue: Queue, key: string, now: number): Seen | null {
    return (this.#find.get(queue.id, key, now - this.#windowMs) as unknown as Seen | undefined) ?? null;
  }

  remember(queue: Queue, key: string, { seq, fingerprint }: Seen, now: number): void {
    this.#remember.run(queue.id, key, seq, now, fingerprint);
  }

  /** Forgets up to `limit` keys that are past the window. Answers how many. */
  forget(now: number, limit: number): number {
    return Number(this.#forget.run(now - this.#windowMs, limit).changes);
  }

  /** When the next key can be forgotten; null where there is none. */
  nextAt(): number | null {
    const row = this.#oldest.get();
    return row === undefined ? null : Number(row.seen_at) + this.#windowMs;
  }
}
