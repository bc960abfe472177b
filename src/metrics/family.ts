import { Registry } from '@prometheus-io/client';

/** One metric with its samples, as plain numbers read at the moment of the scrape. */
export interface Family {
  readonly name: string;
  readonly help: string;
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly samples: readonly Sample[];
}

export interface Sample {
  readonly labels: Readonly<Record<string, string | number>>;
  readonly value: number;
  /** Of one series of a histogram: `_bucket`, `_sum`, `_count` behind the family's name. */
  readonly metricName?: string;
}

export const METRICS_CONTENT_TYPE = Registry.PROMETHEUS_CONTENT_TYPE;

/** The Prometheus text of families. The library keeps the format; the numbers are kept by who counts them. */
export function exposition(families: readonly Family[]): Promise<string> {
  const collected = families.map(({ samples, ...family }) => ({
    ...family,
    values: samples,
    aggregator: 'first',
  }));
  return Registry.aggregate([collected]).metrics();
}

/** A family of one sample without labels. */
export function scalar(type: 'counter' | 'gauge', name: string, help: string, value: number): Family {
  return { name, help, type, samples: [{ labels: {}, value }] };
}
