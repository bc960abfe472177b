import { type GroupCounts, NO_COUNTS, type Storage } from '../engine/storage.ts';
import { bodyBytes, type Delivery, type GroupName } from '../model/element.ts';
import type { QuaysideError } from '../model/errors.ts';
import { Backoff } from '../util/backoff.ts';
import type { CancelTimer } from '../util/clock.ts';
import { EarliestTimer } from '../util/earliest-timer.ts';
import { type Claim, type Consumer, type ConsumerOrigin, popTimeout, type Sink } from './consumer.ts';
import { untilDue } from './engine-time.ts';
import { takeOperation } from './meter.ts';
import type { Queue } from './queue.ts';
import { asTakeError, type WaitQueue } from './wait-queue.ts';

/** One of the queues of a {@link JointTake}. */
export interface TakeSource {
  readonly queue: Queue;
  /** Null: the namespace's default. */
  readonly group: GroupName | null;
  /** Reserve for this long, in ms; null: pop. */
  readonly leaseMs: number | null;
  /** Weight of the queue in `fair` order, above 0. */
  readonly weight: number;
}

/** A take from several queues, or of several elements at once. The front end has validated every field. */
export interface JointRequest {
  /** No two of them name the same group of the same queue. */
  readonly sources: readonly TakeSource[];
  /** The order in which queues are tried: `strict`, that of `sources`; `fair`, random, in proportion to the weights. */
  readonly order: 'strict' | 'fair';
  /** Maximum number of elements, 1 to 1000. */
  readonly count: number;
  /** The call waits until it can return this many elements; at the timeout it returns fewer. 1 to `count`. */
  readonly min: number;
  /** Bounds the bytes of all bodies together; the first element may exceed it. */
  readonly maxBytes: number;
  /** How long to wait, in ms; null: forever, 0: not at all. */
  readonly timeoutMs: number | null;
  readonly tid: string | null;
  readonly owner: string | null;
  readonly from: ConsumerOrigin;
}

/** The elements that a {@link JointTake} took from one queue. */
export interface Portion {
  readonly queue: Queue;
  readonly deliveries: readonly Delivery[];
}

/** Receives the outcome of a {@link JointTake}: exactly one of the methods is called, once, unless the call leaves. */
export interface JointSink {
  /** The caller now owns the elements. It must return what it cannot pass on with `queue.returnAllUndelivered`. */
  deliver(portions: readonly Portion[]): void;
  end(reason: QuaysideError): void;
}

/** One queue of the call, and the call's consumer there; null if the call does not wait. */
interface JointPlace {
  readonly source: TakeSource;
  readonly group: GroupName;
  readonly waitQueue: WaitQueue | null;
  readonly consumer: Consumer | null;
  /** Whether elements became eligible while its consumer could not take. */
  isMissed: boolean;
}

/** The minimum time between two counts that found too few elements: others may take elements as fast as they arrive. */
const MIN_COUNT_INTERVAL_MS = 20;
/** The time to the next count if the missing elements are scheduled, or if an engine did not reply. */
const RECOUNT_MS = 500;
/** The maximum time to the next count while scheduled elements would be enough. */
const MAX_COUNT_INTERVAL_MS = 5_000;

/**
 * One blocked call that takes from several queues, of any namespaces and engines, or that waits for several elements at
 * once. It never takes more elements than it returns.
 *
 * It has one consumer in each queue. Listings show these consumers, and a cancel ends the call. The call begins with a
 * pass: it takes from its queues one after the other, in its order and without waiting, until it has `count` elements.
 * It skips queues that the engines count as empty. If the pass finds too few elements:
 *
 * - With `min` 1, its consumers wait like any others, but only one of them takes at a time ({@link Claim}). The first
 *   element ends the call.
 * - With a larger `min`, its consumers watch. Elements held while waiting would be lost in a crash, and their leases
 *   would expire. So the call takes nothing until the engines count `min` ready elements, and then makes another pass.
 *   If other consumers were faster, it returns what it took. Consumers that need fewer elements are served first. At
 *   the timeout it returns what there is.
 *
 * States: `looking` (a pass through the queues), `waiting`, `over`.
 */
export class JointTake implements Claim {
  readonly #request: JointRequest;
  readonly #sink: JointSink;
  readonly #since: number;
  readonly #tid: string;
  #places: readonly JointPlace[] = [];
  #state: 'looking' | 'waiting' | 'over' = 'looking';
  #portions: Portion[] = [];
  #taken = 0;
  #bytes = 0;
  /** Whether `maxBytes` leaves no space for another element. */
  #isFull = false;
  /** The look in flight. */
  #look: { readonly queue: Queue; readonly consumer: Consumer } | null = null;
  /** The first failure of this pass, and the engines that failed in it. */
  #failure: QuaysideError | null = null;
  readonly #failed = new Set<Storage>();
  /** The consumer that may take now. */
  #holder: Consumer | null = null;
  #hasTimedOut = false;
  #isCounting = false;
  /** The next count starts no earlier than this, by the monotonic clock. */
  #nextCountAt = 0;
  /** Starts a count even if nothing becomes eligible. */
  readonly #counter: EarliestTimer;
  /** The delay after passes that found too few elements. */
  readonly #backoff: Backoff;
  #cancelTimeout: CancelTimer | null = null;

  /**
   * Starts the first pass, or the first count.
   * @throws QuaysideError `invalid-parameter` (a group of a plain queue), `too-many-consumers`, `shutting-down`
   */
  constructor(request: JointRequest, sink: JointSink) {
    const { sources, timeoutMs, tid, owner, min } = request;
    const { namespace } = (sources[0] as TakeSource).queue;
    this.#request = request;
    this.#sink = sink;
    this.#since = namespace.clock.now();
    this.#backoff = new Backoff(namespace.random);
    this.#counter = new EarliestTimer(namespace.clock, () => void this.#count());
    this.#tid = tid ?? namespace.makeTid();
    let groups: readonly GroupName[];
    try {
      groups = sources.map(({ queue, group }) => queue.groupOf(group));
      namespace.waitingLimit.enter(owner, sources.length);
    } catch (error) {
      this.#countError(error);
      throw error;
    }
    this.#places = sources.map((source, index) => this.#join(source, groups[index] as GroupName));
    if (timeoutMs !== null && timeoutMs > 0) {
      this.#cancelTimeout = namespace.clock.after(timeoutMs, () => this.#timeOut());
    }
    if (min === 1 || timeoutMs === 0) void this.#runPass();
    else {
      this.#state = 'waiting';
      void this.#count();
    }
  }

  /** The client disconnected: returns what was taken. Harmless after the call was answered. */
  leave(): void {
    if (this.#state === 'over') return;
    this.#close();
    this.#returnTaken();
  }

  acquire(consumer: Consumer): boolean {
    if (this.#state === 'waiting' && (this.#holder === null || this.#holder === consumer)) {
      this.#holder = consumer;
      return true;
    }
    this.#noteMissed(consumer);
    return false;
  }

  release(consumer: Consumer): void {
    if (this.#state !== 'waiting' || this.#holder !== consumer) return;
    this.#holder = null;
    if (this.#hasTimedOut) {
      this.#fail(this.#timeoutError());
      return;
    }
    for (const place of this.#places) {
      if (!place.isMissed || place.consumer === null) continue;
      place.isMissed = false;
      place.waitQueue?.promote(place.consumer, true);
    }
  }

  wake(consumer: Consumer): void {
    if (this.#state === 'looking') this.#noteMissed(consumer);
    else void this.#count();
  }

  #noteMissed(consumer: Consumer): void {
    const place = this.#places.find((one) => one.consumer === consumer);
    if (place !== undefined) place.isMissed = true;
  }

  /** Adds a consumer of a waiting call to a queue, so that it is listed and notified of elements from the beginning. */
  #join(source: TakeSource, group: GroupName): JointPlace {
    const { count, maxBytes, timeoutMs, tid, owner, from } = this.#request;
    const { queue, leaseMs } = source;
    if (timeoutMs === 0) return { source, group, waitQueue: null, consumer: null, isMissed: false };
    queue.namespace.noteUse(queue.key);
    const waitQueue = queue.waitQueue(group);
    const sink: Sink = {
      deliver: (first, more) => {
        this.#add(queue, [first, ...more]);
        this.#finish();
      },
      end: (reason) => this.#endWith(reason),
    };
    const request = { group, leaseMs, count, maxBytes, timeoutMs, tid, owner, from };
    const consumer = waitQueue.watch(request, sink, this);
    // All consumers share the call's tid. Reservations only get a tid that the client gave.
    consumer.tid = this.#tid;
    return { source, group, waitQueue, consumer, isMissed: false };
  }

  /**
   * One pass: takes what there is, queue by queue. The other queues of an engine that fails are skipped. If the first
   * queue has too few elements, all others are counted at once to skip the empty ones: most of many queues are empty
   * most of the time.
   */
  async #runPass(): Promise<void> {
    this.#state = 'looking';
    this.#failure = null;
    this.#failed.clear();
    const [first, ...others] = this.#orderedPlaces();
    if (first !== undefined) await this.#takeFrom(first);
    if (this.#hasCapacity && others.length > 0) {
      const ready = others.length === 1 ? others : await this.#readyOf(others);
      for (const place of ready) if (this.#hasCapacity) await this.#takeFrom(place);
    }
    if (!this.#isOver) this.#endPass();
  }

  /** Whether the pass should try another queue. */
  get #hasCapacity(): boolean {
    return !this.#isOver && !this.#isFull && this.#taken < this.#request.count;
  }

  /** The queues that have ready elements. */
  async #readyOf(places: readonly JointPlace[]): Promise<readonly JointPlace[]> {
    const isReady = await Promise.all(
      places.map(async (place) => {
        if (this.#failed.has(storageOf(place))) return true;
        try {
          const { ready, nextMatureAt } = await countsOf(place);
          // A take would report the next maturity; for a queue that is skipped, only this count does.
          if (ready === 0 && nextMatureAt !== null) {
            place.waitQueue?.expect(untilDueIn(place, nextMatureAt));
          }
          return ready > 0;
        } catch (error) {
          this.#noteFailure(place, asTakeError(error));
          return false;
        }
      }),
    );
    return places.filter((_, index) => isReady[index] === true);
  }

  #noteFailure(place: JointPlace, failure: QuaysideError): void {
    this.#failure ??= failure;
    this.#failed.add(storageOf(place));
    place.isMissed = true;
  }

  /** A getter, since the compiler would assume that `#state` does not change during an `await`. */
  get #isOver(): boolean {
    return this.#state === 'over';
  }

  /** Takes from one queue without waiting. */
  async #takeFrom(place: JointPlace): Promise<void> {
    const { source, group } = place;
    const { queue, leaseMs } = source;
    if (this.#failed.has(storageOf(place))) {
      place.isMissed = true;
      return;
    }
    if (queue.paused) return;
    const { count, maxBytes, tid, owner, from } = this.#request;
    const { promise, resolve } = Promise.withResolvers<QuaysideError | null>();
    const request = {
      group: queue.namespace.isStream ? group : null,
      leaseMs,
      count: count - this.#taken,
      maxBytes: Math.max(1, maxBytes - this.#bytes),
      timeoutMs: 0,
      tid,
      owner,
      from,
      isLook: true,
    };
    const consumer = queue.get(request, {
      // Add synchronously: if the client leaves now, `#returnTaken` must find these elements.
      deliver: (first, more) => {
        this.#add(queue, [first, ...more]);
        resolve(null);
      },
      end: (reason) => resolve(reason.code === 'pop-timeout' ? null : reason),
    });
    // The request's tid is for reservations only. A cancel must find the call's own consumers, not this one.
    consumer.tid = null;
    this.#look = { queue, consumer };
    const failure = await promise;
    this.#look = null;
    if (consumer.isCut) this.#isFull = true;
    if (failure !== null) this.#noteFailure(place, failure);
  }

  #add(queue: Queue, deliveries: readonly Delivery[]): void {
    // A take returns its first element even if that exceeds the bytes that are left.
    const bytes = bodyBytes(deliveries);
    const { maxBytes } = this.#request;
    if (this.#taken > 0 && this.#bytes + bytes > maxBytes) {
      queue.returnAllUndelivered(deliveries);
      this.#isFull = true;
      return;
    }
    this.#portions.push({ queue, deliveries });
    this.#taken += deliveries.length;
    this.#bytes += bytes;
    if (this.#bytes >= maxBytes) this.#isFull = true;
  }

  #endPass(): void {
    const { timeoutMs, min } = this.#request;
    const isLast = this.#hasTimedOut || timeoutMs === 0;
    const isEnough = this.#taken >= min || this.#isFull || isLast;
    if (this.#taken > 0 && isEnough) this.#finish();
    else if (isLast) this.#fail(this.#failure ?? this.#timeoutError());
    // Elements may have been popped for this call although the reply was lost.
    else if (this.#failure?.code === 'outcome-unknown') this.#fail(this.#failure);
    else if (min === 1) this.#wait();
    else this.#watchAgain();
  }

  /** The pass found nothing: the consumers wait from now on. Those that were notified during the pass look again. */
  #wait(): void {
    this.#state = 'waiting';
    for (const place of this.#places) {
      if (this.#isOver || place.consumer === null) return;
      const { isMissed } = place;
      place.isMissed = false;
      place.waitQueue?.promote(place.consumer, isMissed);
    }
  }

  /** Returns what was taken, since other consumers were faster or an engine failed, and counts again later. */
  #watchAgain(): void {
    this.#returnTaken();
    this.#state = 'waiting';
    this.#backoff.noteFailure();
    const restMs = this.#backoff.delayMs();
    this.#nextCountAt = this.#clock.monotonic() + restMs;
    this.#counter.within(restMs);
  }

  /** Starts a pass if the engines count enough elements, else waits until there may be enough. */
  async #count(): Promise<void> {
    if (this.#state !== 'waiting' || this.#isCounting) return;
    const inMs = this.#nextCountAt - this.#clock.monotonic();
    if (inMs > 0) {
      this.#counter.within(inMs);
      return;
    }
    this.#isCounting = true;
    const eligible = this.#places.map(({ waitQueue }) => waitQueue?.watchers.eligible ?? 0);
    const allCounts = await Promise.all(this.#places.map((place) => countsOf(place).catch(() => null)));
    this.#isCounting = false;
    if (this.#state !== 'waiting') return;
    let [ready, scheduled, isUnknown] = [0, 0, false];
    for (const counts of allCounts) {
      ready += counts?.ready ?? 0;
      scheduled += counts?.scheduled ?? 0;
      isUnknown ||= counts === null;
    }
    const missing = this.#request.min - ready;
    if (missing <= 0) {
      void this.#runPass();
      return;
    }
    this.#nextCountAt = this.#clock.monotonic() + MIN_COUNT_INTERVAL_MS;
    if (isUnknown) this.#counter.within(RECOUNT_MS);
    else if (scheduled >= missing)
      this.#counter.within(ready > 0 ? RECOUNT_MS : this.#nextMaturityIn(allCounts));
    // Scheduled elements may mature without a notification, so they do not count. When the other missing elements have
    // become eligible, at least one queue has this share of them.
    const share = Math.ceil((scheduled < missing ? missing - scheduled : missing) / this.#places.length);
    for (const [index, { waitQueue, consumer }] of this.#places.entries()) {
      if (consumer !== null) waitQueue?.watchers.wakeWhen(consumer, (eligible[index] ?? 0) + share);
    }
  }

  #nextMaturityIn(allCounts: readonly (GroupCounts | null)[]): number {
    let next = Number.POSITIVE_INFINITY;
    for (const [index, counts] of allCounts.entries()) {
      if (counts?.nextMatureAt == null) continue;
      next = Math.min(next, untilDueIn(this.#places[index] as JointPlace, counts.nextMatureAt));
    }
    return Math.max(MIN_COUNT_INTERVAL_MS, Math.min(next, MAX_COUNT_INTERVAL_MS));
  }

  /** If a take for the call is in flight, the call ends only if that take returns nothing. */
  #timeOut(): void {
    this.#hasTimedOut = true;
    if (this.#state !== 'waiting') return;
    if (this.#request.min > 1) void this.#runPass();
    else if (this.#holder === null) this.#fail(this.#timeoutError());
  }

  /** In `fair` order, queues are sorted by `random ** (1 / weight)`, largest first: a weighted random order. */
  #orderedPlaces(): readonly JointPlace[] {
    if (this.#request.order === 'strict' || this.#places.length === 1) return this.#places;
    const { random } = this.#namespace;
    return this.#places
      .map((place) => ({ place, key: random() ** (1 / place.source.weight) }))
      .sort((a, b) => b.key - a.key)
      .map(({ place }) => place);
  }

  #finish(): void {
    const portions = this.#portions;
    this.#close();
    try {
      this.#sink.deliver(portions);
    } catch (error) {
      // How far the sink got is unknown: an element may be delivered twice, but none is lost.
      this.#namespace.log.warn({ err: error }, 'a take from several queues could not be answered');
      this.#returnTaken();
    }
  }

  #fail(reason: QuaysideError): void {
    this.#countError(reason);
    this.#endWith(reason);
  }

  /** Counts the error in the metrics of the first queue's namespace. */
  #countError(error: unknown): void {
    const { leaseMs, queue } = this.#request.sources[0] as TakeSource;
    queue.namespace.meter.countError(takeOperation(leaseMs), error);
  }

  #endWith(reason: QuaysideError): void {
    if (this.#isOver) return;
    this.#close();
    this.#returnTaken();
    this.#sink.end(reason);
  }

  /** Returns all elements that were taken; no try is counted. */
  #returnTaken(): void {
    for (const { queue, deliveries } of this.#portions) queue.returnAllUndelivered(deliveries);
    this.#portions = [];
    [this.#taken, this.#bytes, this.#isFull] = [0, 0, false];
  }

  #close(): void {
    this.#state = 'over';
    this.#cancelTimeout?.();
    this.#counter.cancel();
    const { owner, sources } = this.#request;
    this.#namespace.waitingLimit.exit(owner, sources.length);
    for (const { waitQueue, consumer } of this.#places) if (consumer !== null) waitQueue?.leave(consumer);
    if (this.#look !== null) this.#look.queue.leave(this.#look.consumer);
  }

  #timeoutError(): QuaysideError {
    return popTimeout(this.#request.timeoutMs, this.#tid, this.#since);
  }

  /** The namespace of the first queue: all namespaces of a broker share their clock, limits and random numbers. */
  get #namespace(): Queue['namespace'] {
    return (this.#request.sources[0] as TakeSource).queue.namespace;
  }

  get #clock(): Queue['namespace']['clock'] {
    return this.#namespace.clock;
  }
}

function storageOf({ source: { queue } }: JointPlace): Storage {
  return queue.namespace.storage;
}

function untilDueIn({ source: { queue } }: JointPlace, at: number): number {
  return untilDue(at, queue.namespace, queue.key);
}

/** A paused queue counts as empty. */
async function countsOf({ source: { queue }, group, waitQueue }: JointPlace): Promise<GroupCounts> {
  if (queue.paused) return NO_COUNTS;
  return waitQueue === null ? queue.namespace.storage.counts(queue.key, group) : waitQueue.watchers.counts();
}
