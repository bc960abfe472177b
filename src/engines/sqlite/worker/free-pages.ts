import type { DatabaseSync, StatementSync } from 'node:sqlite';

/** Free pages up to this number are kept for the next burst: growing the file again costs more. */
const PAGES_KEPT = 4096;

/** Pages given back at a time: a few milliseconds, since each may mean moving a page of the file's end. */
const PAGES_AT_ONCE = 500;

/** Gives the space of a drained queue back to the file system (`auto_vacuum = INCREMENTAL`). */
export class FreePages {
  readonly #count: StatementSync;
  readonly #free: StatementSync;
  readonly #vacuum: StatementSync;
  readonly #pageBytes: number;
  #given = false;

  constructor(db: DatabaseSync) {
    this.#count = db.prepare('PRAGMA page_count');
    this.#free = db.prepare('PRAGMA freelist_count');
    this.#pageBytes = Number(db.prepare('PRAGMA page_size').get()?.page_size);
    this.#vacuum = db.prepare(`PRAGMA incremental_vacuum(${PAGES_AT_ONCE})`);
  }

  /**
   * Shrinks the file a little if a quarter of it is free. Answers whether more is to be done.
   * @param everything on a full disk: down to the last free page
   */
  giveBack(everything: boolean): boolean {
    if (!this.#isWorthWhile(everything)) return false;
    this.#vacuum.all();
    this.#given = true;
    return this.#isWorthWhile(everything);
  }

  /** What the pages take that hold something. */
  bytesInUse(): number {
    const pages = Number(this.#count.get()?.page_count) - Number(this.#free.get()?.freelist_count);
    return pages * this.#pageBytes;
  }

  /** Whether pages were given since the last time: the file shrinks only at the next checkpoint. */
  takeGiven(): boolean {
    const given = this.#given;
    this.#given = false;
    return given;
  }

  #isWorthWhile(everything: boolean): boolean {
    const free = Number(this.#free.get()?.freelist_count);
    if (everything) return free > 0;
    return free > PAGES_KEPT && free * 4 > Number(this.#count.get()?.page_count);
  }
}
