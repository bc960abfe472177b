import type { Definition, Definitions } from '../engine/definitions.ts';
import type { CancelTimer } from '../model/clock.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Service } from '../model/service.ts';
import { checkDeclaration } from './check.ts';
import type { ExchangeCounters } from './counters.ts';
import { type Declaration, sameDeclaration } from './declaration.ts';
import { Exchange, type ExchangeParts } from './exchange.ts';
import { loopsThrough } from './graph.ts';
import { type ExchangeRecord, type ExchangeState, exchangeRecord } from './record.ts';
import { type StoredExchange, toStored, toValue } from './stored.ts';
import { type Sample, type Trial, tryOut } from './trial.ts';

export interface ExchangesOptions extends ExchangeParts {
  /** Whether selectors may be used at all (`selectors: off` in the configuration). */
  readonly selectors: boolean;
  /** Exchanges of the configuration file, by id. */
  readonly configured: ReadonlyMap<string, Declaration>;
}

/** An exchange of this node at a glance. */
export interface ExchangeOverview {
  readonly id: string;
  readonly declaration: Declaration;
  readonly stopped: boolean;
  readonly counters: Readonly<ExchangeCounters>;
}

interface Known {
  readonly exchange: Exchange;
  state: ExchangeState;
}

/** Definitions are read again this often, ± half, in case a watch missed a change. */
const REREAD_MS = 60_000;
const MOST_CONFLICTS = 10;

/**
 * All exchanges of this node. What is declared, and whether it is stopped, stands in the definitions of the
 * source namespace's engine; this class makes the node do what stands there. Changes are made one at a time,
 * whoever asked for them: a client here, or another node through the watch.
 */
export class Exchanges implements Service {
  readonly #options: ExchangesOptions;
  readonly #known = new Map<string, Known>();
  readonly #stopping = new Set<Promise<void>>();
  readonly #endings: (() => void)[] = [];
  #turn: Promise<unknown> = Promise.resolve();
  #timer: CancelTimer | null = null;
  #closed = false;

  constructor(options: ExchangesOptions) {
    this.#options = options;
  }

  async start(): Promise<void> {
    for (const definitions of this.#stores()) {
      this.#endings.push(
        definitions.watch(({ kind, key }) => {
          if (kind === 'exchange') void this.#reread(definitions, key);
        }),
      );
    }
    await this.#inTurn(() => this.#storeConfigured());
    await this.reload();
    this.#rereadLater();
  }

  async stop(): Promise<void> {
    this.#closed = true;
    this.#timer?.();
    for (const end of this.#endings.splice(0)) end();
    await this.#turn;
    for (const id of [...this.#known.keys()]) this.#drop(id);
    await Promise.all(this.#stopping);
  }

  /** All records by id, sorted (spec 4.2). */
  list(): [id: string, record: ExchangeRecord][] {
    return [...this.#known.keys()].sort().map((id) => [id, this.record(id)]);
  }

  /** The same without what costs: for those who look often. Sorted by id. */
  overview(): ExchangeOverview[] {
    return [...this.#known.keys()].sort().map((id) => {
      const { exchange, state } = this.#find(id);
      const { declaration, counters } = exchange;
      return { id, declaration, counters, stopped: state.stopped === true };
    });
  }

  /** @throws QuaysideError `exchange-not-found` */
  record(id: string): ExchangeRecord {
    const { exchange, state } = this.#find(id);
    return exchangeRecord(exchange, state, loopsThrough(id, this.#edges()));
  }

  /** @throws QuaysideError `exchange-not-found` */
  declaration(id: string): Declaration {
    return this.#find(id).exchange.declaration;
  }

  /**
   * Creates and starts an exchange. The same declaration again changes nothing. Answers the loops that the
   * declared graph now makes through it.
   * @throws QuaysideError `invalid-parameter`, `invalid-body` (a selector), `exchange-exists`
   */
  async create(id: string, declaration: Declaration): Promise<string[][]> {
    await this.check(declaration);
    await this.#inTurn(async () => {
      const definitions = this.#storeOf(declaration);
      const known = this.#known.get(id);
      if (known !== undefined) {
        if (!sameDeclaration(known.exchange.declaration, declaration)) throw exists(id);
        return;
      }
      const stored: StoredExchange = { declaration, stopped: null, lastError: null };
      try {
        await definitions.put('exchange', id, toValue(stored), null);
      } catch (error) {
        if (!isConflict(error)) throw error;
        // Another node was first, and its watch event is on its way.
        const other = await definitions.get('exchange', id);
        if (other === null || !sameDeclaration(toStored(other.value).declaration, declaration)) {
          throw exists(id);
        }
        this.#apply(id, toStored(other.value));
        return;
      }
      this.#apply(id, stored);
    });
    return loopsThrough(id, this.#edges());
  }

  /** Idempotent; answers when the wish is stored, the loops end on their own. @throws `exchange-not-found` */
  stopExchange(id: string): Promise<void> {
    return this.#inTurn(() => this.#change(id, { stopped: true }));
  }

  /** Idempotent. @throws `exchange-not-found` */
  startExchange(id: string): Promise<void> {
    return this.#inTurn(() => this.#change(id, { stopped: false, lastError: null }));
  }

  /** Stops and forgets an exchange; its queues stay. @throws `exchange-not-found` */
  delete(id: string): Promise<void> {
    return this.#inTurn(async () => {
      const { exchange } = this.#find(id);
      await this.#storeOf(exchange.declaration).delete('exchange', id, 'any');
      this.#drop(id);
    });
  }

  /** Makes this node do what the definitions say, after reading all of them. */
  reload(): Promise<void> {
    return this.#inTurn(async () => {
      const found = new Set<string>();
      for (const definitions of this.#stores()) {
        for (const definition of await definitions.list('exchange')) {
          if (found.has(definition.key)) {
            this.#options.log.warn(
              { exchange: definition.key },
              'two engines define this exchange; the first counts',
            );
            continue;
          }
          found.add(definition.key);
          this.#applyStored(definition);
        }
      }
      for (const id of this.#known.keys()) if (!found.has(id)) this.#drop(id);
    });
  }

  /**
   * Tries an exchange, or a declaration that is not one yet, with a sample. Nothing is stored or changed.
   * @throws QuaysideError `exchange-not-found`, and as `check`
   */
  async tryOut(id: string, sample: Sample, declaration: Declaration | null): Promise<Trial> {
    const tried = declaration ?? this.declaration(id);
    if (declaration !== null) await this.check(declaration);
    return tryOut(tried, sample, this.#options);
  }

  /**
   * Whether a declaration could be created here.
   * @throws QuaysideError `invalid-parameter` with the path of the field, `invalid-body` for a selector
   */
  check(declaration: Declaration): Promise<void> {
    return checkDeclaration(declaration, this.#options);
  }

  async #change(id: string, change: Partial<ExchangeState>): Promise<void> {
    const definitions = this.#storeOf(this.#find(id).exchange.declaration);
    for (let conflicts = 0; ; conflicts += 1) {
      const definition = await definitions.get('exchange', id);
      if (definition === null) {
        this.#drop(id);
        throw notFound(id);
      }
      const stored = { ...toStored(definition.value), ...change };
      try {
        await definitions.put('exchange', id, toValue(stored), definition.version);
        this.#apply(id, stored);
        return;
      } catch (error) {
        if (!isConflict(error) || conflicts === MOST_CONFLICTS) throw error;
      }
    }
  }

  /** The file wins over a stored exchange of the same id, but does not start what was stopped. */
  async #storeConfigured(): Promise<void> {
    for (const [id, declaration] of this.#options.configured) {
      await this.check(declaration);
      const definitions = this.#storeOf(declaration);
      const stored = await definitions.get('exchange', id);
      const state = stored === null ? { stopped: null, lastError: null } : toStored(stored.value);
      if (stored !== null && sameDeclaration(toStored(stored.value).declaration, declaration)) continue;
      if (stored !== null) {
        this.#options.log.warn(
          { exchange: id },
          'the configuration file replaces a stored exchange of this id',
        );
      }
      const { stopped, lastError } = state;
      await definitions.put('exchange', id, toValue({ declaration, stopped, lastError }), 'any');
    }
  }

  async #reread(definitions: Definitions, id: string): Promise<void> {
    try {
      await this.#inTurn(async () => {
        const definition = await definitions.get('exchange', id);
        if (definition !== null) this.#applyStored(definition);
        else if (this.#known.has(id) && this.#storeOf(this.declaration(id)) === definitions) this.#drop(id);
      });
    } catch (error) {
      this.#options.log.warn(
        { err: error, exchange: id },
        'an exchange could not be read; it is read again later',
      );
    }
  }

  #rereadLater(): void {
    const { clock, random, log } = this.#options;
    this.#timer = clock.after(REREAD_MS * (0.5 + random()), () => {
      this.reload()
        .catch((error: unknown) => log.warn({ err: error }, 'exchanges could not be read again'))
        .finally(() => {
          if (!this.#closed) this.#rereadLater();
        });
    });
  }

  #applyStored({ key, value }: Definition): void {
    try {
      this.#apply(key, toStored(value));
    } catch (error) {
      this.#options.log.warn({ err: error, exchange: key }, 'a stored exchange cannot run on this node');
    }
  }

  #apply(id: string, { declaration, stopped, lastError }: StoredExchange): void {
    if (this.#closed) return;
    let known = this.#known.get(id);
    if (known !== undefined && !sameDeclaration(known.exchange.declaration, declaration)) {
      this.#drop(id);
      known = undefined;
    }
    if (known === undefined) {
      const exchange = new Exchange(id, declaration, this.#options, (error) => this.#strikeOut(id, error));
      this.#known.set(id, { exchange, state: { stopped, lastError } });
      if (stopped !== true) exchange.start();
      return;
    }
    const was = known.state.stopped === true;
    known.state = { stopped, lastError };
    if (stopped === true && !was) this.#track(known.exchange.stop());
    else if (stopped !== true && was) known.exchange.start();
  }

  #strikeOut(id: string, lastError: string): void {
    this.#options.log.warn(
      { exchange: id, lastError },
      'an exchange was stopped: its selector overruns its limits',
    );
    this.#inTurn(() => this.#change(id, { stopped: true, lastError })).catch((error: unknown) => {
      this.#options.log.warn({ err: error, exchange: id }, 'an exchange could not be stopped');
    });
  }

  #drop(id: string): void {
    const known = this.#known.get(id);
    if (known === undefined) return;
    this.#known.delete(id);
    this.#track(known.exchange.stop());
  }

  #track(stopping: Promise<void>): void {
    this.#stopping.add(stopping);
    void stopping.finally(() => this.#stopping.delete(stopping));
  }

  #find(id: string): Known {
    const known = this.#known.get(id);
    if (known === undefined) throw notFound(id);
    return known;
  }

  #edges(): { id: string; declaration: Declaration }[] {
    return [...this.#known].map(([id, { exchange }]) => ({ id, declaration: exchange.declaration }));
  }

  #storeOf({ src }: Declaration): Definitions {
    return this.#options.broker.namespace(src.ns).definitions;
  }

  #stores(): Set<Definitions> {
    return new Set(this.#options.broker.namespaces().map(({ definitions }) => definitions));
  }

  #inTurn<T>(change: () => Promise<T>): Promise<T> {
    const result = this.#turn.then(change);
    this.#turn = result.catch(() => {});
    return result;
  }
}

function notFound(id: string): QuaysideError {
  return new QuaysideError('exchange-not-found', `no such exchange [${id}]`, { extra: { id } });
}

function exists(id: string): QuaysideError {
  return new QuaysideError(
    'exchange-exists',
    `There is an exchange ${id} with another declaration; delete it first, or choose another id.`,
  );
}

function isConflict(error: unknown): boolean {
  return error instanceof QuaysideError && error.code === 'definition-conflict';
}
