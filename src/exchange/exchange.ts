import type { Broker } from '../broker/broker.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { BrokerLog } from '../broker/ports.ts';
import type { Delivery } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { SelectorProgram, SelectorSandbox } from '../sandbox/sandbox.ts';
import type { Clock } from '../util/clock.ts';
import { cannotReserve, mustRunSelectors } from './check.ts';
import { continuedCounters, type ExchangeCounters, Faults, zeroExchangeCounters } from './counters.ts';
import { CONSUMER_DEFAULTS, type Declaration, versionOf } from './declaration.ts';
import { NO_ROUTE, TOO_MANY_HOPS } from './forward.ts';
import { Forwarder, type Route } from './forwarder.ts';
import { idOf } from './ids.ts';
import type { InFlightLimit } from './in-flight-limit.ts';
import { Pipeline } from './pipeline.ts';
import { Sightings } from './sightings.ts';

/** What all exchanges of a node share. */
export interface ExchangeParts {
  readonly broker: Broker;
  readonly sandbox: SelectorSandbox;
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: BrokerLog;
  readonly maxHops: number;
  /** Copies that one element may become by going round, see `COPY_COUNT`. */
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

/** What an exchange asks of those who know all exchanges, or tells them. */
export interface ExchangeHooks {
  /** Per destination, whether elements can come back from it by declared exchanges. Null: from none. */
  readonly returning: () => readonly boolean[] | null;
  /** Its selectors overrun their limits: it is to be stopped. */
  readonly onStrikes: (error: string) => void;
}

/**
 * One exchange on this node: its loops, its selectors, what it counted. Every node runs every exchange; the
 * engine's atomic verbs, not a lock, keep each element single.
 *
 * States: stopped (as made) and running, moved by `start` and `stop`. Which one is wanted stands in the
 * definition, not here.
 */
export class Exchange {
  readonly id: string;
  readonly declaration: Declaration;
  readonly owner: string;
  /** Identifies this node's consumer of the exchange in the record. */
  readonly cid: string;
  readonly counters: ExchangeCounters;
  readonly faults = new Faults();
  readonly sightings: Sightings;
  /** Why it does not run on this node, whatever is wanted; null: it may. */
  readonly hindrance: string | null;
  readonly #program: SelectorProgram;
  readonly #forwarder: Forwarder;
  readonly #pipelines: Pipeline[];
  /** Elements taken and not settled, and since when, ms. */
  readonly #underWay = new Map<string, number>();
  readonly #clock: Clock;
  #version: string | null = null;
  /** Starts and stops happen one after the other, in the order in which they were asked for. */
  #changes: Promise<void>;

  /**
   * @throws QuaysideError `namespace-not-found`, `invalid-parameter` where the source is to be reserved from and
   * cannot be
   */
  constructor(
    id: string,
    { declaration, owner, before }: ExchangeSetup,
    parts: ExchangeParts & { readonly inFlight: InFlightLimit },
    hooks: ExchangeHooks,
  ) {
    const { inFlight, clock, random, log } = parts;
    this.id = id;
    this.declaration = declaration;
    this.owner = owner;
    // What the one before took is stored first, so that a loop keeps the order of its source.
    this.#changes = before === null ? Promise.resolve() : before.stop();
    this.cid = `${idOf(id)}-${Math.floor(random() * 2 ** 48).toString(36)}`;
    this.#clock = clock;
    this.hindrance = hindranceOf(declaration, parts);
    if (this.hindrance !== null) {
      log.warn({ exchange: id, hindrance: this.hindrance }, 'an exchange does not run on this node');
    }
    this.counters =
      before === null ? zeroExchangeCounters(declaration.dst.length) : continued(before, declaration);
    this.sightings = new Sightings(clock);
    const route = routeOf(id, declaration, parts);
    const leaseMs = leaseOf(declaration, parts.broker.namespace(declaration.src.ns), route);
    const selectors = declaration.dst.map(({ selector }) => selector ?? null);
    this.#program = parts.sandbox.open(selectors, { payer: owner });
    this.#forwarder = new Forwarder({
      route,
      program: this.#program,
      counters: this.counters,
      faults: this.faults,
      clock,
      log,
      sightings: this.sightings,
      ...hooks,
    });
    const { parallel, wsize } = { ...CONSUMER_DEFAULTS, ...declaration.consumer };
    this.#pipelines = Array.from(
      { length: parallel },
      (_, i) =>
        new Pipeline({
          source: route.source,
          clock,
          random,
          tid: `${this.cid}-${i}`,
          leaseMs,
          window: Math.max(1, Math.floor(wsize / parallel)),
          copies: Math.max(1, declaration.dst.length),
          inFlight: {
            enter: (bytes) => inFlight.enter(owner, bytes),
            leave: (bytes) => inFlight.leave(owner, bytes),
          },
          stages: this.#forwarder,
          took: (batch) => this.#took(batch),
          settled: (batch) => this.#settled(batch),
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
      for (const pipeline of this.#pipelines) pipeline.start();
    });
  }

  /** Resolves when no loop takes any more and what was under way has ended. */
  stop(): Promise<void> {
    this.#changes = this.#changes.then(async () => {
      await Promise.all(this.#pipelines.map((pipeline) => pipeline.stop()));
      this.#program.close();
    });
    return this.#changes;
  }

  /** Loops that wait for an element, and since when: the record's `pending_tids`. */
  idleLoops(): { readonly tid: string; readonly since: number }[] {
    return this.#pipelines.flatMap(({ tid, waitingSince }) =>
      waitingSince === null ? [] : [{ tid, since: waitingSince }],
    );
  }

  /** Elements on their way, and since when: the record's `pending_acks`. */
  underWay(): ReadonlyMap<string, number> {
    return this.#underWay;
  }

  #took(batch: readonly Delivery[]): void {
    const now = this.#clock.now();
    for (const { id } of batch) this.#underWay.set(id, now);
  }

  #settled(batch: readonly Delivery[]): void {
    for (const { id } of batch) this.#underWay.delete(id);
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

/** A stored exchange may have been made where selectors were on. */
function hindranceOf({ dst }: Declaration, parts: ExchangeParts): string | null {
  try {
    mustRunSelectors(dst, parts);
    return null;
  } catch (error) {
    if (error instanceof QuaysideError) return error.message;
    throw error;
  }
}

/**
 * How long an element is reserved, ms; null: it is popped. Where everything is in one engine that can reserve, it
 * always is: its finish and its copies are one step.
 */
function leaseOf({ consumer }: Declaration, source: Namespace, route: Route): number | null {
  const reserve = consumer.reserve ?? CONSUMER_DEFAULTS.reserve;
  if (!source.capabilities.reserve) {
    if (reserve) throw cannotReserve(source);
    return null;
  }
  const isOneEngine = route.destinations.every(({ queue }) => queue.sharesEngineWith(route.source));
  return reserve || isOneEngine ? source.leaseMs : null;
}

/**
 * Its queues stand beside `maxQueues`: those declared were allowed at the create (`checkRoom`), and must not fail a
 * restart once the namespace is full; where strays go is for the service to say, as with dead letters.
 */
function routeOf(
  id: string,
  { src, dst }: Declaration,
  { broker, maxHops, maxCopies }: ExchangeParts,
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
