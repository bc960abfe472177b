import type { Broker } from '../broker/broker.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { BrokerLog } from '../broker/ports.ts';
import type { ElementId } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { SelectorProgram, SelectorSandbox } from '../sandbox/sandbox.ts';
import type { Clock } from '../util/clock.ts';
import {
  continuedCounters,
  DestinationErrors,
  type ExchangeCounters,
  Sightings,
  zeroExchangeCounters,
} from './activity.ts';
import {
  CONSUMER_DEFAULTS,
  cannotReserve,
  type Declaration,
  mustRunSelectors,
  versionOf,
} from './declaration.ts';
import { NO_ROUTE, TOO_MANY_HOPS } from './forward.ts';
import { Forwarder, type Route } from './forwarder.ts';
import type { InFlightLimit } from './in-flight-limit.ts';
import { Loop } from './loop.ts';
import { idOf } from './stored.ts';

/** What all exchanges of a node share. */
export interface ExchangeContext {
  readonly broker: Broker;
  readonly sandbox: SelectorSandbox;
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: BrokerLog;
  readonly maxHops: number;
  /** Copies that one element may become in a cycle, see `COPY_COUNT`. */
  readonly maxCopies: number;
  /** Whether selectors may be used at all (`selectors: off` in the configuration). */
  readonly selectors: boolean;
}

/** What one exchange is made of. */
export interface ExchangeSetup {
  readonly declaration: Declaration;
  /** See `StoredExchange`. */
  readonly owner: string;
  /** The same exchange with another declaration, which this one replaces and whose counters it continues. */
  readonly before: Exchange | null;
}

/** What an exchange needs of the registry of all exchanges. */
interface ExchangeHooks {
  /** Per destination, whether elements can come back from it by declared exchanges. Null: from none. */
  readonly returning: () => readonly boolean[] | null;
  /** Its selectors overrun their limits: it is to be stopped. */
  readonly onStrikes: (error: string) => void;
}

/**
 * One exchange on this node: its loops, its selectors, what it counted. Every node runs every exchange; the
 * engine's atomic operations, not a lock, keep each element single.
 *
 * States: stopped (as created) and running, changed by `start` and `stop`. The definition says
 * which one is required.
 */
export class Exchange {
  readonly id: string;
  readonly declaration: Declaration;
  readonly owner: string;
  /** Identifies this node's consumer of the exchange in the record. */
  readonly cid: string;
  readonly counters: ExchangeCounters;
  readonly errors = new DestinationErrors();
  readonly sightings: Sightings;
  /** Why it does not run on this node, whatever the definition says; null: it may. */
  readonly hindrance: string | null;
  readonly #program: SelectorProgram;
  readonly #forwarder: Forwarder;
  readonly #loops: Loop[];
  #version: string | null = null;
  /** Starts and stops happen one after the other, in the order of the calls. */
  #changes: Promise<void>;

  /**
   * @throws QuaysideError `namespace-not-found`, `invalid-parameter` if the source is to be reserved from and
   * cannot be
   */
  constructor(
    id: string,
    { declaration, owner, before }: ExchangeSetup,
    context: ExchangeContext & { readonly inFlightLimit: InFlightLimit },
    hooks: ExchangeHooks,
  ) {
    const { inFlightLimit, clock, random, log } = context;
    this.id = id;
    this.declaration = declaration;
    this.owner = owner;
    // What the one before took is stored first, so that a loop keeps the order of its source.
    this.#changes = before === null ? Promise.resolve() : before.stop();
    this.cid = `${idOf(id)}-${Math.floor(random() * 2 ** 48).toString(36)}`;
    this.hindrance = hindranceOf(declaration, context);
    if (this.hindrance !== null) {
      log.warn({ exchange: id, hindrance: this.hindrance }, 'an exchange does not run on this node');
    }
    this.counters =
      before === null ? zeroExchangeCounters(declaration.dst.length) : continued(before, declaration);
    this.sightings = new Sightings(clock);
    const route = routeOf(id, declaration, context);
    const reserves = mustReserve(declaration, context.broker.namespace(declaration.src.ns), route);
    const selectors = declaration.dst.map(({ selector }) => selector ?? null);
    this.#program = context.sandbox.open(selectors, { payer: owner });
    this.#forwarder = new Forwarder({
      route,
      program: this.#program,
      counters: this.counters,
      errors: this.errors,
      clock,
      log,
      sightings: this.sightings,
      ...hooks,
    });
    const { parallel, wsize } = { ...CONSUMER_DEFAULTS, ...declaration.consumer };
    this.#loops = Array.from(
      { length: parallel },
      (_, i) =>
        new Loop({
          source: route.source,
          forwarder: this.#forwarder,
          clock,
          random,
          tid: `${this.cid}-${i}`,
          reserves,
          window: Math.max(1, Math.floor(wsize / parallel)),
          copies: Math.max(1, declaration.dst.length),
          inFlightLimit,
          owner,
        }),
    );
  }

  /** Changes with the declaration, and is the same on all nodes. */
  get version(): string {
    this.#version ??= versionOf(this.declaration);
    return this.#version;
  }

  get wsize(): number {
    return this.declaration.consumer.wsize ?? CONSUMER_DEFAULTS.wsize;
  }

  /** Does nothing if there is a hindrance. */
  start(): void {
    if (this.hindrance !== null) return;
    this.#changes = this.#changes.then(() => {
      this.#forwarder.restart();
      for (const loop of this.#loops) loop.start();
    });
  }

  /** Resolves when no loop takes any more and what was in flight has ended. */
  stop(): Promise<void> {
    this.#changes = this.#changes.then(async () => {
      await Promise.all(this.#loops.map((loop) => loop.stop()));
      this.#program.close();
    });
    return this.#changes;
  }

  /** Loops that wait for an element, and since when: the record's `pending_tids`. */
  idleLoops(): { readonly tid: string; readonly since: number }[] {
    return this.#loops.flatMap(({ tid, waitingSince }) =>
      waitingSince === null ? [] : [{ tid, since: waitingSince }],
    );
  }

  /** Elements taken and not settled, and since when: the record's `pending_acks`. */
  *inFlight(): Iterable<readonly [id: ElementId, since: number]> {
    for (const loop of this.#loops) yield* loop.inFlight;
  }
}

/** The counters of before, each destination's with the first of the same queue that none has yet. */
function continued({ declaration, counters }: Exchange, { dst }: Declaration): ExchangeCounters {
  const left = new Set(declaration.dst.keys());
  const before = dst.map(({ ns, queue, selector }) => {
    const same = [...left].filter(
      (i) => declaration.dst[i]?.ns === ns && declaration.dst[i]?.queue === queue,
    );
    const i = same.find((each) => declaration.dst[each]?.selector === selector) ?? same[0] ?? null;
    if (i !== null) left.delete(i);
    return i;
  });
  return continuedCounters(counters, before);
}

/** A stored exchange may have been created by a server with selectors. */
function hindranceOf({ dst }: Declaration, context: ExchangeContext): string | null {
  try {
    mustRunSelectors(dst, context);
    return null;
  } catch (error) {
    if (error instanceof QuaysideError) return error.message;
    throw error;
  }
}

/**
 * Whether elements are reserved; else they are popped. If everything is in one engine that can reserve, it
 * always is: its finish and its copies are one step.
 */
function mustReserve({ consumer }: Declaration, source: Namespace, route: Route): boolean {
  const reserve = consumer.reserve ?? CONSUMER_DEFAULTS.reserve;
  if (!source.capabilities.reserve) {
    if (reserve) throw cannotReserve(source);
    return false;
  }
  const isOneEngine = route.destinations.every(({ queue }) => queue.sharesEngineWith(route.source));
  return reserve || isOneEngine;
}

/**
 * Its queues are exempt from `maxQueues`: those declared were allowed at the create (`checkQueueLimits`), and must not fail a
 * restart once the namespace is full; the queues for unroutable elements belong to the service, as dead-letter queues do.
 */
function routeOf(
  id: string,
  { src, dst }: Declaration,
  { broker, maxHops, maxCopies }: ExchangeContext,
): Route {
  const source = broker.namespace(src.ns);
  return {
    id,
    name: idOf(id),
    source: source.visit(src.queue),
    destinations: dst.map(({ ns, queue }) => {
      const namespace = broker.namespace(ns);
      return { namespace, queue: namespace.visit(queue) };
    }),
    noRoute: source.visit(NO_ROUTE),
    tooManyHops: source.visit(TOO_MANY_HOPS),
    maxHops,
    maxCopies,
  };
}
