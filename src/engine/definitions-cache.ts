import type { Clock } from '../util/clock.ts';
import { repeat } from '../util/repeat.ts';
import { Retries } from '../util/retries.ts';
import type { Definition, DefinitionKind, Definitions } from './definitions.ts';

/** What changed and could not be read is read again after this long. */
const READ_AGAIN_MS = 1_000;
/** The stores are listed again this often, ± half, in case a watch missed a change. */
const RELIST_MS = 60_000;
/** The name under which a list of all is retried; no key has it. */
const ALL = '\0';

interface CacheParts {
  readonly definitions: Definitions;
  readonly kind: DefinitionKind;
  readonly clock: Clock;
  /** Keys that are kept; not given: all. */
  readonly isWanted?: (key: string) => boolean;
  /**
   * A definition was read; null: it is gone. Not called for `note`.
   * @param hasChanged whether its version is another one than this node knew
   */
  readonly onRead: (key: string, definition: Definition | null, hasChanged: boolean) => void;
  /** A change could not be read; that is retried. Key null: that of all. */
  readonly onFailedRead: (key: string | null, error: unknown) => void;
}

/**
 * The definitions of one kind as this node knows them. Follows what the engine says of changes, reads them until that
 * works, and never goes back to an older state, although reads overlap with each other and with changes by this node: a
 * reply counts only if its read began after the latest news of that key.
 */
export class DefinitionsCache {
  readonly #parts: CacheParts;
  readonly #retries: Retries;
  readonly #cached = new Map<string, Definition>();
  readonly #reads = new Set<Promise<unknown>>();
  /** Numbers reads as they begin, and changes by this node. */
  #moment = 0;
  /** By key, the moment of the latest news; kept only while a read is in flight, which may be older. */
  readonly #newsAt = new Map<string, number>();
  #endWatch: (() => void) | null = null;
  #stopped = false;

  constructor(parts: CacheParts) {
    this.#parts = parts;
    this.#retries = new Retries({
      clock: parts.clock,
      delayMs: READ_AGAIN_MS,
      failed: (name, error) => parts.onFailedRead(name === ALL ? null : name, error),
    });
  }

  /** Follows changes from now on. What there was before comes with `reload`. */
  start(): void {
    this.#endWatch = this.#parts.definitions.watch(({ kind, key }) => {
      if (kind !== this.#parts.kind) return;
      if (key === null) void this.#retries.do(ALL, () => this.reload());
      else if (this.#isWanted(key)) this.readSoon(key);
    });
  }

  stop(): void {
    this.#stopped = true;
    this.#endWatch?.();
    this.#retries.stop();
  }

  /** Resolves when no read is in flight. */
  async idle(): Promise<void> {
    await Promise.allSettled(this.#reads);
  }

  get(key: string): Definition | null {
    return this.#cached.get(key) ?? null;
  }

  keys(): string[] {
    return [...this.#cached.keys()];
  }

  /** Reads one definition and keeps it; again if there was newer news before the reply. @throws as `Definitions.get` */
  read(key: string): Promise<Definition | null> {
    return this.#track(async () => {
      for (;;) {
        const moment = ++this.#moment;
        const definition = await this.#parts.definitions.get(this.#parts.kind, key);
        const isNews = this.#cached.get(key)?.version !== definition?.version;
        if (isNews && this.#isOutdated(key, moment) && !this.#stopped) continue;
        this.#apply(key, definition, moment);
        return definition;
      }
    });
  }

  /** The same in the background, until it works. */
  readSoon(key: string): void {
    void this.#retries.do(key, async () => {
      if (!this.#stopped) await this.read(key);
    });
  }

  /** Lists all and keeps them. @throws as `Definitions.list` */
  async reload(): Promise<void> {
    (await this.list())();
  }

  /** Lists all, and returns a function that keeps them. @throws as `Definitions.list` */
  list(): Promise<() => void> {
    const moment = ++this.#moment;
    const listed = Promise.withResolvers<void>();
    void this.#track(() => listed.promise);
    return this.#parts.definitions.list(this.#parts.kind).then(
      (all) => () => {
        try {
          const found = new Map(all.map((definition) => [definition.key, definition]));
          for (const key of new Set([...this.#cached.keys(), ...found.keys()])) {
            if (this.#isWanted(key) && !this.#isOutdated(key, moment)) {
              this.#apply(key, found.get(key) ?? null, moment);
            }
          }
        } finally {
          listed.resolve();
        }
      },
      (error: unknown) => {
        listed.resolve();
        throw error;
      },
    );
  }

  /** This node stored or, with null, deleted a definition. */
  note(key: string, definition: Definition | null): void {
    this.#keep(key, definition, ++this.#moment);
  }

  #isWanted(key: string): boolean {
    return this.#parts.isWanted?.(key) ?? true;
  }

  #isOutdated(key: string, moment: number): boolean {
    return (this.#newsAt.get(key) ?? 0) > moment;
  }

  #apply(key: string, definition: Definition | null, moment: number): void {
    const before = this.#cached.get(key);
    this.#keep(key, definition, moment);
    if (before === undefined && definition === null) return;
    this.#parts.onRead(key, definition, before?.version !== definition?.version);
  }

  #keep(key: string, definition: Definition | null, moment: number): void {
    if (definition === null) this.#cached.delete(key);
    else this.#cached.set(key, definition);
    // A reply that says what is known already may be older than that news.
    if (this.#reads.size > 0) this.#newsAt.set(key, Math.max(moment, this.#newsAt.get(key) ?? 0));
  }

  #track<T>(read: () => Promise<T>): Promise<T> {
    const reading = read();
    this.#reads.add(reading);
    const settled = (): void => {
      this.#reads.delete(reading);
      if (this.#reads.size === 0) this.#newsAt.clear();
    };
    reading.then(settled, settled);
    return reading;
  }
}

interface CachesParts extends Omit<CacheParts, 'definitions' | 'isWanted' | 'onRead'> {
  /** Engines may share one. */
  readonly stores: Iterable<Definitions>;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  /** As that of a cache. @param definitions the store that was read */
  readonly onRead: (
    key: string,
    definition: Definition | null,
    hasChanged: boolean,
    definitions: Definitions,
  ) => void;
}

/**
 * The definitions of one kind in several stores: a cache of each, in the order in which they are given. All are listed
 * again from time to time.
 */
export class DefinitionsCaches {
  readonly #parts: Pick<CachesParts, 'clock' | 'random' | 'onFailedRead'>;
  readonly #caches: ReadonlyMap<Definitions, DefinitionsCache>;
  #endRelists: (() => void) | null = null;

  constructor({ stores, onRead, random, ...parts }: CachesParts) {
    this.#parts = { ...parts, random };
    const cacheOf = (definitions: Definitions): DefinitionsCache =>
      new DefinitionsCache({
        ...parts,
        definitions,
        onRead: (key, definition, hasChanged) => onRead(key, definition, hasChanged, definitions),
      });
    this.#caches = new Map([...new Set(stores)].map((definitions) => [definitions, cacheOf(definitions)]));
  }

  /** Follows changes from now on. What there was before comes with `reload`. */
  start(): void {
    for (const cache of this.#caches.values()) cache.start();
    const relist = (): Promise<void> =>
      this.reload().catch((error: unknown) => this.#parts.onFailedRead(null, error));
    this.#endRelists = repeat(relist, RELIST_MS, this.#parts);
  }

  stop(): void {
    this.#endRelists?.();
    for (const cache of this.#caches.values()) cache.stop();
  }

  /** Resolves when no read is in flight. */
  async idle(): Promise<void> {
    await Promise.all([...this.#caches.values()].map((cache) => cache.idle()));
  }

  [Symbol.iterator](): Iterator<[Definitions, DefinitionsCache]> {
    return this.#caches.entries();
  }

  /** The cache of one of the stores. */
  of(definitions: Definitions): DefinitionsCache {
    const cache = this.#caches.get(definitions);
    if (cache === undefined) throw new Error('no namespace has these definitions');
    return cache;
  }

  /**
   * Lists all stores, or the given ones, concurrently; what one returns is kept, though another fails. Nothing is kept
   * before all have returned: which store counts for a key is known then.
   * @throws as `Definitions.list`
   */
  async reload(stores: Iterable<Definitions> = this.#caches.keys()): Promise<void> {
    const lists = await Promise.allSettled([...stores].map((definitions) => this.of(definitions).list()));
    for (const list of lists) if (list.status === 'fulfilled') list.value();
    for (const list of lists) if (list.status === 'rejected') throw list.reason;
  }

  /** Reads one definition in all stores in the same way. @throws as `Definitions.get` */
  async read(key: string): Promise<void> {
    const reads = await Promise.allSettled([...this.#caches.values()].map((cache) => cache.read(key)));
    for (const read of reads) if (read.status === 'rejected') throw read.reason;
  }
}
