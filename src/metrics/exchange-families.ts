import type { DestinationCounters } from '../exchange/counters.ts';
import type { ExchangeOverview, Exchanges } from '../exchange/exchanges.ts';
import type { Family, Sample } from './family.ts';

/** Exchanges with series of their own, by id: see `QUEUES_SHOWN`. */
export const EXCHANGES_SHOWN = 200;

const NOTHING: Readonly<DestinationCounters> = { matched: 0, skipped: 0, failed: 0 };

/** What the exchanges of this node did since it started them. */
export function exchangeFamilies(exchanges: Pick<Exchanges, 'overview'>): Family[] {
  const all = exchanges.overview();
  const shown = all.slice(0, EXCHANGES_SHOWN);
  return [
    gauge('quayside_exchanges', 'Exchanges on this node.', [{ labels: {}, value: all.length }]),
    gauge(
      'quayside_exchange_stopped',
      `Whether an exchange is stopped, for the first ${EXCHANGES_SHOWN}.`,
      shown.map(({ id, stopped }) => ({ labels: { exchange: id }, value: stopped ? 1 : 0 })),
    ),
    counter(
      'quayside_exchange_copies_total',
      'Elements by exchange, destination and what its selector said: matched, skipped, failed.',
      shown.flatMap(destinationSamples),
    ),
    counter(
      'quayside_exchange_strays_total',
      'Elements that no destination got: no_route, too_many_hops, or put_back for a later try.',
      shown.flatMap(({ id, counters: { noRoute, tooManyHops, putBack } }) =>
        Object.entries({ no_route: noRoute, too_many_hops: tooManyHops, put_back: putBack }).map(
          ([outcome, value]) => ({ labels: { exchange: id, outcome }, value }),
        ),
      ),
    ),
    counter(
      'quayside_exchange_selector_seconds_total',
      'Time in which an exchange waited for its selectors.',
      shown.map(({ id, counters }) => ({ labels: { exchange: id }, value: counters.selectorMs / 1000 })),
    ),
  ];
}

/** Destinations with the same queue, each with a selector of its own, are one series. */
function destinationSamples({ id, declaration, counters }: ExchangeOverview): Sample[] {
  const sums = new Map<string, DestinationCounters>();
  for (const [i, { ns, queue }] of declaration.dst.entries()) {
    const own = counters.destinations[i] ?? NOTHING;
    const sum = sums.get(`${ns}/${queue}`) ?? NOTHING;
    sums.set(`${ns}/${queue}`, {
      matched: sum.matched + own.matched,
      skipped: sum.skipped + own.skipped,
      failed: sum.failed + own.failed,
    });
  }
  return [...sums].flatMap(([destination, { matched, skipped, failed }]) =>
    Object.entries({ matched, skipped, failed }).map(([outcome, value]) => ({
      labels: { exchange: id, destination, outcome },
      value,
    })),
  );
}

function gauge(name: string, help: string, samples: readonly Sample[]): Family {
  return { name, help, type: 'gauge', samples };
}

function counter(name: string, help: string, samples: readonly Sample[]): Family {
  return { name, help, type: 'counter', samples };
}
