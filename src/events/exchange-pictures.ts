import type { Exchanges } from '../exchange/exchanges.ts';
import type { ExchangeOverview } from '../exchange/record.ts';
import { idsOf } from '../exchange/stored.ts';
import type { EventViewer, Picture, PictureSource } from './picture.ts';

/**
 * Exchanges, as far as their record shows them to a viewer. One with a destination that somebody may not see has two
 * pictures, so that what happens at that destination does not even show as an update.
 */
export class ExchangePictures implements PictureSource {
  readonly kind = 'exchanges';
  readonly #exchanges: Pick<Exchanges, 'overview'>;

  constructor(exchanges: Pick<Exchanges, 'overview'>) {
    this.#exchanges = exchanges;
  }

  *read(): Generator<Picture> {
    const all = this.#exchanges.overview();
    const ids = new ShownIds(all);
    for (const one of all) {
      yield whole(one, ids);
      yield part(one, ids);
    }
  }
}

/** For those who may see the source and each destination. */
function whole(exchange: ExchangeOverview, ids: ShownIds): Picture {
  const { declaration, counters } = exchange;
  const { src, dst } = declaration;
  const shown = {
    ...common(exchange),
    dst: dst.map(({ ns, queue }) => ({ q: queue, ns })),
    stats: { ...totals(exchange), dst: counters.destinations },
  };
  return {
    ...pictureOf(exchange, ids, shown),
    key: `whole ${exchange.id}`,
    isFor: (viewer) => viewer.maySee(src.ns) && dst.every(({ ns }) => viewer.maySee(ns)),
  };
}

/** For those who may see the source, but not all destinations. */
function part(exchange: ExchangeOverview, ids: ShownIds): Picture {
  const { declaration } = exchange;
  const { src, dst } = declaration;
  const shown = { ...common(exchange), stats: totals(exchange) };
  const picture = pictureOf(exchange, ids, shown);
  return {
    ...picture,
    key: `part ${exchange.id}`,
    // The namespaces decide whose picture it is.
    state: picture.state + JSON.stringify(dst.map(({ ns, queue }) => [ns, queue])),
    isFor: (viewer) => viewer.maySee(src.ns) && !dst.every(({ ns }) => viewer.maySee(ns)),
    json: (viewer) =>
      JSON.stringify({
        id: ids.of(exchange, viewer),
        ...shown,
        dst: dst.map(({ ns, queue }) =>
          viewer.maySee(ns) ? { q: queue, ns } : { q: '', ns: '', hidden: true },
        ),
      }),
  };
}

function pictureOf(exchange: ExchangeOverview, ids: ShownIds, shown: object): Omit<Picture, 'key' | 'isFor'> {
  const { src, dst } = exchange.declaration;
  return {
    kind: 'exchanges',
    places: [src, ...dst].map(({ ns, queue }) => ({ ns, queue })),
    state: JSON.stringify(shown),
    json: (viewer) => JSON.stringify({ id: ids.of(exchange, viewer), ...shown }),
    goneJson: (viewer) => JSON.stringify({ id: ids.of(exchange, viewer), gone: true }),
  };
}

function common({ declaration: { src }, stopped, lastError }: ExchangeOverview): object {
  return { src: { q: src.queue, ns: src.ns }, stopped, lastError };
}

/** What happened at no destination. */
function totals({ counters: { totals: own } }: ExchangeOverview): object {
  return { no_route: own.noRoute, too_many_hops: own.tooManyHops, put_back: own.requeued };
}

/** The ids under which viewers know exchanges: another one of the same id may be hidden from them, or not. */
class ShownIds {
  readonly #all: readonly ExchangeOverview[];
  readonly #ofViewer = new WeakMap<EventViewer, ReadonlyMap<string, string>>();

  constructor(all: readonly ExchangeOverview[]) {
    this.#all = all;
  }

  of({ id: key }: ExchangeOverview, viewer: EventViewer): string {
    let ids = this.#ofViewer.get(viewer);
    if (ids === undefined) {
      const visible = this.#all.filter(({ declaration }) => viewer.maySee(declaration.src.ns));
      ids = new Map([...idsOf(visible.map((one) => one.id))].map(([id, own]) => [own, id]));
      this.#ofViewer.set(viewer, ids);
    }
    return ids.get(key) ?? key;
  }
}
