import type { Definition, Definitions } from '../engine/definitions.ts';
import { DefinitionsCache } from '../engine/definitions-cache.ts';
import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer } from '../util/clock.ts';
import { quote } from '../util/quote.ts';
import type { Caller } from './caller.ts';
import { type Edge, ExchangeGraph, visibleGraph } from './cycles.ts';
import { sameDeclaration } from './declaration.ts';
import { Exchange, type ExchangeContext, type ExchangeSetup } from './exchange.ts';
import { InFlightLimit } from './in-flight-limit.ts';
import type { ExchangeOverview, ExchangeState } from './record.ts';
import { idOf, idsOf, type StoredExchange, scopedKey, toStored } from './stored.ts';

/** All definitions are listed again this often, ± half, in case a watch missed a change. */
const RELIST_MS = 60_000;
/** Elements and their copies that all exchanges have in flight together: a wide exchange copies each many times. */
const MAX_BYTES_IN_FLIGHT = 64 * 1_048_576;

/** An exchange's definition, and the store that has it. */
interface Found {
  readonly definitions: Definitions;
  readonly definition: Definition;
}

/** An exchange of this node, running unless it is stopped. */
interface Registered {
  readonly exchange: Exchange;
  state: ExchangeState;
}

/**
 * The exchanges of this node. It follows the definitions of all stores, through a cache of each, and makes the node do what
 * they say. If several stores define one key, the first in the order of the configuration counts, and the others are hidden
 * behind it. Two engines may share a store, and then both define the same. Nothing waits for an engine that it does not need.
 */
export class ExchangeRegistry {
  readonly #context: ExchangeContext & { readonly inFlightLimit: InFlightLimit };
  readonly #onStrikes: (key: string, error: string) => void;
  /** In the order of the configuration. */
  readonly #caches: ReadonlyMap<Definitions, DefinitionsCache>;
  readonly #registered = new Map<string, Registered>();
  /** Created and not yet registered or discarded. */
  readonly #created = new Set<Exchange>();
  readonly #stopping = new Set<Promise<void>>();
  /** Of all declarations; null after a change. */
  #graph: ExchangeGraph | null = null;
  #timer: CancelTimer | null = null;
  #closed = false;

  constructor(context: ExchangeContext, onStrikes: (key: string, error: string) => void) {
    this.#context = { ...context, inFlightLimit: new InFlightLimit(MAX_BYTES_IN_FLIGHT) };
    this.#onStrikes = onStrikes;
    this.#caches = new Map(this.stores().map((definitions) => [definitions, this.#cacheOf(definitions)]));
  }

  /** Follows changes from now on. What there was before comes with `reload`. */
  start(): void {
    for (const cache of this.#caches.values()) cache.start();
  }

  /** Lists all stores again from time to time. */
  relistLater(): void {
    if (this.#closed) return;
    const { clock, random, log } = this.#context;
    this.#timer = clock.after(RELIST_MS * (0.5 + random()), () => {
      this.reload()
        .catch((error: unknown) => log.warn({ err: error }, 'exchanges could not be read again'))
        .finally(() => this.relistLater());
    });
  }

  /** Follows, creates and changes nothing any more. Resolves when nothing is being read. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#timer?.();
    for (const cache of this.#caches.values()) cache.stop();
    await Promise.all([...this.#caches.values()].map((cache) => cache.idle()));
  }

  /** Drops all. Resolves when no loop runs any more. */
  async stop(): Promise<void> {
    for (const key of this.keys()) this.#drop(key);
    await Promise.all(this.#stopping);
  }

  /** Sorted. */
  keys(): string[] {
    return [...this.#registered.keys()].sort();
  }

  get(key: string): Registered | null {
    return this.#registered.get(key) ?? null;
  }

  /** @throws QuaysideError `exchange-not-found` */
  mustGet(key: string): Registered {
    const registered = this.#registered.get(key);
    if (registered === undefined) throw notFound(key);
    return registered;
  }

  /** Sorted by key. */
  overview(): ExchangeOverview[] {
    return this.keys().map((id) => {
      const { exchange, state } = this.mustGet(id);
      const { declaration, counters, hindrance } = exchange;
      const lastError = hindrance ?? state.lastError;
      return { id, declaration, counters, lastError, stopped: state.stopped === true || hindrance !== null };
    });
  }

  /** The declared graph as the caller may know it. */
  graph(caller: Caller): ExchangeGraph {
    return visibleGraph(this.#edges(), caller);
  }

  /** The exchanges that the caller may see, key by id. */
  visible(caller: Caller): Map<string, string> {
    return idsOf(this.keys().filter((key) => this.#isVisible(key, caller)));
  }

  /**
   * The key of the exchange that the caller means, see `stored.ts`. An id that no visible exchange has is its own key: another
   * node may have created it just now.
   */
  async keyOf(id: string, caller: Caller): Promise<string> {
    if (this.#isVisible(id, caller)) return id;
    const key = this.visible(caller).get(id);
    if (key !== undefined || this.get(id) === null) return key ?? id;
    // As for an id that is unknown here, the stores are read: it takes as long, and finds what is new.
    const namespaces = this.#context.broker.namespaces().filter(({ name }) => caller.maySee(name));
    const keys = namespaces.map(({ name }) => scopedKey(id, name));
    const found = await Promise.allSettled(keys.map((one) => this.find(one)));
    return keys.find((_, i) => found[i]?.status === 'fulfilled') ?? id;
  }

  #isVisible(key: string, caller: Caller): boolean {
    const registered = this.get(key);
    return registered !== null && caller.maySee(registered.exchange.declaration.src.ns);
  }

  /** @throws QuaysideError `too-many-exchanges` if the namespace can have no further one, of this key */
  checkLimit(key: string, ns: string): void {
    const { maxExchanges } = this.#context.broker.namespace(ns);
    const all = [...this.#created, ...[...this.#registered.values()].map(({ exchange }) => exchange)];
    const own = new Set(all.filter((one) => one.declaration.src.ns === ns).map((one) => one.id));
    if (own.size < maxExchanges) return;
    throw new QuaysideError(
      'too-many-exchanges',
      `Namespace ${ns} has ${own.size} exchanges, its limit is ${maxExchanges}; raise maxExchanges to add ${quote(idOf(key))}.`,
    );
  }

  /**
   * Creates an exchange that is new, to be given to `wrote`, and to `discard` afterwards. It counts from now on, so that many
   * at once do not exceed the limit.
   * @throws QuaysideError `too-many-exchanges`, and as the constructor of `Exchange`
   */
  createNew(key: string, setup: Omit<ExchangeSetup, 'before'>): Exchange {
    this.checkLimit(key, setup.declaration.src.ns);
    const exchange = this.#create(key, { ...setup, before: null });
    this.#created.add(exchange);
    return exchange;
  }

  /** Stops an exchange that was created, unless it was registered. */
  discard(exchange: Exchange): void {
    this.#created.delete(exchange);
    if (this.get(exchange.id)?.exchange !== exchange) this.#stop(exchange);
  }

  /** The stores of these namespaces, in the order of the configuration. */
  stores(isWanted: (namespace: string) => boolean = () => true): Definitions[] {
    const wanted = this.#context.broker.namespaces().filter(({ name }) => isWanted(name));
    return [...new Set(wanted.map(({ definitions }) => definitions))];
  }

  /**
   * Lists the stores concurrently; what one returns counts, though another fails. None is applied before all are there, lest
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

  /** What the stores that are known to define an exchange say now, the one that counts first. */
  async known(key: string): Promise<Found[]> {
    const found: Found[] = [];
    for (const definitions of this.#storesOf(key)) {
      const definition = await this.read(definitions, key);
      if (definition !== null) found.push({ definitions, definition });
    }
    return found;
  }

  /**
   * As `known`; if none is known to define it, what all stores say, read concurrently: another node may have created
   * it just now.
   * @throws QuaysideError `exchange-not-found`; `storage-unavailable`, `outcome-unknown` if a store that failed
   * may define it
   */
  async find(key: string): Promise<[Found, ...Found[]]> {
    const [first, ...others] = await this.known(key);
    if (first !== undefined) return [first, ...others];
    const stores = this.stores();
    const reads = await Promise.allSettled(stores.map((definitions) => this.read(definitions, key)));
    const [found, ...hidden] = stores.flatMap((definitions, i) => {
      const read = reads[i];
      const definition = read?.status === 'fulfilled' ? read.value : null;
      return definition === null ? [] : [{ definitions, definition }];
    });
    if (found !== undefined) return [found, ...hidden];
    for (const read of reads) if (read.status === 'rejected') throw read.reason;
    throw notFound(key);
  }

  /** Reads one definition and does what it says. */
  read(definitions: Definitions, key: string): Promise<Definition | null> {
    return this.#cache(definitions).read(key);
  }

  /** This node stored a definition. @param created one of this key and declaration, to be registered if none is */
  wrote(definitions: Definitions, definition: Definition, created: Exchange | null = null): void {
    this.#cache(definitions).note(definition.key, definition);
    this.#follow(definitions, definition.key, definition, created);
  }

  /** This node deleted a definition. */
  deleted(definitions: Definitions, key: string): void {
    this.#cache(definitions).note(key, null);
    this.#follow(definitions, key, null);
  }

  #cacheOf(definitions: Definitions): DefinitionsCache {
    const { clock, log } = this.#context;
    return new DefinitionsCache({
      definitions,
      kind: 'exchange',
      clock,
      onRead: (key, definition) => this.#follow(definitions, key, definition),
      onFailedRead: (exchange, error) =>
        log.warn({ err: error, exchange }, 'an exchange that changed could not be read yet'),
    });
  }

  #cache(definitions: Definitions): DefinitionsCache {
    const cache = this.#caches.get(definitions);
    if (cache === undefined) throw new Error('no namespace has these definitions');
    return cache;
  }

  /** The stores that are known to define an exchange, the one that counts first. */
  #storesOf(key: string): Definitions[] {
    return [...this.#caches].flatMap(([definitions, cache]) =>
      cache.get(key) === null ? [] : [definitions],
    );
  }

  /** A store defines an exchange, or not any more. */
  #follow(
    changed: Definitions,
    key: string,
    definition: Definition | null,
    created: Exchange | null = null,
  ): void {
    const stores = [...this.#caches.keys()];
    const [first] = this.#storesOf(key);
    if (first !== undefined && stores.indexOf(first) < stores.indexOf(changed)) return;
    if (definition === null) {
      this.#drop(key);
      if (first === undefined) return;
      // What was hidden counts now, once it was read again: it may have changed, or be gone.
      this.#cache(first).note(key, null);
      this.#cache(first).readSoon(key);
      return;
    }
    try {
      this.#apply(key, toStored(definition.value), created);
    } catch (error) {
      this.#context.log.warn({ err: error, exchange: key }, 'a stored exchange cannot run on this node');
    }
  }

  /** Creates and starts an exchange, or changes it to what is stored. @throws as the constructor of `Exchange` */
  #apply(
    key: string,
    { declaration, owner, stopped, lastError }: StoredExchange,
    created: Exchange | null,
  ): void {
    if (this.#closed) return;
    let registered = this.get(key);
    let before: Exchange | null = null;
    if (registered !== null && !isSame(registered.exchange, { declaration, owner })) {
      before = registered.exchange;
      this.#drop(key);
      registered = null;
    }
    if (registered === null) {
      const exchange = created ?? this.#create(key, { declaration, owner, before });
      this.#registered.set(key, { exchange, state: { stopped, lastError } });
      this.#graph = null;
      if (stopped !== true) exchange.start();
      return;
    }
    const was = registered.state.stopped === true;
    registered.state = { stopped, lastError };
    if (stopped === true && !was) this.#stop(registered.exchange);
    else if (stopped !== true && was) registered.exchange.start();
  }

  #create(key: string, setup: ExchangeSetup): Exchange {
    return new Exchange(key, setup, this.#context, {
      returning: () => {
        this.#graph ??= new ExchangeGraph(this.#edges());
        return this.#graph.returning(key);
      },
      onStrikes: (error) => this.#onStrikes(key, error),
    });
  }

  #edges(): Edge[] {
    return [...this.#registered].map(([id, { exchange }]) => ({ id, declaration: exchange.declaration }));
  }

  /** Stops and forgets an exchange. */
  #drop(key: string): void {
    const registered = this.get(key);
    if (registered === null) return;
    this.#registered.delete(key);
    this.#graph = null;
    this.#stop(registered.exchange);
  }

  #stop(exchange: Exchange): void {
    const stopping = exchange.stop();
    this.#stopping.add(stopping);
    void stopping.finally(() => this.#stopping.delete(stopping));
  }

  #warnOfDifferences(caches: readonly DefinitionsCache[]): void {
    for (const key of new Set(caches.flatMap((cache) => cache.keys()))) {
      const values = caches
        .flatMap((cache) => cache.get(key) ?? [])
        .map(({ value }) => JSON.stringify(value));
      if (new Set(values).size > 1) {
        this.#context.log.warn({ exchange: key }, 'two engines define this exchange; the first counts');
      }
    }
  }
}

function isSame(
  exchange: Exchange,
  { declaration, owner }: Pick<StoredExchange, 'declaration' | 'owner'>,
): boolean {
  return exchange.owner === owner && sameDeclaration(exchange.declaration, declaration);
}

export function notFound(key: string): QuaysideError {
  return new QuaysideError('exchange-not-found', `no such exchange [${idOf(key)}]`, {
    extra: { id: idOf(key) },
  });
}
