/**
 * Calls `map` for each item, for at most `limit` of them at a time, and for no more after a failure. Results are in
 * order.
 */
export async function mapConcurrently<T, R>(
  items: readonly T[],
  limit: number,
  map: (item: T) => Promise<R>,
): Promise<R[]> {
  const results = new Array<R>(items.length);
  // A generator, since a loop over it that fails ends it for the other loops as well.
  const rest = entriesOf(items);
  const mapRest = async (): Promise<void> => {
    for (const [index, item] of rest) results[index] = await map(item);
  };
  await Promise.all(Array.from({ length: Math.min(limit, items.length) }, mapRest));
  return results;
}

function* entriesOf<T>(items: readonly T[]): Generator<[number, T]> {
  yield* items.entries();
}
