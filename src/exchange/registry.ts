import type { Definition, Definitions } from '../engine/definitions.ts';
import { type DefinitionsCache, DefinitionsCaches } from '../engine/definitions-cache.ts';
import { QuaysideError } from '../model/errors.ts';
import { LineLimit } from '../util/line-limit.ts';
import { quote } from '../util/quote.ts';
import type { Returning } from './copies.ts';
import { type Edge, ExchangeGraph } from './cycles.ts';
import { type Caller, type Declaration, idOf, idsOf, sameDeclaration, scopedKey } from './declaration.ts';
import { Exchange, type ExchangeContext, type NodeContext } from './exchange.ts';
import { InFlightLimit } from './in-flight-limit.ts';
import { type StoredExchange, toStored } from './stored.ts';

/** Bound on the bytes in flight of all exchanges, including copies: an exchange may copy each element many times. */
const MAX_BYTES_IN_FLIGHT = 64 * 1_048_576;

/** A definition of an exchange, and its store. */
interface Found {
  readonly definitions: Definitions;
  readonly definition: Definition;
}

/**
 * The exchanges of this node. The registry follows the definitions in all stores, through a cache of each, and applies
 * them. If several stores define one key, the first in the order of the configuration is effective, and the others are
 * hidden. Two engines may share a store, and then have the same definitions. No operation waits for an engine that it
 * does not need.
 */
export class ExchangeRegistry {
  readonly #context: NodeContext;
  /** In the order of the configuration. */
  readonly #caches: DefinitionsCaches;
  readonly #exchanges = new Map<string, Exchange>();
  /** The keys of exchanges that are being created, and the namespaces of their sources. */
  readonly #creating = new Map<string, string>();
  readonly #stopping = new Set<Promise<void>>();
  /** Whether exchanges run: not at the start of the node, until `run` is called. */
  #isRunning = false;
  /** The graph of all declarations; null: to be built, after a change. */
  #graph: ExchangeGraph | null = null;
  #closed = false;

  constructor(context: ExchangeContext, onRepeatedOverruns: NodeContext['onRepeatedOverruns']) {
    const { clock, random, log } = context;
    const lineLimit = new LineLimit(clock, (cause, leftOut) =>
      log.warn({ cause, leftOut }, 'exchanges failed further in the same way; their lines were left out'),
    );
    this.#context = {
      ...context,
      inFlightLimit: new InFlightLimit(MAX_BYTES_IN_FLIGHT),
      lineLimit,
      returning: (key) => {
        this.#graph ??= new ExchangeGraph([...this.#exchanges.values()]);
        return this.#graph.returning(key);
      },
      onRepeatedOverruns,
    };
    this.#caches = new DefinitionsCaches({
      stores: this.stores(),
      kind: 'exchange',
      clock,
      random,
      onRead: (key, definition, _, definitions) => this.#follow(definitions, key, definition),
      onFailedRead: (exchange, err) =>
        exchange === null
          ? log.warn({ err }, 'exchanges could not be read again')
          : log.warn({ err, exchange }, 'an exchange that changed could not be read yet'),
    });
  }

  /** Follows changes from now on; `reload` reads what was stored before. */
  start(): void {
    this.#caches.start();
  }

  /** Runs the exchanges that are not stopped, those that are registered later as well. */
  run(): void {
    this.#isRunning = true;
    for (const exchange of this.#exchanges.values()) if (!exchange.isStopStored) exchange.start();
  }

  /** Stops following and applying definitions. Resolves when no read is in progress. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#caches.stop();
    await this.#caches.idle();
  }

  /** Drops all exchanges. Resolves when no loop is running. */
  async dropAll(): Promise<void> {
    for (const key of this.keys()) this.#drop(key);
    await Promise.all(this.#stopping);
    this.#context.lineLimit.flush();
  }

  /** Sorted. */
  keys(): string[] {
    return [...this.#exchanges.keys()].sort();
  }

  /** Sorted by key. */
  all(): Exchange[] {
    return this.keys().map((key) => this.mustGet(key));
  }

  get(key: string): Exchange | null {
    return this.#exchanges.get(key) ?? null;
  }

  /** @throws QuaysideError `exchange-not-found` */
  mustGet(key: string): Exchange {
    const exchange = this.#exchanges.get(key);
    if (exchange === undefined) throw notFound(key);
    return exchange;
  }

  /** The graph of declared exchanges that the caller may see. */
  graph(caller: Caller): ExchangeGraph {
    return ExchangeGraph.visible([...this.#exchanges.values()], caller);
  }

  /**
   * Which destinations elements can return from, if an exchange has this declaration, as far as the caller may see; see
   * `Returning`.
   */
  returning(key: string, declaration: Declaration, caller: Caller): Returning {
    const edges: Edge[] = [...this.#exchanges.values()].filter((exchange) => exchange.key !== key);
    return ExchangeGraph.visible([...edges, { key, declaration }], caller).returning(key);
  }

  /** The exchanges that the caller may see: id to key. */
  visible(caller: Caller): Map<string, string> {
    return idsOf(this.keys().filter((key) => this.#isVisible(key, caller)));
  }

  /**
   * The key of the exchange that an id means for the caller, see `scopedKey`. If no visible exchange has the id, the id
   * is the key: another node may have just created the exchange.
   */
  async keyOf(id: string, caller: Caller): Promise<string> {
    if (this.#isVisible(id, caller)) return id;
    const key = this.visible(caller).get(id);
    if (key !== undefined || this.get(id) === null) return key ?? id;
    // The id belongs to an invisible exchange. Read the stores as for an unknown id: this must take as long, and finds
    // new exchanges.
    const namespaces = this.#context.broker.namespaces().filter(({ name }) => caller.maySee(name));
    const keys = namespaces.map(({ name }) => scopedKey(id, name));
    const found = await Promise.allSettled(keys.map((one) => this.find(one)));
    return keys.find((_, i) => found[i]?.status === 'fulfilled') ?? id;
  }

  #isVisible(key: string, caller: Caller): boolean {
    const exchange = this.get(key);
    return exchange !== null && caller.maySee(exchange.declaration.src.ns);
  }

  /** @throws QuaysideError `too-many-exchanges` if the namespace cannot have another exchange, with this key */
  checkLimit(key: string, ns: string): void {
    const { maxExchanges } = this.#context.broker.namespace(ns);
    const namespaces = new Map(this.#creating);
    for (const { key: other, declaration } of this.all()) namespaces.set(other, declaration.src.ns);
    const count = [...namespaces.values()].filter((one) => one === ns).length;
    if (count < maxExchanges) return;
    throw new QuaysideError(
      'too-many-exchanges',
      `Namespace ${ns} has ${count} exchanges, its limit is ${maxExchanges}; raise maxExchanges to add ${quote(idOf(key))}.`,
    );
  }

  /**
   * Calls `store`, which stores a new exchange. It counts immediately, so that concurrent creates do not exceed the
   * limit.
   * @throws QuaysideError `too-many-exchanges`, and as `store`
   */
  async storeNew(key: string, ns: string, store: () => Promise<void>): Promise<void> {
    this.checkLimit(key, ns);
    this.#creating.set(key, ns);
    try {
      await store();
    } finally {
      this.#creating.delete(key);
    }
  }

  /** The stores of the given namespaces, or of all, in the order of the configuration. */
  stores(isWanted: (namespace: string) => boolean = () => true): Definitions[] {
    const wanted = this.#context.broker.namespaces().filter(({ name }) => isWanted(name));
    return [...new Set(wanted.map(({ definitions }) => definitions))];
  }

  /** Reads all definitions of the given namespaces, or of all. @throws as `DefinitionsCaches.reload` */
  async reload(isWanted?: (namespace: string) => boolean): Promise<void> {
    const stores = this.stores(isWanted);
    try {
      await this.#caches.reload(stores);
    } finally {
      this.#warnOfDifferences(stores.map((definitions) => this.#caches.of(definitions)));
    }
  }

  /** Reads the definitions of an exchange from the stores that are known to have one; the effective one is first. */
  async known(key: string): Promise<Found[]> {
    const found: Found[] = [];
    for (const definitions of this.#storesOf(key)) {
      const definition = await this.read(definitions, key);
      if (definition !== null) found.push({ definitions, definition });
    }
    return found;
  }

  /**
   * As `known`, but if no store is known to define it, reads all stores concurrently, since another node may have just
   * created it.
   * @throws QuaysideError `exchange-not-found`; `storage-unavailable`, `outcome-unknown` if a store that may define it
   * failed
   */
  async find(key: string): Promise<[Found, ...Found[]]> {
    const [first, ...others] = await this.known(key);
    if (first !== undefined) return [first, ...others];
    const reading = this.#caches.read(key);
    await reading.catch(() => {});
    const [found, ...hidden] = [...this.#caches].flatMap(([definitions, cache]) => {
      const definition = cache.get(key);
      return definition === null ? [] : [{ definitions, definition }];
    });
    if (found !== undefined) return [found, ...hidden];
    await reading;
    throw notFound(key);
  }

  /** The keys of the exchanges with a source in a namespace that this node knows to be stored in `definitions`. */
  storedIn(definitions: Definitions, ns: string): string[] {
    const isThere = (key: string): boolean => this.#caches.of(definitions).get(key) !== null;
    return this.keys().filter((key) => this.get(key)?.declaration.src.ns === ns && isThere(key));
  }

  /** Reads one definition and applies it. */
  read(definitions: Definitions, key: string): Promise<Definition | null> {
    return this.#caches.of(definitions).read(key);
  }

  /** This node stored a definition. */
  wrote(definitions: Definitions, definition: Definition): void {
    this.#caches.of(definitions).note(definition.key, definition);
    this.#follow(definitions, definition.key, definition);
  }

  /** This node deleted a definition. */
  deleted(definitions: Definitions, key: string): void {
    this.#caches.of(definitions).note(key, null);
    this.#follow(definitions, key, null);
  }

  /** The stores that are known to define an exchange; the one with the effective definition is first. */
  #storesOf(key: string): Definitions[] {
    return [...this.#caches].flatMap(([definitions, cache]) =>
      cache.get(key) === null ? [] : [definitions],
    );
  }

  /** Applies a change of a store's definition; null: it was deleted. */
  #follow(changed: Definitions, key: string, definition: Definition | null): void {
    const stores = [...this.#caches].map(([definitions]) => definitions);
    const [first] = this.#storesOf(key);
    if (first !== undefined && stores.indexOf(first) < stores.indexOf(changed)) return;
    if (definition === null) {
      this.#drop(key);
      if (first === undefined) return;
      // A hidden definition takes effect after it is read again: it may have changed, or been deleted.
      this.#caches.of(first).note(key, null);
      this.#caches.of(first).readSoon(key);
      return;
    }
    try {
      const stored = toStored(definition.value);
      mustBeDefinedIn(changed, stored.declaration, this.#context);
      this.#apply(key, stored);
    } catch (error) {
      this.#context.log.warn({ err: error, exchange: key }, 'a stored exchange cannot run on this node');
    }
  }

  /** Creates, replaces, starts or stops an exchange as stored. @throws as the constructor of `Exchange` */
  #apply(key: string, { declaration, owner, stopped, lastError }: StoredExchange): void {
    if (this.#closed) return;
    let exchange = this.get(key);
    if (exchange === null || !isSame(exchange, { declaration, owner })) {
      const before = exchange;
      this.#drop(key);
      exchange = new Exchange(key, { declaration, owner }, before, this.#context);
      this.#exchanges.set(key, exchange);
      this.#graph = null;
    }
    const wasStopped = exchange.isStopStored;
    exchange.state = { stopped, lastError };
    if (stopped === true && !wasStopped) this.#stopLoops(exchange);
    else if (stopped !== true && wasStopped && this.#isRunning) exchange.start();
  }

  /** Stops and forgets an exchange. */
  #drop(key: string): void {
    const exchange = this.get(key);
    if (exchange === null) return;
    this.#exchanges.delete(key);
    this.#graph = null;
    this.#stopLoops(exchange);
  }

  #stopLoops(exchange: Exchange): void {
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

/** @throws Error if the definition refers to another node's namespace of the same name */
function mustBeDefinedIn(
  definitions: Definitions,
  { src }: Declaration,
  { broker }: Pick<NodeContext, 'broker'>,
): void {
  if (broker.namespace(src.ns).isDefinedIn(definitions)) return;
  throw new Error(
    `Namespace ${quote(src.ns)} is in another engine on this node than on the one that stored the exchange.`,
  );
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
