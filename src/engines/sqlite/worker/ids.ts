import { randomInt } from 'node:crypto';
import type { DatabaseSync } from 'node:sqlite';

/**
 * Element ids, from one sequence: `epoch * 2^32 + counter`.
 *
 * The epoch is stored and increases each time the file is opened; the counter is in memory. So no number is issued
 * twice, although inserts do not write the counter, and numbers are in the order of insertion, which lets every B-tree
 * grow at its end.
 *
 * The string form is `<tag><epoch>-<counter>` in base 36. The tag is random per file, so ids of another file match
 * nothing. A file restored from a backup gets another tag for all further epochs, because the lost file may have been
 * opened any number of times after the backup and have issued the same numbers.
 * An id is not a secret; every operation checks it against the queue it is used with.
 */
interface Tag {
  /** The first epoch with this tag. */
  readonly from: number;
  readonly text: string;
}

/** Characters of each tag. */
const TAG_LENGTH = 6;

const COUNTERS = 2 ** 32;

/** No transaction issues as many numbers as remain above this mark, so the counter cannot overflow within one. */
const COUNTER_MARK = COUNTERS - 2 ** 24;

export class Ids {
  /** Sorted by epoch, the latest first. */
  readonly #tags: readonly Tag[];
  #epoch: number;
  #prefix: string;
  #counter: number;

  /** @param counter the last one issued in this epoch; 0 if none was */
  constructor(tags: readonly Tag[], epoch: number, counter = 0) {
    this.#tags = tags.toSorted((a, b) => b.from - a.from);
    this.#counter = counter;
    this.#epoch = epoch;
    this.#prefix = this.#prefixOf(epoch);
  }

  /** Starts a new epoch of a file that was just opened. */
  static open(db: DatabaseSync): Ids {
    const epoch = nextEpoch(db);
    return new Ids(readTags(db), epoch);
  }

  next(): number {
    return this.#epoch * COUNTERS + ++this.#counter;
  }

  /** Issues `count` consecutive numbers. Returns the first. */
  issue(count: number): number {
    const first = this.next();
    this.#counter += count - 1;
    return first;
  }

  /** Whether a new epoch should be stored and started before the next batch. */
  get isNearlySpent(): boolean {
    return this.#counter > COUNTER_MARK;
  }

  startEpoch(epoch: number): void {
    this.#epoch = epoch;
    this.#prefix = this.#prefixOf(epoch);
    this.#counter = 0;
  }

  format(seq: number): string {
    const epoch = Math.floor(seq / COUNTERS);
    const prefix = epoch === this.#epoch ? this.#prefix : this.#prefixOf(epoch);
    return prefix + (seq >>> 0).toString(36);
  }

  /**
   * The number of an id; null if this file cannot have issued it. An id has one spelling: another tag, other digits or
   * too large a counter do not result in the same text again.
   */
  parse(text: string): number | null {
    const dash = text.indexOf('-', TAG_LENGTH);
    const epoch = Number.parseInt(text.slice(TAG_LENGTH, dash), 36);
    const seq = epoch * COUNTERS + Number.parseInt(text.slice(dash + 1), 36);
    return Number.isSafeInteger(seq) && this.format(seq) === text ? seq : null;
  }

  #prefixOf(epoch: number): string {
    const tag = this.#tags.find(({ from }) => from <= epoch);
    return `${tag?.text ?? ''}${epoch.toString(36)}-`;
  }
}

/** The ids of `count` consecutive numbers, of which the first is given. */
export function idsFrom(first: string, count: number): string[] {
  const ids = [first];
  if (count === 1) return ids;
  const at = first.indexOf('-', TAG_LENGTH) + 1;
  const prefix = first.slice(0, at);
  const counter = Number.parseInt(first.slice(at), 36);
  for (let place = 1; place < count; place++) ids.push(prefix + (counter + place).toString(36));
  return ids;
}

/** Keys of the table `meta`. Tags: `tag` for those of the first epoch, then `tag@<epoch>`. */
const TAG = 'tag';
const EPOCH = 'epoch';
/** Present in a copy of a file that has not been opened as a store yet. */
const IS_COPY = 'is_copy';

/** Marks a backup, so that its first start begins a range of ids that the original cannot have issued. */
export function markCopy(db: DatabaseSync): void {
  db.prepare('INSERT OR REPLACE INTO meta (key, value) VALUES (?, 1)').run(IS_COPY);
}

/** Reads the tags of the file, and the epochs from which they apply. */
function readTags(db: DatabaseSync): Tag[] {
  return db
    .prepare(`SELECT key, value FROM meta WHERE key GLOB '${TAG}*'`)
    .all()
    .map(({ key, value }) => ({ from: Number(String(key).slice(TAG.length + 1)), text: String(value) }));
}

/**
 * Starts an epoch, with a range of element numbers of its own. A new file, and a copy at its first start, also gets a
 * tag. Must be called while commits wait for their fsync, whatever the durability: if a power loss undid the new epoch,
 * ids would be issued twice.
 */
export function nextEpoch(db: DatabaseSync): number {
  db.exec('BEGIN IMMEDIATE');
  const row = db
    .prepare(
      `INSERT INTO meta (key, value) VALUES ('${EPOCH}', 1)
       ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value`,
    )
    .get();
  const epoch = Number(row?.value);
  const isCopy = db.prepare('DELETE FROM meta WHERE key = ?').run(IS_COPY).changes > 0;
  const add = db.prepare('INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)');
  add.run(isCopy ? `${TAG}@${epoch}` : TAG, randomInt(36 ** 5, 36 ** 6).toString(36));
  db.exec('COMMIT');
  return epoch;
}
