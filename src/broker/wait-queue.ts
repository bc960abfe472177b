import { CALL_TIMEOUT_MS } from '../engine/calls.ts';
import type { GroupCounts, TakeResult } from '../engine/storage.ts';
import { bodyBytes, type Delivery, type GroupName, PLAIN_GROUP } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { Backoff } from '../util/backoff.ts';
import { type CancelTimer, earlier } from '../util/clock.ts';
import { type Claim, Consumer, ConsumerList, type GetRequest, popTimeout, type Sink } from './consumer.ts';
import { FREE_BYTES, readRejection } from './engine-permits.ts';
import { untilDue } from './engine-time.ts';
import { takeOperation } from './meter.ts';
import type { Namespace } from './namespace.ts';
import { ParkedConsumers, type TakePermit } from './parked-consumers.ts';
import type { Queue } from './queue.ts';

/** Bound on the elements that one match requests. It limits the work of one turn, not the throughput. */
const MAX_PER_MATCH = 1000;
/** Bound on the takes of one match: one per lease length (a pop is one, too) and user, all in the same round trip. */
const MAX_TAKES = 64;
/**
 * The safety net: while consumers wait, the engine is queried at least this often, ± half. Signals of other nodes may
 * be lost with a connection; those within this process are not.
 */
const POLL_MS = { alone: 30_000, shared: 3_000 };
/**
 * Polls happen at multiples of this, so that those of many queues share an engine batch. With 5,000 queues on
 * PostgreSQL this reduced processor use of the node from 24 to 12 % of a core, and of PostgreSQL from 14 to 5 %.
 */
const POLLS_TOGETHER_MS = 250;
/** How soon to query again if the engine reports a due time that has passed. */
const CLOCK_SKEW_RETRY_MS = 20;

/** Passed to `match` if an unknown number of elements became eligible. */
export const MANY = Number.POSITIVE_INFINITY;

const NOTHING_MORE: readonly Delivery[] = Object.freeze([]);

/** One `take` for adjacent consumers of the wait queue with compatible requests. */
interface SharedTake {
  readonly leaseMs: number | null;
  /** The user who owns its reservations; null for pops. */
  readonly owner: string | null;
  /** The tid of the consumers of its reservations; null for pops. If they differ, an array with one per element. */
  tids: string | null | (string | null)[];
  readonly consumers: Consumer[];
  /** See `TakeOptions.isTransient`. */
  readonly isTransient: boolean;
  /** The bound of its only consumer; null if it may have several consumers. */
  readonly maxBytes: number | null;
  /** The user whose permit it uses; undefined: it needs none, and may serve several users. */
  readonly user: string | null | undefined;
  /** Given back when the take has ended; null: it needs none. */
  readonly permit: TakePermit | null;
  /** How many elements its consumers request together. */
  count: number;
}

/** The match in flight: its takes, and how many eligible elements it did not request (`beyond`). */
interface Match {
  readonly takes: readonly SharedTake[];
  readonly beyond: number;
  /** When it began, by the monotonic clock. */
  readonly startedAt: number;
  /** As `WaitQueue.#dueAt`, of elements stored since it began, which its takes may not have seen. */
  storedDueAt: number | null;
}

/**
 * The consumers of one group of one queue that wait on this node, and the only code that pairs elements with consumers.
 *
 * Insert, rollback, resume, lease expiry, maturity and signals from other nodes all end in {@link match} with the
 * number of elements that became eligible, so that one insert wakes one consumer, however many wait. An idle wait queue
 * implies that every eligible element has triggered a match. At most one match is in flight. Calls of `match` during it
 * are added up and handled after it, so that an element stored between the engine's look and its reply is not missed.
 * One timer sleeps until the next due time, or the next poll of the safety net.
 *
 * A `match` directly after an `insert` travels in the same round trip (the storage port guarantees the order), so that
 * waking a consumer costs no second fsync.
 */
export class WaitQueue {
  readonly group: GroupName;
  readonly #queue: Queue;
  readonly #ns: Namespace;
  /** Those that waited for no permit, in the order of arrival. They keep their places during a match. */
  readonly #waiting = new ConsumerList();
  /** Those that had to wait for one; null until there is one. */
  #parked: ParkedConsumers | null = null;
  /** Consumers that only watch; null until there is one. */
  #watchers: Watchers | null = null;
  #inFlight: Match | null = null;
  #matchEnded: Promise<void> | null = null;
  /** Elements that became eligible during the match in flight. */
  #matchAgain = 0;
  /** The earliest known maturity in the future, by the monotonic clock; null: none is known. */
  #dueAt: number | null = null;
  #timer: CancelTimer | null = null;
  /** The delay between takes after an engine error. */
  readonly #backoff: Backoff;
  /**
   * How many consumers have timed out and may still get an element from a take. Counted: a set of them, which each get
   * with a timeout of 0 enters and leaves, doubled the time of the garbage collector.
   */
  #timedOut = 0;

  constructor(queue: Queue, group: GroupName) {
    this.#queue = queue;
    this.#ns = queue.namespace;
    this.#backoff = new Backoff(this.#ns.random);
    this.group = group;
  }

  get isEmpty(): boolean {
    return !this.#hasConsumers && this.#inFlight === null;
  }

  get #hasConsumers(): boolean {
    return this.#waitingCount > 0 || (this.#watchers !== null && this.#watchers.size > 0);
  }

  get #waitingCount(): number {
    return this.#waiting.size + (this.#parked?.size ?? 0);
  }

  /** How many consumers wait on behalf of users, that is, all but those of exchanges. */
  get ofUsers(): number {
    return this.consumers().filter(({ request }) => request.owner !== null).length;
  }

  /** Whether its timer waits for a known maturity (`wakeup_timeout` of the consumer record). */
  get awaitsMaturity(): boolean {
    return this.#timer !== null && this.#dueAt !== null;
  }

  /** In no particular order. */
  consumers(): Consumer[] {
    return [...this.#waiting, ...(this.#parked ?? []), ...(this.#watchers?.consumers() ?? [])];
  }

  /** Adds a consumer at the end, and takes an element for it if there is one. */
  join(request: GetRequest, sink: Sink, claim: Claim | null): Consumer {
    const { clock } = this.#ns;
    const consumer = new Consumer(request, this.group, sink, clock.now(), claim);
    this.#waiting.append(consumer);
    const { timeoutMs } = request;
    // If a take for the consumer is in flight, it ends only if that take has no element for it.
    if (timeoutMs === 0) this.#noteTimeout(consumer);
    else if (timeoutMs !== null) {
      consumer.cancelTimeout = clock.after(timeoutMs, () => {
        this.#noteTimeout(consumer);
        if (consumer.state !== 'waiting') return;
        // If the user still waits for a permit, there may be an element, so this is not an ordinary timeout.
        const isLate = this.#parked?.isAwaitedBy(request.owner) === true;
        this.end(consumer, isLate ? readRejection() : timeoutError(consumer));
      });
    }
    if (this.#queue.paused) this.#endTimedOut();
    // Matches count elements, and several consumers may join during one: each requests a look of its own.
    else this.#match(consumer.count);
    return consumer;
  }

  /**
   * Adds a consumer that takes nothing until it is {@link promote}d. Its claim is notified once `watchers.eligible`
   * reaches `wakeAt`, or an unknown number of elements became eligible. The claim must end the consumer at its timeout.
   */
  watch(request: GetRequest, sink: Sink, claim: Claim): Consumer {
    const consumer = new Consumer(request, this.group, sink, this.#ns.clock.now(), claim);
    consumer.state = 'watching';
    consumer.isCounted = false;
    this.watchers.add(consumer);
    if (this.#timer === null && this.#inFlight === null) this.#sleep();
    return consumer;
  }

  /** The consumers that only watch. */
  get watchers(): Watchers {
    this.#watchers ??= new Watchers(this.#queue, this.group);
    return this.#watchers;
  }

  /**
   * Makes a watching consumer wait for an element.
   * @param mayServe whether there may be elements for it, so that a match is needed
   */
  promote(consumer: Consumer, mayServe: boolean): void {
    if (consumer.state === 'watching') {
      this.#watchers?.remove(consumer);
      consumer.state = 'waiting';
      this.#waiting.append(consumer);
    }
    if (mayServe && consumer.state === 'waiting') this.#match(consumer.count);
  }

  /** The client disconnected. Elements that still arrive for it go to another consumer, or are returned. */
  leave(consumer: Consumer): void {
    if (consumer.state === 'gone') return;
    this.#release(consumer);
    this.#restIfEmpty();
  }

  /** Ends a consumer with an error, which is counted in metrics, unlike leaving. */
  end(consumer: Consumer, reason: QuaysideError): void {
    if (consumer.state === 'gone') return;
    this.leave(consumer);
    const { leaseMs, isLook } = consumer.request;
    if (isLook !== true) this.#ns.meter.countError(takeOperation(leaseMs), reason);
    try {
      consumer.sink.end(reason);
    } catch (error) {
      this.#logSinkFailure(error);
    }
  }

  /** `count` elements become eligible in `inMs`: wakes up then at the latest. */
  expect(inMs: number, count = 1): void {
    if (inMs <= 0) {
      this.match(count);
      return;
    }
    const at = this.#ns.clock.monotonic() + inMs;
    if (this.#inFlight !== null) {
      this.#inFlight.storedDueAt = earlier(this.#inFlight.storedDueAt, at);
    } else if (this.#hasConsumers && earlier(this.#dueAt, at) !== this.#dueAt) {
      this.#dueAt = at;
      if (!this.#backoff.isActive) this.#sleep();
    }
  }

  /** `count` elements became eligible, or {@link MANY}: pairs them with the first consumers. */
  match(count: number): void {
    this.#match(count);
    // After the match, so that waiting consumers come first.
    if (this.#watchers !== null && this.#watchers.size > 0 && !this.#queue.paused) this.#watchers.note(count);
  }

  /** Takes up to `count` elements, or {@link MANY}, on behalf of the first consumers. */
  #match(count: number): void {
    if (this.#inFlight !== null) {
      this.#matchAgain += count;
      return;
    }
    if (!this.#hasConsumers || this.#queue.paused) {
      this.#parked?.releasePermits();
      return;
    }
    const takes = this.#startTakes(Math.min(count, MAX_PER_MATCH));
    this.#parked?.releasePermits();
    if (takes.length === 0) {
      if (this.#timer === null) this.#sleep();
      return;
    }
    this.#disarm();
    const { storage, clock } = this.#ns;
    const requested = takes.reduce((sum, take) => sum + take.count, 0);
    const beyond = Math.max(0, count - requested);
    this.#inFlight = { takes, beyond, startedAt: clock.monotonic(), storedDueAt: null };
    const results = takes.map((take) => {
      const { permit } = take;
      const taking = storage.take(this.#queue.key, {
        group: this.group,
        count: take.count,
        leaseMs: take.leaseMs,
        owner: take.owner,
        tids: take.tids,
        ...(take.isTransient && { isTransient: true }),
        ...(take.maxBytes !== null && { maxBytes: take.maxBytes }),
        ...(permit !== null && { leftMs: CALL_TIMEOUT_MS - permit.waitedMs }),
      });
      if (permit !== null) taking.then(permit.end, permit.end);
      return taking;
    });
    // `allSettled`, since a failed take must not discard the elements that another one returned.
    this.#matchEnded = Promise.allSettled(results).then((outcomes) => this.#endMatch(outcomes));
  }

  /** Resolves when the match in flight, if any, has delivered its elements, or started to return them. */
  async matched(): Promise<void> {
    if (this.#inFlight !== null) await this.#matchEnded;
  }

  /** The queue was paused: stops the timer, and ends the consumers that have timed out. */
  pause(): void {
    this.#disarm();
    this.#endTimedOut();
  }

  /** Forms takes for the first consumers, for `count` elements; adjacent compatible ones share one. */
  #startTakes(count: number): SharedTake[] {
    const takes: SharedTake[] = [];
    let requested = 0;
    let left = this.#waitingCount;
    let take: SharedTake | undefined;
    const eachBytes = this.#ns.expectedBytes(this.#queue.key);
    for (const consumer of this.#parked?.withParked(this.#waiting) ?? this.#waiting) {
      if (requested >= count) break;
      if (requested > 0 && requested + consumer.count > MAX_PER_MATCH) break;
      const isShared = take !== undefined && take.maxBytes === null && isCompatible(consumer, take);
      if (!isShared && takes.length === MAX_TAKES) break;
      const { leaseMs, owner, isTransient = false } = consumer.request;
      let permit: TakePermit | null = null;
      const bytes = isShared ? 0 : this.#bytesOf(consumer, eachBytes, count - requested, left);
      if (owner !== null && bytes > FREE_BYTES) {
        this.#parked ??= this.#createParked();
        permit = this.#parked.permitFor(owner, bytes);
        if (permit === null) {
          // The user's parked consumers are out of this match now.
          if (!consumer.isParked) this.#park(owner, consumer);
          continue;
        }
      }
      if (consumer.claim?.acquire(consumer) === false) {
        if (owner !== null && permit !== null) this.#parked?.keep(owner, permit);
        continue;
      }
      if (take === undefined || !isShared) {
        const { maxBytes } = consumer;
        const tids = leaseMs === null ? null : consumer.request.tid;
        const takeOwner = leaseMs === null ? null : owner;
        const user = bytes > FREE_BYTES ? owner : undefined;
        take = {
          leaseMs,
          owner: takeOwner,
          tids,
          isTransient,
          consumers: [],
          count: 0,
          maxBytes,
          user,
          permit,
        };
        takes.push(take);
      }
      if (take.leaseMs !== null) noteTid(take, consumer);
      consumer.state = 'taking';
      left -= 1;
      take.consumers.push(consumer);
      take.count += consumer.count;
      requested += consumer.count;
    }
    return takes;
  }

  /** The expected bytes of a take with this first consumer, which the others may join, up to `count` elements. */
  #bytesOf(
    { count: requested, maxBytes }: Consumer,
    eachBytes: number,
    count: number,
    others: number,
  ): number {
    const elements = maxBytes === null ? Math.min(Math.max(requested, count), requested * others) : requested;
    return Math.min(elements * eachBytes, maxBytes ?? LIMITS.takeBytes);
  }

  #createParked(): ParkedConsumers {
    return new ParkedConsumers(this.#ns, {
      onPermit: () => this.#match(MANY),
      onRejected: (consumers, error) => {
        for (const consumer of consumers) if (isOverdue(consumer)) this.end(consumer, error);
        // The user's remaining consumers wait for the next permit.
        this.#match(MANY);
      },
    });
  }

  #park(user: string, consumer: Consumer): void {
    this.#waiting.remove(consumer);
    this.#parked?.park(user, consumer);
  }

  #endMatch(outcomes: readonly PromiseSettledResult<TakeResult>[]): void {
    const match = this.#inFlight;
    if (match === null) return;
    let isShort = false;
    let hasLeft = false;
    let failure: QuaysideError | null = null;
    for (const [i, take] of match.takes.entries()) {
      const outcome = outcomes[i];
      // The takes of a match share a round trip, so they have the same time.
      this.#ns.meter.observeSince(takeOperation(take.leaseMs), match.startedAt);
      if (outcome === undefined || outcome.status === 'rejected') {
        failure = asTakeError(outcome?.reason);
        // The take may have succeeded although its reply was lost. Then its elements are gone from the queue, so its
        // consumers must learn that.
        if (failure.code === 'outcome-unknown' && !this.#ns.storage.undoesLostTakes) {
          for (const consumer of take.consumers) if (consumer.state === 'taking') this.end(consumer, failure);
        }
        continue;
      }
      const { deliveries, nextDueAt, isCut = false, isLeft = false } = outcome.value;
      hasLeft ||= isCut || isLeft;
      this.#ns.noteTaken(this.#queue.key, bodyBytes(deliveries) / Math.max(1, deliveries.length));
      if (take.leaseMs === null && deliveries.length > 0) this.#ns.noteRemoved(this.#queue.key);
      if (isCut) for (const consumer of take.consumers) consumer.isCut = true;
      if (deliveries.length < take.count) {
        isShort = true;
        this.#dueAt = nextDueAt === null ? null : this.#toDueAt(nextDueAt, match.startedAt);
      }
      this.#serve(take, deliveries);
    }
    this.#dueAt = earlier(this.#dueAt, match.storedDueAt);
    const unserved = match.takes
      .flatMap(({ consumers }) => consumers)
      .filter(({ state }) => state === 'taking');
    for (const consumer of unserved) consumer.state = 'waiting';
    this.#inFlight = null;
    let more = this.#matchAgain + (isShort ? 0 : match.beyond);
    if (hasLeft || (this.#dueAt !== null && this.#dueAt <= this.#ns.clock.monotonic())) {
      // An unknown number of elements is left, or matured during the match, too late for its takes.
      this.#dueAt = null;
      more = MANY;
    }
    this.#matchAgain = 0;
    if (failure === null) this.#continue(more, isShort);
    else this.#backOff(failure);
    if (this.#inFlight === null) this.#parked?.releasePermits();
    this.#restIfEmpty();
    // Last, since a claim may now match other wait queues, or end its call.
    for (const consumer of unserved) {
      if (consumer.state === 'waiting') consumer.claim?.release(consumer);
    }
  }

  /** Passes the elements of a take to its consumers in order, skipping those that are gone. */
  #serve(take: SharedTake, deliveries: readonly Delivery[]): void {
    if (Array.isArray(take.tids)) {
      this.#serveByPlace(take, deliveries);
      return;
    }
    let served = 0;
    for (const consumer of take.consumers) {
      if (served === deliveries.length) return;
      if (consumer.state === 'taking') served += this.#deliver(consumer, deliveries, served);
    }
    if (served === deliveries.length) return;
    for (const consumer of this.#waiting) {
      if (consumer.state !== 'waiting') continue;
      if (served === deliveries.length || !isCompatible(consumer, take)) break;
      if (take.leaseMs !== null && consumer.request.tid !== take.tids) break;
      served += this.#deliver(consumer, deliveries, served);
    }
    if (served < deliveries.length) this.#queue.returnUncounted(deliveries.slice(served));
  }

  /** For a take with several tids: each reservation is for one consumer, and returned if that is gone. */
  #serveByPlace({ consumers }: SharedTake, deliveries: readonly Delivery[]): void {
    const unserved: Delivery[] = [];
    let from = 0;
    for (const consumer of consumers) {
      if (from >= deliveries.length) break;
      const to = from + consumer.count;
      if (consumer.state === 'taking') this.#deliver(consumer, deliveries, from);
      else unserved.push(...deliveries.slice(from, to));
      from = to;
    }
    if (unserved.length > 0) this.#queue.returnUncounted(unserved);
  }

  /** Passes a consumer as many elements as it requested, or as remain. Returns their number. */
  #deliver(consumer: Consumer, deliveries: readonly Delivery[], from: number): number {
    const first = deliveries[from];
    if (first === undefined) return 0;
    const more = consumer.count === 1 ? NOTHING_MORE : deliveries.slice(from + 1, from + consumer.count);
    const delivered = more.length === 0 ? [first] : [first, ...more];
    this.#release(consumer);
    try {
      consumer.sink.deliver(first, more);
    } catch (error) {
      this.#logSinkFailure(error);
      // How far the sink got is unknown: an element may be delivered twice, but none is lost.
      this.#queue.returnUncounted(delivered);
      return delivered.length;
    }
    this.#noteServed(consumer, delivered);
    return delivered.length;
  }

  /** Counts deliveries to one consumer. They are of one group. */
  #noteServed({ request }: Consumer, deliveries: readonly Delivery[]): void {
    const { stats, meter, activity } = this.#ns;
    const count = deliveries.length;
    const group = deliveries[0]?.group ?? PLAIN_GROUP;
    activity.note(this.#queue.key.name);
    stats.add(this.#queue.key, group, request.leaseMs === null ? { get: count } : { reserve: count });
    let endsAt = Number.POSITIVE_INFINITY;
    for (const { lease } of deliveries) if (lease !== null && lease.until < endsAt) endsAt = lease.until;
    if (endsAt < Number.POSITIVE_INFINITY) this.#ns.sweeper.wakeAt(endsAt);
    meter.count(takeOperation(request.leaseMs), 'ok', count);
  }

  /** A sink that throws is a bug of its front end. It must not affect other consumers. */
  #logSinkFailure(error: unknown): void {
    this.#ns.log.warn({ err: error, queue: this.#queue.key }, 'a consumer failed');
  }

  #continue(more: number, isShort: boolean): void {
    this.#backoff.reset();
    if (this.#queue.paused) this.#endTimedOut();
    else if (more > 0) this.#match(more);
    else if (isShort) this.#endTimedOut();
    // Earlier consumers got the elements of the match; those that timed out are entitled to a look of their own.
    else if (this.#timedOut > 0) this.#match(this.#waitingCount);
    if (this.#inFlight === null && this.#hasConsumers) this.#sleep();
  }

  /** The engine is unavailable: consumers keep waiting, except for those that timed out, which end with the error. */
  #backOff(failure: QuaysideError): void {
    this.#endTimedOut(failure);
    this.#backoff.noteFailure();
    this.#arm(this.#backoff.delayMs());
  }

  #restIfEmpty(): void {
    if (this.#hasConsumers) return;
    this.#disarm();
    this.#dueAt = null;
    if (this.#inFlight === null) this.#ns.noteIdle(this.#queue.key, this);
  }

  #sleep(): void {
    const { isShared, random, clock } = this.#ns;
    const now = clock.monotonic();
    const pollAt = now + POLL_MS[isShared ? 'shared' : 'alone'] * (0.5 + random());
    const pollMs = pollAt - (pollAt % POLLS_TOGETHER_MS) - now;
    this.#arm(this.#dueAt === null ? pollMs : Math.min(pollMs, this.#dueAt - now));
  }

  #arm(delayMs: number): void {
    this.#disarm();
    if (!this.#hasConsumers || this.#queue.paused) return;
    const { clock } = this.#ns;
    // Whole milliseconds, as timers have: one that fires a fraction too early would take, and find nothing.
    this.#timer = clock.after(Math.max(0, Math.ceil(delayMs)), () => {
      this.#timer = null;
      if (this.#dueAt !== null && this.#dueAt < clock.monotonic() + 1) this.#dueAt = null;
      this.match(MANY);
    });
  }

  #disarm(): void {
    this.#timer?.();
    this.#timer = null;
  }

  /**
   * Converts a due time of the engine's clock. The known time of that may be slightly ahead. So if an element seemed
   * due before the match began, look again a little later, not immediately in a loop.
   */
  #toDueAt(dueAt: number, matchedAt: number): number {
    const now = this.#ns.clock.monotonic();
    const at = now + untilDue(dueAt, this.#ns, this.#queue.key);
    return at > matchedAt ? at : now + CLOCK_SKEW_RETRY_MS;
  }

  #noteTimeout(consumer: Consumer): void {
    consumer.hasTimedOut = true;
    this.#timedOut += 1;
  }

  #endTimedOut(failure?: QuaysideError): void {
    if (this.#timedOut === 0) return;
    for (const consumers of [this.#waiting, this.#parked ?? []]) {
      for (const consumer of consumers) {
        if (this.#timedOut === 0) return;
        if (isOverdue(consumer)) this.end(consumer, failure ?? timeoutError(consumer));
      }
    }
  }

  #release(consumer: Consumer): void {
    if (consumer.state === 'watching') this.#watchers?.remove(consumer);
    else if (consumer.isParked) this.#parked?.remove(consumer);
    else this.#waiting.remove(consumer);
    consumer.state = 'gone';
    consumer.cancelTimeout?.();
    consumer.cancelTimeout = null;
    if (consumer.hasTimedOut) this.#timedOut -= 1;
    if (consumer.isCounted) this.#ns.waitingLimit.exit(consumer.request.owner);
  }
}

/**
 * Whether elements of a take may be delivered to the consumer: a reservation belongs to the user who requested it, and
 * a consumer bounded by bytes needs a take of its own.
 */
function isCompatible({ request, maxBytes }: Consumer, take: SharedTake): boolean {
  const { leaseMs, owner, user, isTransient } = take;
  if (maxBytes !== null || request.leaseMs !== leaseMs) return false;
  if ((request.isTransient ?? false) !== isTransient) return false;
  return (leaseMs === null || request.owner === owner) && (user === undefined || request.owner === user);
}

/** Adds a consumer's tid to a shared take, for its reservations. */
function noteTid(take: SharedTake, { request: { tid }, count }: Consumer): void {
  if (!Array.isArray(take.tids)) {
    if (take.tids === tid) return;
    take.tids = new Array<string | null>(take.count).fill(take.tids);
  }
  for (let i = 0; i < count; i += 1) take.tids.push(tid);
}

/** Whether a consumer's time has passed, and no take is in flight that may serve it. */
function isOverdue({ hasTimedOut, state }: Consumer): boolean {
  return hasTimedOut && state === 'waiting';
}

function timeoutError({ request, tid, since }: Consumer): QuaysideError {
  return popTimeout(request.timeoutMs, tid, since);
}

/** The error of a failed take for its callers. */
export function asTakeError(failure: unknown): QuaysideError {
  if (failure instanceof QuaysideError) return failure;
  return new QuaysideError(
    'internal',
    'The take failed because of an internal error. The log has the details.',
    {
      cause: failure,
    },
  );
}

/** Stands for an unknown number: wakes all watchers, as none watches for more elements than a take returns. */
const UNKNOWN = 1_000_000;

/** The watching consumers of one wait queue. An eligible element costs one comparison for all of them together. */
class Watchers {
  readonly #queue: Queue;
  readonly #group: GroupName;
  readonly #consumers = new Set<Consumer>();
  #eligible = 0;
  /** The smallest `wakeAt` of all consumers. */
  #wakeAt = Number.POSITIVE_INFINITY;
  #counting: Promise<GroupCounts> | null = null;
  /** The value of `eligible` when the count in flight was requested. */
  #countedAt = 0;

  constructor(queue: Queue, group: GroupName) {
    this.#queue = queue;
    this.#group = group;
  }

  get size(): number {
    return this.#consumers.size;
  }

  /** How many elements became eligible. Only differences are meaningful. */
  get eligible(): number {
    return this.#eligible;
  }

  consumers(): Iterable<Consumer> {
    return this.#consumers;
  }

  /** Adds a consumer, which the next element wakes. */
  add(consumer: Consumer): void {
    this.#consumers.add(consumer);
    this.wakeWhen(consumer, this.#eligible + 1);
  }

  remove(consumer: Consumer): void {
    this.#consumers.delete(consumer);
    // Eligible elements are not counted without consumers, so a later one must not share an earlier count.
    if (this.#consumers.size === 0) this.#counting = null;
  }

  /** Sets the value of {@link eligible} at which a watching consumer is woken; immediately if it is reached already. */
  wakeWhen(consumer: Consumer, wakeAt: number): void {
    if (consumer.state !== 'watching') return;
    consumer.wakeAt = wakeAt;
    this.#wakeAt = Math.min(this.#wakeAt, wakeAt);
    if (wakeAt <= this.#eligible) this.#wake();
  }

  /** `count` elements became eligible, or {@link MANY}. */
  note(count: number): void {
    this.#eligible += Math.min(count, UNKNOWN);
    if (this.#eligible >= this.#wakeAt) this.#wake();
  }

  #wake(): void {
    this.#wakeAt = Number.POSITIVE_INFINITY;
    const woken: Consumer[] = [];
    for (const consumer of this.#consumers) {
      if (consumer.wakeAt <= this.#eligible) {
        consumer.wakeAt = Number.POSITIVE_INFINITY;
        woken.push(consumer);
      } else this.#wakeAt = Math.min(this.#wakeAt, consumer.wakeAt);
    }
    for (const consumer of woken) consumer.claim?.wake?.(consumer);
  }

  /**
   * The engine's counts of the group. Callers share a call as long as no element became eligible since it was made, and
   * there were watching consumers all the time.
   */
  counts(): Promise<GroupCounts> {
    if (this.#counting !== null && this.#countedAt === this.#eligible) return this.#counting;
    const { key, namespace } = this.#queue;
    const counting: Promise<GroupCounts> = namespace.storage.counts(key, this.#group).finally(() => {
      if (this.#counting === counting) this.#counting = null;
    });
    this.#countedAt = this.#eligible;
    this.#counting = counting;
    return counting;
  }
}
