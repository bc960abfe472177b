/** Counts observations in buckets, as plain numbers: cheap to update, and read only when metrics are scraped. */
export class Histogram {
  /** Upper bounds of the buckets, ascending; observations above the last one are only in `count` and `sum`. */
  readonly bounds: readonly number[];
  /** `counts[i]` is the number of observations above `bounds[i - 1]` and at most `bounds[i]`. */
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

  /** Adds the observations of another histogram, which must have the same bounds. */
  add(other: Histogram): void {
    this.sum += other.sum;
    this.count += other.count;
    for (const [i, count] of other.counts.entries()) this.counts[i] = (this.counts[i] ?? 0) + count;
  }
}
