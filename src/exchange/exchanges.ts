import type { Definition, Definitions } from '../engine/definitions.ts';
import type { CancelTimer } from '../model/clock.ts';
import { QuaysideError } from '../model/errors.ts';
import { Retries } from '../model/retries.ts';
import type { Service } from '../model/service.ts';
import { checkDeclaration, checkRoom } from './check.ts';
import type { ExchangeCounters } from './counters.ts';
import { type Declaration, sameDeclaration } from './declaration.ts';
import { Exchange, type ExchangeParts } from './exchange.ts';
import { loopsThrough } from './graph.ts';
import { KnownExchanges, notFound } from './known.ts';
import type { Reading } from './readings.ts';
import { type ExchangeRecord, type ExchangeState, exchangeRecord } from './record.ts';
import { findStored, type StoredExchange, toStored, toValue } from './stored.ts';
import { type Sample, type Trial, tryOut } from './trial.ts';
import { Turns } from './turns.ts';

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

/** What an engine answered. */
interface Listed {
  readonly definitions: Definitions;
  readonly found: readonly Definition[];
}

/** Definitions are read again this often, ± half, in case a watch missed a change. */
const REREAD_MS = 60_000;
/** One that changed and could not be read is read again after this long. */
const REREAD_ONE_MS = 1_000;
const MOST_CONFLICTS = 10;

/**
 * All exchanges of this node. What is declared, and whether it is stopped, stands in the definitions of the
 * source namespace's engine; this class makes the node do what stands there. Changes of one exchange are made one
 * at a time, and nothing waits for an engine that it does not need.
 */
export class Exchanges implements Service {
  readonly #options: ExchangesOptions;
  readonly #known: KnownExchanges;
  readonly #turns = new Turns();
  /** Definitions that are being read: `stop` waits for them. */
  readonly #reading = new Set<Promise<void>>();
  readonly #endings: (() => void)[] = [];
  #timer: CancelTimer | null = null;
  #closed = false;
  #stopping: Promise<void> | null = null;

  constructor(options: ExchangesOptions) {
    this.#options = options;
    this.#known = new KnownExchanges(
      (id, declaration) => new Exchange(id, declaration, options, (error) => this.#strikeOut(id, error)),
    );
  }

  async start(): Promise<void> {
    for (const definitions of this.#stores()) this.#follow(definitions);
    await this.#storeConfigured();
    await this.reload();
    this.#rereadLater();
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    this.#closed = true;
    this.#timer?.();
    for (const end of this.#endings.splice(0)) end();
    await Promise.all([this.#turns.idle(), ...this.#reading]);
    await this.#known.stop();
  }

  /** All records by id, sorted (spec 4.2). */
  list(): [id: string, record: ExchangeRecord][] {
    return this.#known.ids().map((id) => [id, this.record(id)]);
  }

  /** The same without what costs: for those who look often. Sorted by id. */
  overview(): ExchangeOverview[] {
    return this.#known.ids().map((id) => {
      const { exchange, state } = this.#known.find(id);
      const { declaration, counters } = exchange;
      return { id, declaration, counters, stopped: state.stopped === true };
    });
  }

  /** @throws QuaysideError `exchange-not-found` */
  record(id: string): ExchangeRecord {
    const { exchange, state } = this.#known.find(id);
    return exchangeRecord(exchange, state, loopsThrough(id, this.#known.edges()));
  }

  /** @throws QuaysideError `exchange-not-found` */
  declaration(id: string): Declaration {
    return this.#known.find(id).exchange.declaration;
  }

  /**
   * Creates and starts an exchange. The same declaration again changes nothing. Answers the loops that the
   * declared graph now makes through it.
   * @throws QuaysideError `invalid-parameter`, `invalid-body` (a selector), `exchange-exists`, `too-many-queues`
   */
  async create(id: string, declaration: Declaration): Promise<string[][]> {
    await this.check(declaration);
    await this.#turns.take(id, async () => {
      const known = this.#known.get(id);
      if (known !== null) {
        if (!sameDeclaration(known.exchange.declaration, declaration)) throw exists(id);
        return;
      }
      checkRoom(declaration, this.#options);
      // Before it is stored: what cannot run here is refused, and then nothing of it may be left.
      const made = this.#known.make(id, declaration);
      try {
        this.#apply(id, await this.#storeNew(id, declaration), null, made);
      } finally {
        this.#known.discard(made);
      }
    });
    return loopsThrough(id, this.#known.edges());
  }

  /** Idempotent; answers when the wish is stored, the loops end on their own. @throws `exchange-not-found` */
  stopExchange(id: string): Promise<void> {
    return this.#turns.take(id, () => this.#change(id, { stopped: true }));
  }

  /** Idempotent. @throws `exchange-not-found` */
  startExchange(id: string): Promise<void> {
    return this.#turns.take(id, () => this.#change(id, { stopped: false, lastError: null }));
  }

  /**
   * Stops and forgets an exchange, also one that is stored and cannot run on this node; its queues stay.
   * @param check throws where this declaration may not be deleted
   * @throws QuaysideError `exchange-not-found`; `storage-unavailable` and `outcome-unknown` also where this node
   * does not run it and an engine that may define it did not answer
   */
  delete(id: string, check: (declaration: Declaration) => void = () => {}): Promise<void> {
    return this.#turns.take(id, async () => {
      const known = this.#known.get(id)?.exchange.declaration;
      const { declaration, definitions } =
        known === undefined
          ? await findStored(id, this.#stores())
          : { declaration: known, definitions: this.#storeOf(known) };
      check(declaration);
      await definitions.delete('exchange', id, 'any');
      this.#known.drop(id, null);
    });
  }

  /**
   * Makes this node do what the definitions say, after reading those of all namespaces, or of those wanted. The
   * engines are asked side by side; what one answers counts, though another does not.
   * @throws QuaysideError `storage-unavailable`, `outcome-unknown` where an engine did not answer
   */
  reload(isWanted: (namespace: string) => boolean = () => true): Promise<void> {
    const reloading = this.#reload(this.#stores(isWanted));
    this.#track(reloading.catch(() => {}));
    return reloading;
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

  /** Answers what is stored then. */
  async #storeNew(id: string, declaration: Declaration): Promise<StoredExchange> {
    const definitions = this.#storeOf(declaration);
    const stored: StoredExchange = { declaration, stopped: null, lastError: null };
    try {
      await definitions.put('exchange', id, toValue(stored), null);
      return stored;
    } catch (error) {
      if (!isConflict(error)) throw error;
      // Another node was first, and its watch event is on its way.
      const other = await definitions.get('exchange', id);
      if (other === null || !sameDeclaration(toStored(other.value).declaration, declaration)) {
        throw exists(id);
      }
      return toStored(other.value);
    }
  }

  async #change(id: string, change: Partial<ExchangeState>): Promise<void> {
    const definitions = this.#storeOf(this.#known.find(id).exchange.declaration);
    for (let conflicts = 0; ; conflicts += 1) {
      const definition = await definitions.get('exchange', id);
      if (definition === null) {
        this.#known.drop(id, null);
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

  async #reload(stores: readonly Definitions[]): Promise<void> {
    const reading = this.#known.beginReading();
    try {
      const answers = await Promise.allSettled(stores.map((definitions) => definitions.list('exchange')));
      const listed = stores.flatMap((definitions, i) => {
        const answer = answers[i];
        return answer?.status === 'fulfilled' ? [{ definitions, found: answer.value }] : [];
      });
      this.#applyListed(listed, reading);
      for (const answer of answers) if (answer.status === 'rejected') throw answer.reason;
    } finally {
      reading.end();
    }
  }

  /**
   * Where two engines define an exchange, the first counts. What an engine defines that did not answer stays as it
   * is. Two engines may share a store, and then both answer the same.
   */
  #applyListed(listed: readonly Listed[], reading: Reading): void {
    const answered = new Set(listed.map(({ definitions }) => definitions));
    const settled = (id: string): boolean => {
      const known = this.#known.get(id);
      const isAway = known !== null && !answered.has(this.#storeOf(known.exchange.declaration));
      return isAway || reading.outdated.has(id);
    };
    const firsts = new Map<string, string>();
    for (const definition of listed.flatMap(({ found }) => found)) {
      const { key } = definition;
      const value = JSON.stringify(definition.value);
      const first = firsts.get(key);
      if (first === undefined) {
        firsts.set(key, value);
        if (!settled(key)) this.#applyStored(definition, reading);
      } else if (first !== value) {
        this.#options.log.warn({ exchange: key }, 'two engines define this exchange; the first counts');
      }
    }
    for (const id of this.#known.ids()) {
      if (!firsts.has(id) && !settled(id)) this.#known.drop(id, reading);
    }
  }

  #follow(definitions: Definitions): void {
    const { clock, log } = this.#options;
    const rereads = new Retries({
      clock,
      delayMs: REREAD_ONE_MS,
      failed: (id, error) =>
        log.warn({ err: error, exchange: id }, 'an exchange that changed could not be read yet'),
    });
    const end = definitions.watch(({ kind, key }) => {
      if (kind === 'exchange') void rereads.do(key, () => this.#reread(definitions, key));
    });
    this.#endings.push(end, () => rereads.stop());
  }

  #reread(definitions: Definitions, id: string): Promise<void> {
    const read = this.#read(definitions, id);
    this.#track(read.catch(() => {}));
    return read;
  }

  /** Reads once more where news came meanwhile: they may be older than what was told of. */
  async #read(definitions: Definitions, id: string): Promise<void> {
    for (let isOutdated = true; isOutdated && !this.#closed; ) {
      const reading = this.#known.beginReading();
      try {
        const definition = await definitions.get('exchange', id);
        isOutdated = reading.outdated.has(id);
        if (isOutdated) continue;
        if (definition !== null) this.#applyStored(definition, reading);
        else if (this.#isOf(id, definitions)) this.#known.drop(id, reading);
      } finally {
        reading.end();
      }
    }
  }

  #isOf(id: string, definitions: Definitions): boolean {
    const known = this.#known.get(id);
    return known !== null && this.#storeOf(known.exchange.declaration) === definitions;
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

  #applyStored({ key, value }: Definition, by: Reading): void {
    try {
      this.#apply(key, toStored(value), by);
    } catch (error) {
      this.#options.log.warn({ err: error, exchange: key }, 'a stored exchange cannot run on this node');
    }
  }

  #apply(id: string, stored: StoredExchange, by: Reading | null = null, made: Exchange | null = null): void {
    if (!this.#closed) this.#known.apply(id, stored, by, made);
  }

  #strikeOut(id: string, lastError: string): void {
    this.#options.log.warn(
      { exchange: id, lastError },
      'an exchange was stopped: its selector overruns its limits',
    );
    this.#turns
      .take(id, () => this.#change(id, { stopped: true, lastError }))
      .catch((error: unknown) => {
        this.#options.log.warn({ err: error, exchange: id }, 'an exchange could not be stopped');
      });
  }

  /** The promise must not reject. */
  #track(work: Promise<void>): void {
    this.#reading.add(work);
    void work.finally(() => this.#reading.delete(work));
  }

  #storeOf({ src }: Declaration): Definitions {
    return this.#options.broker.namespace(src.ns).definitions;
  }

  /** In the order of the configuration. */
  #stores(isWanted: (namespace: string) => boolean = () => true): Definitions[] {
    const wanted = this.#options.broker.namespaces().filter(({ name }) => isWanted(name));
    return [...new Set(wanted.map(({ definitions }) => definitions))];
  }
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
