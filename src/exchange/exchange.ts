import type { Broker } from '../broker/broker.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { BrokerLog } from '../broker/ports.ts';
import type { Clock } from '../model/clock.ts';
import type { Delivery } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Budget } from './budget.ts';
import { cannotReserve, mustRunSelectors } from './check.ts';
import { type ExchangeCounters, Faults, zeroExchangeCounters } from './counters.ts';
import { CONSUMER_DEFAULTS, type Declaration } from './declaration.ts';
import { NO_ROUTE, TOO_MANY_HOPS } from './forward.ts';
import { Forwarder, type Route } from './forwarder.ts';
import { Pipeline } from './pipeline.ts';
import type { SelectorProgram, SelectorSandbox } from './sandbox/sandbox.ts';

/** What all exchanges of a node share. */
export interface ExchangeParts {
  readonly broker: Broker;
  readonly sandbox: SelectorSandbox;
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: BrokerLog;
  readonly maxHops: number;
  /** Whether selectors may be used at all (`selectors: off` in the configuration). */
  readonly selectors: boolean;
}

/** Elements in a row that overran the sandbox's limits before the exchange is stopped. */
const STRIKES = 3;

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
  /** Identifies this node's consumer of the exchange in the record. */
  readonly cid: string;
  readonly counters: ExchangeCounters;
  readonly faults = new Faults();
  /** Why it does not run on this node, whatever is wanted; null: it may. */
  readonly hindrance: string | null;
  readonly #program: SelectorProgram;
  readonly #pipelines: Pipeline[];
  /** Elements taken and not settled, and since when, ms. */
  readonly #underWay = new Map<string, number>();
  readonly #clock: Clock;
  readonly #onStrikes: (error: string) => void;
  #strikes = 0;
  /** Starts and stops happen one after the other, in the order in which they were asked for. */
  #changes: Promise<void> = Promise.resolve();

  /**
   * @throws QuaysideError `namespace-not-found`, `invalid-parameter` where the source is to be reserved from and
   * cannot be
   */
  constructor(
    id: string,
    declaration: Declaration,
    parts: ExchangeParts & { readonly budget: Budget },
    onStrikes: (error: string) => void,
  ) {
    const { budget, clock, random, log } = parts;
    this.id = id;
    this.declaration = declaration;
    this.cid = `${id}-${Math.floor(random() * 2 ** 48).toString(36)}`;
    this.#clock = clock;
    this.#onStrikes = onStrikes;
    this.hindrance = hindranceOf(declaration, parts);
    if (this.hindrance !== null) {
      log.warn({ exchange: id, hindrance: this.hindrance }, 'an exchange does not run on this node');
    }
    this.counters = zeroExchangeCounters(declaration.dst.length);
    const route = routeOf(id, declaration, parts);
    const leaseMs = leaseOf(declaration, parts.broker.namespace(declaration.src.ns), route);
    const selectors = declaration.dst.map(({ selector }) => selector ?? null);
    this.#program = parts.sandbox.open(selectors, { namespace: declaration.src.ns });
    const stages = new Forwarder({
      route,
      program: this.#program,
      counters: this.counters,
      faults: this.faults,
      clock,
      log,
      overran: (error) => this.#overran(error),
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
          budget,
          stages,
          took: (batch) => this.#took(batch),
          settled: (batch) => this.#settled(batch),
        }),
    );
  }

  get wsize(): number {
    return this.declaration.consumer.wsize ?? CONSUMER_DEFAULTS.wsize;
  }

  /** Does nothing where there is a hindrance. */
  start(): void {
    if (this.hindrance !== null) return;
    this.#changes = this.#changes.then(() => {
      this.#strikes = 0;
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

  #overran(error: string | null): void {
    this.#strikes = error === null ? 0 : this.#strikes + 1;
    if (error !== null && this.#strikes === STRIKES) this.#onStrikes(error);
  }
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
function routeOf(id: string, { src, dst }: Declaration, { broker, maxHops }: ExchangeParts): Route {
  const source = broker.namespace(src.ns);
  return {
    id,
    source: source.queueBesideLimit(src.queue),
    destinations: dst.map(({ ns, queue }) => {
      const namespace = broker.namespace(ns);
      return { namespace, queue: namespace.queueBesideLimit(queue) };
    }),
    noRoute: source.queueBesideLimit(NO_ROUTE),
    tooManyHops: source.queueBesideLimit(TOO_MANY_HOPS),
    maxHops,
  };
}
