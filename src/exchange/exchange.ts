import type { Broker } from '../broker/broker.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import type { ElementId } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { SelectorProgram, SelectorSandbox } from '../sandbox/sandbox.ts';
import type { Clock } from '../util/clock.ts';
import type { LineLimit } from '../util/line-limit.ts';
import type { EventLog } from '../util/log.ts';
import { NO_ROUTE, type Returning, selectorOf, TOO_MANY_HOPS } from './copies.ts';
import {
  CONSUMER_DEFAULTS,
  cannotReserve,
  type Declaration,
  type DeclaredQueue,
  type ExchangeState,
  idOf,
  mustBeRunnable,
  type StoredExchange,
  versionOf,
} from './declaration.ts';
import { Forwarder } from './forwarder.ts';
import type { InFlightLimit } from './in-flight-limit.ts';
import { Loop } from './loop.ts';
import {
  continuedCounters,
  DestinationErrors,
  type ExchangeCounters,
  Sightings,
  zeroExchangeCounters,
} from './record.ts';

/** The objects and settings that all exchanges of a node share. */
export interface ExchangeContext {
  readonly broker: Broker;
  readonly sandbox: SelectorSandbox;
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: EventLog;
  readonly maxHops: number;
  /** How many copies one element may become in a cycle, see `COPY_COUNT`. */
  readonly maxCopies: number;
  /** Whether selectors may be used at all (`selectors: off` in the configuration). */
  readonly selectors: boolean;
}

/** The same with what the exchanges of a node share. */
export interface NodeContext extends ExchangeContext {
  /** Bounds the bytes of elements whose selectors have not run yet. What has them may wait for `inFlightLimit`. */
  readonly takenLimit: InFlightLimit;
  /** Bounds the bytes in flight after that, including copies. */
  readonly inFlightLimit: InFlightLimit;
  /** Bounds the log lines about failures. */
  readonly lineLimit: LineLimit;
  readonly returning: (key: string) => Returning;
  /** Requests a stop of an exchange, since `MAX_OVERRUNS_IN_A_ROW` elements overran the sandbox's limits. */
  readonly onRepeatedOverruns: (exchange: Exchange, error: string) => void;
}

/** The queues of an exchange, resolved once. */
interface ExchangeRoute {
  readonly source: Queue;
  readonly destinations: readonly {
    readonly queue: Queue;
    /** Its index among the destinations with the same queue. */
    readonly place: number;
  }[];
  readonly noRoute: Queue;
  readonly tooManyHops: Queue;
  readonly maxHops: number;
  readonly maxCopies: number;
}

/**
 * One exchange on this node: its loops, selectors and counters. Every node runs every exchange. Atomic operations of
 * the engine, not a lock, ensure that each element is forwarded once.
 *
 * States: stopped (as created) and running, changed by `start` and `stop`. The definition says which one is required.
 */
export class Exchange {
  /** The key of its definition, see `scopedKey`. */
  readonly key: string;
  readonly declaration: Declaration;
  readonly owner: string;
  /** Identifies this node's consumer of the exchange in the record. */
  readonly cid: string;
  readonly counters: ExchangeCounters;
  readonly errors = new DestinationErrors();
  readonly sightings: Sightings;
  /** Why the exchange cannot run on this node, whatever the definition says; null: it can. */
  readonly hindrance: string | null;
  readonly route: ExchangeRoute;
  /** Whether elements are reserved; otherwise they are popped, and so are already finished. */
  readonly reserves: boolean;
  readonly program: SelectorProgram;
  readonly context: NodeContext;
  /** As in the definition. */
  state: ExchangeState = { stopped: true, lastError: null };
  readonly #forwarder: Forwarder;
  readonly #loops: Loop[];
  #version: string | null = null;
  /** Starts and stops are executed one after the other, in the order of the calls. */
  #changes: Promise<void>;

  /**
   * @param before the exchange that this one replaces after a change of declaration or owner, and whose counters it
   * continues
   * @throws QuaysideError `namespace-not-found`, `invalid-parameter` if the source does not support `reserve: true`
   */
  constructor(
    key: string,
    { declaration, owner }: Pick<StoredExchange, 'declaration' | 'owner'>,
    before: Exchange | null,
    context: NodeContext,
  ) {
    const { clock, random, log } = context;
    this.key = key;
    this.context = context;
    this.declaration = declaration;
    this.owner = owner;
    // First wait until the replaced exchange has stored what it took, so that a loop keeps the order of its source.
    this.#changes = before === null ? Promise.resolve() : before.stop();
    this.cid = `${idOf(key)}-${Math.floor(random() * 2 ** 48).toString(36)}`;
    this.hindrance = hindranceOf(declaration, context);
    if (this.hindrance !== null) {
      log.warn({ exchange: key, hindrance: this.hindrance }, 'an exchange does not run on this node');
    }
    this.counters =
      before === null ? zeroExchangeCounters(declaration.dst.length) : continuedCounters(before, declaration);
    this.sightings = new Sightings(clock);
    this.route = routeOf(declaration, context);
    this.reserves = mustReserve(declaration, context.broker.namespace(declaration.src.ns), this.route);
    const selectors = declaration.dst.map((destination) => selectorOf(destination, context.broker));
    // Start the selector thread now, so that the first element does not wait for it.
    const runsSelectors = this.hindrance === null && selectors.some((selector) => selector !== null);
    if (runsSelectors) void context.sandbox.start();
    this.program = context.sandbox.open(selectors, { payer: owner });
    this.#forwarder = new Forwarder(this);
    const { parallel } = { ...CONSUMER_DEFAULTS, ...declaration.consumer };
    // Each loop may have at least one element in flight.
    const loops = Math.min(parallel, this.wsize);
    const window = Math.floor(this.wsize / loops);
    this.#loops = Array.from(
      { length: loops },
      (_, i) => new Loop(this, this.#forwarder, `${this.cid}-${i}`, window),
    );
  }

  /** Changes with the declaration, and is equal on all nodes. */
  get version(): string {
    this.#version ??= versionOf(this.declaration);
    return this.#version;
  }

  /** Whether it is stored as stopped, and so is stopped on all nodes. */
  get isStopStored(): boolean {
    return this.state.stopped === true;
  }

  /** Also true if this node cannot run it. */
  get stopped(): boolean {
    return this.isStopStored || this.hindrance !== null;
  }

  get lastError(): string | null {
    return this.hindrance ?? this.state.lastError;
  }

  get wsize(): number {
    return this.declaration.consumer.wsize ?? CONSUMER_DEFAULTS.wsize;
  }

  /** Does nothing if the exchange cannot run on this node. */
  start(): void {
    if (this.hindrance !== null) return;
    this.#changes = this.#changes.then(() => {
      this.#forwarder.restart();
      for (const loop of this.#loops) loop.start();
    });
  }

  /** Stops the loops. Resolves when none takes elements any more, and those in flight are settled. */
  stop(): Promise<void> {
    this.#changes = this.#changes.then(async () => {
      await Promise.all(this.#loops.map((loop) => loop.stop()));
      this.program.close();
    });
    return this.#changes;
  }

  /** Loops that wait for an element, and when that began: `pending_tids` of the record. */
  idleLoops(): { readonly tid: string; readonly since: number }[] {
    return this.#loops.flatMap(({ tid, waitingSince }) =>
      waitingSince === null ? [] : [{ tid, since: waitingSince }],
    );
  }

  /** Elements that were taken and are not settled, with the time of the take: `pending_acks` of the record. */
  *inFlight(): Iterable<readonly [id: ElementId, since: number]> {
    for (const loop of this.#loops) yield* loop.inFlight;
  }
}

/** Why a declaration cannot run here; null: it can. It may be stored by a server with selectors or an old version. */
function hindranceOf(declaration: Declaration, context: ExchangeContext): string | null {
  try {
    mustBeRunnable(declaration, context);
    return null;
  } catch (error) {
    if (error instanceof QuaysideError) return error.message;
    throw error;
  }
}

/**
 * Whether elements are reserved; otherwise they are popped. If all queues are in one engine that supports reservations,
 * they always are: the finish and the copies are one atomic step.
 */
function mustReserve({ consumer }: Declaration, source: Namespace, route: ExchangeRoute): boolean {
  const reserve = consumer.reserve ?? CONSUMER_DEFAULTS.reserve;
  if (!source.capabilities.reserve) {
    if (reserve) throw cannotReserve(source);
    return false;
  }
  const isOneEngine = route.destinations.every(({ queue }) => queue.sharesEngineWith(route.source));
  return reserve || isOneEngine;
}

/**
 * Resolves the queues of an exchange, which are exempt from `maxQueues`: the declared ones were checked at the create
 * (`checkQueueLimits`), and must not fail a restart when the namespace is full. Those for unroutable elements belong to
 * the service, as dead-letter queues do.
 */
function routeOf({ src, dst }: Declaration, { broker, maxHops, maxCopies }: ExchangeContext): ExchangeRoute {
  const source = broker.namespace(src.ns);
  return {
    source: source.visit(src.queue),
    destinations: dst.map(({ ns, queue }, i) => {
      const isSame = (other: DeclaredQueue): boolean => other.ns === ns && other.queue === queue;
      return { queue: broker.namespace(ns).visit(queue), place: dst.slice(0, i).filter(isSame).length };
    }),
    noRoute: source.visit(NO_ROUTE),
    tooManyHops: source.visit(TOO_MANY_HOPS),
    maxHops,
    maxCopies,
  };
}
