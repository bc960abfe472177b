import { randomInt } from 'node:crypto';
import type { DatabaseSync } from 'node:sqlite';

/**
 * Element ids, drawn from one sequence: `epoch * 2^32 + counter`.
 *
 * The epoch grows durably at each opening of the file, the counter lives in memory. So a number is never
 * given twice, although no counter is written while elements are stored, and insertion order is number
 * order, which lets every B-tree grow at its end.
 *
 * The text form is `<tag><epoch>-<counter>` in base 36. The tag is random per file: an id of another file
 * matches nothing here. A file that was restored from a backup has another tag from then on, since the numbers that
 * follow may have been given before: the file that was lost may have been opened any number of times after the backup.
 * An id is no secret; every verb checks it against the queue it is used with.
 */
interface Tag {
  /** The first epoch whose ids have it. */
  readonly from: number;
  readonly text: string;
}

/** Of every tag. */
const TAG_LENGTH = 6;

const COUNTERS = 2 ** 32;

/** No transaction draws this many numbers, so a counter below the mark never overflows within one. */
const COUNTER_MARK = COUNTERS - 2 ** 24;

const MAX_DIGITS = 8;

/**
 * A number in base 36 as `Number.toString` writes it, so that no second text stands for the same number; -1 if it is
 * none. Read by hand: a regular expression and two `parseInt` took 0.17 of the 7 µs of a take and its commit.
 */
function readDigits(text: string, from: number, to: number): number {
  const length = to - from;
  if (length < 1 || length > MAX_DIGITS) return -1;
  if (length > 1 && text[from] === '0') return -1;
  let number = 0;
  for (let at = from; at < to; at++) {
    const code = text.charCodeAt(at);
    if (code >= 0x30 && code <= 0x39) number = number * 36 + code - 0x30;
    else if (code >= 0x61 && code <= 0x7a) number = number * 36 + code - 0x57;
    else return -1;
  }
  return number;
}

export class Ids {
  /** The latest first. */
  readonly #tags: readonly Tag[];
  #epoch: number;
  #prefix: string;
  #counter: number;

  /** @param counter where the epoch is; 0 for one that nobody has drawn from */
  constructor(tags: readonly Tag[], epoch: number, counter = 0) {
    this.#tags = tags.toSorted((a, b) => b.from - a.from);
    this.#counter = counter;
    this.#epoch = epoch;
    this.#prefix = this.#prefixOf(epoch);
  }

  /** Of a file that was just opened. */
  static open(db: DatabaseSync): Ids {
    const epoch = nextEpoch(db);
    return new Ids(readTags(db), epoch);
  }

  next(): number {
    return this.#epoch * COUNTERS + ++this.#counter;
  }

  /** Draws so many numbers, which follow each other. Returns the first. */
  draw(count: number): number {
    const first = this.next();
    this.#counter += count - 1;
    return first;
  }

  /** Whether a new epoch should be made durable and begun before the next batch. */
  get nearlySpent(): boolean {
    return this.#counter > COUNTER_MARK;
  }

  beginEpoch(epoch: number): void {
    this.#epoch = epoch;
    this.#prefix = this.#prefixOf(epoch);
    this.#counter = 0;
  }

  text(seq: number): string {
    const epoch = Math.floor(seq / COUNTERS);
    const prefix = epoch === this.#epoch ? this.#prefix : this.#prefixOf(epoch);
    return prefix + (seq >>> 0).toString(36);
  }

  /** The number behind a text, or null where this file never gave that text out. */
  parse(text: string): number | null {
    const dash = text.indexOf('-', TAG_LENGTH);
    const epoch = readDigits(text, TAG_LENGTH, dash);
    const counter = readDigits(text, dash + 1, text.length);
    if (epoch < 0 || counter < 0 || counter >= COUNTERS) return null;
    const seq = epoch * COUNTERS + counter;
    // The tag must be that of its epoch.
    const prefix = epoch === this.#epoch ? this.#prefix : this.#prefixOf(epoch);
    return Number.isSafeInteger(seq) && text.startsWith(prefix) ? seq : null;
  }

  #prefixOf(epoch: number): string {
    const tag = this.#tags.find(({ from }) => from <= epoch);
    return `${tag?.text ?? ''}${epoch.toString(36)}-`;
  }
}

/** Keys of tags in the table `meta`: `tag` for the first epoch's, then `tag@<epoch>`. */
const TAG = 'tag';
const EPOCH = 'epoch';
/** Present in a file that was copied and not opened since. */
const IS_COPY = 'is_copy';

/** Marks a backup, so that the first start with it gives other ids than the file that was copied. */
export function markCopy(db: DatabaseSync): void {
  db.prepare('INSERT OR REPLACE INTO meta (key, value) VALUES (?, 1)').run(IS_COPY);
}

/** Random characters that start every id of the file, by the epochs that have them. */
function readTags(db: DatabaseSync): Tag[] {
  return db
    .prepare(`SELECT key, value FROM meta WHERE key GLOB '${TAG}*'`)
    .all()
    .map(({ key, value }) => ({ from: Number(String(key).slice(TAG.length + 1)), text: String(value) }));
}

/**
 * Counts the openings of the file: each starts its own range of element numbers. A new file is given a tag, and a copy
 * another one. To be called while commits wait for their fsync, whatever the durability: a power loss that took the
 * count back would have ids issued twice.
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
