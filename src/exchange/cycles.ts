import { NO_ROUTE, type Returning } from './copies.ts';
import type { Caller, Declaration, DeclaredQueue } from './declaration.ts';

/**
 * A declared exchange, as an edge from its source to its destinations. If it has a selector, it also leads to the queue
 * for elements that no destination accepted: an exchange that consumes those may bring them back.
 */
export interface Edge {
  readonly key: string;
  readonly declaration: Declaration;
}

/** Loops through an exchange, each as the ids of exchanges, for users. */
export type LoopIds = readonly (readonly string[])[];

/** Loops that are named of one exchange, at most. */
export const MAX_LOOPS = 10;
/** Exchanges of a loop that are named, at most; the loop is cut there. */
export const MAX_LOOP_LENGTH = 16;
/** Steps of one search for loops: a list of a thousand exchanges makes as many searches. */
const MAX_STEPS = 4_000;

/** The same as {@link Edge}, with queues and exchanges numbered. */
interface NumberedEdge {
  readonly key: string;
  readonly source: number;
  /** Where its elements can go, each once. */
  readonly destinations: readonly number[];
  /** In the order of the declaration. */
  readonly declared: readonly number[];
}

/**
 * The graph of declared exchanges. What is costly is done once, in time linear in the graph: which queues are in a loop
 * with each other. That alone decides whether an exchange is in a loop; naming its loops is a search of bounded cost
 * within these queues.
 */
export class ExchangeGraph {
  readonly #byKey = new Map<string, NumberedEdge>();
  /** Per queue, the exchanges that copy to it, in the order of their declaration. */
  readonly #into: NumberedEdge[][] = [];
  /** What `returning` found: each batch of an exchange needs it. */
  readonly #returning = new Map<string, Returning>();
  readonly #component: Int32Array;
  readonly #maxSteps: number;

  constructor(edges: readonly Edge[], maxSteps = MAX_STEPS) {
    this.#maxSteps = maxSteps;
    const numbers = new Map<string, Map<string, number>>();
    const successors: number[][] = [];
    const numberOf = ({ ns, queue }: DeclaredQueue): number => {
      const own = numbers.get(ns) ?? new Map<string, number>();
      if (own.size === 0) numbers.set(ns, own);
      let number = own.get(queue);
      if (number === undefined) {
        number = successors.length;
        own.set(queue, number);
        successors.push([]);
        this.#into.push([]);
      }
      return number;
    };
    for (const { key, declaration } of edges) {
      const source = numberOf(declaration.src);
      const declared = declaration.dst.map(numberOf);
      const hasSelector = declaration.dst.some(({ selector }) => selector !== undefined);
      const unroutable = hasSelector ? [numberOf({ ns: declaration.src.ns, queue: NO_ROUTE })] : [];
      const destinations = [...new Set([...declared, ...unroutable])];
      const edge = { key, source, destinations, declared };
      this.#byKey.set(key, edge);
      for (const destination of destinations) {
        successors[source]?.push(destination);
        this.#into[destination]?.push(edge);
      }
    }
    this.#component = componentsOf(successors);
  }

  /**
   * The loops that an exchange is part of, each as the keys of the exchanges that an element would pass, beginning and
   * ending with `key`. Selectors may break a loop, so it is named and not rejected. Named is a shortest loop for each
   * destination that an element can come back from, the shortest ones first, up to `MAX_LOOPS`.
   *
   * One of more than `MAX_LOOP_LENGTH` exchanges is cut after so many keys, and so does not end with `key`. If the
   * search ends before it found any, there is one, cut after the first key.
   */
  loopsThrough(key: string): readonly (readonly string[])[] {
    const edge = this.#byKey.get(key);
    return edge === undefined ? [] : this.#search(edge);
  }

  /** The graph as the caller may know it: loops that pass through other namespaces are not visible. */
  static visible(edges: readonly Edge[], caller: Caller): ExchangeGraph {
    const namespaces = new Set(edges.map(({ declaration }) => declaration.src.ns));
    const visible = new Set([...namespaces].filter((namespace) => caller.maySee(namespace)));
    return new ExchangeGraph(edges.filter(({ declaration }) => visible.has(declaration.src.ns)));
  }

  /** Per declared destination of an exchange, whether its source can be reached from it. Null: from none. */
  returning(key: string): Returning {
    const known = this.#returning.get(key);
    if (known !== undefined) return known;
    const { source, declared } = this.#byKey.get(key) ?? { source: -1, declared: [] };
    const each = declared.map((queue) => this.#component[queue] === this.#component[source]);
    const returning = each.includes(true) ? each : null;
    this.#returning.set(key, returning);
    return returning;
  }

  /** Goes from the source against the direction of the exchanges, until it has reached enough destinations. */
  #search(edge: NumberedEdge): string[][] {
    const { key, source } = edge;
    const component = this.#component[source];
    const wanted = new Set(edge.destinations.filter((queue) => this.#component[queue] === component));
    if (wanted.size === 0) return [];
    const loops: string[][] = wanted.has(source) ? [[key, key]] : [];
    /** Per queue, the exchange that leads on from it, and where to. */
    const back = new Map<number, Step | null>([[source, null]]);
    let steps = 0;
    for (const queue of back.keys()) {
      for (const via of this.#into[queue] ?? []) {
        steps += 1;
        if (steps > this.#maxSteps) return loops.length > 0 ? loops : [[key]];
        const from = via.source;
        if (this.#component[from] !== component || back.has(from)) continue;
        back.set(from, { via: via.key, to: queue });
        if (wanted.has(from)) loops.push(loopOf(key, from, back));
        if (loops.length === Math.min(wanted.size, MAX_LOOPS)) return loops;
      }
    }
    return loops;
  }
}

interface Step {
  readonly via: string;
  readonly to: number;
}

function loopOf(key: string, destination: number, back: ReadonlyMap<number, Step | null>): string[] {
  const loop = [key];
  for (let step = back.get(destination); step; step = back.get(step.to)) {
    if (loop.length === MAX_LOOP_LENGTH) return loop;
    loop.push(step.via);
  }
  loop.push(key);
  return loop;
}

/**
 * The strongly connected components of a graph whose nodes are numbered from 0: two nodes are in the same one if
 * each can be reached from the other. Tarjan's search with a stack of its own, since a chain of queues may be longer
 * than the call stack is deep; linear in nodes and edges.
 * @param successors per node
 * @returns a component's number per node
 */
function componentsOf(successors: readonly (readonly number[])[]): Int32Array {
  const component = new Int32Array(successors.length).fill(-1);
  /** When a node was met, from 1; 0 if it was not yet. */
  const met = new Int32Array(successors.length);
  /** The earliest met node of the same component that is known to be reached from a node. */
  const earliest = new Int32Array(successors.length);
  const looked = new Int32Array(successors.length);
  /** Met, and of no component yet. */
  const open: number[] = [];
  const path: number[] = [];
  let clock = 0;
  let found = 0;
  const meet = (node: number): void => {
    clock += 1;
    met[node] = clock;
    earliest[node] = clock;
    open.push(node);
    path.push(node);
  };
  const improve = (node: number, seen: number | undefined): void => {
    earliest[node] = Math.min(at(earliest, node), seen ?? Infinity);
  };
  const leave = (node: number): void => {
    path.pop();
    const before = path.at(-1);
    if (before !== undefined) improve(before, earliest[node]);
    if (earliest[node] !== met[node]) return;
    for (let member = open.pop(); member !== undefined; member = open.pop()) {
      component[member] = found;
      if (member === node) break;
    }
    found += 1;
  };
  for (let root = 0; root < successors.length; root += 1) {
    if (met[root] !== 0) continue;
    meet(root);
    for (let node = path.at(-1); node !== undefined; node = path.at(-1)) {
      const next = successors[node]?.[at(looked, node)];
      looked[node] = at(looked, node) + 1;
      if (next === undefined) leave(node);
      else if (met[next] === 0) meet(next);
      else if (component[next] === -1) improve(node, met[next]);
    }
  }
  return component;
}

function at(numbers: Int32Array, index: number): number {
  return numbers[index] ?? 0;
}
