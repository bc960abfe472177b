import type { Declaration, QueueName } from './declaration.ts';

/** A declared exchange, as an edge from its source to its destinations. */
export interface Edge {
  readonly id: string;
  readonly declaration: Declaration;
}

/**
 * The loops that an exchange is part of: each as the exchange ids that an element would pass, beginning and
 * ending with `id`. Selectors may break a loop, so it is named and not refused. One shortest loop per
 * destination is enough to find them all by hand, and keeps the search linear in the graph.
 */
export function loopsThrough(id: string, edges: readonly Edge[]): string[][] {
  const start = edges.find((edge) => edge.id === id);
  if (start === undefined) return [];
  const bySource = Map.groupBy(edges, (edge) => keyOf(edge.declaration.src));
  const loops: string[][] = [];
  for (const destination of distinct(start.declaration.dst.map(keyOf))) {
    const back = shortestPath(destination, keyOf(start.declaration.src), bySource);
    if (back !== null) loops.push([id, ...back, id]);
  }
  return loops;
}

/** Exchange ids on a shortest way between two queues: empty when they are the same one, null for no way. */
function shortestPath(
  from: string,
  to: string,
  bySource: ReadonlyMap<string, readonly Edge[]>,
): string[] | null {
  const reached = new Map<string, { readonly via: string; readonly from: string } | null>([[from, null]]);
  const frontier = [from];
  for (let queue = frontier.shift(); queue !== undefined; queue = frontier.shift()) {
    if (queue === to) return pathTo(queue, reached);
    for (const { id, declaration } of bySource.get(queue) ?? []) {
      for (const next of declaration.dst.map(keyOf)) {
        if (reached.has(next)) continue;
        reached.set(next, { via: id, from: queue });
        frontier.push(next);
      }
    }
  }
  return null;
}

function pathTo(
  end: string,
  reached: ReadonlyMap<string, { readonly via: string; readonly from: string } | null>,
): string[] {
  const path: string[] = [];
  for (let step = reached.get(end); step !== undefined && step !== null; step = reached.get(step.from)) {
    path.unshift(step.via);
  }
  return path;
}

/** Names may hold any character, so the pair is written as JSON rather than joined. */
function keyOf({ ns, queue }: QueueName): string {
  return JSON.stringify([ns, queue]);
}

function distinct(keys: readonly string[]): string[] {
  return [...new Set(keys)];
}
