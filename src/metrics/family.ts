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
  /** What it tells of: only those who may see all of these see it. Not given: everybody does. */
  readonly namespaces?: readonly string[];
}

/** Whether the viewer may know of a namespace. */
export type MaySee = (namespace: string) => boolean;

/**
 * The Prometheus text of what the viewer may see of families. The library keeps the format; the numbers are
 * kept by who counts them. It is loaded by the first scrape: with its own dependencies it would be a tenth of
 * the start.
 */
export async function exposition(families: readonly Family[], maySee: MaySee): Promise<string> {
  const { Registry } = await import('@prometheus-io/client');
  const collected = families.map(({ samples, ...family }) => ({
    ...family,
    values: samples.filter(({ namespaces = [] }) => namespaces.every(maySee)),
    aggregator: 'first',
  }));
  return Registry.aggregate([collected]).metrics();
}

/** A family of one sample without labels. */
export function scalar(type: 'counter' | 'gauge', name: string, help: string, value: number): Family {
  return { name, help, type, samples: [{ labels: {}, value }] };
}
