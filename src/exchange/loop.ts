import type { Claim, Consumer } from '../broker/consumer.ts';
import { contentBytes, type Delivery, type ElementId } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { Backoff } from '../util/backoff.ts';
import type { Clock } from '../util/clock.ts';
import { Pause } from '../util/pause.ts';
import type { Exchange } from './exchange.ts';
import type { Decision, Forwarder } from './forwarder.ts';
import type { BatchInFlight, InFlightLimit } from './in-flight-limit.ts';

/** Elements per round trip. Larger batches gained less than 3 %, and their leases run longer. */
const MAX_BATCH = 256;
/** Bytes per round trip, including copies. If elements are large, fewer are taken together. */
const BATCH_BYTES = 4 * 1_048_576;
/** Copies per round trip, unless one element has more: Redis serves nobody else for the 40 ms that they take. */
const BATCH_COPIES = 2_000;
/** The assumed size of an element before the first one is taken. */
const USUAL_BYTES = 4 * 1024;
/** Bytes of the first batch, unless its first element has more: the size of the elements is not known. */
const FIRST_BYTES = 64 * 1024;
/** The approximate bytes of an element, or a copy, without body and headers. */
const OWN_BYTES = 256;
/**
 * The share of its lease that a batch may spend with its selectors. It also waits for those of the batch before, and to
 * be stored.
 */
const SELECTOR_SHARE = 0.25;
/** Elements of a batch while it is not known how long the selectors take. */
const FIRST_BATCH = 16;

/**
 * One loop of an exchange: a pipeline of three stages. While batches are being stored, the selectors run for the next
 * one, and the one after that is being taken. Batches are sent to the engine in the order in which they were taken, and
 * engines keep the order of calls, so a loop keeps the order of its source. Waiting for each reply cost 40 % of
 * throughput. A batch is stored in parts if it is large, or if selectors write much.
 *
 * States: `idle` (before start, after stop), `running`, `stopping` (no further batch is taken; batches that were taken
 * and not yet sent to be stored are returned undelivered, the others finish).
 */
export class Loop {
  readonly tid: string;
  readonly #exchange: Exchange;
  readonly #forwarder: Forwarder;
  readonly #clock: Clock;
  readonly #window: number;
  /** Maximum number of copies per element. */
  readonly #maxCopies: number;
  #state: 'idle' | 'running' | 'stopping' = 'idle';
  #consumer: Consumer | null = null;
  #waitingSince: number | null = null;
  /** Elements that were taken and are not settled, with the wall time of the take, ms. */
  readonly #inFlight = new Map<ElementId, number>();
  /** Moving average of the bytes of an element; null: none was taken. */
  #meanBytes: number | null = null;
  /** Moving average of the bytes that selectors write per element, for all copies together. */
  #meanWritten = 0;
  /** Moving average of the time that selectors take per element, with waits for other exchanges, ms; null: unknown. */
  #meanSelectorMs: number | null = null;
  /** Whether the last batch was returned, since the node had no capacity for it. */
  #isCrowded = false;
  /** Capacity for the next batch; null: it is requested once the elements are there. */
  #capacity: BatchInFlight | null = null;
  /** Resolves when the selectors have run for every batch taken so far. */
  #decided: Promise<void> = Promise.resolve();
  /** Resolves when every batch taken so far was sent to be stored. */
  #sent: Promise<void> = Promise.resolve();
  /** Batches that are not settled yet. */
  readonly #open = new Set<Promise<void>>();
  /** Each ends a wait for selectors or capacity, since the loop stops. */
  readonly #stopWaiting = new Set<() => void>();
  /** Ends the wait for a batch, with the delivered elements. */
  #endWait: ((batch: Delivery[]) => void) | null = null;
  /** The delay before the next batch after a failed one. */
  readonly #backoff: Backoff;
  /** The wait after a failure, or for capacity of the window. */
  readonly #pause: Pause;
  /** Of a take with capacity, which it gives back if it finds no element. */
  readonly #claim: Claim = { acquire: () => true, release: () => this.#dropCapacity() };
  #run: Promise<void> = Promise.resolve();

  /** @param window maximum number of elements in flight */
  constructor(exchange: Exchange, forwarder: Forwarder, tid: string, window: number) {
    const { clock, random } = exchange.context;
    this.tid = tid;
    this.#exchange = exchange;
    this.#forwarder = forwarder;
    this.#clock = clock;
    this.#window = window;
    this.#maxCopies = Math.max(1, exchange.declaration.dst.length);
    this.#backoff = new Backoff(random);
    this.#pause = new Pause(clock);
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
      if (this.#consumer !== null) this.#exchange.route.source.leave(this.#consumer);
      this.#endWait?.([]);
      this.#pause.end();
      // The selectors of a thousand exchanges may take longer than a shutdown is allowed to, and capacity returns only
      // as fast as engines respond.
      for (const stop of this.#stopWaiting) stop();
      this.#stopWaiting.clear();
    }
    await this.#run;
    this.#state = 'idle';
  }

  async #loop(): Promise<void> {
    while (this.#state === 'running') {
      while (this.#state === 'running' && !this.#hasCapacity()) await this.#pause.wait();
      if (this.#backoff.isActive) await this.#pauseAfterFailure();
      if (this.#isCrowded && this.#state === 'running') await this.#requestCapacity();
      if (this.#state !== 'running') break;
      const batch = await this.#take();
      if (batch.length === 0) continue;
      const taken = this.#admit(batch);
      if (taken === null) continue;
      const now = this.#clock.now();
      for (const { id } of batch) this.#inFlight.set(id, now);
      // One batch at a time: the bytes written for it must be counted before the selectors run for the next.
      await this.#decided;
      this.#decided = this.#decide(batch, taken);
    }
    this.#dropCapacity();
    await this.#allSettled();
  }

  /**
   * The first elements of a batch, as many as one round trip stores, and their bytes: with copies, and the expected
   * output of the selectors.
   */
  #firstPart(batch: readonly Delivery[]): { readonly part: readonly Delivery[]; readonly bytes: number } {
    let [bytes, count] = [0, 0];
    for (const delivery of batch) {
      const more = ownBytes(delivery) * this.#maxCopies + this.#meanWritten;
      const isFull = bytes + more > BATCH_BYTES || (count + 1) * this.#maxCopies > BATCH_COPIES;
      if (count > 0 && isFull) break;
      bytes += more;
      count += 1;
    }
    return { part: count === batch.length ? batch : batch.slice(0, count), bytes };
  }

  /** How many elements to take for the next batch. */
  #batchSize(): number {
    // After a failure, one element is enough to test whether the destination is available again.
    if (this.#backoff.isActive) return 1;
    const bytes = (this.#meanBytes ?? USUAL_BYTES) * this.#maxCopies + this.#meanWritten;
    const byBytes = Math.max(1, Math.floor(BATCH_BYTES / bytes));
    return Math.min(MAX_BATCH, this.#window - this.#inFlight.size, byBytes, this.#fittingLease());
  }

  /** How many elements can be forwarded before their leases expire: an expired lease counts as a failed try. */
  #fittingLease(): number {
    const { reserves, route, declaration } = this.#exchange;
    if (!reserves || this.#meanSelectorMs === 0) return MAX_BATCH;
    if (this.#meanSelectorMs === null) {
      return declaration.dst.some(({ selector }) => selector !== undefined) ? FIRST_BATCH : MAX_BATCH;
    }
    const ms = SELECTOR_SHARE * route.source.settings.leaseMs;
    return Math.max(1, Math.floor(ms / this.#meanSelectorMs));
  }

  /** Waits for a batch. If it is empty, the loop must check whether it should continue. */
  #take(): Promise<Delivery[]> {
    const { reserves, route } = this.#exchange;
    const { source } = route;
    const { tid } = this;
    const leaseMs = reserves ? source.settings.leaseMs : null;
    const { promise, resolve } = Promise.withResolvers<Delivery[]>();
    const end = (batch: Delivery[]): void => {
      this.#consumer = null;
      this.#waitingSince = null;
      this.#endWait = null;
      if (batch.length === 0) this.#dropCapacity();
      resolve(batch);
    };
    this.#endWait = end;
    this.#waitingSince = this.#clock.now();
    const count = this.#batchSize();
    // Only if necessary, as such takes are not shared.
    const bound = this.#capacity?.bytes ?? (this.#meanBytes === null ? FIRST_BYTES : null);
    const maxBytes = bound === null ? {} : { maxBytes: Math.min(bound, LIMITS.takeBytes) };
    try {
      this.#consumer = source.get(
        {
          ...maxBytes,
          group: null,
          leaseMs,
          count,
          timeoutMs: null,
          tid,
          owner: null,
          isTransient: reserves,
        },
        {
          deliver: (first, more) => end([first, ...more]),
          end: (reason) => {
            if (reason.code !== 'pop-cancelled') this.#backoff.noteFailure();
            end([]);
          },
        },
        this.#capacity === null ? null : this.#claim,
      );
      if (this.#capacity !== null) void this.#dropIfLeftOut(this.#consumer);
    } catch (error) {
      if (!(error instanceof QuaysideError)) throw error;
      this.#backoff.noteFailure();
      end([]);
    }
    return promise;
  }

  /** Waits for capacity for the next batch. */
  async #requestCapacity(): Promise<void> {
    const bytes = this.#batchSize() * (this.#meanBytes ?? USUAL_BYTES);
    this.#capacity = await this.#enter(this.#exchange.context.takenLimit, Math.ceil(bytes));
  }

  /** Waits for capacity. Resolves with null if the loop stops. */
  #enter(limit: InFlightLimit, bytes: number): Promise<BatchInFlight | null> {
    const { promise, resolve } = Promise.withResolvers<BatchInFlight | null>();
    if (this.#state === 'stopping') resolve(null);
    else {
      const stop = (): void => resolve(null);
      this.#stopWaiting.add(stop);
      void limit.enter(this.#exchange, bytes).then((batch) => {
        if (this.#stopWaiting.delete(stop)) resolve(batch);
        else batch.leave();
      });
    }
    return promise;
  }

  /**
   * Drops the capacity if no take is in flight for the consumer. A match takes for the first consumers only, as many as
   * it expects elements for, and none while the queue is paused. Then `#claim` would not learn that it has ended.
   */
  async #dropIfLeftOut(consumer: Consumer): Promise<void> {
    // If a match is in flight already, the one after it takes for the consumer.
    await this.#exchange.route.source.waitQueue(consumer.group).matched();
    if (consumer === this.#consumer && consumer.state === 'waiting') this.#dropCapacity();
  }

  /** A loop without elements has no capacity, so that others do not wait for it. */
  #dropCapacity(): void {
    this.#capacity?.leave();
    this.#capacity = null;
    this.#isCrowded = false;
  }

  /**
   * Counts a batch until its selectors run. Returns null if the node has no capacity for it: the batch was returned to
   * its queue, and the loop must wait for capacity before it takes again. Capacity is not requested before each take: a
   * take from an engine that does not respond would have it for seconds.
   */
  #admit(batch: readonly Delivery[]): BatchInFlight | null {
    const { context, route } = this.#exchange;
    let bytes = 0;
    for (const delivery of batch) bytes += ownBytes(delivery);
    const mean = bytes / batch.length;
    this.#meanBytes = ((this.#meanBytes ?? mean) + mean) / 2;
    const taken = this.#capacity ?? context.takenLimit.tryEnter(this.#exchange, bytes);
    this.#capacity = null;
    if (taken === null) {
      this.#isCrowded = true;
      route.source.returnAllUndelivered(batch);
    } else if (bytes > taken.bytes) taken.grow(bytes - taken.bytes);
    return taken;
  }

  /** Runs the selectors for a batch and starts to store it, in parts if it or their output is large. Never rejects. */
  async #decide(batch: readonly Delivery[], taken: BatchInFlight): Promise<void> {
    const { context } = this.#exchange;
    const startedAt = this.#clock.monotonic();
    for (let rest = batch; rest.length > 0; ) {
      const { part, bytes } = this.#firstPart(rest);
      const inFlight = await this.#enter(context.inFlightLimit, bytes);
      const undecided = await this.#decidePart(part, inFlight);
      rest = [...undecided, ...rest.slice(part.length)];
    }
    taken.leave();
    const ms = (this.#clock.monotonic() - startedAt) / batch.length;
    this.#meanSelectorMs = ((this.#meanSelectorMs ?? ms) + ms) / 2;
  }

  /**
   * Runs the selectors for a part, and starts to store it. Returns the elements for which they did not run.
   * @param inFlight null: the loop stops
   */
  async #decidePart(
    batch: readonly Delivery[],
    inFlight: BatchInFlight | null,
  ): Promise<readonly Delivery[]> {
    const decision = inFlight === null || this.#state === 'stopping' ? null : await this.#runSelectors(batch);
    const undecided = decision?.undecided ?? [];
    const part = undecided.length === 0 ? batch : batch.filter((delivery) => !undecided.includes(delivery));
    if (decision !== null && inFlight !== null) this.#noteWritten(decision.written, part.length, inFlight);
    const before = this.#sent;
    const { promise: sent, resolve: markSent } = Promise.withResolvers<void>();
    this.#sent = sent;
    const settled = this.#settle(part, before, decision, markSent);
    this.#open.add(settled);
    void settled.finally(() => {
      this.#open.delete(settled);
      inFlight?.leave();
    });
    return undecided;
  }

  /**
   * Resolves with null if the selectors could not run, or the exchange was stopped: the batch must then be returned.
   */
  async #runSelectors(batch: readonly Delivery[]): Promise<Decision | null> {
    const { promise: stopped, resolve: stop } = Promise.withResolvers<void>();
    let isReturned = false;
    const stopWaiting = (): void => {
      isReturned = true;
      stop();
    };
    this.#stopWaiting.add(stopWaiting);
    try {
      const deciding = this.#forwarder.decide(batch, () => isReturned);
      // The race carries no decision: what holds `stop` would keep the batch until the next full collection (ADR 6).
      await Promise.race([deciding.then(ignore), stopped]);
      return isReturned ? null : await deciding;
    } catch {
      // An unexpected error: the loop continues after a delay.
      this.#backoff.noteFailure();
      return null;
    } finally {
      this.#stopWaiting.delete(stopWaiting);
    }
  }

  /** Counts the bytes that selectors wrote for a part in addition to what `#firstPart` expected. */
  #noteWritten(bytes: number, elements: number, inFlight: BatchInFlight): void {
    const unforeseen = bytes - elements * this.#meanWritten;
    if (unforeseen > 0) inFlight.grow(unforeseen);
    this.#meanWritten = (this.#meanWritten + bytes / elements) / 2;
  }

  /**
   * Stores a part after the earlier ones. Never rejects. @param decision null: returns the part undelivered. @param
   * markSent lets the next part be stored
   */
  async #settle(
    batch: readonly Delivery[],
    before: Promise<void>,
    decision: Decision | null,
    markSent: () => void,
  ): Promise<void> {
    try {
      await before;
      if (decision === null || this.#state === 'stopping') {
        this.#exchange.route.source.returnAllUndelivered(batch);
        return;
      }
      const stored = decision.store();
      if (!decision.isLarge) markSent();
      if (await stored) this.#backoff.reset();
      else this.#backoff.noteFailure();
    } catch {
      // An unexpected error: return all elements, and continue after a delay.
      this.#exchange.route.source.returnAllUndelivered(batch);
      this.#backoff.noteFailure();
    } finally {
      markSent();
      for (const { id } of batch) this.#inFlight.delete(id);
      this.#pause.end();
    }
  }

  async #allSettled(): Promise<void> {
    await this.#decided;
    await Promise.all(this.#open);
  }

  /**
   * Whether a full batch fits into the window, or half the window if that is less. So there are no batches of one
   * element when the window is nearly full.
   */
  #hasCapacity(): boolean {
    const free = this.#window - this.#inFlight.size;
    return free >= Math.min(MAX_BATCH, Math.max(1, Math.floor(this.#window / 2)));
  }

  async #pauseAfterFailure(): Promise<void> {
    await this.#allSettled();
    if (!this.#backoff.isActive || this.#state !== 'running') return;
    await this.#pause.wait(this.#backoff.delayMs());
  }
}

/** The bytes of an element without its copies. */
function ownBytes(delivery: Delivery): number {
  return OWN_BYTES + contentBytes(delivery);
}

function ignore(): void {}
