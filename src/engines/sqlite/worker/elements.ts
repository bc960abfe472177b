import type { DatabaseSync, StatementSync } from 'node:sqlite';
import { elementChecksum } from './checksums.ts';

/** An element's content as it is stored: the content type, and all rarer fields as one JSON text or null. */
export interface StoredContent {
  readonly type: string | null;
  readonly more: string | null;
  readonly body: Uint8Array;
}

/** A row of `element` without its number. */
export interface ElementRow extends StoredContent {
  readonly queue: number;
  readonly groups: number;
  readonly crc: number;
}

/** Element rows. Deliveries are the business of `deliveries.ts`. */
export class Elements {
  readonly #insert: StatementSync;
  readonly #find: StatementSync;
  readonly #exists: StatementSync;
  readonly #markShared: StatementSync;
  readonly #remove: StatementSync;
  readonly #otherDelivery: StatementSync;
  readonly #setAside: StatementSync;

  constructor(db: DatabaseSync) {
    this.#insert = db.prepare(
      'INSERT INTO element (seq, queue, groups, inserted_at, type, more, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
    );
    this.#find = db.prepare('SELECT queue, groups, type, more, crc, body FROM element WHERE seq = ?');
    this.#exists = db.prepare('SELECT 1 FROM element WHERE seq = ?');
    this.#markShared = db.prepare('UPDATE element SET groups = 2 WHERE seq = ? AND groups < 2');
    this.#remove = db.prepare('DELETE FROM element WHERE seq = ?');
    this.#otherDelivery = db.prepare('SELECT 1 FROM delivery WHERE seq = ? LIMIT 1');
    this.#setAside = db.prepare(
      `INSERT OR REPLACE INTO damaged (seq, queue, found_at, type, more, crc, body)
       SELECT seq, queue, ?, type, more, crc, body FROM element WHERE seq = ?`,
    );
  }

  /** @param groups 0 on a plain queue, else how many groups the element is for */
  insert(seq: number, queue: number, groups: number, now: number, content: StoredContent): void {
    const { type, more, body } = content;
    this.#insert.run(seq, queue, groups, now, type, more, elementChecksum(seq, type, more, body), body);
  }

  find(seq: number): ElementRow | null {
    return (this.#find.get(seq) as unknown as ElementRow | undefined) ?? null;
  }

  exists(seq: number): boolean {
    return this.#exists.get(seq) !== undefined;
  }

  /** A second group has a delivery of this element again. */
  markShared(seq: number): void {
    this.#markShared.run(seq);
  }

  remove(seq: number): void {
    this.#remove.run(seq);
  }

  /** Removes an element of which one delivery has just gone, unless another group still has one. */
  removeIfFinished(seq: number, shared: boolean): void {
    if (shared && this.#otherDelivery.get(seq) !== undefined) return;
    this.#remove.run(seq);
  }

  /** Copies an element whose checksum does not fit to the table `damaged`; its deliveries and row stay. */
  setAside(seq: number, now: number): void {
    this.#setAside.run(now, seq);
  }
}
