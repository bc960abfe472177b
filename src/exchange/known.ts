import { QuaysideError } from '../model/errors.ts';
import { quote } from '../util/quote.ts';
import type { Asker } from './asker.ts';
import { sameDeclaration } from './declaration.ts';
import type { Exchange, ExchangeSetup } from './exchange.ts';
import type { LoopIds } from './graph.ts';
import { idOf } from './ids.ts';
import { Loops } from './loops.ts';
import type { ExchangeOverview, ExchangeState } from './record.ts';
import type { StoredExchange } from './stored.ts';

interface Known {
  readonly exchange: Exchange;
  state: ExchangeState;
}

/** The exchanges that run on this node, or would if they were not stopped, and news of them. */
export class KnownExchanges {
  readonly #make: (id: string, setup: ExchangeSetup) => Exchange;
  readonly #known = new Map<string, Known>();
  /** Made to be known, and neither known nor discarded yet. */
  readonly #made = new Set<Exchange>();
  readonly #stopping = new Set<Promise<void>>();
  readonly #loops = new Loops(() =>
    [...this.#known].map(([id, { exchange }]) => ({ id, declaration: exchange.declaration })),
  );
  #closed = false;

  /** @param make throws what an exchange's constructor throws */
  constructor(make: (id: string, setup: ExchangeSetup) => Exchange) {
    this.#make = make;
  }

  /** Sorted. */
  ids(): string[] {
    return [...this.#known.keys()].sort();
  }

  get(id: string): Known | null {
    return this.#known.get(id) ?? null;
  }

  /** @throws QuaysideError `exchange-not-found` */
  find(id: string): Known {
    const known = this.#known.get(id);
    if (known === undefined) throw notFound(id);
    return known;
  }

  /** Sorted by id. */
  overview(): ExchangeOverview[] {
    return this.ids().map((id) => {
      const { exchange, state } = this.find(id);
      const { declaration, counters, hindrance } = exchange;
      return { id, declaration, counters, stopped: state.stopped === true || hindrance !== null };
    });
  }

  /** The loops that the declarations make through an exchange, as far as the asker may know them. */
  loopsThrough(id: string, asker: Asker): LoopIds {
    return this.#loops.graph(asker).loopsThrough(id);
  }

  /** Per destination, whether elements can come back from it by declared exchanges. Null: from none. */
  returning(id: string): readonly boolean[] | null {
    return this.#loops.whole().returning(id);
  }

  /** @throws QuaysideError `too-many-exchanges` if the namespace can have no further one, of this id */
  checkRoom(id: string, ns: string, max: number): void {
    const all = [...this.#made, ...[...this.#known.values()].map(({ exchange }) => exchange)];
    const own = new Set(all.filter((one) => one.declaration.src.ns === ns).map((one) => one.id));
    if (own.size < max) return;
    throw new QuaysideError(
      'too-many-exchanges',
      `Namespace ${ns} has ${own.size} exchanges, its limit is ${max}; raise maxExchanges to add ${quote(idOf(id))}.`,
    );
  }

  /**
   * Makes an exchange that is new, to be given to `apply`, and to `discard` afterwards. It counts from now on, so that
   * many at once do not pass the limit.
   * @throws QuaysideError `too-many-exchanges`, and what making an exchange throws
   */
  makeNew(id: string, setup: Omit<ExchangeSetup, 'before'>, max: number): Exchange {
    this.checkRoom(id, setup.declaration.src.ns, max);
    const exchange = this.#make(id, { ...setup, before: null });
    this.#made.add(exchange);
    return exchange;
  }

  /** Ends an exchange that was made, unless it became the known one. */
  discard(exchange: Exchange): void {
    this.#made.delete(exchange);
    if (this.#known.get(exchange.id)?.exchange !== exchange) this.#end(exchange);
  }

  /**
   * Makes and starts an exchange, or changes it to what is stored.
   * @param made one of this id and declaration, to be used should none be known
   * @throws what making an exchange throws
   */
  apply(
    id: string,
    { declaration, owner, stopped, lastError }: StoredExchange,
    made: Exchange | null = null,
  ): void {
    if (this.#closed) return;
    let known = this.#known.get(id);
    let before: Exchange | null = null;
    if (known !== undefined && !isSame(known.exchange, { declaration, owner })) {
      before = known.exchange;
      this.drop(id);
      known = undefined;
    }
    if (known === undefined) {
      const exchange = made ?? this.#make(id, { declaration, owner, before });
      this.#known.set(id, { exchange, state: { stopped, lastError } });
      this.#loops.changed();
      if (stopped !== true) exchange.start();
      return;
    }
    const was = known.state.stopped === true;
    known.state = { stopped, lastError };
    if (stopped === true && !was) this.#end(known.exchange);
    else if (stopped !== true && was) known.exchange.start();
  }

  /** Stops and forgets an exchange. */
  drop(id: string): void {
    const known = this.#known.get(id);
    if (known === undefined) return;
    this.#known.delete(id);
    this.#loops.changed();
    this.#end(known.exchange);
  }

  /** Makes and changes none any more: the node stops. */
  close(): void {
    this.#closed = true;
  }

  /** Drops all. Resolves when no loop runs any more. */
  async stop(): Promise<void> {
    for (const id of this.ids()) this.drop(id);
    await Promise.all(this.#stopping);
  }

  #end(exchange: Exchange): void {
    const stopping = exchange.stop();
    this.#stopping.add(stopping);
    void stopping.finally(() => this.#stopping.delete(stopping));
  }
}

function isSame(
  exchange: Exchange,
  { declaration, owner }: Pick<StoredExchange, 'declaration' | 'owner'>,
): boolean {
  return exchange.owner === owner && sameDeclaration(exchange.declaration, declaration);
}

export function notFound(id: string): QuaysideError {
  return new QuaysideError('exchange-not-found', `no such exchange [${idOf(id)}]`, {
    extra: { id: idOf(id) },
  });
}
