/** Calls `map` for each item, `batchSize` at a time; other work is done between two batches. Results are in order. */
export async function mapInBatches<T, R>(
  items: readonly T[],
  batchSize: number,
  map: (item: T) => Promise<R>,
): Promise<R[]> {
  const results: R[] = [];
  for (let from = 0; from < items.length; from += batchSize) {
    results.push(...(await Promise.all(items.slice(from, from + batchSize).map(map))));
  }
  return results;
}
