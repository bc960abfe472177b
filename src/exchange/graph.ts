import { componentsOf } from './components.ts';
import type { Declaration, QueueName } from './declaration.ts';

/** A declared exchange, as an edge from its source to its destinations. */
export interface Edge {
  readonly id: string;
  readonly declaration: Declaration;
}

/** Loops through an exchange, each as the ids of exchanges. */
export type LoopIds = readonly (readonly string[])[];

/** Loops that are named of one exchange, at most. */
export const MOST_LOOPS = 10;
/** Exchange ids of a loop that are named, at most; the loop is cut there. */
export const LONGEST_LOOP = 16;
/** What one search for loops may look at: a list of a thousand exchanges makes as many searches. */
const MOST_STEPS = 4_000;

/** The same as {@link Edge}, with queues and exchanges numbered. */
interface Numbered {
  readonly id: string;
  readonly source: number;
  /** Each once. */
  readonly destinations: readonly number[];
  /** In the order of the declaration. */
  readonly declared: readonly number[];
}

/**
 * The graph of declared exchanges. What makes it costly is done once, in time linear in the graph: which queues are
 * in a loop with each other. That alone says whether an exchange is in a loop; naming the loops is a search of
 * bounded cost, within these queues, and its answer is kept.
 */
export class ExchangeGraph {
  readonly #byId = new Map<string, Numbered>();
  /** Per queue, the exchanges that copy to it, in the order of their declaration. */
  readonly #into: Numbered[][] = [];
  readonly #component: Int32Array;
  readonly #found = new Map<string, LoopIds>();
  readonly #returning = new Map<string, readonly boolean[] | null>();
  readonly #mostSteps: number;

  constructor(edges: readonly Edge[], mostSteps = MOST_STEPS) {
    this.#mostSteps = mostSteps;
    const numbers = new Map<string, Map<string, number>>();
    const successors: number[][] = [];
    const numberOf = ({ ns, queue }: QueueName): number => {
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
    for (const { id, declaration } of edges) {
      const source = numberOf(declaration.src);
      const declared = declaration.dst.map(numberOf);
      const destinations = [...new Set(declared)];
      const edge = { id, source, destinations, declared };
      this.#byId.set(id, edge);
      for (const destination of destinations) {
        successors[source]?.push(destination);
        this.#into[destination]?.push(edge);
      }
    }
    this.#component = componentsOf(successors);
  }

  /**
   * The loops that an exchange is part of, each as the exchange ids that an element would pass, beginning and ending
   * with `id`. Selectors may break a loop, so it is named and not refused. Named is a shortest loop for each
   * destination that an element can come back from, the shortest ones first, up to `MOST_LOOPS`.
   *
   * One of more than `LONGEST_LOOP` exchanges is cut after so many ids, and so does not end with `id`. Where the
   * search ends before it found any, there is one, cut after the first id.
   */
  loopsThrough(id: string): LoopIds {
    const known = this.#found.get(id);
    if (known !== undefined) return known;
    const edge = this.#byId.get(id);
    const loops = edge === undefined ? [] : this.#search(edge);
    this.#found.set(id, loops);
    return loops;
  }

  /** Per declared destination of an exchange, whether its source can be reached from it. Null: from none. */
  returning(id: string): readonly boolean[] | null {
    const known = this.#returning.get(id);
    if (known !== undefined) return known;
    const { source, declared } = this.#byId.get(id) ?? { source: -1, declared: [] };
    const returning = declared.map((queue) => this.#component[queue] === this.#component[source]);
    const found = returning.includes(true) ? returning : null;
    this.#returning.set(id, found);
    return found;
  }

  /** Goes from the source against the direction of the exchanges, until it has met enough destinations. */
  #search(edge: Numbered): LoopIds {
    const { id, source } = edge;
    const component = this.#component[source];
    const wanted = new Set(edge.destinations.filter((queue) => this.#component[queue] === component));
    if (wanted.size === 0) return [];
    const loops: string[][] = wanted.has(source) ? [[id, id]] : [];
    /** Per queue, the exchange that leads on from it, and where to. */
    const back = new Map<number, Step | null>([[source, null]]);
    let steps = 0;
    for (const queue of back.keys()) {
      for (const via of this.#into[queue] ?? []) {
        steps += 1;
        if (steps > this.#mostSteps) return loops.length > 0 ? loops : [[id]];
        const from = via.source;
        if (this.#component[from] !== component || back.has(from)) continue;
        back.set(from, { via: via.id, to: queue });
        if (wanted.has(from)) loops.push(loopOf(id, from, back));
        if (loops.length === Math.min(wanted.size, MOST_LOOPS)) return loops;
      }
    }
    return loops;
  }
}

interface Step {
  readonly via: string;
  readonly to: number;
}

function loopOf(id: string, destination: number, back: ReadonlyMap<number, Step | null>): string[] {
  const loop = [id];
  for (let step = back.get(destination); step; step = back.get(step.to)) {
    if (loop.length === LONGEST_LOOP) return loop;
    loop.push(step.via);
  }
  loop.push(id);
  return loop;
}
