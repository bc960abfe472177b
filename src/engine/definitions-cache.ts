import type { Clock } from '../util/clock.ts';
import { repeat } from '../util/repeat.ts';
import { Retries } from '../util/retries.ts';
import type { Definition, DefinitionKind, Definitions } from './definitions.ts';

/** A failed read is retried after this long. */
const READ_AGAIN_MS = 1_000;
/** Interval at which the stores are listed again, ± half, in case a watch missed a change. */
const RELIST_MS = 60_000;
/** Names a listing in `Retries`, in place of a key; no key has this value. */
const ALL = '\0';

interface CacheOptions {
  readonly definitions: Definitions;
  readonly kind: DefinitionKind;
  readonly clock: Clock;
  /** Which keys to cache; not given: all. */
  readonly isWanted?: (key: string) => boolean;
  /**
   * Called when a definition was read, with null if it does not exist any more. Not called for changes by this node.
   * @param hasChanged whether the version differs from the one that this node knew
   */
  readonly onRead: (key: string, definition: Definition | null, hasChanged: boolean) => void;
  /** Called when a changed definition could not be read, which is retried. Key null: a listing failed. */
  readonly onFailedRead: (key: string | null, error: unknown) => void;
}

/**
 * A cache of the definitions of one kind. It follows the engine's change notifications and retries failed reads. Reads
 * overlap with each other and with changes by this node, yet the cache never returns to an older state: a reply is used
 * only if its read began after the latest news of that key.
 */
export class DefinitionsCache {
  readonly #options: CacheOptions;
  readonly #retries: Retries;
  readonly #cached = new Map<string, Definition>();
  readonly #reads = new Set<Promise<unknown>>();
  /** A logical clock: each read when it begins, and each change by this node, gets the next number. */
  #time = 0;
  /** The moment of the latest news of each key; needed only while a read is in flight, which may be older. */
  readonly #newsAt = new Map<string, number>();
  #stopWatching: (() => void) | null = null;
  #stopped = false;

  constructor(options: CacheOptions) {
    this.#options = options;
    this.#retries = new Retries({
      clock: options.clock,
      delayMs: READ_AGAIN_MS,
      failed: (name, error) => options.onFailedRead(name === ALL ? null : name, error),
    });
  }

  /** Follows changes from now on. What there was before comes with `reload`. */
  start(): void {
    this.#stopWatching = this.#options.definitions.watch(({ kind, key }) => {
      if (kind !== this.#options.kind) return;
      if (key === null) void this.#retries.do(ALL, () => this.reload());
      else if (this.#isWanted(key)) this.readSoon(key);
    });
  }

  /** Resolves when no read is in flight. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#stopWatching?.();
    this.#retries.stop();
    await this.idle();
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

  /** Reads one definition into the cache; again if news of it arrived before the reply. @throws as `Definitions.get` */
  read(key: string): Promise<Definition | null> {
    return this.#track(async () => {
      for (;;) {
        const moment = ++this.#time;
        const definition = await this.#options.definitions.get(this.#options.kind, key);
        const hasChanged = this.#cached.get(key)?.version !== definition?.version;
        if (hasChanged && this.#isOutdated(key, moment) && !this.#stopped) continue;
        this.#apply(key, definition, moment);
        return definition;
      }
    });
  }

  /** Like `read`, but in the background, and retried until it succeeds. */
  readSoon(key: string): void {
    void this.#retries.do(key, async () => {
      if (!this.#stopped) await this.read(key);
    });
  }

  /** Lists all definitions into the cache. @throws as `Definitions.list` */
  async reload(): Promise<void> {
    (await this.list())();
  }

  /** Lists all definitions, and returns a function that stores them in the cache. @throws as `Definitions.list` */
  list(): Promise<() => void> {
    const moment = ++this.#time;
    const listed = Promise.withResolvers<void>();
    void this.#track(() => listed.promise);
    return this.#options.definitions.list(this.#options.kind).then(
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

  /** Stores a definition, and returns it. @throws as `Definitions.put` */
  async put(key: string, value: unknown, expected: string | null): Promise<Definition> {
    const { definitions, kind } = this.#options;
    const definition = { key, value, version: await definitions.put(kind, key, value, expected) };
    this.note(key, definition);
    return definition;
  }

  /** @throws as `Definitions.delete` */
  async delete(key: string, expected: string | 'any'): Promise<void> {
    await this.#options.definitions.delete(this.#options.kind, key, expected);
    this.note(key, null);
  }

  /** This node stored or, with null, deleted a definition. */
  note(key: string, definition: Definition | null): void {
    this.#store(key, definition, ++this.#time);
  }

  #isWanted(key: string): boolean {
    return this.#options.isWanted?.(key) ?? true;
  }

  #isOutdated(key: string, moment: number): boolean {
    return (this.#newsAt.get(key) ?? 0) > moment;
  }

  #apply(key: string, definition: Definition | null, moment: number): void {
    const before = this.#cached.get(key);
    this.#store(key, definition, moment);
    if (before === undefined && definition === null) return;
    this.#options.onRead(key, definition, before?.version !== definition?.version);
  }

  #store(key: string, definition: Definition | null, moment: number): void {
    if (definition === null) this.#cached.delete(key);
    else this.#cached.set(key, definition);
    // Without a change, too: the reply may be older than the latest news.
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

/** A definition, and the store that it is in. */
export interface FoundDefinition {
  readonly definitions: Definitions;
  readonly definition: Definition;
}

interface CachesOptions extends Omit<CacheOptions, 'definitions' | 'onRead'> {
  /** Engines may share one. */
  readonly stores: Iterable<Definitions>;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  /** As in `CacheOptions`. @param definitions the store that was read */
  readonly onRead: (
    key: string,
    definition: Definition | null,
    hasChanged: boolean,
    definitions: Definitions,
  ) => void;
}

/**
 * The definitions of one kind in several stores: one cache per store, in the order of the stores. All are listed again
 * periodically.
 */
export class DefinitionsCaches {
  readonly #options: Pick<CachesOptions, 'clock' | 'random' | 'onFailedRead'>;
  readonly #caches: ReadonlyMap<Definitions, DefinitionsCache>;
  #stopRelisting: (() => void) | null = null;

  constructor({ stores, onRead, random, ...options }: CachesOptions) {
    this.#options = { ...options, random };
    const cacheOf = (definitions: Definitions): DefinitionsCache =>
      new DefinitionsCache({
        ...options,
        definitions,
        onRead: (key, definition, hasChanged) => onRead(key, definition, hasChanged, definitions),
      });
    this.#caches = new Map([...new Set(stores)].map((definitions) => [definitions, cacheOf(definitions)]));
  }

  /** Follows changes from now on. What there was before comes with `reload`. */
  start(): void {
    for (const cache of this.#caches.values()) cache.start();
    const relist = (): Promise<void> =>
      this.reload().catch((error: unknown) => this.#options.onFailedRead(null, error));
    this.#stopRelisting = repeat(relist, RELIST_MS, this.#options);
  }

  /** Resolves when no read is in flight. */
  async stop(): Promise<void> {
    this.#stopRelisting?.();
    await Promise.all([...this.#caches.values()].map((cache) => cache.stop()));
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
   * Lists all stores, or the given ones, concurrently. Caches are updated after all listings have ended, because only
   * then is it known which store is authoritative for a key; a failed listing does not keep others from being stored.
   * @throws as `Definitions.list`
   */
  async reload(stores: Iterable<Definitions> = this.#caches.keys()): Promise<void> {
    const lists = await Promise.allSettled([...stores].map((definitions) => this.of(definitions).list()));
    for (const list of lists) if (list.status === 'fulfilled') list.value();
    for (const list of lists) if (list.status === 'rejected') throw list.reason;
  }

  /** The cached definitions of a key, in the order of the stores. */
  get(key: string): FoundDefinition[] {
    return [...this.#caches].flatMap(([definitions, cache]) => {
      const definition = cache.get(key);
      return definition === null ? [] : [{ definitions, definition }];
    });
  }

  /**
   * As `get`. If there are none, reads all stores concurrently, since another node may have just stored one.
   * @throws as `Definitions.get` if none was found and a store could not be read
   */
  async find(key: string): Promise<FoundDefinition[]> {
    const cached = this.get(key);
    if (cached.length > 0) return cached;
    const reads = await Promise.allSettled([...this.#caches.values()].map((cache) => cache.read(key)));
    const found = this.get(key);
    for (const read of reads) if (found.length === 0 && read.status === 'rejected') throw read.reason;
    return found;
  }
}
