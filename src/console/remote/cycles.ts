import type { ExchangePicture } from '../../model/records.ts';

/** Queues and exchanges that lead to each other, so that an element may return to its queue. */
export interface Cycle {
  /** Keys of places, as in {@link placesOfExchange}. */
  readonly places: ReadonlySet<string>;
  /** The names along a shortest path from a queue back to itself. */
  readonly way: readonly string[];
}

interface CyclePlace {
  readonly key: string;
  readonly name: string;
}

/** Returns the queues that an exchange connects. Destinations that the user may not see are left out. */
export function placesOfExchange({ id, src, dst }: Pick<ExchangePicture, 'id' | 'src' | 'dst'>): {
  readonly source: CyclePlace;
  readonly exchange: CyclePlace;
  readonly destinations: readonly (CyclePlace & { readonly ns: string; readonly at: number })[];
} {
  const queue = ({ ns, q }: { readonly ns: string; readonly q: string }): CyclePlace => ({
    key: JSON.stringify([ns, q]),
    name: q,
  });
  return {
    source: queue(src),
    exchange: { key: `exchange ${id}`, name: id },
    destinations: dst.flatMap((one, at) => (one.hidden === true ? [] : [{ ...queue(one), ns: one.ns, at }])),
  };
}

/** Returns the cycles of exchanges. Cycles that share a queue or an exchange are returned as one. */
export function cyclesOf(all: Iterable<Pick<ExchangePicture, 'id' | 'src' | 'dst'>>): readonly Cycle[] {
  const names = new Map<string, string>();
  const after = new Map<string, string[]>();
  const before = new Map<string, string[]>();
  const connect = (from: CyclePlace, to: CyclePlace): void => {
    for (const { key, name } of [from, to]) names.set(key, name);
    append(after, from.key, to.key);
    append(before, to.key, from.key);
  };
  for (const picture of all) {
    const { source, exchange, destinations } = placesOfExchange(picture);
    connect(source, exchange);
    for (const destination of destinations) connect(exchange, destination);
  }
  return groupsOf(names.keys(), after, before).map((places) => ({
    places,
    way: shortestCycle(places, after).map((key) => names.get(key) ?? key),
  }));
}

function append(lists: Map<string, string[]>, key: string, value: string): void {
  const list = lists.get(key);
  if (list === undefined) lists.set(key, [value]);
  else list.push(value);
}

/** Strongly connected components with more than one place, by Kosaraju's algorithm. */
function groupsOf(
  keys: Iterable<string>,
  after: ReadonlyMap<string, readonly string[]>,
  before: ReadonlyMap<string, readonly string[]>,
): Set<string>[] {
  const postOrder: string[] = [];
  const seen = new Set<string>();
  for (const key of keys) postOrder.push(...walk(key, after, seen));
  const groups: Set<string>[] = [];
  const grouped = new Set<string>();
  for (const key of postOrder.reverse()) {
    const group = new Set(walk(key, before, grouped));
    // A cycle has at least two places: a queue and an exchange.
    if (group.size > 1) groups.push(group);
  }
  return groups;
}

/** Depth-first search: returns the unseen places in reach, in post-order. Not recursive: chains may be long. */
function walk(
  start: string,
  next: ReadonlyMap<string, readonly string[]>,
  seen: Set<string>,
): readonly string[] {
  if (seen.has(start)) return [];
  seen.add(start);
  const postOrder: string[] = [];
  const path = [{ key: start, at: 0 }];
  for (let here = path.at(-1); here !== undefined; here = path.at(-1)) {
    const to = next.get(here.key)?.[here.at];
    here.at += 1;
    if (to === undefined) {
      postOrder.push(here.key);
      path.pop();
    } else if (!seen.has(to)) {
      seen.add(to);
      path.push({ key: to, at: 0 });
    }
  }
  return postOrder;
}

/** Returns a shortest path from the first queue of a component back to it. */
function shortestCycle(group: ReadonlySet<string>, after: ReadonlyMap<string, readonly string[]>): string[] {
  const start = [...group].filter((key) => !key.startsWith('exchange ')).sort()[0] ?? '';
  const cameFrom = new Map<string, string>();
  const waiting = [start];
  for (const here of waiting) {
    for (const to of after.get(here) ?? []) {
      if (!group.has(to) || cameFrom.has(to)) continue;
      cameFrom.set(to, here);
      waiting.push(to);
    }
    if (cameFrom.has(start)) break;
  }
  const way = [start];
  for (let at = cameFrom.get(start) ?? start; at !== start; at = cameFrom.get(at) ?? start) way.push(at);
  return [...way, start].reverse();
}
