import { Graph, layout } from '@dagrejs/dagre';
import { PLACE_HEIGHT, PLACE_WIDTH } from './graph-size.ts';

/** A place of the graph of exchanges: a queue, or an exchange. */
export interface GraphPlace {
  readonly key: string;
  readonly label: string;
  readonly kind: 'queue' | 'exchange';
  readonly href: string;
  readonly isBad: boolean;
  readonly note: string;
}

export interface GraphEdge {
  readonly from: string;
  readonly to: string;
  readonly label: string;
  readonly isInCycle: boolean;
}

/** The drawing of places and edges, in pixels. */
export interface GraphDrawing {
  readonly width: number;
  readonly height: number;
  readonly places: readonly (GraphPlace & { readonly x: number; readonly y: number })[];
  readonly edges: readonly (GraphEdge & {
    readonly points: readonly { readonly x: number; readonly y: number }[];
    readonly x: number;
    readonly y: number;
  })[];
}

/** The positions of places and edges, in the given order. */
interface GraphLayout {
  readonly width: number;
  readonly height: number;
  readonly places: readonly { readonly x: number; readonly y: number }[];
  readonly edges: readonly {
    readonly points: readonly { readonly x: number; readonly y: number }[];
    readonly x: number;
    readonly y: number;
  }[];
}

/**
 * The last layout, and the shape that it was computed for. Counts change twice a second, and a layout of 60 exchanges
 * takes a tenth of a second.
 */
let latest: { readonly shape: string; readonly layout: GraphLayout } | null = null;

export function drawGraph(places: readonly GraphPlace[], edges: readonly GraphEdge[]): GraphDrawing {
  const shape = JSON.stringify([places.map(({ key }) => key), edges.map(({ from, to }) => [from, to])]);
  if (latest?.shape !== shape) latest = { shape, layout: layOut(places, edges) };
  const { layout: found } = latest;
  return {
    ...found,
    places: places.map((place, at) => ({ ...place, ...(found.places[at] ?? { x: 0, y: 0 }) })),
    edges: edges.map((edge, at) => ({ ...edge, ...(found.edges[at] ?? { points: [], x: 0, y: 0 }) })),
  };
}

function layOut(places: readonly GraphPlace[], edges: readonly GraphEdge[]): GraphLayout {
  const graph = new Graph({ multigraph: true });
  graph.setGraph({ rankdir: 'LR', nodesep: 22, ranksep: 84, marginx: 12, marginy: 12 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { key } of places) graph.setNode(key, { width: PLACE_WIDTH, height: PLACE_HEIGHT });
  for (const [at, { from, to }] of edges.entries()) {
    graph.setEdge(from, to, { width: 40, height: 14, labelpos: 'c' }, String(at));
  }
  layout(graph);
  const size = graph.graph() as { width?: number; height?: number };
  return {
    width: size.width ?? 0,
    height: size.height ?? 0,
    places: places.map(({ key }) => {
      const { x, y } = graph.node(key) as { x: number; y: number };
      return { x, y };
    }),
    edges: edges.map(({ from, to }, at) => {
      const { points, x, y } = graph.edge(from, to, String(at)) as {
        points: { x: number; y: number }[];
        x?: number;
        y?: number;
      };
      // From the middle of its place, which covers it: a round corner would leave a gap.
      const start = graph.node(from) as { x: number; y: number };
      return { points: [start, ...points.slice(1)], x: x ?? 0, y: y ?? 0 };
    }),
  };
}
