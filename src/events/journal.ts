import type { Picture } from './pictures.ts';

/** A picture, or what is left of one that is gone. */
export interface JournalEntry {
  readonly picture: Picture;
  readonly isGone: boolean;
  /** Greater than those of all entries that were written before. */
  readonly version: number;
}

/** So many things that are gone are remembered, for subscribers who are behind or come back. */
const MAX_GONE = 1_000;

/**
 * The latest picture of each thing, in the order in which they changed. Somebody who has read up to a version needs what
 * follows it, and nothing else: however far behind, there is one entry for each thing.
 */
export class PictureJournal {
  readonly #entries = new Map<string, JournalEntry>();
  /** In the order of their versions. An entry that was replaced leaves its place empty until the array is rebuilt. */
  #order: JournalEntry[] = [];
  #gone: string[] = [];
  #version = 0;
  /** Somebody who has read up to here or further can continue. */
  #oldest = 0;

  /** Of the latest entry; 0: none was written. */
  get version(): number {
    return this.#version;
  }

  /** Whether what follows a version is complete. */
  hasSince(version: number): boolean {
    return version >= this.#oldest && version <= this.#version;
  }

  /** Returns whether it shows something new. */
  put(picture: Picture): boolean {
    const key = keyOf(picture);
    const before = this.#entries.get(key);
    if (before !== undefined && !before.isGone && before.picture.state === picture.state) return false;
    this.#write(key, picture, false);
    return true;
  }

  /** The thing of a picture is gone. Returns whether it was there. */
  remove(picture: Pick<Picture, 'kind' | 'key'>): boolean {
    const key = keyOf(picture);
    const before = this.#entries.get(key);
    if (before === undefined || before.isGone) return false;
    this.#write(key, before.picture, true);
    this.#gone.push(key);
    if (this.#gone.length > MAX_GONE) this.#forgetGone();
    return true;
  }

  /** The entries that follow a version, up to another one, in their order. */
  *between(version: number, upTo: number): Generator<JournalEntry> {
    const order = this.#order;
    for (let at = firstAfter(order, version); at < order.length; at += 1) {
      const entry = order[at] as JournalEntry;
      if (entry.version > upTo) return;
      if (this.#isCurrent(entry)) yield entry;
    }
  }

  #write(key: string, picture: Picture, isGone: boolean): void {
    this.#version += 1;
    const entry = { picture, isGone, version: this.#version };
    this.#entries.set(key, entry);
    this.#order.push(entry);
    if (this.#order.length > 2 * this.#entries.size + 1_000) {
      this.#order = this.#order.filter((one) => this.#isCurrent(one));
    }
  }

  #isCurrent(entry: JournalEntry): boolean {
    return this.#entries.get(keyOf(entry.picture)) === entry;
  }

  /** Forgets the older half. Who has not read of them yet needs everything again. */
  #forgetGone(): void {
    const keys = this.#gone.splice(0, MAX_GONE / 2);
    for (const key of keys) {
      const entry = this.#entries.get(key);
      // It may be there again.
      if (entry?.isGone !== true) continue;
      this.#entries.delete(key);
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
