/** Observations counted in buckets, as plain numbers: cheap to add to, and read when metrics are asked for. */
export class Histogram {
  /** Upper bounds of the buckets, ascending; what is above the last one is only in `count` and `sum`. */
  readonly bounds: readonly number[];
  /** `counts[i]` observations are at most `bounds[i]` and above the bound before. */
  readonly counts: number[];
  sum = 0;
  count = 0;

  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.counts = bounds.map(() => 0);
  }

  observe(value: number): void {
    const { bounds, counts } = this;
    this.sum += value;
    this.count += 1;
    let bucket = 0;
    while (value > (bounds[bucket] ?? Number.POSITIVE_INFINITY)) bucket += 1;
    if (bucket < counts.length) counts[bucket] = (counts[bucket] ?? 0) + 1;
  }

  /** Adds what another histogram with the same bounds has. */
  add(other: Histogram): void {
    this.sum += other.sum;
    this.count += other.count;
    for (const [i, count] of other.counts.entries()) this.counts[i] = (this.counts[i] ?? 0) + count;
  }
}
