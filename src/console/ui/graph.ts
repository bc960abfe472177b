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

/** A picture of places and the lines between them, in pixels. */
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

export function drawGraph(places: readonly GraphPlace[], edges: readonly GraphEdge[]): GraphDrawing {
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
    places: places.map((place) => {
      const { x, y } = graph.node(place.key) as { x: number; y: number };
      return { ...place, x, y };
    }),
    edges: edges.map((edge, at) => {
      const drawn = graph.edge(edge.from, edge.to, String(at)) as {
        points: { x: number; y: number }[];
        x?: number;
        y?: number;
      };
      return { ...edge, points: drawn.points, x: drawn.x ?? 0, y: drawn.y ?? 0 };
    }),
  };
}
