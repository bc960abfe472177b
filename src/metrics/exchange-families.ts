import type { Exchanges } from '../exchange/exchanges.ts';
import type { ExchangeRecord } from '../exchange/record.ts';
import type { Family, Sample } from './family.ts';

/** Exchanges with series of their own, by id: see `QUEUES_SHOWN`. */
export const EXCHANGES_SHOWN = 200;

/** What the exchanges of this node did since it started them. */
export function exchangeFamilies(exchanges: Pick<Exchanges, 'list'>): Family[] {
  const all = exchanges.list();
  const shown = all.slice(0, EXCHANGES_SHOWN);
  return [
    gauge('quayside_exchanges', 'Exchanges on this node.', [{ labels: {}, value: all.length }]),
    gauge(
      'quayside_exchange_stopped',
      `Whether an exchange is stopped, for the first ${EXCHANGES_SHOWN}.`,
      shown.map(([exchange, { stopped }]) => ({ labels: { exchange }, value: stopped === true ? 1 : 0 })),
    ),
    counter(
      'quayside_exchange_copies_total',
      'Elements by exchange, destination and what its selector said: matched, skipped, failed.',
      shown.flatMap(destinationSamples),
    ),
    counter(
      'quayside_exchange_strays_total',
      'Elements that no destination got: no_route, too_many_hops, or put_back for a later try.',
      shown.flatMap(([exchange, { stats }]) =>
        (['no_route', 'too_many_hops', 'put_back'] as const).map((outcome) => ({
          labels: { exchange, outcome },
          value: stats[outcome],
        })),
      ),
    ),
    counter(
      'quayside_exchange_selector_seconds_total',
      'Time in which an exchange waited for its selectors.',
      shown.map(([exchange, { stats }]) => ({ labels: { exchange }, value: stats.selector_ms / 1000 })),
    ),
  ];
}

function destinationSamples([exchange, { dst, stats }]: [string, ExchangeRecord]): Sample[] {
  return dst.flatMap(({ ns, q }, i) =>
    Object.entries(stats.dst[i] ?? {}).map(([outcome, value]) => ({
      labels: { exchange, destination: `${ns}/${q}`, outcome },
      value: value as number,
    })),
  );
}

function gauge(name: string, help: string, samples: readonly Sample[]): Family {
  return { name, help, type: 'gauge', samples };
}

function counter(name: string, help: string, samples: readonly Sample[]): Family {
  return { name, help, type: 'counter', samples };
}
