import { createHash } from 'node:crypto';
import type { Definition, Definitions } from '../engine/definitions.ts';
import { type ErrorCode, invalidParameter, QuaysideError } from '../model/errors.ts';
import { createCheckLimit } from '../sandbox/check-limit.ts';
import { quote } from '../util/quote.ts';
import type { Service } from '../util/service.ts';
import { type Caller, NODE } from './caller.ts';
import type { ExchangeGraph, LoopIds } from './cycles.ts';
import {
  checkDeclaration,
  checkQueueLimits,
  type Declaration,
  mustRunSelectors,
  versionOf,
} from './declaration.ts';
import { type DryRun, dryRun, type Sample } from './dry-run.ts';
import type { ExchangeContext } from './exchange.ts';
import { type FindOwner, lostOwner, stopUnowned } from './owners.ts';
import { type ExchangeOverview, type ExchangeRecord, type ExchangeState, exchangeRecord } from './record.ts';
import { ExchangeRegistry } from './registry.ts';
import { declares, idOf, mayKnow, type StoredExchange, scopedKey, toStored, toValue } from './stored.ts';

interface ExchangesOptions extends ExchangeContext {
  /** Exchanges of the configuration file, by id, already checked (`check`). */
  readonly configured: ReadonlyMap<string, Declaration>;
  /** Finds the users whose exchanges may run. */
  readonly owners: FindOwner;
}

/** A change of a declaration, by whom, and which versions of the present one it may replace; null: any. */
interface DeclarationChange {
  readonly declaration: Declaration;
  readonly caller: Caller;
  readonly versions: ReadonlySet<string> | null;
}

/** Throws if this declaration may not be changed. */
type CheckChange = (declaration: Declaration) => void;

/** By whom a check or a dry run is requested, and which member of the body the declaration is; not given: the body. */
interface CheckRequest {
  readonly caller?: Caller;
  readonly within?: string;
}

const MAX_CONFLICTS = 10;
const NEVER_CHANGED: ExchangeState = { stopped: null, lastError: null };

/**
 * All exchanges of this node. Their declarations, and whether they are stopped, are definitions in the engine of the source's
 * namespace. Changes of one exchange are made one at a time, and nothing waits for an engine that it does not need.
 * What every method takes as id is a key of `visible` and `keyOf`.
 */
export class Exchanges implements Service {
  readonly #options: ExchangesOptions;
  readonly #registry: ExchangeRegistry;
  readonly #changes = new KeyMutex();
  readonly #checks = createCheckLimit();
  #stopping: Promise<void> | null = null;

  constructor(options: ExchangesOptions) {
    this.#options = options;
    this.#registry = new ExchangeRegistry(options, (id, error) => this.#strikeOut(id, error));
  }

  async start(): Promise<void> {
    this.#registry.start();
    for (const [id, declaration] of this.#options.configured) {
      await this.#storeConfigured(id, declaration);
    }
    await stopUnowned(this.#registry.stores(), this.#options);
    await this.reload();
    this.#registry.relistLater();
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    await Promise.all([this.#registry.close(), this.#changes.idle()]);
    await this.#registry.stop();
  }

  /** The exchanges that the caller may see: ids, sorted, and keys. */
  visible(caller: Caller): [id: string, key: string][] {
    return [...this.#registry.visible(caller)].sort(([a], [b]) => (a < b ? -1 : 1));
  }

  /** The key of the exchange that the caller means by an id. */
  keyOf(id: string, caller: Caller): Promise<string> {
    return this.#registry.keyOf(id, caller);
  }

  /** The records by id, sorted (spec 4.2), of those whose source's namespace one may see. */
  list(caller: Caller = NODE): [id: string, record: ExchangeRecord][] {
    const graph = this.graph(caller);
    return this.visible(caller).map(([id, key]) => [id, this.record(key, caller, graph)]);
  }

  /** Whether this node runs the exchange, or would if it were not stopped. */
  has(id: string): boolean {
    return this.#registry.get(id) !== null;
  }

  /** Whether the configuration file declares an exchange of this id. */
  isConfigured(id: string): boolean {
    return this.#options.configured.has(id);
  }

  /** What is cheap to read of each, for frequent use. Sorted by id. */
  overview(): ExchangeOverview[] {
    return this.#registry.overview();
  }

  /** The declared graph as the caller may know it, for the records of a list. */
  graph(caller: Caller): ExchangeGraph {
    return this.#registry.graph(caller);
  }

  /** @throws QuaysideError `exchange-not-found` */
  record(id: string, caller: Caller = NODE, graph: ExchangeGraph = this.graph(caller)): ExchangeRecord {
    const { exchange, state } = this.#registry.mustGet(id);
    return exchangeRecord(exchange, state, loopsIn(graph, id), caller);
  }

  /**
   * The declaration of an exchange, which this node then runs: another may have made it just now.
   * @throws QuaysideError as `delete`
   */
  async declarationOf(id: string): Promise<Declaration> {
    const registered = this.#registry.get(id);
    if (registered !== null) return registered.exchange.declaration;
    const [{ definition }] = await this.#registry.find(id);
    return toStored(definition.value).declaration;
  }

  /**
   * Creates and starts an exchange. The same declaration again changes nothing. Returns the loops that the declared
   * graph now has through it, as far as the caller may see them.
   * @throws QuaysideError `invalid-parameter`, `invalid-body` (a selector), `exchange-exists`, `too-many-queues`,
   * `too-many-exchanges`
   */
  async create(id: string, declaration: Declaration, caller: Caller = NODE): Promise<LoopIds> {
    await this.#checkInTurn(declaration, caller);
    const create = async () => this.#create(await this.keyOf(id, caller), declaration, caller);
    const key = await this.#changes.run(id, create);
    return loopsIn(this.graph(caller), key);
  }

  /**
   * Changes the declaration of an exchange; what it counted, and whether it is stopped, stays. Its new owner is who
   * changed it. Returns the loops as `create` does.
   * @param check throws if the caller may not change the present declaration
   * @throws QuaysideError `precondition-failed` if there is no such exchange, or it has another version; what `check`
   * throws; and as `create`
   */
  async change(id: string, change: DeclarationChange, check: CheckChange): Promise<LoopIds> {
    const { declaration, caller, versions } = change;
    await this.#checkInTurn(declaration, caller);
    await this.#changes
      .run(id, () =>
        this.#update(id, (stored, definitions) => {
          check(stored.declaration);
          if (versions !== null && !versions.has(versionOf(stored.declaration))) throw otherVersion(idOf(id));
          if (versionOf(stored.declaration) === versionOf(declaration)) return stored;
          if (this.#storeOf(declaration) !== definitions) throw cannotMove(declaration);
          checkQueueLimits(declaration, this.#options);
          const { ns } = declaration.src;
          if (stored.declaration.src.ns !== ns) this.#registry.checkLimit(id, ns);
          return { ...stored, declaration, owner: caller.name };
        }),
      )
      .catch((error: unknown) => {
        throw isCode(error, 'exchange-not-found') ? otherVersion(idOf(id)) : error;
      });
    this.#logSelectors({ id, declaration, user: caller.name });
    return loopsIn(this.graph(caller), id);
  }

  /** Idempotent; resolves when the wish is stored, the loops end on their own. @throws as `delete` */
  stopExchange(id: string, check?: CheckChange): Promise<void> {
    return this.#changes.run(id, () => this.#set(id, { stopped: true }, check));
  }

  /** Idempotent. If its owner may not run it any more, the caller becomes the owner. @throws as `delete` */
  startExchange(id: string, check: CheckChange = () => {}, caller: Caller = NODE): Promise<void> {
    return this.#changes.run(id, () =>
      this.#update(id, (stored) => {
        check(stored.declaration);
        const owner = lostOwner(stored, this.#options.owners) === null ? stored.owner : caller.name;
        return { ...stored, owner, stopped: false, lastError: null };
      }),
    );
  }

  /**
   * Users were replaced: stops the exchanges whose owner may not run them any more, with the reason as `lastError`.
   * Never rejects; what could not be stopped is logged.
   */
  async stopUnowned(): Promise<void> {
    await Promise.all(
      this.#registry.keys().map(async (id) => {
        const { exchange, state } = this.#registry.mustGet(id);
        const lastError = state.stopped === true ? null : lostOwner(exchange, this.#options.owners);
        if (lastError !== null) await this.#stopWith(id, lastError);
      }),
    );
  }

  /**
   * Stops and forgets an exchange, also one that is stored and cannot run on this node; its queues stay. What other
   * engines define under the id goes as well, lest it come to light, unless `check` throws for it.
   * @throws QuaysideError `exchange-not-found`; `storage-unavailable` and `outcome-unknown` also where this node
   * does not run it and an engine that may define it failed
   */
  delete(id: string, check: CheckChange = () => {}): Promise<void> {
    return this.#changes.run(id, async () => {
      const [shown, ...hidden] = await this.#registry.find(id);
      check(toStored(shown.definition.value).declaration);
      const going = hidden.filter(({ definition }) => passes(check, definition));
      // The one that counts goes last: should an engine fail, the exchange is still there to be deleted.
      for (const { definitions } of [...going, shown]) {
        await definitions.delete('exchange', id, 'any');
        this.#registry.deleted(definitions, id);
      }
    });
  }

  /**
   * Makes this node do what the definitions say, after reading those of all namespaces, or of the given ones. The
   * engines are read concurrently; what one returns counts, though another fails.
   * @throws QuaysideError `storage-unavailable`, `outcome-unknown` if an engine failed
   */
  reload(isWanted?: (namespace: string) => boolean): Promise<void> {
    return this.#registry.reload(isWanted);
  }

  /**
   * Tries an exchange, or a declaration that is not one yet, with a sample. Nothing is stored or changed.
   * @throws QuaysideError `exchange-not-found`, `overloaded`, and as `check`
   */
  dryRun(id: string, sample: Sample, given: Declaration | null, request: CheckRequest = {}): Promise<DryRun> {
    const { caller = NODE } = request;
    return this.#checks.runNow(caller.name, async () => {
      const tried = given ?? this.#registry.mustGet(id).exchange.declaration;
      if (given === null) mustRunSelectors(tried.dst, this.#options);
      else await this.check(given, request);
      return dryRun(tried, sample, this.#options, caller);
    });
  }

  /**
   * Whether a declaration could be created here.
   * @throws QuaysideError `invalid-parameter` with the path of the field, `invalid-body` for a selector
   */
  check(declaration: Declaration, { caller = NODE, within }: CheckRequest = {}): Promise<void> {
    return checkDeclaration(declaration, this.#options, caller, within);
  }

  #checkInTurn(declaration: Declaration, caller: Caller): Promise<void> {
    return this.#checks.run(caller.name, () => this.check(declaration, { caller }));
  }

  /**
   * Queries the stores, though this node may run it: another may have deleted it, or been first, just now.
   * @returns the key under which it is stored
   */
  async #create(key: string, declaration: Declaration, caller: Caller): Promise<string> {
    let id = key;
    for (let conflicts = 0; ; conflicts += 1) {
      const [found] = await this.#registry.known(id);
      if (found !== undefined && declares(found.definition, declaration)) return id;
      if (found !== undefined) {
        if (id !== key || mayKnow(caller, found.definition)) throw exists(idOf(id));
        id = scopedKey(key, declaration.src.ns);
        continue;
      }
      try {
        await this.#storeNew(id, declaration, caller.name);
        this.#logSelectors({ id, declaration, user: caller.name });
        return id;
      } catch (error) {
        if (!isConflict(error) || conflicts === MAX_CONFLICTS) throw error;
        await this.#registry.read(this.#storeOf(declaration), id);
      }
    }
  }

  async #storeNew(id: string, declaration: Declaration, owner: string): Promise<void> {
    checkQueueLimits(declaration, this.#options);
    // Before it is stored: what cannot run here is rejected, and then nothing of it may be left.
    const created = this.#registry.createNew(id, { declaration, owner });
    try {
      const definitions = this.#storeOf(declaration);
      const value = toValue({ declaration, owner, ...NEVER_CHANGED });
      const version = await definitions.put('exchange', id, value, null);
      this.#registry.wrote(definitions, { key: id, value, version }, created);
    } finally {
      this.#registry.discard(created);
    }
  }

  #set(id: string, change: Partial<ExchangeState>, check: CheckChange = () => {}): Promise<void> {
    return this.#update(id, (stored) => {
      check(stored.declaration);
      return { ...stored, ...change };
    });
  }

  /** Stores what `update` makes of the definition that counts. */
  async #update(
    id: string,
    update: (stored: StoredExchange, definitions: Definitions) => StoredExchange,
  ): Promise<void> {
    for (let conflicts = 0; ; conflicts += 1) {
      const [{ definitions, definition }] = await this.#registry.find(id);
      const value = toValue(update(toStored(definition.value), definitions));
      try {
        const version = await definitions.put('exchange', id, value, definition.version);
        this.#registry.wrote(definitions, { key: id, value, version });
        return;
      } catch (error) {
        if (!isConflict(error) || conflicts === MAX_CONFLICTS) throw error;
      }
    }
  }

  /** The file wins over what any engine stores under this id, and owns it, but does not start what was stopped. */
  async #storeConfigured(id: string, declaration: Declaration): Promise<void> {
    const home = this.#storeOf(declaration);
    const stored = await Promise.all(
      this.#registry.stores().map(async (definitions) => ({
        definitions,
        definition: await definitions.get('exchange', id),
      })),
    );
    const own = stored.find(({ definitions }) => definitions === home)?.definition ?? null;
    const others = stored.flatMap(({ definitions, definition }) =>
      definition === null || declares(definition, declaration) ? [] : [{ definitions, definition }],
    );
    if (others.length > 0) {
      const { log } = this.#options;
      log.warn({ exchange: id }, 'the configuration file replaces a stored exchange of this id');
    }
    if (own === null || !declares(own, declaration) || toStored(own.value).owner !== NODE.name) {
      const before = own ?? others[0]?.definition;
      const { stopped, lastError } = before === undefined ? NEVER_CHANGED : toStored(before.value);
      await home.put('exchange', id, toValue({ declaration, owner: NODE.name, stopped, lastError }), 'any');
    }
    for (const { definitions, definition } of others) {
      if (definitions !== home) await deleteVersion(definitions, definition);
    }
  }

  #strikeOut(id: string, lastError: string): void {
    this.#options.log.warn(
      { exchange: id, lastError },
      'an exchange was stopped: its selector overruns its limits',
    );
    void this.#stopWith(id, lastError);
  }

  async #stopWith(id: string, lastError: string): Promise<void> {
    try {
      await this.#changes.run(id, () => this.#set(id, { stopped: true, lastError }));
    } catch (error) {
      this.#options.log.warn({ err: error, exchange: id }, 'an exchange could not be stopped');
    }
  }

  /** Logs the hash of each selector that an exchange runs from now on. */
  #logSelectors({ id, declaration, user }: { id: string; declaration: Declaration; user: string }): void {
    for (const [destination, { selector }] of declaration.dst.entries()) {
      if (selector === undefined) continue;
      const sha256 = createHash('sha256').update(selector).digest('hex');
      this.#options.log.info(
        { event: 'selector', user, exchange: id, destination, sha256 },
        'a selector was stored',
      );
    }
  }

  #storeOf({ src }: Declaration): Definitions {
    return this.#options.broker.namespace(src.ns).definitions;
  }
}

/** Unless it has changed since: an engine that shares its store with another has the other's new one there. */
async function deleteVersion(definitions: Definitions, { key, version }: Definition): Promise<void> {
  try {
    await definitions.delete('exchange', key, version);
  } catch (error) {
    if (!isConflict(error)) throw error;
  }
}

function passes(check: CheckChange, { value }: Definition): boolean {
  try {
    check(toStored(value).declaration);
    return true;
  } catch {
    return false;
  }
}

function loopsIn(graph: ExchangeGraph, key: string): LoopIds {
  return graph.loopsThrough(key).map((loop) => loop.map(idOf));
}

function exists(id: string): QuaysideError {
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

function cannotMove({ src }: Declaration): QuaysideError {
  return invalidParameter(
    'src.ns',
    `src.ns: namespace ${quote(src.ns)} has another engine than the present source. Delete the exchange, and create it again.`,
  );
}

function isConflict(error: unknown): boolean {
  return isCode(error, 'definition-conflict');
}

function isCode(error: unknown, code: ErrorCode): boolean {
  return error instanceof QuaysideError && error.code === code;
}

/** Runs changes of the same key one after the other, in the order of the calls. */
class KeyMutex {
  readonly #last = new Map<string, Promise<void>>();

  run<T>(key: string, change: () => Promise<T>): Promise<T> {
    const result = (this.#last.get(key) ?? Promise.resolve()).then(change);
    const ended = result.then(noop, noop).then(() => {
      if (this.#last.get(key) === ended) this.#last.delete(key);
    });
    this.#last.set(key, ended);
    return result;
  }

  /** Resolves when no change is in progress or waits. */
  async idle(): Promise<void> {
    while (this.#last.size > 0) await Promise.all(this.#last.values());
  }
}

function noop(): void {}
