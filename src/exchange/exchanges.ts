import { createHash } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import {
  type Definition,
  type Definitions,
  isDefinitionConflict,
  retryConflicts,
  unlessChanged,
} from '../engine/definitions.ts';
import {
  type DefinitionsCache,
  DefinitionsCaches,
  type FoundDefinition,
} from '../engine/definitions-cache.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import type { ExchangeRecord, ExchangeTrial } from '../model/records.ts';
import { createCheckLimit, MAX_WAITING_DRY_RUNS } from '../sandbox/limits.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import { LineLimit } from '../util/line-limit.ts';
import { quote } from '../util/quote.ts';
import { Retries } from '../util/retries.ts';
import type { Service } from '../util/service.ts';
import type { Returning } from './copies.ts';
import { type Edge, ExchangeGraph, type LoopIds } from './cycles.ts';
import {
  type Caller,
  checkDeclaration,
  checkQueueLimits,
  type Declaration,
  type ExchangeState,
  type FindOwner,
  idOf,
  idsOf,
  lostOwner,
  mustBeRunnable,
  NODE,
  type StoredExchange,
  sameDeclaration,
  scopedKey,
  toStored,
  toValue,
  versionOf,
} from './declaration.ts';
import { dryRun, type Sample } from './dry-run.ts';
import { Exchange, type ExchangeContext, type NodeContext } from './exchange.ts';
import { InFlightLimit } from './in-flight-limit.ts';
import { type ExchangeOverview, exchangeRecord } from './record.ts';

interface ExchangesOptions extends ExchangeContext {
  /** Exchanges of the configuration file by id, which is also their key. `check` has accepted them. */
  readonly configured: ReadonlyMap<string, Declaration>;
  /** Finds the owners of exchanges, and their rights. */
  readonly owners: FindOwner;
}

/** A change of a declaration: the new one, the user, and the versions that it may replace; null: any. */
interface DeclarationChange {
  readonly declaration: Declaration;
  readonly caller: Caller;
  readonly versions: ReadonlySet<string> | null;
}

/** Throws if the caller may not change an exchange with this declaration. */
type CheckChange = (declaration: Declaration) => void;

/** The user of a check or dry run, and the path of the declaration in the request body; omitted: it is the body. */
interface CheckRequest {
  readonly caller?: Caller;
  readonly within?: string;
  /** Throws if the caller may not try the declaration that the exchange has when the dry run's turn comes. */
  readonly mayTry?: CheckChange;
}

/**
 * Bound on the bytes in flight of all exchanges, including copies: an exchange may copy each element many times. It
 * applies once more to the elements that were taken and wait for this.
 */
const MAX_BYTES_IN_FLIGHT = 64 * 1_048_576;
const STOP_AGAIN_MS = 1_000;
const NEVER_CHANGED: ExchangeState = { stopped: null, lastError: null };

/**
 * All exchanges of this node. Definitions in the engine of the source's namespace store their declarations, and whether
 * they are stopped. This follows the definitions in all stores, through a cache of each, and applies them. If several
 * stores define one key, the first in the order of the configuration is effective, and the others are hidden. Two
 * engines may share a store, and then have the same definitions.
 *
 * Changes of one exchange are serialized. No operation waits for an engine that it does not need. Users name an
 * exchange by its id. The methods take the key under which it is stored; `keyOf` finds the key of an id, see
 * `scopedKey`. Only `create` takes an id, since it chooses the key.
 */
export class Exchanges implements Service {
  readonly #options: ExchangesOptions;
  readonly #context: NodeContext;
  /** In the order of the configuration. */
  readonly #caches: DefinitionsCaches;
  readonly #exchanges = new Map<string, Exchange>();
  /** The keys of exchanges that are being created, and the namespaces of their sources. */
  readonly #creating = new Map<string, string>();
  /** The graph of all declarations; null: to be built, after a change. */
  #graph: ExchangeGraph | null = null;
  /** Changes of one exchange run one after the other, in the order of the calls. */
  readonly #changes = new ConcurrencyLimit({ perKey: 1 });
  readonly #checks = createCheckLimit();
  /** Stops that no client requested. They are retried, as there is no client to repeat a failed one. */
  readonly #ownStops: Retries;
  /** Whether exchanges run: not at the start of the node, until it is known which have lost their owners. */
  #isRunning = false;
  readonly #stoppingLoops = new Set<Promise<void>>();
  #stopping: Promise<void> | null = null;

  constructor(options: ExchangesOptions) {
    this.#options = options;
    const { clock, random, log } = options;
    this.#ownStops = new Retries({
      clock,
      delayMs: STOP_AGAIN_MS,
      failed: (exchange, err) => log.warn({ err, exchange }, 'an exchange could not be stopped yet'),
    });
    const lineLimit = new LineLimit(clock, (cause, leftOut) =>
      log.warn({ cause, leftOut }, 'exchanges failed further in the same way; their lines were left out'),
    );
    this.#context = {
      ...options,
      takenLimit: new InFlightLimit(MAX_BYTES_IN_FLIGHT),
      inFlightLimit: new InFlightLimit(MAX_BYTES_IN_FLIGHT),
      lineLimit,
      returning: (key) => {
        this.#graph ??= new ExchangeGraph([...this.#exchanges.values()]);
        return this.#graph.returning(key);
      },
      onRepeatedOverruns: (exchange, error) => this.#stopForOverruns(exchange, error),
    };
    this.#caches = new DefinitionsCaches({
      stores: this.#stores(),
      kind: 'exchange',
      clock,
      random,
      onRead: (key, definition, hasChanged, definitions) =>
        this.#follow(definitions, key, definition, hasChanged),
      onFailedRead: (exchange, err) =>
        exchange === null
          ? log.warn({ err }, 'exchanges could not be read again')
          : log.warn({ err, exchange }, 'an exchange that changed could not be read yet'),
    });
    options.broker.appliedChanges.onChange('exchange', (ns, key) => this.#readAgain(ns, key));
  }

  async start(): Promise<void> {
    this.#caches.start();
    for (const [id, declaration] of this.#options.configured) {
      // Another node may change it at the same moment.
      await retryConflicts(() => this.#storeConfigured(id, declaration));
    }
    await this.reload();
    // Users may have been removed while the server was stopped. Their exchanges must not run until that is noticed.
    await this.stopUnowned();
    this.#isRunning = true;
    for (const exchange of this.#exchanges.values()) if (!exchange.isStopStored) exchange.start();
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#close();
    return this.#stopping;
  }

  async #close(): Promise<void> {
    this.#ownStops.stop();
    await Promise.all([this.#caches.stop(), this.#changes.idle()]);
    for (const key of [...this.#exchanges.keys()]) this.#drop(key);
    await Promise.all(this.#stoppingLoops);
    this.#context.lineLimit.flush();
  }

  /** Ids and keys of the exchanges that the caller may see, sorted by id. */
  visible(caller: Caller = NODE): [id: string, key: string][] {
    const visible = this.#all().filter(({ declaration }) => caller.maySee(declaration.src.ns));
    return [...idsOf(visible.map(({ key }) => key))].sort(([a], [b]) => (a < b ? -1 : 1));
  }

  /**
   * The key of the exchange that an id means for the caller, see `scopedKey`. If no visible exchange has the id, the id
   * is the key: another node may have just created the exchange.
   */
  async keyOf(id: string, caller: Caller): Promise<string> {
    const exchange = this.#exchanges.get(id);
    if (exchange !== undefined && caller.maySee(exchange.declaration.src.ns)) return id;
    const key = new Map(this.visible(caller)).get(id);
    if (key !== undefined || exchange === undefined) return key ?? id;
    // The id belongs to an invisible exchange. Read the stores as for an unknown id: this must take as long, and finds
    // new exchanges.
    const namespaces = this.#options.broker.namespaces().filter(({ name }) => caller.maySee(name));
    const keys = namespaces.map(({ name }) => scopedKey(id, name));
    const found = await Promise.allSettled(keys.map((one) => this.#find(one)));
    return keys.find((_, i) => found[i]?.status === 'fulfilled') ?? id;
  }

  /** Whether this node has the exchange, running or stopped. */
  has(key: string): boolean {
    return this.#exchanges.has(key);
  }

  /** Whether the configuration file declares the exchange. */
  isConfigured(key: string): boolean {
    return this.#options.configured.has(key);
  }

  /** Summaries that are cheap enough for frequent use, sorted by key. */
  overview(): ExchangeOverview[] {
    return this.#all();
  }

  #all(): Exchange[] {
    return [...this.#exchanges.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
  }

  #mustGet(key: string): Exchange {
    const exchange = this.#exchanges.get(key);
    if (exchange === undefined) throw notFound(key);
    return exchange;
  }

  /** The graph of declared exchanges that the caller may see, to be shared by the records of a list. */
  graph(caller: Caller): ExchangeGraph {
    return ExchangeGraph.visible([...this.#exchanges.values()], caller);
  }

  /**
   * Which destinations elements can return from, if an exchange has this declaration, as far as the caller may see; see
   * `Returning`.
   */
  #returning(key: string, declaration: Declaration, caller: Caller): Returning {
    const edges: Edge[] = [...this.#exchanges.values()].filter((exchange) => exchange.key !== key);
    return ExchangeGraph.visible([...edges, { key, declaration }], caller).returning(key);
  }

  /** @throws QuaysideError `exchange-not-found` */
  record(key: string, caller: Caller = NODE, graph: ExchangeGraph = this.graph(caller)): ExchangeRecord {
    return exchangeRecord(this.#mustGet(key), loopsIn(graph, key), caller);
  }

  /**
   * The declaration of an exchange. If this node does not know it, reads the stores, since another node may have just
   * created it.
   * @throws QuaysideError as `delete`
   */
  async declarationOf(key: string): Promise<Declaration> {
    const exchange = this.#exchanges.get(key);
    if (exchange !== undefined) return exchange.declaration;
    const [{ definition }] = await this.#find(key);
    return toStored(definition.value).declaration;
  }

  /**
   * Creates an exchange, and starts it unless `stopped`; idempotent for the same declaration. Returns the loops through
   * it in the declared graph, as far as the caller may see them.
   * @throws QuaysideError `invalid-parameter`, `invalid-body` (a selector), `exchange-exists`, `too-many-queues`,
   * `too-many-exchanges`
   */
  async create(
    id: string,
    declaration: Declaration,
    caller: Caller = NODE,
    stopped = false,
  ): Promise<LoopIds> {
    await this.#checkInTurn(declaration, caller);
    const create = async () => this.#create(await this.keyOf(id, caller), declaration, caller, stopped);
    const key = await this.#changes.run(id, create);
    return loopsIn(this.graph(caller), key);
  }

  /** Throws what `create` would throw now. Stores nothing. */
  async checkCreate(id: string, declaration: Declaration, caller: Caller): Promise<void> {
    await this.#checkInTurn(declaration, caller);
    const { key, exists } = await this.#placeOf(await this.keyOf(id, caller), declaration, caller);
    if (exists) return;
    checkQueueLimits(declaration, this.#options);
    this.#checkLimit(key, declaration.src.ns);
  }

  /**
   * Changes the declaration of an exchange, and makes the caller its owner. It keeps its counters, and remains stopped
   * or running. Returns the loops as `create` does.
   * @param check throws if the caller may not change the present declaration
   * @throws QuaysideError `precondition-failed` if there is no such exchange, or it has another version; what `check`
   * throws; and as `create`
   */
  async change(key: string, change: DeclarationChange, check: CheckChange): Promise<LoopIds> {
    const { declaration, caller } = change;
    await this.#checkInTurn(declaration, caller);
    await this.#changes
      .run(key, () =>
        this.#update(key, (stored, definitions) => {
          check(stored.declaration);
          return this.#changed(key, { stored, definitions }, change);
        }),
      )
      .catch(asOtherVersion(key));
    this.#logSelectors({ key, declaration, user: caller.name });
    return loopsIn(this.graph(caller), key);
  }

  /** Throws what `change` would throw now. Stores nothing. */
  async checkChange(key: string, change: DeclarationChange): Promise<void> {
    await this.#checkInTurn(change.declaration, change.caller);
    const [{ definitions, definition }] = await this.#find(key).catch(asOtherVersion(key));
    this.#changed(key, { stored: toStored(definition.value), definitions }, change);
  }

  /** The stored exchange with the new declaration. @throws as `change` */
  #changed(
    key: string,
    { stored, definitions }: { readonly stored: StoredExchange; readonly definitions: Definitions },
    { declaration, caller, versions }: DeclarationChange,
  ): StoredExchange {
    if (versions !== null && !versions.has(versionOf(stored.declaration))) throw otherVersion(idOf(key));
    if (versionOf(stored.declaration) === versionOf(declaration)) return stored;
    if (this.#storeOf(declaration) !== definitions) throw cannotMove(declaration);
    checkQueueLimits(declaration, this.#options);
    const { ns } = declaration.src;
    if (stored.declaration.src.ns !== ns) this.#checkLimit(key, ns);
    return { ...stored, declaration, owner: caller.name };
  }

  /**
   * Moves the exchanges of a namespace that moves to another engine there: those that were created just when the move
   * began, since it is rejected if there are others. Idempotent.
   * @throws QuaysideError `storage-unavailable`, `outcome-unknown`
   */
  async moveDefinitions(ns: string): Promise<void> {
    const { definitions, currentDefinitions } = this.#options.broker.namespace(ns);
    if (currentDefinitions === definitions) return;
    const [left, moved] = [this.#caches.of(definitions), this.#caches.of(currentDefinitions)];
    for (const { key, declaration } of this.#all()) {
      if (declaration.src.ns !== ns || left.get(key) === null) continue;
      await this.#changes.run(key, async () => {
        const definition = await definitions.get('exchange', key);
        if (definition === null) return;
        const { value, version } = definition;
        let copy = await moved.read(key);
        // Another exchange with this key: the difference has been logged, and the one of the earlier engine counts.
        if (copy !== null && !declares(copy, toStored(value).declaration)) return;
        // After a try that failed in between, the exchange may have been stopped or started in the engine that counts.
        const stores = this.#stores();
        const isCopyEffective = stores.indexOf(currentDefinitions) < stores.indexOf(definitions);
        if (copy === null || !(isCopyEffective || isDeepStrictEqual(copy.value, value))) {
          copy = await moved.put(key, value, copy?.version ?? null);
          this.#follow(currentDefinitions, key, copy);
        }
        await left.delete(key, version);
        this.#follow(definitions, key, null);
        // If the copy was hidden, it would take effect only after it is read again.
        moved.note(key, copy);
        this.#follow(currentDefinitions, key, copy);
      });
    }
  }

  /** Idempotent. Resolves when the stop is stored; the loops may still be ending. @throws as `delete` */
  stopExchange(key: string, check: CheckChange = () => {}): Promise<void> {
    return this.#changes.run(key, () =>
      this.#update(key, (stored) => {
        check(stored.declaration);
        return { ...stored, stopped: true };
      }),
    );
  }

  /** Idempotent. If the owner may not run the exchange any more, the caller becomes its owner. @throws as `delete` */
  startExchange(key: string, check: CheckChange = () => {}, caller: Caller = NODE): Promise<void> {
    return this.#changes.run(key, () =>
      this.#update(key, (stored) => {
        check(stored.declaration);
        const owner = lostOwner(stored, this.#options.owners) === null ? stored.owner : caller.name;
        return { ...stored, owner, stopped: false, lastError: null };
      }),
    );
  }

  /**
   * Call after users have changed: stops the exchanges whose owners may not run them any more, with the reason as
   * `lastError`. Never rejects; failures are logged and retried.
   */
  async stopUnowned(): Promise<void> {
    const unowned = this.#all().filter(
      (exchange) => !exchange.isStopStored && lostOwner(exchange, this.#options.owners) !== null,
    );
    await Promise.all(unowned.map(({ key }) => this.#stopUnowned(key)));
  }

  #stopUnowned(key: string): Promise<unknown> {
    const { owners, log } = this.#options;
    return this.#ownStops.do(key, async () => {
      const lastError = await this.#stopIf(key, (stored) => lostOwner(stored, owners));
      if (lastError !== null)
        log.warn({ exchange: key, lastError }, 'an exchange was stopped: its owner may not run it any more');
    });
  }

  /**
   * Stops an exchange if there is a reason for that, which is returned. Checks the stored exchange, since by now it may
   * have been deleted, stopped, changed, or started by a new owner, or its owner may have been added again.
   */
  async #stopIf(key: string, reasonOf: (stored: StoredExchange) => string | null): Promise<string | null> {
    let lastError: string | null = null;
    const stop = (stored: StoredExchange): StoredExchange => {
      lastError = stored.stopped === true ? null : reasonOf(stored);
      return lastError === null ? stored : { ...stored, stopped: true, lastError };
    };
    try {
      await this.#changes.run(key, () => this.#update(key, stop));
    } catch (error) {
      if (!(error instanceof QuaysideError && error.code === 'exchange-not-found')) throw error;
      return null;
    }
    return lastError;
  }

  /**
   * Deletes an exchange, even if it cannot run on this node; its queues remain. Definitions under the same key in other
   * engines are deleted, too, since one of them would take effect otherwise. Those for which `check` throws are kept.
   * @throws QuaysideError `exchange-not-found`; `storage-unavailable` and `outcome-unknown` also if this node does not
   * know it and an engine that may define it failed
   */
  delete(key: string, check: CheckChange = () => {}): Promise<void> {
    return this.#changes.run(key, async () => {
      const [effective, ...hidden] = await this.#find(key);
      check(toStored(effective.definition.value).declaration);
      const alsoDeleted = hidden.filter(({ definition }) => {
        const stored = parseOrNull(definition);
        return stored !== null && passes(check, stored.declaration);
      });
      // Delete the effective definition last: if an engine fails before that, the exchange can still be deleted.
      for (const { definitions } of [...alsoDeleted, effective]) {
        await this.#caches.of(definitions).delete(key, 'any');
        this.#follow(definitions, key, null);
      }
    });
  }

  /**
   * Waits until the other nodes have applied what this one stored of an exchange, or its deletion; see
   * `AppliedChanges`.
   * @param ns the namespace of its source; if this node does not serve it, this knows no other node that does
   */
  async othersHave(key: string, ns: string): Promise<void> {
    const { broker } = this.#options;
    const namespace = broker.namespaces().find(({ name }) => name === ns);
    if (namespace !== undefined) await broker.appliedChanges.wait('exchange', namespace, key);
  }

  /**
   * Reads the definitions of all namespaces, or of the given ones, and applies them. Engines are read concurrently, and
   * a failure of one does not affect the others.
   * @throws QuaysideError `storage-unavailable`, `outcome-unknown` if an engine failed
   */
  async reload(isWanted?: (namespace: string) => boolean): Promise<void> {
    const stores = this.#stores(isWanted);
    try {
      await this.#caches.reload(stores);
    } finally {
      this.#warnOfDifferences(stores.map((definitions) => this.#caches.of(definitions)));
    }
  }

  /**
   * Runs an exchange, or a declaration that may not be stored, with a sample. Nothing is stored or changed.
   * @throws QuaysideError `exchange-not-found`, `overloaded`, and as `check`
   */
  dryRun(
    key: string,
    sample: Sample,
    given: Declaration | null,
    request: CheckRequest = {},
  ): Promise<ExchangeTrial> {
    const { caller = NODE, mayTry = () => {} } = request;
    const run = async (): Promise<ExchangeTrial> => {
      const tried = given ?? this.#mustGet(key).declaration;
      if (given === null) {
        mayTry(tried);
        mustBeRunnable(tried, this.#options);
      } else await this.check(given, request);
      return dryRun(tried, sample, this.#options, caller, this.#returning(key, tried, caller));
    };
    return this.#checks.run(caller.name, run, { maxWaiting: MAX_WAITING_DRY_RUNS });
  }

  /**
   * Checks that a declaration could be created here.
   * @throws QuaysideError `invalid-parameter` with the path of the field, `invalid-body` for a selector
   */
  check(declaration: Declaration, { caller = NODE, within }: CheckRequest = {}): Promise<void> {
    return checkDeclaration(declaration, this.#options, caller, within);
  }

  #checkInTurn(declaration: Declaration, caller: Caller): Promise<void> {
    return this.#checks.run(caller.name, () => this.check(declaration, { caller }));
  }

  /**
   * Creates an exchange unless the same one exists.
   * @param wanted as for `#placeOf`
   * @returns the key under which it is stored
   */
  async #create(wanted: string, declaration: Declaration, caller: Caller, stopped: boolean): Promise<string> {
    return retryConflicts(async () => {
      const { key, exists } = await this.#placeOf(wanted, declaration, caller);
      if (exists) return key;
      try {
        const state = stopped ? { ...NEVER_CHANGED, stopped } : NEVER_CHANGED;
        await this.#storeNew(key, { declaration, owner: caller.name, ...state });
      } catch (error) {
        // Another node was first. The next attempt finds its definition.
        if (isDefinitionConflict(error)) await this.#caches.of(this.#storeOf(declaration)).read(key);
        throw error;
      }
      this.#logSelectors({ key, declaration, user: caller.name });
      return key;
    });
  }

  /**
   * The key under which an exchange is to be stored, and whether the same one exists there. Always queries the stores,
   * since another node may have just created or deleted it.
   * @param wanted its key, unless an exchange that the caller may not see has it
   * @throws QuaysideError `exchange-exists`
   */
  async #placeOf(
    wanted: string,
    declaration: Declaration,
    caller: Caller,
  ): Promise<{ readonly key: string; readonly exists: boolean }> {
    let key = wanted;
    let [found] = await this.#known(key);
    const isHidden = found !== undefined && !mayKnow(caller, found.definition);
    if (found !== undefined && isHidden && !declares(found.definition, declaration)) {
      key = scopedKey(wanted, declaration.src.ns);
      [found] = await this.#known(key);
    }
    if (found !== undefined && !declares(found.definition, declaration)) throw existsAlready(idOf(key));
    return { key, exists: found !== undefined };
  }

  /** Stores a new exchange. It counts immediately, so that concurrent creates do not exceed the limit. */
  async #storeNew(key: string, stored: StoredExchange): Promise<void> {
    const { declaration } = stored;
    const { ns } = declaration.src;
    checkQueueLimits(declaration, this.#options);
    this.#checkLimit(key, ns);
    this.#creating.set(key, ns);
    try {
      await this.#put(this.#storeOf(declaration), key, stored, null);
    } finally {
      this.#creating.delete(key);
    }
  }

  /** @throws QuaysideError `too-many-exchanges` if the namespace cannot have another exchange, with this key */
  #checkLimit(key: string, ns: string): void {
    const { maxExchanges } = this.#options.broker.namespace(ns).setup;
    const namespaces = new Map(this.#creating);
    for (const { key: other, declaration } of this.#exchanges.values())
      namespaces.set(other, declaration.src.ns);
    const count = [...namespaces.values()].filter((one) => one === ns).length;
    if (count < maxExchanges) return;
    throw new QuaysideError(
      'too-many-exchanges',
      `Namespace ${ns} has ${count} exchanges, its limit is ${maxExchanges}; raise maxExchanges to add ${quote(idOf(key))}.`,
    );
  }

  /** Applies `update` to the effective definition and stores the result. */
  #update(
    key: string,
    update: (stored: StoredExchange, definitions: Definitions) => StoredExchange,
  ): Promise<void> {
    return retryConflicts(async () => {
      const [{ definitions, definition }] = await this.#find(key);
      const stored = update(toStored(definition.value), definitions);
      await this.#put(definitions, key, stored, definition.version);
    });
  }

  /**
   * Stores a definition and applies it. If the owner has lost the exchange by then, it is stopped afterwards.
   * @param expected the version that it replaces; null: there must be none
   */
  async #put(
    definitions: Definitions,
    key: string,
    stored: StoredExchange,
    expected: string | null,
  ): Promise<void> {
    try {
      const definition = await this.#caches.of(definitions).put(key, toValue(stored), expected);
      this.#follow(definitions, key, definition);
    } finally {
      // Also after an error, as the write may have taken effect. `stopUnowned` has not seen this definition.
      if (stored.stopped !== true && lostOwner(stored, this.#options.owners) !== null)
        void this.#stopUnowned(key);
    }
  }

  /**
   * Stores an exchange of the configuration file, which replaces any other definition of this key and has no owner. One
   * that was stopped remains stopped.
   */
  async #storeConfigured(key: string, declaration: Declaration): Promise<void> {
    const home = this.#storeOf(declaration);
    const stored = await Promise.all(
      this.#stores().map(async (definitions) => ({
        definitions,
        definition: await definitions.get('exchange', key),
      })),
    );
    const current = stored.find(({ definitions }) => definitions === home)?.definition ?? null;
    const others = stored.flatMap(({ definitions, definition }) =>
      definition === null || declares(definition, declaration) ? [] : [{ definitions, definition }],
    );
    if (others.length > 0) {
      const { log } = this.#options;
      log.warn({ exchange: key }, 'the configuration file replaces a stored exchange of this id');
    }
    if (current === null || !declares(current, declaration) || toStored(current.value).owner !== NODE.name) {
      const before = current ?? others[0]?.definition;
      const { stopped, lastError } = before === undefined ? NEVER_CHANGED : toStored(before.value);
      const value = toValue({ declaration, owner: NODE.name, stopped, lastError });
      await home.put('exchange', key, value, current?.version ?? null);
    }
    for (const { definitions, definition } of others) {
      // Two engines may share a store. Then it has the new definition already, which this version does not delete.
      if (definitions !== home) await unlessChanged(definitions.delete('exchange', key, definition.version));
    }
  }

  /** Stops an exchange, unless another declaration has replaced the one that overran. */
  #stopForOverruns({ key, declaration }: Exchange, error: string): void {
    void this.#ownStops.do(key, async () => {
      const lastError = await this.#stopIf(key, (stored) =>
        sameDeclaration(stored.declaration, declaration) ? error : null,
      );
      if (lastError === null) return;
      const { log } = this.#options;
      log.warn({ exchange: key, lastError }, 'an exchange was stopped: its selector overruns its limits');
    });
  }

  /** Logs the hash of each selector of a stored exchange. */
  #logSelectors({ key, declaration, user }: { key: string; declaration: Declaration; user: string }): void {
    for (const [destination, { selector }] of declaration.dst.entries()) {
      if (selector === undefined) continue;
      const sha256 = createHash('sha256').update(selector).digest('hex');
      this.#options.log.info(
        { event: 'selector', user, exchange: key, destination, sha256 },
        'a selector was stored',
      );
    }
  }

  #storeOf({ src }: Declaration): Definitions {
    return this.#options.broker.namespace(src.ns).currentDefinitions;
  }

  /** The stores of the given namespaces, or of all, in the order of the configuration. */
  #stores(isWanted: (namespace: string) => boolean = () => true): Definitions[] {
    const wanted = this.#options.broker.namespaces().filter(({ name }) => isWanted(name));
    return [...new Set(wanted.map(({ definitions }) => definitions))];
  }

  /** Another node changed an exchange: reads the stores that may have a new definition, or are known to have one. */
  async #readAgain(ns: string, key: string): Promise<void> {
    const { currentDefinitions } = this.#options.broker.namespace(ns);
    const stores = new Set([currentDefinitions, ...this.#caches.get(key).map((found) => found.definitions)]);
    await Promise.all([...stores].map((definitions) => this.#caches.of(definitions).read(key)));
  }

  /** Reads the definitions of an exchange from the stores that are known to have one; the effective one is first. */
  async #known(key: string): Promise<FoundDefinition[]> {
    const found: FoundDefinition[] = [];
    for (const { definitions } of this.#caches.get(key)) {
      const definition = await this.#caches.of(definitions).read(key);
      if (definition !== null) found.push({ definitions, definition });
    }
    return found;
  }

  /**
   * As `#known`, but if no store is known to define it, reads all stores.
   * @throws QuaysideError `exchange-not-found`; `storage-unavailable`, `outcome-unknown` if a store that may define it
   * failed
   */
  async #find(key: string): Promise<[FoundDefinition, ...FoundDefinition[]]> {
    const known = await this.#known(key);
    const [effective, ...hidden] = known.length > 0 ? known : await this.#caches.find(key);
    if (effective === undefined) throw notFound(key);
    return [effective, ...hidden];
  }

  /** Applies a change of a store's definition; null: it was deleted. */
  #follow(changed: Definitions, key: string, definition: Definition | null, hasChanged = true): void {
    const stores = [...this.#caches].map(([definitions]) => definitions);
    const first = this.#caches.get(key)[0]?.definitions;
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
      const { ns } = stored.declaration.src;
      if (!this.#options.broker.namespace(ns).isDefinedIn(changed)) {
        throw new Error(
          `Namespace ${quote(ns)} is in another engine on this node than on the one that stored the exchange.`,
        );
      }
      this.#apply(key, stored);
    } catch (error) {
      // Definitions are read again every minute.
      if (!hasChanged) return;
      this.#options.log.warn({ err: error, exchange: key }, 'a stored exchange cannot run on this node');
    }
  }

  /** Creates, replaces, starts or stops an exchange as stored. @throws as the constructor of `Exchange` */
  #apply(key: string, { declaration, owner, stopped, lastError }: StoredExchange): void {
    if (this.#stopping !== null) return;
    let exchange = this.#exchanges.get(key) ?? null;
    if (exchange?.owner !== owner || !sameDeclaration(exchange.declaration, declaration)) {
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
    const exchange = this.#exchanges.get(key);
    if (exchange === undefined) return;
    this.#exchanges.delete(key);
    this.#graph = null;
    this.#stopLoops(exchange);
  }

  #stopLoops(exchange: Exchange): void {
    const stopping = exchange.stop();
    this.#stoppingLoops.add(stopping);
    void stopping.finally(() => this.#stoppingLoops.delete(stopping));
  }

  #warnOfDifferences(caches: readonly DefinitionsCache[]): void {
    for (const key of new Set(caches.flatMap((cache) => cache.keys()))) {
      const values = caches
        .flatMap((cache) => cache.get(key) ?? [])
        .map(({ value }) => JSON.stringify(value));
      if (new Set(values).size > 1) {
        this.#options.log.warn({ exchange: key }, 'two engines define this exchange; the first counts');
      }
    }
  }
}

export function notFound(key: string): QuaysideError {
  return new QuaysideError('exchange-not-found', `no such exchange [${idOf(key)}]`, {
    extra: { id: idOf(key) },
  });
}

function passes(check: CheckChange, declaration: Declaration): boolean {
  try {
    check(declaration);
    return true;
  } catch {
    return false;
  }
}

function loopsIn(graph: ExchangeGraph, key: string): LoopIds {
  return graph.loopsThrough(key).map((loop) => loop.map(idOf));
}

function existsAlready(id: string): QuaysideError {
  return new QuaysideError(
    'exchange-exists',
    `There is an exchange ${quote(id)} with another declaration. Choose another id, change it with If-Match, or delete it first.`,
  );
}

function otherVersion(id: string): QuaysideError {
  return new QuaysideError(
    'precondition-failed',
    `There is no exchange ${quote(id)} with the version that If-Match names. Read its record again.`,
  );
}

/** Rethrows an error; that there is no such exchange, as that of another version. */
function asOtherVersion(key: string): (error: unknown) => never {
  return (error) => {
    const isGone = error instanceof QuaysideError && error.code === 'exchange-not-found';
    throw isGone ? otherVersion(idOf(key)) : error;
  };
}

function cannotMove({ src }: Declaration): QuaysideError {
  return invalidParameter(
    'src.ns',
    `src.ns: namespace ${quote(src.ns)} has another engine than the present source. Delete the exchange, and create it again.`,
  );
}

/** Null if the definition is not that of an exchange. */
function parseOrNull({ value }: Pick<Definition, 'value'>): StoredExchange | null {
  try {
    return toStored(value);
  } catch {
    return null;
  }
}

/** Whether the caller may see a stored exchange; true if the definition cannot be parsed. */
function mayKnow(caller: Caller, definition: Pick<Definition, 'value'>): boolean {
  const stored = parseOrNull(definition);
  return stored === null || caller.maySee(stored.declaration.src.ns);
}

/** Whether a definition has this declaration. */
function declares(definition: Pick<Definition, 'value'>, declaration: Declaration): boolean {
  const stored = parseOrNull(definition);
  return stored !== null && sameDeclaration(stored.declaration, declaration);
}
