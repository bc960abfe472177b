import type { Asker } from './asker.ts';
import { type Edge, ExchangeGraph } from './graph.ts';

/** Graphs that are kept: one for each set of namespaces that users see, and users see few different ones. */
const MOST_VIEWS = 8;

/**
 * The graphs of the declared exchanges, one for each set of namespaces that somebody may see: loops that pass through
 * others are not theirs to know. Each is made when it is first asked for, and kept until a declaration changes.
 */
export class Loops {
  readonly #declared: () => readonly Edge[];
  readonly #views = new Map<string, ExchangeGraph>();
  #whole: ExchangeGraph | null = null;
  #edges: readonly Edge[] | null = null;
  #namespaces: readonly string[] = [];

  constructor(declared: () => readonly Edge[]) {
    this.#declared = declared;
  }

  /** To be called when an exchange came, went, or has another declaration. */
  changed(): void {
    this.#edges = null;
    this.#views.clear();
    this.#whole = null;
  }

  /** The graph of all exchanges. */
  whole(): ExchangeGraph {
    this.#whole ??= new ExchangeGraph(this.#read());
    return this.#whole;
  }

  /** The graph as the asker may know it. */
  graph(asker: Asker): ExchangeGraph {
    const edges = this.#read();
    const seen = this.#namespaces.filter((namespace) => asker.maySee(namespace));
    const key = JSON.stringify(seen);
    const known = this.#views.get(key);
    if (known !== undefined) return known;
    const isSeen = new Set(seen);
    const graph = new ExchangeGraph(edges.filter(({ declaration }) => isSeen.has(declaration.src.ns)));
    const [oldest] = this.#views.keys();
    if (this.#views.size === MOST_VIEWS && oldest !== undefined) this.#views.delete(oldest);
    this.#views.set(key, graph);
    return graph;
  }

  #read(): readonly Edge[] {
    if (this.#edges === null) {
      this.#edges = this.#declared();
      this.#namespaces = [...new Set(this.#edges.map(({ declaration }) => declaration.src.ns))].sort();
    }
    return this.#edges;
  }
}
