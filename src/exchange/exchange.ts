import type { Broker } from '../broker/broker.ts';
import type { Consumer } from '../broker/consumer.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { BrokerLog } from '../broker/ports.ts';
import type { Queue, QueueMove } from '../broker/queue.ts';
import { contentBytes, type Delivery, type ElementId, type NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import {
  type SelectorAnswer,
  type SelectorProgram,
  type SelectorSandbox,
  type SelectorVerdict,
  writtenBytes,
} from '../sandbox/sandbox.ts';
import { Backoff } from '../util/backoff.ts';
import type { Clock } from '../util/clock.ts';
import type { LineLimit } from '../util/line-limit.ts';
import { Pause } from '../util/pause.ts';
import { putLast } from '../util/put-last.ts';
import {
  copiesBack,
  copyOf,
  type History,
  historyOf,
  NO_ROUTE,
  type Returning,
  storableVerdict,
  TOO_MANY_HOPS,
  unroutable,
} from './copies.ts';
import {
  CONSUMER_DEFAULTS,
  cannotReserve,
  type Declaration,
  type DeclaredQueue,
  idOf,
  mustBeRunnable,
  versionOf,
} from './declaration.ts';
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

/** The queues of an exchange, resolved once. */
interface ExchangeRoute {
  readonly key: string;
  readonly id: string;
  readonly source: Queue;
  readonly destinations: readonly {
    readonly namespace: Namespace;
    readonly queue: Queue;
    /** Its index among the destinations with the same queue. */
    readonly place: number;
  }[];
  readonly noRoute: Queue;
  readonly tooManyHops: Queue;
  readonly maxHops: number;
  readonly maxCopies: number;
}

interface ForwarderOptions {
  readonly lineLimit: LineLimit;
  readonly route: ExchangeRoute;
  /** The user in whose turn copies are stored. */
  readonly owner: string;
  /** Whether elements are reserved; otherwise they were popped, and so are already finished. */
  readonly reserves: boolean;
  readonly program: SelectorProgram;
  readonly counters: ExchangeCounters;
  readonly errors: DestinationErrors;
  readonly clock: Clock;
  readonly log: BrokerLog;
  readonly sightings: Sightings;
  readonly returning: () => Returning;
  /** Called when `MAX_OVERRUNS_IN_A_ROW` elements in a row overran the sandbox's limits, and not due to payloads. */
  readonly onRepeatedOverruns: (error: string) => void;
}

/** A copy and its target. `destination` is its index in the declaration; null for an unroutable element. */
interface Copy {
  readonly queue: Queue;
  readonly element: NewElement;
  readonly destination: number | null;
}

interface Plan {
  readonly delivery: Delivery;
  readonly copies: readonly Copy[];
  readonly unroutable: Unroutable | null;
}

/**
 * Stores the copies of a batch and settles its elements. Calls the source's engine synchronously, so that batches keep
 * their order. Resolves with false if the loop should slow down.
 */
type StoreBatch = () => Promise<boolean>;

/** The result of running the selectors for a batch. */
interface Decision {
  readonly store: StoreBatch;
  /** Bytes that selectors wrote. */
  readonly written: number;
  /** The last elements, if the selectors wrote so much that they did not run for these. They are decided later. */
  readonly undecided: readonly Delivery[];
}

/** Whether a copy goes to another engine than its source's. */
type IsRemote = (copy: Copy) => boolean;

type Unroutable = 'no-route' | 'too-many-hops';
type OverrunAnswer = Extract<SelectorAnswer, { outcome: 'overrun' }>;

/** How long an element that cannot be forwarded now is delayed. */
const REQUEUE_MS = 5_000;

/**
 * Decides what happens to a batch of elements, and carries it out.
 *
 * Copies within the source's engine are stored in the same atomic step that finishes the element. Copies to other
 * engines are stored before it, under keys derived from element, exchange and destination: if the node crashes in
 * between, the next try stores none of them twice. An element that was popped is already finished, and its copies are
 * stored at most once, without keys. Elements are popped (have no lease) if the source cannot reserve, or if a
 * destination is in another engine and the exchange was declared without `reserve`.
 */
class Forwarder {
  readonly #options: ForwarderOptions;
  readonly #overruns = new Overruns();

  constructor(options: ForwarderOptions) {
    this.#options = options;
  }

  /** Forgets earlier overruns, since the exchange was restarted. */
  restart(): void {
    this.#overruns.clear();
  }

  /**
   * Runs the selectors, possibly while earlier batches are being stored. Resolves with null if the batch was returned
   * in the meantime, so that the results must not be counted.
   */
  async decide(batch: readonly Delivery[], isReturned: () => boolean): Promise<Decision | null> {
    const { route, program, counters, clock } = this.#options;
    const plans: Plan[] = [];
    const toEvaluate: Delivery[] = [];
    const histories: History[] = [];
    for (const delivery of batch) {
      const history = historyOf(delivery);
      if (history.hops >= route.maxHops) plans.push(this.#unroutable(delivery, 'too-many-hops'));
      else {
        toEvaluate.push(delivery);
        histories.push(history);
      }
    }
    const startedAt = clock.monotonic();
    const answers = await program.select(toEvaluate);
    if (isReturned()) return null;
    counters.totals.selectorMs += clock.monotonic() - startedAt;
    const requeued: Delivery[] = [];
    const notEvaluated: Delivery[] = [];
    const returning = this.#options.returning();
    const undecided = toEvaluate.slice(answers.length);
    let written = 0;
    for (const [i, answer] of answers.entries()) {
      const delivery = toEvaluate[i] as Delivery;
      if (answer.outcome === 'evaluated') {
        written += writtenBytes(answer.verdicts);
        this.#overruns.passed(delivery.id);
        plans.push(this.#plan(delivery, histories[i] as History, answer.verdicts, returning));
      } else if (answer.outcome === 'overrun') {
        if (this.#isLastTry(delivery, answer))
          plans.push(this.#unroutable(delivery, 'no-route', answer.error));
        else requeued.push(delivery);
      } else notEvaluated.push(delivery);
    }
    this.#options.sightings.add(plans, batch.length - toEvaluate.length);
    const store = async (): Promise<boolean> => {
      if (notEvaluated.length > 0) route.source.returnAllUndelivered(notEvaluated);
      return this.#execute(plans, requeued);
    };
    return { store, written, undecided };
  }

  /** Counts an overrun. Returns whether it was the element's last try. */
  #isLastTry({ id }: Delivery, { error, inPayload }: OverrunAnswer): boolean {
    const { isLast, mustStop } = this.#overruns.failed(id, inPayload);
    if (mustStop) this.#options.onRepeatedOverruns(error);
    return isLast;
  }

  #plan(
    delivery: Delivery,
    { hops, copies }: History,
    verdicts: readonly SelectorVerdict[],
    returning: Returning,
  ): Plan {
    const { route, clock } = this.#options;
    const accepted: { readonly destination: number; readonly verdict: SelectorVerdict }[] = [];
    for (const [destination, given] of verdicts.entries()) {
      const target = route.destinations[destination];
      if (target === undefined) continue;
      const isTimed = given.matureAt !== null || given.delayMs !== null;
      const verdict = isTimed ? storableVerdict(given, target.namespace, clock.now()) : given;
      if (verdict.accepted) accepted.push({ destination, verdict });
      else this.#noteRejection(destination, verdict);
    }
    if (accepted.length === 0) return this.#unroutable(delivery, 'no-route');
    const destinations = accepted.map(({ destination }) => destination);
    const back = copiesBack(copies, destinations, { returning, maxCopies: route.maxCopies });
    if (back.isTooMany) return this.#unroutable(delivery, 'too-many-hops');
    const planned: Copy[] = [];
    for (const { destination, verdict } of accepted) {
      const { queue } = route.destinations[destination] as ExchangeRoute['destinations'][number];
      const history = { hops, copies: returning?.[destination] ? back.count : copies };
      const element = copyOf(delivery, verdict, history, queue.namespace.defaultGroups);
      planned.push({ queue, element, destination });
    }
    return { delivery, copies: planned, unroutable: null };
  }

  #noteRejection(destination: number, { error, place }: SelectorVerdict): void {
    const { route, counters, errors, clock, log } = this.#options;
    const counter = counters.destinations[destination];
    if (counter === undefined) return;
    if (error === null) counter.skipped += 1;
    else {
      counter.failed += 1;
      errors.add(destination, error, clock.now(), place);
      if (!this.#isLogged(`selector of destination ${destination}`)) return;
      log.warn({ exchange: route.key, destination, error }, 'a selector failed');
    }
  }

  /** Whether to log a failure: one line a minute per cause, since any user who may insert can make selectors fail. */
  #isLogged(cause: string): boolean {
    const { route, lineLimit } = this.#options;
    return lineLimit.admit(`${route.key}: ${cause}`);
  }

  #unroutable(delivery: Delivery, why: Unroutable, error: string | null = null): Plan {
    const { route } = this.#options;
    const queue = why === 'no-route' ? route.noRoute : route.tooManyHops;
    const isBack = queue.key.name === route.source.key.name;
    const element = unroutable(
      delivery,
      { exchange: route.id, error, isBack },
      queue.namespace.defaultGroups,
    );
    return { delivery, copies: [{ queue, element, destination: null }], unroutable: why };
  }

  /** Makes all calls that are possible now before the first `await`, so that batches keep their order. */
  async #execute(plans: readonly Plan[], requeued: readonly Delivery[]): Promise<boolean> {
    // Count the try: the element itself may cause the overrun, and then belongs in the dead-letter queue.
    const requeuing = requeued.length === 0 ? null : this.#requeue(requeued, true);
    const isRemote = this.#remoteDestinations();
    const carriedOut = isRemote === null ? this.#finish(plans, null) : this.#storeThenFinish(plans, isRemote);
    await requeuing;
    return carriedOut;
  }

  /**
   * Returns which copies are stored by separate inserts; null: none. All copies of popped elements are, since there is
   * no finish to combine them with. Evaluated per batch, as a migration to another engine may start at any time.
   */
  #remoteDestinations(): IsRemote | null {
    const { route, reserves } = this.#options;
    if (!reserves) return () => true;
    const remote = new Set<Queue>();
    for (const { queue } of route.destinations) {
      if (!queue.sharesEngineWith(route.source)) remote.add(queue);
    }
    return remote.size === 0 ? null : ({ queue }) => remote.has(queue);
  }

  /** Stores copies to other engines first: an element may only be finished after all of its copies are stored. */
  async #storeThenFinish(plans: readonly Plan[], isRemote: IsRemote): Promise<boolean> {
    const failed = await this.#storeRemote(plans, isRemote);
    if (failed.size === 0) return this.#finish(plans, isRemote);
    await this.#requeue(
      [...failed].map(({ delivery }) => delivery),
      false,
    );
    await this.#finish(
      plans.filter((plan) => !failed.has(plan)),
      isRemote,
    );
    return false;
  }

  /** Stores copies to other engines, one insert per queue. Returns the plans of which a copy failed. */
  async #storeRemote(plans: readonly Plan[], isRemote: IsRemote): Promise<Set<Plan>> {
    const byQueue = new Map<Queue, (Copy & { plan: Plan })[]>();
    for (const plan of plans) {
      for (const copy of plan.copies) {
        if (!isRemote(copy)) continue;
        const element = { ...copy.element, dedupKey: this.#dedupKey(plan, copy) };
        const group = byQueue.get(copy.queue);
        if (group === undefined) byQueue.set(copy.queue, [{ ...copy, plan, element }]);
        else group.push({ ...copy, plan, element });
      }
    }
    const { route, log, owner } = this.#options;
    const failed = new Set<Plan>();
    await Promise.all(
      [...byQueue].map(async ([queue, copies]) => {
        const { items, error } = await storeWhatFits(copies, (some) =>
          queue.insert(
            some.map(({ element }) => element),
            { user: owner },
          ),
        );
        if (items.length === 0) return;
        if (this.#isLogged(`copies for queue ${queue.key.name} of ${queue.key.ns}`)) {
          log.warn(
            { err: error, exchange: route.key, queue: queue.key },
            'a destination did not store copies',
          );
        }
        this.#countFailed(items, error);
        for (const { plan } of items) failed.add(plan);
      }),
    );
    return failed;
  }

  /**
   * Finishes elements, and stores copies within their engine in the same step. If one destination has no capacity for a
   * batch, elements for other destinations are still forwarded. Resolves with false if no element could be forwarded,
   * and the loop should slow down.
   */
  async #finish(plans: readonly Plan[], isRemote: IsRemote | null): Promise<boolean> {
    const { route, log, reserves } = this.#options;
    if (!reserves || plans.length === 0) {
      for (const plan of plans) this.#count(plan);
      return true;
    }
    const inserts = ({ copies }: Plan): readonly Copy[] =>
      isRemote === null ? copies : copies.filter((copy) => !isRemote(copy));
    const transfer = (some: readonly Plan[]): Promise<void> => this.#transfer(some, inserts);
    try {
      await transfer(plans);
      return true;
    } catch (error) {
      const byTargets = Map.groupBy(plans, (plan) =>
        inserts(plan)
          .map(({ destination }) => destination)
          .join(),
      );
      const failures = isFull(error)
        ? await Promise.all([...byTargets.values()].map((some) => storeWhatFits(some, transfer)))
        : [{ items: plans, error }];
      const failed = failures.flatMap(({ items }) => items);
      for (const { items, error: cause } of failures) {
        if (items.length === 0) continue;
        if (this.#isLogged('step of its source')) {
          log.warn({ err: cause, exchange: route.key }, 'elements could not be forwarded; they are requeued');
        }
        this.#countFailed(items.flatMap(inserts), cause);
      }
      await this.#requeue(
        failed.map(({ delivery }) => delivery),
        false,
      );
      return failed.length < plans.length;
    }
  }

  /** Transfers elements, and counts those that were still reserved. */
  async #transfer(plans: readonly Plan[], inserts: (plan: Plan) => readonly Copy[]): Promise<void> {
    const moves = plans.map((plan): QueueMove => {
      const { id, group, lease } = plan.delivery;
      return { finish: { id, group, token: lease?.token ?? null }, inserts: inserts(plan) };
    });
    const { route, owner } = this.#options;
    const results = await route.source.transfer(moves, owner);
    for (const [i, plan] of plans.entries()) if (results[i]?.outcome === 'done') this.#count(plan);
  }

  /** Counts each copy that was not stored, and notes the error once per destination. */
  #countFailed(copies: readonly Copy[], error: unknown): void {
    const { errors, clock, counters } = this.#options;
    const known = error instanceof QuaysideError ? error : null;
    const message = known === null ? 'internal' : `${known.code}: ${known.message}`;
    for (const { destination } of copies) {
      const counter = destination === null ? undefined : counters.destinations[destination];
      if (counter !== undefined) counter.failed += 1;
    }
    for (const destination of new Set(copies.map((copy) => copy.destination))) {
      if (destination !== null) errors.add(destination, message, clock.now());
    }
  }

  /** The key of a copy. It lacks the destination's index, since the declaration may have changed since the last try. */
  #dedupKey({ delivery }: Plan, { destination }: Copy): string {
    const { route } = this.#options;
    const place = destination === null ? -1 : (route.destinations[destination]?.place ?? 0);
    return JSON.stringify(['exchange', route.key, place, route.source.key.ns, delivery.id]);
  }

  /**
   * Requeues elements in their order. Pass `countTry` false if an engine is unavailable: otherwise the elements would
   * be in the dead-letter queue after `maxTries` times 5 s.
   */
  async #requeue(deliveries: readonly Delivery[], countTry: boolean): Promise<void> {
    this.#options.counters.totals.requeued += deliveries.length;
    await this.#options.route.source.requeue(deliveries, REQUEUE_MS, countTry);
  }

  #count({ copies, unroutable }: Plan): void {
    const { counters } = this.#options;
    if (unroutable === 'no-route') counters.totals.noRoute += 1;
    if (unroutable === 'too-many-hops') counters.totals.tooManyHops += 1;
    for (const { destination } of copies) {
      const counter = destination === null ? undefined : counters.destinations[destination];
      if (counter !== undefined) counter.matched += 1;
    }
  }
}

/** Whether a call stored nothing because there was no capacity for all of it. */
function isFull(error: unknown): boolean {
  return error instanceof QuaysideError && (error.code === 'queue-full' || error.code === 'namespace-full');
}

/** Stores as many items, in order, as there is capacity for, by bisection. Returns the others, and the error. */
async function storeWhatFits<T>(
  items: readonly T[],
  store: (items: readonly T[]) => Promise<unknown>,
): Promise<{ readonly items: readonly T[]; readonly error: unknown }> {
  try {
    await store(items);
    return { items: [], error: null };
  } catch (error) {
    if (!isFull(error) || items.length === 1) return { items, error };
    const middle = items.length >> 1;
    const first = await storeWhatFits(items.slice(0, middle), store);
    const secondHalf = items.slice(middle);
    if (first.items.length === 0) return storeWhatFits(secondHalf, store);
    return { items: [...first.items, ...secondHalf], error: first.error };
  }
}

/** An element is unroutable after this many overruns. */
const MAX_OVERRUNS_OF_ELEMENT = 3;
/** The exchange is stopped after this many different elements in a row whose selectors overran. */
const MAX_OVERRUNS_IN_A_ROW = 3;
/** Bound on the elements whose overruns are counted. If there are more, the counts of the oldest are dropped. */
const MAX_ELEMENTS = 10_000;

/** Counts overruns of the sandbox's limits, by element of an exchange, on this node. */
class Overruns {
  /** Overruns by element; the latest one is last. */
  readonly #byElement = new Map<ElementId, number>();
  readonly #inARow = new Set<ElementId>();

  clear(): void {
    this.#byElement.clear();
    this.#inARow.clear();
  }

  passed(id: ElementId): void {
    this.#inARow.clear();
    if (this.#byElement.size > 0) this.#byElement.delete(id);
  }

  /**
   * Counts an overrun. Returns whether it was the element's last try, and whether the exchange must be stopped now.
   * @param inPayload whether the time was spent on its payload, which is not the selectors' fault
   */
  failed(id: ElementId, inPayload: boolean): { readonly isLast: boolean; readonly mustStop: boolean } {
    const count = (this.#byElement.get(id) ?? 0) + 1;
    const isLast = count >= MAX_OVERRUNS_OF_ELEMENT;
    if (isLast) this.#byElement.delete(id);
    else putLast(this.#byElement, id, count, MAX_ELEMENTS);
    if (inPayload || this.#inARow.has(id)) return { isLast, mustStop: false };
    this.#inARow.add(id);
    const mustStop = this.#inARow.size === MAX_OVERRUNS_IN_A_ROW;
    // If the stop cannot be stored, the next such elements request it again.
    if (mustStop) this.#inARow.clear();
    return { isLast, mustStop };
  }
}
