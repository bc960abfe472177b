import type { Definition, Definitions } from '../engine/definitions.ts';
import { DefinitionsCache } from '../engine/definitions-cache.ts';
import type { CancelTimer } from '../util/clock.ts';
import type { Exchange, ExchangeParts } from './exchange.ts';
import { type KnownExchanges, notFound } from './known.ts';
import { toStored } from './stored.ts';

/** All are listed again this often, ± half, in case a watch missed a change. */
const RELIST_MS = 60_000;

/** An exchange's definition, and the store that has it. */
export interface Found {
  readonly definitions: Definitions;
  readonly definition: Definition;
}

/**
 * Makes this node do what the stores say, through a cache of each. If several define one id, the first in the order of the
 * configuration counts, and the others are hidden behind it. Two engines may share a store, and then both define the same.
 * Nothing waits for an engine that it does not need.
 */
export class Follower {
  readonly #parts: Pick<ExchangeParts, 'broker' | 'clock' | 'random' | 'log'>;
  readonly #known: KnownExchanges;
  /** In the order of the configuration. */
  readonly #caches: ReadonlyMap<Definitions, DefinitionsCache>;
  #timer: CancelTimer | null = null;
  #closed = false;

  constructor(parts: Pick<ExchangeParts, 'broker' | 'clock' | 'random' | 'log'>, known: KnownExchanges) {
    this.#parts = parts;
    this.#known = known;
    this.#caches = new Map(this.stores().map((definitions) => [definitions, this.#cacheOf(definitions)]));
  }

  /** In the order of the configuration. */
  stores(isWanted: (namespace: string) => boolean = () => true): Definitions[] {
    const wanted = this.#parts.broker.namespaces().filter(({ name }) => isWanted(name));
    return [...new Set(wanted.map(({ definitions }) => definitions))];
  }

  listen(): void {
    for (const cache of this.#caches.values()) cache.start();
  }

  /** Lists all stores again from time to time. */
  relistLater(): void {
    if (this.#closed) return;
    const { clock, random, log } = this.#parts;
    this.#timer = clock.after(RELIST_MS * (0.5 + random()), () => {
      this.reload()
        .catch((error: unknown) => log.warn({ err: error }, 'exchanges could not be read again'))
        .finally(() => this.relistLater());
    });
  }

  /** Follows no changes any more. */
  close(): void {
    this.#closed = true;
    this.#timer?.();
    for (const cache of this.#caches.values()) cache.stop();
  }

  /** Resolves when nothing is being read. */
  async idle(): Promise<void> {
    await Promise.all([...this.#caches.values()].map((cache) => cache.idle()));
  }

  /**
   * Lists the stores side by side; what one returns counts, though another fails. None is applied before all are there, lest
   * an exchange run that is hidden.
   * @throws as `Definitions.list`
   */
  async reload(isWanted?: (namespace: string) => boolean): Promise<void> {
    const caches = this.stores(isWanted).map((definitions) => this.#cache(definitions));
    const lists = await Promise.allSettled(caches.map((cache) => cache.list()));
    for (const list of lists) if (list.status === 'fulfilled') list.value();
    this.#warnOfDifferences(caches);
    for (const list of lists) if (list.status === 'rejected') throw list.reason;
  }

  /** The stores that are known to define an exchange, the one that counts first. */
  origins(id: string): Definitions[] {
    return [...this.#caches].flatMap(([definitions, cache]) => (cache.get(id) === null ? [] : [definitions]));
  }

  /** What the stores that are known to define an exchange say now, the one that counts first. */
  async known(id: string): Promise<Found[]> {
    const found: Found[] = [];
    for (const definitions of this.origins(id)) {
      const definition = await this.read(definitions, id);
      if (definition !== null) found.push({ definitions, definition });
    }
    return found;
  }

  /**
   * As `known`; if none is known to define it, what all stores say, read side by side: another node may have created
   * it just now.
   * @throws QuaysideError `exchange-not-found`; `storage-unavailable`, `outcome-unknown` if a store that failed
   * may define it
   */
  async find(id: string): Promise<[Found, ...Found[]]> {
    const [first, ...others] = await this.known(id);
    if (first !== undefined) return [first, ...others];
    const stores = this.stores();
    const reads = await Promise.allSettled(stores.map((definitions) => this.read(definitions, id)));
    const [found, ...hidden] = stores.flatMap((definitions, i) => {
      const read = reads[i];
      const definition = read?.status === 'fulfilled' ? read.value : null;
      return definition === null ? [] : [{ definitions, definition }];
    });
    if (found !== undefined) return [found, ...hidden];
    for (const read of reads) if (read.status === 'rejected') throw read.reason;
    throw notFound(id);
  }

  /** Reads one definition and does what it says. */
  read(definitions: Definitions, id: string): Promise<Definition | null> {
    return this.#cache(definitions).read(id);
  }

  /** This node stored a definition. @param made as for `KnownExchanges.apply` */
  wrote(definitions: Definitions, definition: Definition, made: Exchange | null = null): void {
    this.#cache(definitions).note(definition.key, definition);
    this.#follow(definitions, definition.key, definition, made);
  }

  /** This node deleted a definition. */
  deleted(definitions: Definitions, id: string): void {
    this.#cache(definitions).note(id, null);
    this.#follow(definitions, id, null);
  }

  #cacheOf(definitions: Definitions): DefinitionsCache {
    const { clock, log } = this.#parts;
    return new DefinitionsCache({
      definitions,
      kind: 'exchange',
      clock,
      onRead: (id, definition) => this.#follow(definitions, id, definition),
      onFailedRead: (exchange, error) =>
        log.warn({ err: error, exchange }, 'an exchange that changed could not be read yet'),
    });
  }

  #cache(definitions: Definitions): DefinitionsCache {
    const cache = this.#caches.get(definitions);
    if (cache === undefined) throw new Error('no namespace has these definitions');
    return cache;
  }

  /** A store defines an exchange, or not any more. */
  #follow(
    changed: Definitions,
    id: string,
    definition: Definition | null,
    made: Exchange | null = null,
  ): void {
    const stores = [...this.#caches.keys()];
    const [first] = this.origins(id);
    if (first !== undefined && stores.indexOf(first) < stores.indexOf(changed)) return;
    if (definition !== null) {
      this.#apply(definition, made);
      return;
    }
    this.#known.drop(id);
    if (first === undefined) return;
    // What was hidden counts now, once it was read again: it may have changed, or be gone.
    this.#cache(first).note(id, null);
    this.#cache(first).readSoon(id);
  }

  /** What cannot run here is logged. */
  #apply({ key, value }: Definition, made: Exchange | null): void {
    try {
      this.#known.apply(key, toStored(value), made);
    } catch (error) {
      this.#parts.log.warn({ err: error, exchange: key }, 'a stored exchange cannot run on this node');
    }
  }

  #warnOfDifferences(caches: readonly DefinitionsCache[]): void {
    for (const id of new Set(caches.flatMap((cache) => cache.keys()))) {
      const values = caches.flatMap((cache) => cache.get(id) ?? []).map(({ value }) => JSON.stringify(value));
      if (new Set(values).size > 1) {
        this.#parts.log.warn({ exchange: id }, 'two engines define this exchange; the first counts');
      }
    }
  }
}
