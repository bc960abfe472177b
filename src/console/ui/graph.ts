import { Graph, layout } from '@dagrejs/dagre';

/** Size of a place, in pixels. */
export const PLACE_WIDTH = 168;
export const PLACE_HEIGHT = 44;

/** A place of the graph of exchanges: a queue, whose key begins with `queue `, or an exchange. */
interface GraphPlace {
  readonly key: string;
  readonly label: string;
  readonly kind: 'queue' | 'exchange';
  readonly href: string;
  readonly isBad: boolean;
  readonly note: string;
}

interface GraphEdge {
  readonly key: string;
  readonly from: string;
  readonly to: string;
  readonly label: string;
}

/** Exchanges, the queues that they connect, and the ways between. */
export interface GraphContent {
  readonly places: readonly GraphPlace[];
  readonly edges: readonly GraphEdge[];
}

interface GraphPoint {
  readonly x: number;
  readonly y: number;
}

/** Where an edge runs, and the point of its label. */
interface EdgeLine extends GraphPoint {
  readonly points: readonly GraphPoint[];
}

/** The positions of places and edges by their keys, in pixels. */
interface GraphLayout {
  readonly width: number;
  readonly height: number;
  readonly places: ReadonlyMap<string, GraphPoint>;
  readonly edges: ReadonlyMap<string, EdgeLine>;
}

export function layOut({ places, edges }: GraphContent): GraphLayout {
  const graph = new Graph({ multigraph: true });
  graph.setGraph({ rankdir: 'LR', nodesep: 22, ranksep: 84, marginx: 12, marginy: 12 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { key } of places) graph.setNode(key, { width: PLACE_WIDTH, height: PLACE_HEIGHT });
  for (const { key, from, to } of edges) {
    graph.setEdge(from, to, { width: 40, height: 14, labelpos: 'c' }, key);
  }
  layout(graph);
  const { width = 0, height = 0 } = graph.graph() as { width?: number; height?: number };
  const placed = new Map(places.map(({ key }) => [key, graph.node(key) as GraphPoint]));
  const lines = edges.map(({ key, from, to }): [string, EdgeLine] => {
    const { points, x, y } = graph.edge(from, to, key) as EdgeLine;
    // From the middle of its place, which covers it: a round corner would leave a gap.
    return [key, { points: [placed.get(from) ?? { x, y }, ...points.slice(1)], x, y }];
  });
  return { width, height, places: placed, edges: new Map(lines) };
}

/** Queues and exchanges that lead to each other, so that an element may return to its queue. */
export interface Cycle {
  /** Keys of places. */
  readonly places: ReadonlySet<string>;
  /** The names along a shortest path from a queue back to itself. */
  readonly way: readonly string[];
}

/** The places before or after each place. */
type Neighbours = ReadonlyMap<string, string[]>;

/** Returns the cycles of exchanges. Cycles that share a queue or an exchange are returned as one. */
export function cyclesOf({ places, edges }: GraphContent): readonly Cycle[] {
  const names = new Map(places.map(({ key, label }) => [key, label]));
  const after: Neighbours = new Map(places.map(({ key }) => [key, []]));
  const before: Neighbours = new Map(places.map(({ key }) => [key, []]));
  for (const { from, to } of edges) {
    after.get(from)?.push(to);
    before.get(to)?.push(from);
  }
  return groupsOf(after, before).map((group) => ({
    places: group,
    way: shortestCycle(group, after).map((key) => names.get(key) ?? key),
  }));
}

/** Strongly connected components with more than one place, by Kosaraju's algorithm. */
function groupsOf(after: Neighbours, before: Neighbours): readonly ReadonlySet<string>[] {
  const postOrder: string[] = [];
  const seen = new Set<string>();
  for (const key of after.keys()) for (const one of walk(key, after, seen)) postOrder.push(one);
  const groups: ReadonlySet<string>[] = [];
  const grouped = new Set<string>();
  for (const key of postOrder.reverse()) {
    const group = new Set(walk(key, before, grouped));
    // A cycle has at least two places: a queue and an exchange.
    if (group.size > 1) groups.push(group);
  }
  return groups;
}

/** Depth-first search: returns the unseen places in reach, in post-order. Not recursive: chains may be long. */
function walk(start: string, next: Neighbours, seen: Set<string>): readonly string[] {
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
function shortestCycle(group: ReadonlySet<string>, after: Neighbours): readonly string[] {
  const start = [...group].filter((key) => key.startsWith('queue ')).sort()[0] ?? '';
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
