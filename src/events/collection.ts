import type { Namespace } from '../broker/namespace.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import type { Picture, PictureSource } from './pictures.ts';

/** How often sources are read. */
const SOURCES_MS = 2_000;
/**
 * Pictures that are created and compared in one turn of the event loop: one of an exchange with many destinations takes
 * 50 µs, and there may be thousands.
 */
const PICTURES_PER_TURN = 50;
/** Longer event ids of clients are not parsed. */
const MAX_ID_LENGTH = 64;

/** What is collected. */
export interface CollectedParts {
  readonly sources: readonly PictureSource[];
  readonly namespaces: readonly Namespace[];
}

/** Collects the pictures while there are subscribers. */
export class EventCollection {
  readonly id: string;
  readonly journal = new PictureJournal();
  readonly #sources: readonly PictureSource[];
  readonly #clock: Clock;
  readonly #onChange: () => void;
  /** Namespaces and sources that have not been read yet. */
  readonly #unread: Set<Namespace | PictureSource>;
  /** Keys of the last reading of each source. */
  readonly #keys = new Map<PictureSource, Set<string>>();
  readonly #reading = new Map<PictureSource, Promise<void>>();
  #published = 0;
  #isPublished = false;
  #timer: CancelTimer | null = null;
  #isStopped = false;

  /** @param onChange called when there is something new to publish */
  constructor(id: string, { sources, namespaces }: CollectedParts, clock: Clock, onChange: () => void) {
    this.id = id;
    this.#sources = sources;
    this.#clock = clock;
    this.#onChange = onChange;
    this.#unread = new Set([...namespaces, ...sources]);
  }

  /** Entries of up to this version may be sent. */
  get published(): number {
    return this.#published;
  }

  /** Whether everything has been read and published once. */
  get isPublished(): boolean {
    return this.#isPublished;
  }

  /** Whether the first full picture has been read and not been published yet. */
  get isDue(): boolean {
    return !this.#isPublished && this.#unread.size === 0;
  }

  start(): void {
    for (const source of this.#sources) void this.#read(source);
    this.#timer = this.#clock.after(SOURCES_MS, () => this.start());
  }

  stop(): void {
    this.#isStopped = true;
    this.#timer?.();
  }

  /** Resolves when nothing is being read. */
  async idle(): Promise<void> {
    await Promise.all(this.#reading.values());
  }

  markRead(part: Namespace | PictureSource): void {
    this.#unread.delete(part);
  }

  publish(): void {
    this.#published = this.journal.version;
    if (this.#unread.size === 0) this.#isPublished = true;
  }

  /** The version of an event id; null if it has another prefix, or the journal does not have all changes since. */
  versionOf(eventId: string | null, prefix: string): number | null {
    if (eventId === null || eventId.length > MAX_ID_LENGTH || !eventId.startsWith(prefix)) return null;
    const digits = eventId.slice(prefix.length);
    const version = /^\d{1,15}$/.test(digits) ? Number(digits) : Number.NaN;
    return version <= this.#published && this.journal.hasSince(version) ? version : null;
  }

  /** Reads a source, or joins the reading in progress. */
  #read(source: PictureSource): Promise<void> {
    let reading = this.#reading.get(source);
    if (reading === undefined) {
      reading = this.#readOnce(source).finally(() => this.#reading.delete(source));
      this.#reading.set(source, reading);
    }
    return reading;
  }

  async #readOnce(source: PictureSource): Promise<void> {
    let hasChanged = this.#unread.has(source);
    try {
      const keys = new Set<string>();
      for (const picture of await source.read()) {
        if (keys.size % PICTURES_PER_TURN === PICTURES_PER_TURN - 1) await nextTurn();
        if (this.#isStopped) return;
        keys.add(picture.key);
        if (this.journal.put(picture)) hasChanged = true;
      }
      for (const key of this.#keys.get(source) ?? []) {
        if (!keys.has(key) && this.journal.remove({ kind: source.kind, key })) hasChanged = true;
      }
      this.#keys.set(source, keys);
    } catch {
      // An engine is unavailable, which is an alarm. Earlier pictures stay.
    }
    this.markRead(source);
    if (hasChanged && !this.#isStopped) this.#onChange();
  }
}

function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

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
