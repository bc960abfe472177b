import type { Definition, Definitions } from '../engine/definitions.ts';
import type { CancelTimer } from '../model/clock.ts';
import { Retries } from '../model/retries.ts';
import type { Exchange, ExchangeParts } from './exchange.ts';
import { type KnownExchanges, notFound } from './known.ts';
import { Origins } from './origins.ts';
import type { Reading } from './readings.ts';
import { toStored } from './stored.ts';

/** All are listed again this often, ± half, in case a watch missed a change. */
const RELIST_MS = 60_000;
/** One that changed and could not be read is read again after this long. */
const REREAD_ONE_MS = 1_000;

/** An exchange's definition, and the store that has it. */
export interface Found {
  readonly definitions: Definitions;
  readonly definition: Definition;
}

/** What an engine answered. */
interface Listed {
  readonly definitions: Definitions;
  readonly found: ReadonlyMap<string, Definition>;
}

/**
 * Makes this node do what the stores say: it listens to them, lists them from time to time, and asks them when told
 * to. Knows which store's word counts, and lets nothing wait for an engine that it does not need.
 */
export class Follower {
  readonly #parts: Pick<ExchangeParts, 'broker' | 'clock' | 'random' | 'log'>;
  readonly #known: KnownExchanges;
  readonly #origins: Origins;
  /** Of definitions that changed, by their ids. */
  readonly #rereads: ReadonlyMap<Definitions, Retries>;
  /** Definitions that are being read: `idle` waits for them. */
  readonly #reading = new Set<Promise<unknown>>();
  readonly #endings: (() => void)[] = [];
  #timer: CancelTimer | null = null;
  #closed = false;

  constructor(parts: Pick<ExchangeParts, 'broker' | 'clock' | 'random' | 'log'>, known: KnownExchanges) {
    this.#parts = parts;
    this.#known = known;
    const stores = this.stores();
    this.#origins = new Origins(stores);
    this.#rereads = new Map(stores.map((definitions) => [definitions, this.#retries()]));
  }

  /** In the order of the configuration. */
  stores(isWanted: (namespace: string) => boolean = () => true): Definitions[] {
    const wanted = this.#parts.broker.namespaces().filter(({ name }) => isWanted(name));
    return [...new Set(wanted.map(({ definitions }) => definitions))];
  }

  listen(): void {
    for (const definitions of this.stores()) {
      const end = definitions.watch(({ kind, key }) => {
        if (kind === 'exchange') this.#readSoon(definitions, key);
      });
      this.#endings.push(end);
    }
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

  /** Listens no more. */
  close(): void {
    this.#closed = true;
    this.#timer?.();
    for (const end of this.#endings.splice(0)) end();
    for (const rereads of this.#rereads.values()) rereads.stop();
  }

  /** Resolves when nothing is being read. */
  async idle(): Promise<void> {
    await Promise.allSettled(this.#reading);
  }

  /** Lists the stores side by side; what one answers counts, though another does not. @throws as `Definitions.list` */
  reload(isWanted?: (namespace: string) => boolean): Promise<void> {
    return this.#track(this.#reload(this.stores(isWanted)));
  }

  /** The stores that are known to define an exchange, the one that counts first. */
  origins(id: string): Definitions[] {
    return this.#origins.of(id);
  }

  /** What the stores that are known to define an exchange say now, the one that counts first. */
  async known(id: string): Promise<Found[]> {
    const found: Found[] = [];
    for (const definitions of this.#origins.of(id)) {
      const definition = await this.read(definitions, id);
      if (definition !== null) found.push({ definitions, definition });
    }
    return found;
  }

  /**
   * As `known`; where none is known to define it, what all stores say, asked side by side: another node may have made
   * it just now.
   * @throws QuaysideError `exchange-not-found`; `storage-unavailable`, `outcome-unknown` where a store that did not
   * answer may define it
   */
  async find(id: string): Promise<[Found, ...Found[]]> {
    const [first, ...others] = await this.known(id);
    if (first !== undefined) return [first, ...others];
    const stores = this.stores();
    const answers = await Promise.allSettled(stores.map((definitions) => this.read(definitions, id)));
    const [found, ...hidden] = stores.flatMap((definitions, i) => {
      const answer = answers[i];
      const definition = answer?.status === 'fulfilled' ? answer.value : null;
      return definition === null ? [] : [{ definitions, definition }];
    });
    if (found !== undefined) return [found, ...hidden];
    for (const answer of answers) if (answer.status === 'rejected') throw answer.reason;
    throw notFound(id);
  }

  /** Reads one definition and does what it says. Once more where news came meanwhile, which may be newer. */
  read(definitions: Definitions, id: string): Promise<Definition | null> {
    return this.#track(this.#read(definitions, id));
  }

  /**
   * A store defines this now. What cannot run here is logged. `by` as for `KnownExchanges.apply`.
   * @param made as there
   */
  defines(
    definitions: Definitions,
    { key, value }: Pick<Definition, 'key' | 'value'>,
    by: Reading | null = null,
    made: Exchange | null = null,
  ): void {
    this.#origins.note(definitions, key, true);
    if (this.#origins.of(key)[0] !== definitions) return;
    try {
      this.#known.apply(key, toStored(value), by, made);
    } catch (error) {
      this.#parts.log.warn({ err: error, exchange: key }, 'a stored exchange cannot run on this node');
    }
  }

  /** A store does not define it any more: what it hid counts now. */
  forgets(definitions: Definitions, id: string, by: Reading | null = null): void {
    const [first] = this.#origins.of(id);
    this.#origins.note(definitions, id, false);
    if (first !== definitions) return;
    this.#known.drop(id, by);
    const [next] = this.#origins.of(id);
    if (next !== undefined) this.#readSoon(next, id);
  }

  async #read(definitions: Definitions, id: string): Promise<Definition | null> {
    for (;;) {
      const reading = this.#known.beginReading();
      try {
        const definition = await definitions.get('exchange', id);
        if (reading.outdated.has(id) && !this.#closed) continue;
        if (definition !== null) this.defines(definitions, definition, reading);
        else this.forgets(definitions, id, reading);
        return definition;
      } finally {
        reading.end();
      }
    }
  }

  async #reload(stores: readonly Definitions[]): Promise<void> {
    const reading = this.#known.beginReading();
    try {
      const answers = await Promise.allSettled(stores.map((definitions) => definitions.list('exchange')));
      const listed = stores.flatMap((definitions, i) => {
        const answer = answers[i];
        if (answer?.status !== 'fulfilled') return [];
        return [{ definitions, found: new Map(answer.value.map((each) => [each.key, each])) }];
      });
      this.#applyListed(listed, reading);
      for (const answer of answers) if (answer.status === 'rejected') throw answer.reason;
    } finally {
      reading.end();
    }
  }

  /** What an engine defines that did not answer stays as it is. */
  #applyListed(listed: readonly Listed[], reading: Reading): void {
    const ids = new Set(this.#known.ids());
    for (const { definitions, found } of listed) {
      for (const id of [...this.#origins.ids(definitions), ...found.keys()]) {
        ids.add(id);
        if (!reading.outdated.has(id)) this.#origins.note(definitions, id, found.has(id));
      }
    }
    for (const id of ids) {
      if (reading.outdated.has(id)) continue;
      const [first] = this.#origins.of(id);
      const said = listed.flatMap(({ definitions, found }) => {
        const definition = found.get(id);
        return definition === undefined ? [] : [{ definitions, definition }];
      });
      const counts = said.find(({ definitions }) => definitions === first);
      if (counts !== undefined) this.defines(counts.definitions, counts.definition, reading);
      else if (first === undefined) this.#known.drop(id, reading);
      if (new Set(said.map(({ definition }) => JSON.stringify(definition.value))).size > 1) {
        this.#parts.log.warn({ exchange: id }, 'two engines define this exchange; the first counts');
      }
    }
  }

  /** Now, and again until the store answers. */
  #readSoon(definitions: Definitions, id: string): void {
    void this.#rereads.get(definitions)?.do(id, async () => {
      if (!this.#closed) await this.read(definitions, id);
    });
  }

  #retries(): Retries {
    const { clock, log } = this.#parts;
    return new Retries({
      clock,
      delayMs: REREAD_ONE_MS,
      failed: (id, error) =>
        log.warn({ err: error, exchange: id }, 'an exchange that changed could not be read yet'),
    });
  }

  #track<T>(work: Promise<T>): Promise<T> {
    this.#reading.add(work);
    const end = (): boolean => this.#reading.delete(work);
    work.then(end, end);
    return work;
  }
}
