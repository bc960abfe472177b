import type { Histogram } from '../util/histogram.ts';

/** One metric with its samples, as plain numbers read at the moment of the scrape. */
export interface Family {
  readonly name: string;
  readonly help: string;
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly samples: readonly MetricSample[];
}

export interface MetricSample {
  readonly labels: Readonly<Record<string, string | number>>;
  readonly value: number;
  /** Of one series of a histogram: `_bucket`, `_sum`, `_count` behind the family's name. */
  readonly metricName?: string;
  /** The namespaces that it is about: shown only to viewers who may see all of them. Not given: shown to all. */
  readonly namespaces?: readonly string[];
  /** Whether it takes the right `read` in these, as for queues, whose names and sizes a writer does not see elsewhere. */
  readonly needsRead?: true;
}

/** Who reads the metrics: a user, or everybody if they are open. */
export interface Viewer {
  may(right: 'read', namespace: string): boolean;
  maySee(namespace: string): boolean;
}

/**
 * The Prometheus text of what the viewer may see of families. The library keeps the format; the numbers are
 * kept by who counts them. It is loaded by the first scrape: with its own dependencies it would be a tenth of
 * the start.
 */
export async function exposition(families: readonly Family[], viewer: Viewer): Promise<string> {
  const { Registry } = await import('@prometheus-io/client');
  const collected = families.map(({ samples, ...family }) => ({
    ...family,
    values: samples.filter(({ namespaces = [], needsRead }) =>
      namespaces.every((name) => (needsRead ? viewer.may('read', name) : viewer.maySee(name))),
    ),
    aggregator: 'first',
  }));
  return Registry.aggregate([collected]).metrics();
}

/** A family of one sample without labels. */
export function scalar(type: 'counter' | 'gauge', name: string, help: string, value: number): Family {
  return { name, help, type, samples: [{ labels: {}, value }] };
}

/** A histogram for each operation. Buckets are kept apart and shown added up, as the format wants them. */
export function histogram(name: string, help: string, byOperation: ReadonlyMap<string, Histogram>): Family {
  return {
    name,
    help,
    type: 'histogram',
    samples: [...byOperation].flatMap(([operation, own]) => histogramSamples(name, operation, own)),
  };
}

function histogramSamples(
  name: string,
  operation: string,
  { bounds, counts, sum, count }: Histogram,
): MetricSample[] {
  let upTo = 0;
  const buckets = bounds.map((le, i) => {
    upTo += counts[i] ?? 0;
    return { metricName: `${name}_bucket`, labels: { operation, le }, value: upTo };
  });
  return [
    ...buckets,
    { metricName: `${name}_bucket`, labels: { operation, le: '+Inf' }, value: count },
    { metricName: `${name}_sum`, labels: { operation }, value: sum },
    { metricName: `${name}_count`, labels: { operation }, value: count },
  ];
}
