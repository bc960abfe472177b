import type { Definition, Definitions } from '../engine/definitions.ts';
import { createCheckLimit } from '../sandbox/check-limit.ts';
import type { Service } from '../util/service.ts';
import { type Asker, NODE } from './asker.ts';
import { logSelectors } from './audit.ts';
import { checkDeclaration, checkRoom, mustRunSelectors } from './check.ts';
import { type Declaration, versionOf } from './declaration.ts';
import { cannotMove, exists, isCode, isConflict, otherVersion } from './errors.ts';
import { Exchange, type ExchangeParts } from './exchange.ts';
import { ExchangeIds } from './exchange-ids.ts';
import { Follower } from './follower.ts';
import type { LoopIds } from './graph.ts';
import { idOf, scopedKey } from './ids.ts';
import { InFlightLimit } from './in-flight-limit.ts';
import { KnownExchanges } from './known.ts';
import { type FindOwner, lostOwner, stopUnowned } from './owners.ts';
import { type ExchangeOverview, type ExchangeRecord, type ExchangeState, exchangeRecord } from './record.ts';
import { declares, mayKnow, type StoredExchange, toStored, toValue } from './stored.ts';
import { type Sample, type Trial, tryOut } from './trial.ts';
import { Turns } from './turns.ts';

export interface ExchangesOptions extends ExchangeParts {
  /** Exchanges of the configuration file, by id; the caller of this constructor starts this has checked them (`check`). */
  readonly configured: ReadonlyMap<string, Declaration>;
  /** Whose exchanges may run. */
  readonly owners: FindOwner;
}

/** A change of a declaration, by whom, and which versions of the present one it may replace; null: any. */
export interface DeclarationChange {
  readonly declaration: Declaration;
  readonly asker: Asker;
  readonly versions: ReadonlySet<string> | null;
}

/** Throws where this declaration may not be changed. */
export type CheckChange = (declaration: Declaration) => void;

/** Who asks for a check or a trial, and which member of the body the declaration is; the body itself where not given. */
interface Asking {
  readonly asker?: Asker;
  readonly within?: string;
}

/** Elements and their copies that all exchanges have in flight together: a wide exchange copies each many times. */
const MAX_BYTES = 64 * 1_048_576;
const MAX_CONFLICTS = 10;
const NEVER_CHANGED: ExchangeState = { stopped: null, lastError: null };

/**
 * All exchanges of this node. What is declared, and whether it is stopped, stands in the definitions of the
 * source namespace's engine; this class makes the node do what stands there. Changes of one exchange are made one
 * at a time, and nothing waits for an engine that it does not need.
 */
export class Exchanges implements Service {
  readonly #options: ExchangesOptions;
  /** What every method takes as id is a key of these. */
  readonly ids: ExchangeIds;
  readonly #known: KnownExchanges;
  readonly #follower: Follower;
  readonly #turns = new Turns();
  readonly #checks = createCheckLimit();
  #stopping: Promise<void> | null = null;

  constructor(options: ExchangesOptions) {
    this.#options = options;
    const parts = { ...options, inFlight: new InFlightLimit(MAX_BYTES) };
    this.#known = new KnownExchanges(
      (id, setup) =>
        new Exchange(id, setup, parts, {
          returning: () => this.#known.returning(id),
          onStrikes: (error) => this.#strikeOut(id, error),
        }),
    );
    this.#follower = new Follower(options, this.#known);
    this.ids = new ExchangeIds(options.broker, this.#known, this.#follower);
  }

  async start(): Promise<void> {
    this.#follower.listen();
    for (const [id, declaration] of this.#options.configured) {
      await this.#storeConfigured(id, declaration);
    }
    await stopUnowned(this.#follower.stores(), this.#options);
    await this.reload();
    this.#follower.relistLater();
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    this.#known.close();
    this.#follower.close();
    await Promise.all([this.#turns.idle(), this.#follower.idle()]);
    await this.#known.stop();
  }

  /** The records by id, sorted (spec 4.2), of those whose source's namespace one may see. */
  list(asker: Asker = NODE): [id: string, record: ExchangeRecord][] {
    return this.ids.visible(asker).map(([id, key]) => [id, this.record(key, asker)]);
  }

  /** Whether this node runs the exchange, or would if it were not stopped. */
  has(id: string): boolean {
    return this.#known.get(id) !== null;
  }

  /** Whether the configuration file declares an exchange of this id. */
  isConfigured(id: string): boolean {
    return this.#options.configured.has(id);
  }

  /** The same without what costs: for those who look often. Sorted by id. */
  overview(): ExchangeOverview[] {
    return this.#known.overview();
  }

  /** @throws QuaysideError `exchange-not-found` */
  record(id: string, asker: Asker = NODE): ExchangeRecord {
    const { exchange, state } = this.#known.find(id);
    return exchangeRecord(exchange, state, this.#loopsThrough(id, asker), asker);
  }

  /**
   * The declaration of an exchange, which this node then runs: another may have made it just now.
   * @throws QuaysideError as `delete`
   */
  async look(id: string): Promise<Declaration> {
    const known = this.#known.get(id);
    if (known !== null) return known.exchange.declaration;
    const [{ definition }] = await this.#follower.find(id);
    return toStored(definition.value).declaration;
  }

  /**
   * Creates and starts an exchange. The same declaration again changes nothing. Answers the loops that the declared
   * graph now makes through it, as far as the asker may know them.
   * @throws QuaysideError `invalid-parameter`, `invalid-body` (a selector), `exchange-exists`, `too-many-queues`,
   * `too-many-exchanges`
   */
  async create(id: string, declaration: Declaration, asker: Asker = NODE): Promise<LoopIds> {
    await this.#checkInTurn(declaration, asker);
    const create = async () => this.#create(await this.ids.keyOf(id, asker), declaration, asker);
    const key = await this.#turns.take(id, create);
    return this.#loopsThrough(key, asker);
  }

  #loopsThrough(key: string, asker: Asker): LoopIds {
    return this.#known.loopsThrough(key, asker).map((loop) => loop.map(idOf));
  }

  /**
   * Changes the declaration of an exchange; what it counted, and whether it is stopped, stays. Its new owner is who
   * changed it. Returns the loops as `create` does.
   * @param check throws if the asker may not change the present declaration
   * @throws QuaysideError `precondition-failed` if there is no such exchange, or it has another version; what `check`
   * throws; and as `create`
   */
  async change(id: string, change: DeclarationChange, check: CheckChange): Promise<LoopIds> {
    const { declaration, asker, versions } = change;
    await this.#checkInTurn(declaration, asker);
    await this.#turns
      .take(id, () =>
        this.#update(id, (stored, definitions) => {
          check(stored.declaration);
          if (versions !== null && !versions.has(versionOf(stored.declaration))) throw otherVersion(idOf(id));
          if (versionOf(stored.declaration) === versionOf(declaration)) return stored;
          if (this.#storeOf(declaration) !== definitions) throw cannotMove(declaration);
          checkRoom(declaration, this.#options);
          if (stored.declaration.src.ns !== declaration.src.ns) {
            const { maxExchanges } = this.#options.broker.namespace(declaration.src.ns);
            this.#known.checkRoom(id, declaration.src.ns, maxExchanges);
          }
          return { ...stored, declaration, owner: asker.name };
        }),
      )
      .catch((error: unknown) => {
        throw isCode(error, 'exchange-not-found') ? otherVersion(idOf(id)) : error;
      });
    logSelectors(this.#options.log, { id, declaration, user: asker.name });
    return this.#loopsThrough(id, asker);
  }

  /** Idempotent; resolves when the wish is stored, the loops end on their own. @throws as `delete` */
  stopExchange(id: string, check?: CheckChange): Promise<void> {
    return this.#turns.take(id, () => this.#set(id, { stopped: true }, check));
  }

  /** Idempotent. If its owner may not run it any more, the asker becomes the owner. @throws as `delete` */
  startExchange(id: string, check: CheckChange = () => {}, asker: Asker = NODE): Promise<void> {
    return this.#turns.take(id, () =>
      this.#update(id, (stored) => {
        check(stored.declaration);
        const owner = lostOwner(stored, this.#options.owners) === null ? stored.owner : asker.name;
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
      this.#known.ids().map(async (id) => {
        const { exchange, state } = this.#known.find(id);
        const lastError = state.stopped === true ? null : lostOwner(exchange, this.#options.owners);
        if (lastError !== null) await this.#stopWith(id, lastError);
      }),
    );
  }

  /**
   * Stops and forgets an exchange, also one that is stored and cannot run on this node; its queues stay. What other
   * engines define under the id goes as well, lest it come to light, unless `check` throws for it.
   * @throws QuaysideError `exchange-not-found`; `storage-unavailable` and `outcome-unknown` also where this node
   * does not run it and an engine that may define it did not answer
   */
  delete(id: string, check: CheckChange = () => {}): Promise<void> {
    return this.#turns.take(id, async () => {
      const [shown, ...hidden] = await this.#follower.find(id);
      check(toStored(shown.definition.value).declaration);
      const going = hidden.filter(({ definition }) => passes(check, definition));
      // The one that counts goes last: should an engine fail, the exchange is still there to be deleted.
      for (const { definitions } of [...going, shown]) {
        await definitions.delete('exchange', id, 'any');
        this.#follower.deleted(definitions, id);
      }
    });
  }

  /**
   * Makes this node do what the definitions say, after reading those of all namespaces, or of those wanted. The
   * engines are asked side by side; what one answers counts, though another does not.
   * @throws QuaysideError `storage-unavailable`, `outcome-unknown` where an engine did not answer
   */
  reload(isWanted?: (namespace: string) => boolean): Promise<void> {
    return this.#follower.reload(isWanted);
  }

  /**
   * Tries an exchange, or a declaration that is not one yet, with a sample. Nothing is stored or changed.
   * @throws QuaysideError `exchange-not-found`, `overloaded`, and as `check`
   */
  tryOut(id: string, sample: Sample, given: Declaration | null, asking: Asking = {}): Promise<Trial> {
    const { asker = NODE } = asking;
    return this.#checks.runNow(asker.name, async () => {
      const tried = given ?? this.#known.find(id).exchange.declaration;
      if (given === null) mustRunSelectors(tried.dst, this.#options);
      else await this.check(given, asking);
      return tryOut(tried, sample, this.#options, asker);
    });
  }

  /**
   * Whether a declaration could be created here.
   * @throws QuaysideError `invalid-parameter` with the path of the field, `invalid-body` for a selector
   */
  check(declaration: Declaration, { asker = NODE, within }: Asking = {}): Promise<void> {
    return checkDeclaration(declaration, this.#options, asker, within);
  }

  #checkInTurn(declaration: Declaration, asker: Asker): Promise<void> {
    return this.#checks.run(asker.name, () => this.check(declaration, { asker }));
  }

  /**
   * Queries the stores, though this node may run it: another may have deleted it, or been first, just now.
   * @returns the key under which it is stored
   */
  async #create(key: string, declaration: Declaration, asker: Asker): Promise<string> {
    let id = key;
    for (let conflicts = 0; ; conflicts += 1) {
      const [found] = await this.#follower.known(id);
      if (found !== undefined && declares(found.definition, declaration)) return id;
      if (found !== undefined) {
        if (id !== key || mayKnow(asker, found.definition)) throw exists(idOf(id));
        id = scopedKey(key, declaration.src.ns);
        continue;
      }
      try {
        await this.#storeNew(id, declaration, asker.name);
        logSelectors(this.#options.log, { id, declaration, user: asker.name });
        return id;
      } catch (error) {
        if (!isConflict(error) || conflicts === MAX_CONFLICTS) throw error;
        await this.#follower.read(this.#storeOf(declaration), id);
      }
    }
  }

  async #storeNew(id: string, declaration: Declaration, owner: string): Promise<void> {
    checkRoom(declaration, this.#options);
    // Before it is stored: what cannot run here is refused, and then nothing of it may be left.
    const { maxExchanges } = this.#options.broker.namespace(declaration.src.ns);
    const made = this.#known.makeNew(id, { declaration, owner }, maxExchanges);
    try {
      const definitions = this.#storeOf(declaration);
      const value = toValue({ declaration, owner, ...NEVER_CHANGED });
      const version = await definitions.put('exchange', id, value, null);
      this.#follower.wrote(definitions, { key: id, value, version }, made);
    } finally {
      this.#known.discard(made);
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
      const [{ definitions, definition }] = await this.#follower.find(id);
      const value = toValue(update(toStored(definition.value), definitions));
      try {
        const version = await definitions.put('exchange', id, value, definition.version);
        this.#follower.wrote(definitions, { key: id, value, version });
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
      this.#follower.stores().map(async (definitions) => ({
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
      await this.#turns.take(id, () => this.#set(id, { stopped: true, lastError }));
    } catch (error) {
      this.#options.log.warn({ err: error, exchange: id }, 'an exchange could not be stopped');
    }
  }

  #storeOf({ src }: Declaration): Definitions {
    return this.#options.broker.namespace(src.ns).definitions;
  }
}

/** Not where it has changed since: an engine that shares its store with another has the other's new one there. */
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
