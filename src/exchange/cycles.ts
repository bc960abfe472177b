import { MAX_LOOP_LENGTH, MAX_LOOPS } from '../model/records.ts';
import { NO_ROUTE, type Returning } from './copies.ts';
import type { Caller, Declaration, DeclaredQueue } from './declaration.ts';

/**
 * A declared exchange as an edge from its source to its destinations. If it has a selector, also to the queue for
 * elements that no destination accepted: an exchange that consumes that queue may bring them back.
 */
export interface Edge {
  readonly key: string;
  readonly declaration: Declaration;
}

/** Loops through an exchange, each as a list of exchange ids, for users. */
export type LoopIds = readonly (readonly string[])[];

/** Bound on the steps of one search for loops: listing a thousand exchanges takes as many searches. */
const MAX_STEPS = 4_000;

/** An {@link Edge} with numbers for its queues. */
interface NumberedEdge {
  readonly key: string;
  readonly source: number;
  /** The queues that its elements can go to, without duplicates. */
  readonly destinations: readonly number[];
  /** The declared destinations, in order. */
  readonly declared: readonly number[];
}

/**
 * The graph of declared exchanges. The constructor computes, in time linear in the graph, which queues are in a loop
 * with each other. That decides whether an exchange is in a loop. Listing its loops is a search of bounded cost among
 * these queues.
 */
export class ExchangeGraph {
  readonly #byKey = new Map<string, NumberedEdge>();
  /** Per queue, the exchanges that copy to it, in the order of the edges. */
  readonly #into: NumberedEdge[][] = [];
  /** Results of `returning`, which every batch of an exchange needs. */
  readonly #returning = new Map<string, Returning>();
  readonly #component: Int32Array;
  readonly #maxSteps: number;

  constructor(edges: readonly Edge[], maxSteps = MAX_STEPS) {
    this.#maxSteps = maxSteps;
    const numbers = new Map<string, Map<string, number>>();
    const successors: number[][] = [];
    const numberOf = ({ ns, queue }: DeclaredQueue): number => {
      const byQueue = numbers.get(ns) ?? new Map<string, number>();
      if (byQueue.size === 0) numbers.set(ns, byQueue);
      let number = byQueue.get(queue);
      if (number === undefined) {
        number = successors.length;
        byQueue.set(queue, number);
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
   * The loops that an exchange is part of, each as the keys of the exchanges that an element would pass, from `key` to
   * `key`. They are only listed, since selectors may break a loop. The list has a shortest loop for each destination
   * that an element can come back from, shortest first, up to `MAX_LOOPS`.
   *
   * A loop of more than `MAX_LOOP_LENGTH` exchanges is cut after that many keys, and so does not end with `key`. If the
   * search reaches its bound before it finds a loop, it returns one that is cut after the first key.
   */
  loopsThrough(key: string): readonly (readonly string[])[] {
    const { source, destinations } = this.#byKey.get(key) ?? { source: -1, destinations: [] };
    const component = this.#component[source];
    const wanted = new Set(destinations.filter((queue) => this.#component[queue] === component));
    if (wanted.size === 0) return [];
    const loops: string[][] = wanted.has(source) ? [[key, key]] : [];
    // Searches backward from the source, until it has reached enough destinations.
    /** Per visited queue, the exchange and the next queue on the way to the source. */
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

  /** The part of the graph that the caller may see: exchanges whose source's namespace is visible. */
  static visible(edges: readonly Edge[], caller: Caller): ExchangeGraph {
    const namespaces = new Set(edges.map(({ declaration }) => declaration.src.ns));
    const visible = new Set([...namespaces].filter((namespace) => caller.maySee(namespace)));
    return new ExchangeGraph(edges.filter(({ declaration }) => visible.has(declaration.src.ns)));
  }

  /** Per declared destination of an exchange, whether its source can be reached from there. Null: from none. */
  returning(key: string): Returning {
    const known = this.#returning.get(key);
    if (known !== undefined) return known;
    const { source, declared } = this.#byKey.get(key) ?? { source: -1, declared: [] };
    const each = declared.map((queue) => this.#component[queue] === this.#component[source]);
    const returning = each.includes(true) ? each : null;
    this.#returning.set(key, returning);
    return returning;
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
 * The strongly connected components of a graph whose nodes are numbered from 0: two nodes are in the same one if each
 * can be reached from the other. Tarjan's algorithm with an explicit stack, since a chain of queues may be longer than
 * the call stack is deep. Linear in nodes and edges.
 * @param successors per node
 * @returns the component's number per node
 */
function componentsOf(successors: readonly (readonly number[])[]): Int32Array {
  const component = new Int32Array(successors.length).fill(-1);
  /** Tarjan's index: the order in which nodes were visited, from 1; 0 if not visited yet. */
  const visitedAt = new Int32Array(successors.length);
  /** Tarjan's lowlink: the lowest index known to be reachable within the component. */
  const lowlink = new Int32Array(successors.length);
  const nextSuccessor = new Int32Array(successors.length);
  /** Visited nodes that have no component yet. */
  const unassigned: number[] = [];
  const path: number[] = [];
  let visits = 0;
  let found = 0;
  const visit = (node: number): void => {
    visits += 1;
    visitedAt[node] = visits;
    lowlink[node] = visits;
    unassigned.push(node);
    path.push(node);
  };
  const lower = (node: number, seen: number | undefined): void => {
    lowlink[node] = Math.min(valueAt(lowlink, node), seen ?? Infinity);
  };
  const leave = (node: number): void => {
    path.pop();
    const before = path.at(-1);
    if (before !== undefined) lower(before, lowlink[node]);
    if (lowlink[node] !== visitedAt[node]) return;
    for (let member = unassigned.pop(); member !== undefined; member = unassigned.pop()) {
      component[member] = found;
      if (member === node) break;
    }
    found += 1;
  };
  for (let root = 0; root < successors.length; root += 1) {
    if (visitedAt[root] !== 0) continue;
    visit(root);
    for (let node = path.at(-1); node !== undefined; node = path.at(-1)) {
      const next = successors[node]?.[valueAt(nextSuccessor, node)];
      nextSuccessor[node] = valueAt(nextSuccessor, node) + 1;
      if (next === undefined) leave(node);
      else if (visitedAt[next] === 0) visit(next);
      else if (component[next] === -1) lower(node, visitedAt[next]);
    }
  }
  return component;
}

function valueAt(numbers: Int32Array, index: number): number {
  return numbers[index] ?? 0;
}
