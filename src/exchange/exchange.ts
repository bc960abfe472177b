import type { Broker } from '../broker/broker.ts';
import type { Consumer } from '../broker/consumer.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { BrokerLog } from '../broker/ports.ts';
import type { Queue } from '../broker/queue.ts';
import { contentBytes, type Delivery, type ElementId } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { SelectorProgram, SelectorSandbox } from '../sandbox/sandbox.ts';
import { Backoff } from '../util/backoff.ts';
import type { Clock } from '../util/clock.ts';
import type { LineLimit } from '../util/line-limit.ts';
import { Pause } from '../util/pause.ts';
import { NO_ROUTE, type Returning, TOO_MANY_HOPS } from './copies.ts';
import {
  CONSUMER_DEFAULTS,
  cannotReserve,
  type Declaration,
  type DeclaredQueue,
  idOf,
  mustBeRunnable,
  versionOf,
} from './declaration.ts';
import { type Decision, type ExchangeRoute, Forwarder, type StoreBatch } from './forwarder.ts';
import type { BatchInFlight, InFlightLimit } from './in-flight-limit.ts';
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
  readonly log: BrokerLog;
  readonly maxHops: number;
  /** How many copies one element may become in a cycle, see `COPY_COUNT`. */
  readonly maxCopies: number;
  /** Whether selectors may be used at all (`selectors: off` in the configuration). */
  readonly selectors: boolean;
}

/** The same with the limits that the exchanges of a node share. */
export interface NodeContext extends ExchangeContext {
  /** Bounds the bytes in flight. */
  readonly inFlightLimit: InFlightLimit;
  /** Bounds the log lines about failures. */
  readonly lineLimit: LineLimit;
}

/** The declaration of an exchange, and what goes with it. */
export interface ExchangeSetup {
  readonly declaration: Declaration;
  /** See `StoredExchange`. */
  readonly owner: string;
  /** The exchange that this one replaces after a change of declaration or owner, and whose counters it continues. */
  readonly before: Exchange | null;
}

/** The functions of the registry that an exchange calls. */
interface ExchangeHooks {
  readonly returning: () => Returning;
  /** Requests a stop of the exchange, since its selectors repeatedly overran their limits. */
  readonly onRepeatedOverruns: (error: string) => void;
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
  readonly #program: SelectorProgram;
  readonly #forwarder: Forwarder;
  readonly #loops: Loop[];
  #version: string | null = null;
  /** Starts and stops are executed one after the other, in the order of the calls. */
  #changes: Promise<void>;

  /** @throws QuaysideError `namespace-not-found`, `invalid-parameter` if the source does not support `reserve: true` */
  constructor(
    key: string,
    { declaration, owner, before }: ExchangeSetup,
    context: NodeContext,
    hooks: ExchangeHooks,
  ) {
    const { inFlightLimit, lineLimit, clock, random, log } = context;
    this.key = key;
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
      before === null ? zeroExchangeCounters(declaration.dst.length) : continued(before, declaration);
    this.sightings = new Sightings(clock);
    const route = routeOf(key, declaration, context);
    const reserves = mustReserve(declaration, context.broker.namespace(declaration.src.ns), route);
    const selectors = declaration.dst.map(({ selector }) => selector ?? null);
    // Start the selector thread now, so that the first element does not wait for it.
    const runsSelectors = this.hindrance === null && selectors.some((selector) => selector !== null);
    if (runsSelectors) void context.sandbox.start();
    this.#program = context.sandbox.open(selectors, { payer: owner });
    this.#forwarder = new Forwarder({
      route,
      owner,
      reserves,
      program: this.#program,
      counters: this.counters,
      errors: this.errors,
      clock,
      log,
      lineLimit,
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

  /** Changes with the declaration, and is equal on all nodes. */
  get version(): string {
    this.#version ??= versionOf(this.declaration);
    return this.#version;
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
      this.#program.close();
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

/**
 * The counters of the replaced exchange. Each destination continues those of an old one with the same queue, if
 * possible with the same selector; each old one is continued once.
 */
function continued({ declaration, counters }: Exchange, { dst }: Declaration): ExchangeCounters {
  const unclaimed = new Set(declaration.dst.keys());
  const before = dst.map(({ ns, queue, selector }) => {
    const candidates = [...unclaimed].filter(
      (i) => declaration.dst[i]?.ns === ns && declaration.dst[i]?.queue === queue,
    );
    const i =
      candidates.find((candidate) => declaration.dst[candidate]?.selector === selector) ??
      candidates[0] ??
      null;
    if (i !== null) unclaimed.delete(i);
    return i;
  });
  return continuedCounters(counters, before);
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
function routeOf(
  key: string,
  { src, dst }: Declaration,
  { broker, maxHops, maxCopies }: ExchangeContext,
): ExchangeRoute {
  const source = broker.namespace(src.ns);
  return {
    key,
    id: idOf(key),
    source: source.visit(src.queue),
    destinations: dst.map(({ ns, queue }, i) => {
      const namespace = broker.namespace(ns);
      const isSame = (other: DeclaredQueue): boolean => other.ns === ns && other.queue === queue;
      return { namespace, queue: namespace.visit(queue), place: dst.slice(0, i).filter(isSame).length };
    }),
    noRoute: source.visit(NO_ROUTE),
    tooManyHops: source.visit(TOO_MANY_HOPS),
    maxHops,
    maxCopies,
  };
}

interface LoopOptions {
  readonly source: Queue;
  readonly forwarder: Forwarder;
  readonly clock: Clock;
  readonly random: () => number;
  readonly tid: string;
  /** Whether elements are reserved; otherwise they are popped. */
  readonly reserves: boolean;
  /** Maximum number of elements in flight. */
  readonly window: number;
  /** Maximum number of copies per element. */
  readonly copies: number;
  /** Bounds the bytes in flight of the node's exchanges, by owner. */
  readonly inFlightLimit: InFlightLimit;
  readonly owner: string;
}

/** Elements per round trip. Larger batches gained less than 3 %, and their leases run longer. */
const MAX_BATCH = 256;
/** Bytes per round trip, including copies. If elements are large, fewer are taken together. */
const BATCH_BYTES = 4 * 1_048_576;
/** The assumed size of an element before the first one is taken. */
const USUAL_BYTES = 4 * 1024;
/** The approximate bytes of an element, or a copy, without body and headers. */
const OWN_BYTES = 256;

/**
 * One loop of an exchange: a pipeline of three stages. While batches are being stored, the selectors run for the next
 * one, and the one after that is being taken. Batches are sent to the engine in the order in which they were taken, and
 * engines keep the order of calls, so a loop keeps the order of its source. Waiting for each reply cost 40 % of
 * throughput. A batch is stored in parts if it is large, or if selectors write much.
 *
 * States: `idle` (before start, after stop), `running`, `stopping` (no further batch is taken; batches that were taken
 * and not yet sent to be stored are returned undelivered, the others finish).
 */
class Loop {
  readonly #options: LoopOptions;
  #state: 'idle' | 'running' | 'stopping' = 'idle';
  #consumer: Consumer | null = null;
  #waitingSince: number | null = null;
  /** Elements that were taken and are not settled, with the wall time of the take, ms. */
  readonly #inFlight = new Map<ElementId, number>();
  /** Moving average of the bytes of an element. */
  #meanBytes = USUAL_BYTES;
  /** Moving average of the bytes that selectors write per element, for all copies together. */
  #meanWritten = 0;
  /** Resolves when the selectors have run for every batch taken so far. */
  #decided: Promise<void> = Promise.resolve();
  /** Resolves when every batch taken so far was sent to be stored. */
  #sent: Promise<void> = Promise.resolve();
  /** Batches that are not settled yet. */
  readonly #open = new Set<Promise<void>>();
  /** Stops waiting for the selectors; null while they do not run. */
  #stopWaiting: (() => void) | null = null;
  /** Ends the wait for a batch, with the delivered elements. */
  #endWait: ((batch: Delivery[]) => void) | null = null;
  /** The delay before the next batch after a failed one. */
  readonly #backoff: Backoff;
  readonly #pause: Pause;
  #onCapacity: (() => void) | null = null;
  #run: Promise<void> = Promise.resolve();

  constructor(options: LoopOptions) {
    this.#options = options;
    this.#backoff = new Backoff(options.random);
    this.#pause = new Pause(options.clock);
  }

  get tid(): string {
    return this.#options.tid;
  }

  /** When the loop began to wait for an element, ms; null while it is not waiting. */
  get waitingSince(): number | null {
    return this.#waitingSince;
  }

  /** Elements that were taken and are not settled, with the wall time of the take, ms. */
  get inFlight(): ReadonlyMap<ElementId, number> {
    return this.#inFlight;
  }

  start(): void {
    if (this.#state !== 'idle') return;
    this.#state = 'running';
    this.#run = this.#loop();
  }

  async stop(): Promise<void> {
    if (this.#state === 'running') {
      this.#state = 'stopping';
      if (this.#consumer !== null) this.#options.source.leave(this.#consumer);
      this.#endWait?.([]);
      this.#pause.end();
      this.#onCapacity?.();
      // The selectors of a thousand exchanges may take longer than a shutdown is allowed to.
      this.#stopWaiting?.();
    }
    await this.#run;
    this.#state = 'idle';
  }

  async #loop(): Promise<void> {
    while (this.#state === 'running') {
      if (!this.#hasCapacity()) await this.#capacity();
      if (this.#backoff.isActive) await this.#pauseAfterFailure();
      if (this.#state !== 'running') break;
      const batch = await this.#take();
      if (batch.length === 0) continue;
      const now = this.#options.clock.now();
      for (const { id } of batch) this.#inFlight.set(id, now);
      // One batch at a time: the bytes written for it must be counted before the selectors run for the next.
      await this.#decided;
      this.#decided = this.#decide(batch);
    }
    await this.#allSettled();
  }

  /**
   * The first elements of a batch, as many as one round trip stores, and their bytes: with copies, and the expected
   * output of the selectors.
   */
  #firstPart(batch: readonly Delivery[]): { readonly part: readonly Delivery[]; readonly bytes: number } {
    let [bytes, ownBytes, count] = [0, 0, 0];
    for (const delivery of batch) {
      const size = OWN_BYTES + contentBytes(delivery);
      const more = size * this.#options.copies + this.#meanWritten;
      if (count > 0 && bytes + more > BATCH_BYTES) break;
      bytes += more;
      ownBytes += size;
      count += 1;
    }
    this.#meanBytes = (this.#meanBytes + ownBytes / count) / 2;
    return { part: count === batch.length ? batch : batch.slice(0, count), bytes };
  }

  /** How many elements to take for the next batch. */
  #batchSize(): number {
    // After a failure, one element is enough to test whether the destination is available again.
    if (this.#backoff.isActive) return 1;
    const { window, copies } = this.#options;
    const byBytes = Math.max(1, Math.floor(BATCH_BYTES / (this.#meanBytes * copies + this.#meanWritten)));
    return Math.min(MAX_BATCH, window - this.#inFlight.size, byBytes);
  }

  /** Waits for a batch. If it is empty, the loop must check whether it should continue. */
  #take(): Promise<Delivery[]> {
    const { source, clock, tid, reserves } = this.#options;
    const leaseMs = reserves ? source.settings.leaseMs : null;
    const { promise, resolve } = Promise.withResolvers<Delivery[]>();
    const end = (batch: Delivery[]): void => {
      this.#consumer = null;
      this.#waitingSince = null;
      this.#endWait = null;
      resolve(batch);
    };
    this.#endWait = end;
    this.#waitingSince = clock.now();
    const count = this.#batchSize();
    try {
      this.#consumer = source.get(
        { group: null, leaseMs, count, timeoutMs: null, tid, owner: null },
        {
          deliver: (first, more) => end([first, ...more]),
          end: (reason) => {
            if (reason.code !== 'pop-cancelled') this.#backoff.noteFailure();
            end([]);
          },
        },
      );
    } catch (error) {
      if (!(error instanceof QuaysideError)) throw error;
      this.#backoff.noteFailure();
      end([]);
    }
    return promise;
  }

  /** Runs the selectors for a batch and starts to store it, in parts if it or their output is large. Never rejects. */
  async #decide(batch: readonly Delivery[]): Promise<void> {
    const { inFlightLimit, owner } = this.#options;
    for (let rest = batch; rest.length > 0; ) {
      const { part, bytes } = this.#firstPart(rest);
      const inFlight = await inFlightLimit.enter(owner, bytes);
      const undecided = await this.#decidePart(part, inFlight);
      rest = [...undecided, ...rest.slice(part.length)];
    }
  }

  /** Runs the selectors for a part, and starts to store it. Returns the elements for which they did not run. */
  async #decidePart(batch: readonly Delivery[], inFlight: BatchInFlight): Promise<readonly Delivery[]> {
    const decision = this.#state === 'stopping' ? null : await this.#runSelectors(batch);
    const undecided = decision?.undecided ?? [];
    const part = undecided.length === 0 ? batch : batch.filter((delivery) => !undecided.includes(delivery));
    if (decision !== null) this.#noteWritten(decision.written, part.length, inFlight);
    const before = this.#sent;
    const { promise: sent, resolve: markSent } = Promise.withResolvers<void>();
    this.#sent = sent;
    const settled = this.#settle(part, before, decision?.store ?? null, markSent);
    this.#open.add(settled);
    void settled.finally(() => {
      this.#open.delete(settled);
      inFlight.leave();
    });
    return undecided;
  }

  /**
   * Resolves with null if the selectors could not run, or the exchange was stopped: the batch must then be returned.
   */
  async #runSelectors(batch: readonly Delivery[]): Promise<Decision | null> {
    const { promise: stopped, resolve } = Promise.withResolvers<null>();
    let isReturned = false;
    this.#stopWaiting = () => {
      isReturned = true;
      resolve(null);
    };
    try {
      return await Promise.race([this.#options.forwarder.decide(batch, () => isReturned), stopped]);
    } catch {
      // An unexpected error: the loop continues after a delay.
      this.#backoff.noteFailure();
      return null;
    } finally {
      this.#stopWaiting = null;
    }
  }

  /** Counts the bytes that selectors wrote for a part in addition to what `#firstPart` expected. */
  #noteWritten(bytes: number, elements: number, inFlight: BatchInFlight): void {
    const unforeseen = bytes - elements * this.#meanWritten;
    if (unforeseen > 0) inFlight.grow(unforeseen);
    this.#meanWritten = (this.#meanWritten + bytes / elements) / 2;
  }

  /**
   * Stores a part after the earlier ones. Never rejects. @param store null: returns the part undelivered. @param
   * markSent lets the next part be stored
   */
  async #settle(
    batch: readonly Delivery[],
    before: Promise<void>,
    store: StoreBatch | null,
    markSent: () => void,
  ): Promise<void> {
    try {
      await before;
      if (store === null || this.#state === 'stopping') {
        this.#options.source.returnAllUndelivered(batch);
        return;
      }
      const stored = store();
      markSent();
      if (await stored) this.#backoff.reset();
      else this.#backoff.noteFailure();
    } catch {
      // An unexpected error: return all elements, and continue after a delay.
      this.#options.source.returnAllUndelivered(batch);
      this.#backoff.noteFailure();
    } finally {
      markSent();
      for (const { id } of batch) this.#inFlight.delete(id);
      this.#onCapacity?.();
    }
  }

  async #allSettled(): Promise<void> {
    await this.#decided;
    await Promise.all(this.#open);
  }

  /** Resolves when the window has capacity, or the loop is stopping. */
  async #capacity(): Promise<void> {
    while (this.#state === 'running' && !this.#hasCapacity()) {
      await new Promise<void>((resolve) => {
        this.#onCapacity = resolve;
      });
      this.#onCapacity = null;
    }
  }

  /**
   * Whether a full batch fits into the window, or half the window if that is less. So there are no batches of one
   * element when the window is nearly full.
   */
  #hasCapacity(): boolean {
    const free = this.#options.window - this.#inFlight.size;
    return free >= Math.min(MAX_BATCH, Math.max(1, Math.floor(this.#options.window / 2)));
  }

  async #pauseAfterFailure(): Promise<void> {
    await this.#allSettled();
    if (!this.#backoff.isActive || this.#state !== 'running') return;
    await this.#pause.wait(this.#backoff.delayMs());
  }
}
