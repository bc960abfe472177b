import { idOf } from '../exchange/declaration.ts';
import type { Exchanges } from '../exchange/exchanges.ts';
import type { DestinationCounters, ExchangeOverview } from '../exchange/record.ts';
import type { Family, MetricSample } from './family.ts';

/** Exchanges with series of their own, by id: see `QUEUES_SHOWN`. */
const EXCHANGES_SHOWN = 200;

const NOTHING: Readonly<DestinationCounters> = { matched: 0, skipped: 0, failed: 0 };

/**
 * What the exchanges of this node did since it started them. Each is about its source's namespace, as `GET /x` does,
 * and of a destination's if it names that.
 */
export function exchangeFamilies(exchanges: Pick<Exchanges, 'overview'>): Family[] {
  const all = exchanges.overview();
  const shown = all.slice(0, EXCHANGES_SHOWN);
  return [
    gauge(
      'quayside_exchanges',
      'Exchanges on this node, by the namespace of their source.',
      [...Map.groupBy(all, ({ declaration }) => declaration.src.ns)].map(([namespace, own]) => ({
        labels: { namespace },
        value: own.length,
        namespaces: [namespace],
      })),
    ),
    gauge(
      'quayside_exchange_stopped',
      `Whether an exchange is stopped, for the first ${EXCHANGES_SHOWN}.`,
      shown.map((exchange) => sample(exchange, {}, exchange.stopped ? 1 : 0)),
    ),
    counter(
      'quayside_exchange_copies_total',
      'Elements by exchange, destination and what became of them there: matched, skipped, failed.',
      shown.flatMap(destinationSamples),
    ),
    counter(
      'quayside_exchange_strays_total',
      'Elements that no destination got: no_route, too_many_hops, or put_back for a later try.',
      shown.flatMap(straySamples),
    ),
    counter(
      'quayside_exchange_selector_seconds_total',
      'Time in which an exchange waited for its selectors.',
      shown.map((exchange) => sample(exchange, {}, exchange.counters.totals.selectorMs / 1000)),
    ),
  ];
}

/** Destinations with the same queue, each with a selector of its own, are one series. */
function destinationSamples(exchange: ExchangeOverview): MetricSample[] {
  const sums = new Map<string, DestinationCounters & { readonly ns: string }>();
  for (const [i, { ns, queue }] of exchange.declaration.dst.entries()) {
    const own = exchange.counters.destinations[i] ?? NOTHING;
    const sum = sums.get(`${ns}/${queue}`) ?? NOTHING;
    sums.set(`${ns}/${queue}`, {
      ns,
      matched: sum.matched + own.matched,
      skipped: sum.skipped + own.skipped,
      failed: sum.failed + own.failed,
    });
  }
  return [...sums].flatMap(([destination, { ns, matched, skipped, failed }]) =>
    Object.entries({ matched, skipped, failed }).map(([outcome, value]) =>
      sample(exchange, { destination, outcome }, value, [ns]),
    ),
  );
}

function straySamples(exchange: ExchangeOverview): MetricSample[] {
  const { noRoute, tooManyHops, requeued } = exchange.counters.totals;
  return Object.entries({ no_route: noRoute, too_many_hops: tooManyHops, put_back: requeued }).map(
    ([outcome, value]) => sample(exchange, { outcome }, value),
  );
}

/** @param namespaces that it is about in addition to the source's */
function sample(
  { id, declaration }: ExchangeOverview,
  more: MetricSample['labels'],
  value: number,
  namespaces: readonly string[] = [],
): MetricSample {
  // Two namespaces may have exchanges of one id.
  const labels = { exchange: idOf(id), namespace: declaration.src.ns, ...more };
  return { labels, value, namespaces: [declaration.src.ns, ...namespaces] };
}

function gauge(name: string, help: string, samples: readonly MetricSample[]): Family {
  return { name, help, type: 'gauge', samples };
}

function counter(name: string, help: string, samples: readonly MetricSample[]): Family {
  return { name, help, type: 'counter', samples };
}
