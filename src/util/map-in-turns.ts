import { setImmediate as turn } from 'node:timers/promises';

/** Calls `map` for each item, one after the other. Lets other work run after every `perTurn` items. */
export async function mapInTurns<T, R>(
  items: Iterable<T>,
  perTurn: number,
  map: (item: T) => R,
): Promise<Awaited<R>[]> {
  const results: Awaited<R>[] = [];
  for (const item of items) {
    results.push(await map(item));
    if (results.length % perTurn === 0) await turn();
  }
  return results;
}
