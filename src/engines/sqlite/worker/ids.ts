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
export interface Tag {
  /** The first epoch whose ids have it. */
  readonly from: number;
  readonly text: string;
}

/** Of every tag. */
const TAG_LENGTH = 6;

const COUNTERS = 2 ** 32;

/** No transaction draws this many numbers, so a counter below the mark never overflows within one. */
const COUNTER_MARK = COUNTERS - 2 ** 24;

const FORM = /^([0-9a-z]{1,8})-([0-9a-z]{1,7})$/;

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

  next(): number {
    return this.#epoch * COUNTERS + ++this.#counter;
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
    const parts = FORM.exec(text.slice(TAG_LENGTH));
    if (parts === null) return null;
    const [, epoch = '', counter = ''] = parts;
    const seq = Number.parseInt(epoch, 36) * COUNTERS + Number.parseInt(counter, 36);
    // The tag must be that of its epoch. Leading zeros and a counter past its range would make a second text for the same number.
    return Number.isSafeInteger(seq) && this.text(seq) === text ? seq : null;
  }

  #prefixOf(epoch: number): string {
    const tag = this.#tags.find(({ from }) => from <= epoch);
    return `${tag?.text ?? ''}${epoch.toString(36)}-`;
  }
}
