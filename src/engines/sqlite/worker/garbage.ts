import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { Elements } from './elements.ts';

/**
 * Lanes that were purged: cut off from their queue in one step, however full they were, and cleared away
 * bit by bit afterwards. Nothing of them can be found by name or id any more.
 */
export class Garbage {
  readonly #elements: Elements;
  readonly #detach: StatementSync;
  readonly #next: StatementSync;
  readonly #some: readonly StatementSync[];
  readonly #remove: StatementSync;
  readonly #removeLane: StatementSync;
  #mayHaveSome = true;

  constructor(db: DatabaseSync, elements: Elements) {
    this.#elements = elements;
    this.#detach = db.prepare('UPDATE lane SET queue = NULL WHERE id = ?');
    this.#next = db.prepare('SELECT id FROM lane WHERE queue IS NULL LIMIT 1');
    // One statement for each partial index, so that both find their rows without a scan.
    this.#some = ['IS NULL', 'IS NOT NULL'].map((state) =>
      db.prepare(`SELECT seq FROM delivery WHERE lane = ? AND lease_until ${state} LIMIT ?`),
    );
    this.#remove = db.prepare('DELETE FROM delivery WHERE seq = ? AND lane = ?');
    this.#removeLane = db.prepare('DELETE FROM lane WHERE id = ?');
  }

  detach(lane: number): void {
    this.#detach.run(lane);
    this.#mayHaveSome = true;
  }

  /** Clears up to about `limit` deliveries away. Answers whether more may be left. */
  clear(limit: number): boolean {
    if (!this.#mayHaveSome) return false;
    const row = this.#next.get();
    if (row === undefined) {
      // A purge that is rolled back leaves no garbage; one in the same transaction ran before this.
      this.#mayHaveSome = false;
      return false;
    }
    const lane = Number(row.id);
    let cleared = 0;
    for (const some of this.#some) {
      for (const { seq } of some.all(lane, limit)) {
        this.#remove.run(Number(seq), lane);
        this.#elements.removeIfFinished(Number(seq), true);
        cleared++;
      }
    }
    if (cleared === 0) this.#removeLane.run(lane);
    return true;
  }
}
