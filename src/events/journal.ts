import type { Picture } from './pictures.ts';

/** A picture; if the thing is gone, its last one. */
interface JournalEntry {
  readonly picture: Picture;
  readonly isGone: boolean;
  /** Greater than the versions of all earlier entries. */
  readonly version: number;
  /** Whether there is a later entry of the thing, or it has been forgotten. */
  isReplaced: boolean;
}

/** Maximum number of gone things that are remembered for subscribers that are behind or reconnect. */
const MAX_GONE = 1_000;

/**
 * The latest picture of each thing, in the order in which they changed. A subscriber needs only the entries behind its
 * version. However far behind it is, there is one entry for each thing.
 */
export class PictureJournal {
  readonly #entries = new Map<string, JournalEntry>();
  /** In the order of versions. Replaced entries stay until the array is rebuilt. */
  #order: JournalEntry[] = [];
  #gone: string[] = [];
  #version = 0;
  /** Subscribers with this version or a later one can continue; others need everything. */
  #oldest = 0;

  /** Version of the latest entry; 0 if there is none. */
  get version(): number {
    return this.#version;
  }

  /** Whether all changes since a version are known. */
  hasSince(version: number): boolean {
    return version >= this.#oldest && version <= this.#version;
  }

  /** Stores a picture. Returns whether it shows something new. */
  put(picture: Picture): boolean {
    const key = keyOf(picture);
    const previous = this.#entries.get(key);
    if (previous !== undefined && !previous.isGone && previous.picture.state === picture.state) return false;
    this.#write(key, picture, false);
    return true;
  }

  /** Marks the thing of a picture as gone. Returns whether it was present. */
  remove(picture: Pick<Picture, 'kind' | 'key'>): boolean {
    const key = keyOf(picture);
    const previous = this.#entries.get(key);
    if (previous === undefined || previous.isGone) return false;
    this.#write(key, previous.picture, true);
    this.#gone.push(key);
    if (this.#gone.length > MAX_GONE) this.#forgetGone();
    return true;
  }

  /** The entries behind `version` up to `upTo`, in order. */
  *between(version: number, upTo: number): Generator<JournalEntry> {
    const order = this.#order;
    for (let at = firstAfter(order, version); at < order.length; at += 1) {
      const entry = order[at] as JournalEntry;
      if (entry.version > upTo) return;
      if (!entry.isReplaced) yield entry;
    }
  }

  #write(key: string, picture: Picture, isGone: boolean): void {
    this.#version += 1;
    const previous = this.#entries.get(key);
    if (previous !== undefined) previous.isReplaced = true;
    const entry = { picture, isGone, version: this.#version, isReplaced: false };
    this.#entries.set(key, entry);
    this.#order.push(entry);
    if (this.#order.length > 2 * this.#entries.size + 1_000) {
      this.#order = this.#order.filter(({ isReplaced }) => !isReplaced);
    }
  }

  /**
   * Forgets the older half of the things that are gone. Subscribers that were not sent them yet need everything again.
   */
  #forgetGone(): void {
    const keys = this.#gone.splice(0, MAX_GONE / 2);
    for (const key of keys) {
      const entry = this.#entries.get(key);
      // The thing may exist again.
      if (entry?.isGone !== true) continue;
      this.#entries.delete(key);
      entry.isReplaced = true;
      this.#oldest = Math.max(this.#oldest, entry.version);
    }
  }
}

function keyOf({ kind, key }: Pick<Picture, 'kind' | 'key'>): string {
  return `${kind} ${key}`;
}

/** The index of the first entry with a greater version. */
function firstAfter(order: readonly JournalEntry[], version: number): number {
  let from = 0;
  let to = order.length;
  while (from < to) {
    const middle = (from + to) >> 1;
    if ((order[middle] as JournalEntry).version <= version) from = middle + 1;
    else to = middle;
  }
  return from;
}
