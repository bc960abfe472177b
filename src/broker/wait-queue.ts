import { CALL_TIMEOUT_MS } from '../engine/calls.ts';
import type { GroupCounts, TakeResult } from '../engine/storage.ts';
import { type Delivery, type GroupName, PLAIN_GROUP } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { Backoff } from '../util/backoff.ts';
import type { CancelTimer } from '../util/clock.ts';
import { type Claim, Consumer, type GetRequest, popTimeout, type Sink } from './consumer.ts';
import { toLocal } from './engine-time.ts';
import { FREE_BYTES, readRejection } from './engine-turns.ts';
import { takeOperation } from './meter.ts';
import type { Namespace } from './namespace.ts';
import type { Queue } from './queue.ts';
import { type TakeTurn, TakeTurns } from './take-turns.ts';

/** Elements requested by one match, at most: bounds the work of one turn, not the throughput. */
const MAX_PER_MATCH = 1000;
/** Different leases (a pop is one, too) and users in one match: each is a `take` of its own in the same round trip. */
const MAX_TAKES = 64;
/**
 * The safety net: with consumers waiting, the engine is queried at least this often, ± half. Signals from other nodes
 * may be lost with a connection; those within this process are not.
 */
const POLL_MS = { alone: 30_000, shared: 3_000 };
/**
 * Polls of a node are made at multiples of this, so that those of many queues share a batch of the engine. With 5,000
 * queues on PostgreSQL the node needed 24 % of a core and PostgreSQL 14 % before, 12 % and 5 % with it.
 */
const POLLS_TOGETHER_MS = 250;
/** If a due moment seems past, the engine is queried again after this long. */
const CLOCK_SKEW_RETRY_MS = 20;

/** For `match`: an unknown number of elements became eligible. */
export const MANY = Number.POSITIVE_INFINITY;

const NOTHING_MORE: readonly Delivery[] = Object.freeze([]);

/** Neighbours in the wait queue whose requests are alike, and so are served by one `take`. */
interface SharedTake {
  readonly leaseMs: number | null;
  /** The user to whom its reservations belong; null for pops. */
  readonly owner: string | null;
  /** Of the consumers that its reservations are for; null for pops. By place if they differ. */
  tids: string | null | (string | null)[];
  readonly consumers: Consumer[];
  /** Of its only consumer; null if it may have several. */
  readonly maxBytes: number | null;
  /** In whose turn it reads; undefined: it needs none, and serves any. */
  readonly user: string | null | undefined;
  /** Ends when it has read; null: it needs none. */
  readonly turn: TakeTurn | null;
  /** How many elements they request together. */
  count: number;
}

/** The match in flight: for whom elements are being taken, and how many more elements there might be. */
interface Match {
  readonly takes: readonly SharedTake[];
  readonly consumers: readonly Consumer[];
  readonly beyond: number;
  /** When it began, on the monotonic clock and on the wall clock. */
  readonly startedAt: number;
  readonly wallAt: number;
  /** The earliest maturity stored since it began, which the takes may not have seen. */
  storedDueAt: number | null;
}

/**
 * The consumers of one group of one queue that wait on this node, and the one place where elements meet consumers.
 *
 * Insert, rollback, resume, lease expiry, maturity and signals from other nodes all end in {@link match} with the
 * number of elements that became eligible, so that one insert wakes one consumer, however many wait. An idle wait queue
 * implies that every eligible element has triggered a match. At most one match is in flight; a `match` during it is
 * added up and done after it, so that an element stored between the engine's look and its reply is never missed. One
 * timer sleeps until the next due moment, or the next poll of the safety net.
 *
 * A `match` that directly follows an `insert` travels in the same round trip (the storage port promises the order), so
 * that waking a consumer costs no second fsync.
 */
export class WaitQueue {
  readonly group: GroupName;
  readonly #queue: Queue;
  readonly #ns: Namespace;
  readonly #waiting = new ConsumerList();
  /** Consumers that only watch; null if there were none yet. */
  #watchers: Watchers | null = null;
  #inFlight: Match | null = null;
  #matchEnded: Promise<void> | null = null;
  /** Elements that became eligible during the match in flight. */
  #matchAgain = 0;
  /** The earliest known maturity that has not come, or null. */
  #dueAt: number | null = null;
  #timer: CancelTimer | null = null;
  /** Between takes after an engine error. */
  readonly #backoff: Backoff;
  /**
   * Consumers that timed out while a take for them was in flight: they end as soon as it is sure that it has nothing
   * for them.
   */
  #timedOut = 0;
  #ofUsers = 0;
  /** Null if its users needed none yet. */
  #turns: TakeTurns | null = null;

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
    return this.#waiting.size > 0 || (this.#watchers !== null && this.#watchers.size > 0);
  }

  /** How many wait on behalf of users: all but exchanges. */
  get ofUsers(): number {
    return this.#ofUsers;
  }

  /** Whether it sleeps until a known maturity (`wakeup_timeout` of the consumer record). */
  get awaitsMaturity(): boolean {
    return this.#timer !== null && this.#dueAt !== null;
  }

  /** In the order in which they came. */
  consumers(): Consumer[] {
    const taking = this.#inFlight?.consumers.filter(({ state }) => state === 'taking') ?? [];
    return [...taking, ...this.#waiting, ...(this.#watchers?.consumers() ?? [])];
  }

  /** Joins at the end and looks for an element. */
  join(request: GetRequest, sink: Sink): Consumer {
    const { clock } = this.#ns;
    const consumer = new Consumer(request, this.group, sink, clock.now());
    if (request.owner !== null) this.#ofUsers += 1;
    this.#waiting.append(consumer);
    const { timeoutMs } = request;
    if (timeoutMs === 0) this.#noteTimeout(consumer);
    else if (timeoutMs !== null) {
      consumer.cancelTimeout = clock.after(timeoutMs, () => {
        this.#noteTimeout(consumer);
        if (consumer.state !== 'waiting') return;
        // There may be an element for it.
        const isLate = this.#turns?.isAwaitedBy(request.owner) === true;
        this.end(consumer, isLate ? readRejection() : timeoutError(consumer));
      });
    }
    if (this.#queue.paused) this.#endTimedOut();
    // Signals are counted in elements: of several that join during a match each is due a look of its own.
    else this.#match(consumer.count);
    return consumer;
  }

  /**
   * Adds a consumer that takes nothing until it is {@link promote}d: its claim is notified once `wakeAt` elements have
   * become eligible ({@link eligible}), or an unknown number. The claim ends it in time.
   */
  watch(request: GetRequest, sink: Sink, claim: Claim): Consumer {
    const consumer = new Consumer(request, this.group, sink, this.#ns.clock.now(), claim);
    consumer.state = 'watching';
    if (request.owner !== null) this.#ofUsers += 1;
    this.#watchers ??= new Watchers(this.#queue, this.group);
    this.#watchers.add(consumer);
    if (this.#timer === null && this.#inFlight === null) this.#sleep();
    return consumer;
  }

  /** How many elements have become eligible while consumers watched; only differences mean something. */
  get eligible(): number {
    return this.#watchers?.eligible ?? 0;
  }

  /** What the engine counts; see {@link Watchers.counts}. */
  counts(): Promise<GroupCounts> {
    this.#watchers ??= new Watchers(this.#queue, this.group);
    return this.#watchers.counts();
  }

  /** A consumer that watches is to be woken when {@link eligible} reaches `wakeAt`; at once if it has. */
  wakeWhen(consumer: Consumer, wakeAt: number): void {
    if (consumer.state === 'watching') this.#watchers?.wakeWhen(consumer, wakeAt);
  }

  /**
   * A consumer that watches waits from now on.
   * @param mayServe whether elements for it may be there, so that it is due a look
   */
  promote(consumer: Consumer, mayServe: boolean): void {
    if (consumer.state === 'watching') {
      this.#watchers?.remove(consumer);
      consumer.state = 'waiting';
      this.#waiting.append(consumer);
    }
    if (mayServe && consumer.state === 'waiting') this.#match(consumer.count);
  }

  /** The client disconnected. Elements that arrive for it later go to another consumer, or back. */
  leave(consumer: Consumer): void {
    if (consumer.state === 'gone') return;
    if (consumer.state === 'waiting') this.#waiting.remove(consumer);
    else if (consumer.state === 'watching') this.#watchers?.remove(consumer);
    this.#release(consumer);
    this.#restIfEmpty();
  }

  /** Ends a consumer without an element, which is counted; leaving is not. */
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

  /** `count` elements become eligible in `inMs`. */
  expect(inMs: number, count = 1): void {
    if (inMs <= 0) this.match(count);
    else this.#matureAt(this.#ns.clock.now() + inMs);
  }

  /** `count` elements became eligible, or {@link MANY}: pairs them with the first consumers. */
  match(count: number): void {
    this.#match(count);
    // After the match, so that consumers which wait come first.
    if (this.#watchers !== null && this.#watchers.size > 0 && !this.#queue.paused) this.#watchers.note(count);
  }

  /** Looks for `count` elements, or {@link MANY}, on behalf of the first consumers. */
  #match(count: number): void {
    if (this.#inFlight !== null) {
      this.#matchAgain += count;
      return;
    }
    if (!this.#hasConsumers || this.#queue.paused) {
      this.#turns?.release();
      return;
    }
    const { takes, consumers, requested } = this.#startTakes(Math.min(count, MAX_PER_MATCH));
    this.#turns?.release();
    if (takes.length === 0) {
      if (this.#timer === null) this.#sleep();
      return;
    }
    this.#disarm();
    const { storage, clock } = this.#ns;
    this.#inFlight = {
      takes,
      consumers,
      beyond: Math.max(0, count - requested),
      startedAt: clock.monotonic(),
      wallAt: clock.now(),
      storedDueAt: null,
    };
    const results = takes.map((take) => {
      const { turn } = take;
      const taking = storage.take(this.#queue.key, {
        group: this.group,
        count: take.count,
        leaseMs: take.leaseMs,
        owner: take.owner,
        tids: take.tids,
        ...(take.maxBytes !== null && { maxBytes: take.maxBytes }),
        ...(turn !== null && { leftMs: CALL_TIMEOUT_MS - turn.waitedMs }),
      });
      if (turn !== null) taking.then(turn.end, turn.end);
      return taking;
    });
    // Each outcome counts alone: a failed take must not lose what another one returned.
    this.#matchEnded = Promise.allSettled(results).then((outcomes) => this.#endMatch(outcomes));
  }

  /** Once the match in flight, if there is one, has handed out what it took, or begun to return it. */
  async matched(): Promise<void> {
    if (this.#inFlight !== null) await this.#matchEnded;
  }

  /** The queue was paused: the timer rests. Consumers that timed out are answered now. */
  pause(): void {
    this.#disarm();
    this.#endTimedOut();
  }

  /** An element that matures at `at` was stored: sleeps no longer than until then. */
  #matureAt(at: number): void {
    if (this.#inFlight !== null) {
      this.#inFlight.storedDueAt = earlier(this.#inFlight.storedDueAt, at);
    } else if (this.#hasConsumers && earlier(this.#dueAt, at) !== this.#dueAt) {
      this.#dueAt = at;
      if (!this.#backoff.isActive) this.#sleep();
    }
  }

  /** Removes consumers for `count` elements from the wait queue, neighbours that are alike together. */
  #startTakes(count: number): { takes: SharedTake[]; consumers: Consumer[]; requested: number } {
    const takes: SharedTake[] = [];
    const consumers: Consumer[] = [];
    let requested = 0;
    let take: SharedTake | undefined;
    const eachBytes = this.#ns.expectedBytes(this.#queue.key);
    for (const consumer of this.#waiting) {
      if (requested >= count) break;
      if (requested > 0 && requested + consumer.count > MAX_PER_MATCH) break;
      const isShared = take !== undefined && take.maxBytes === null && fits(consumer, take);
      if (!isShared && takes.length === MAX_TAKES) break;
      const { leaseMs, owner } = consumer.request;
      let turn: TakeTurn | null = null;
      const bytes = isShared ? 0 : this.#bytesOf(consumer, eachBytes, count - requested);
      if (owner !== null && bytes > FREE_BYTES) {
        this.#turns ??= this.#takeTurns();
        turn = this.#turns.begin(owner, bytes);
        if (turn === null) continue;
      }
      if (consumer.claim?.acquire(consumer) === false) {
        if (owner !== null && turn !== null) this.#turns?.keep(owner, turn);
        continue;
      }
      if (take === undefined || !isShared) {
        const { maxBytes } = consumer;
        const tids = leaseMs === null ? null : consumer.request.tid;
        const of = leaseMs === null ? null : owner;
        const user = bytes > FREE_BYTES ? owner : undefined;
        take = { leaseMs, owner: of, tids, consumers: [], count: 0, maxBytes, user, turn };
        takes.push(take);
      }
      if (take.leaseMs !== null) noteTid(take, consumer);
      this.#waiting.remove(consumer);
      consumer.state = 'taking';
      take.consumers.push(consumer);
      take.count += consumer.count;
      consumers.push(consumer);
      requested += consumer.count;
    }
    return { takes, consumers, requested };
  }

  /** About what a take reads whose first consumer this is, and which may have others for `count` elements. */
  #bytesOf({ count: own, maxBytes }: Consumer, eachBytes: number, count: number): number {
    const elements = maxBytes === null ? Math.min(Math.max(own, count), own * this.#waiting.size) : own;
    return Math.min(elements * eachBytes, maxBytes ?? LIMITS.takeBytes);
  }

  #takeTurns(): TakeTurns {
    return new TakeTurns(this.#ns, {
      onTurn: () => this.#match(MANY),
      onLate: (user, error) => {
        for (const consumer of this.#waiting) {
          if (consumer.timedOut && consumer.request.owner === user) this.end(consumer, error);
        }
        // The others of the user wait for the next turn.
        this.#match(MANY);
      },
    });
  }

  #endMatch(outcomes: readonly PromiseSettledResult<TakeResult>[]): void {
    const match = this.#inFlight;
    if (match === null) return;
    let isShort = false;
    let isLeft = false;
    let failure: QuaysideError | null = null;
    for (const [i, take] of match.takes.entries()) {
      const outcome = outcomes[i];
      // The takes of a match travel together, and are timed together.
      this.#ns.meter.observeSince(takeOperation(take.leaseMs), match.startedAt);
      if (outcome === undefined || outcome.status === 'rejected') {
        failure = asTakeError(outcome?.reason);
        // The take may have succeeded although its reply was lost, and then its elements are in no wait queue.
        if (failure.code === 'outcome-unknown' && !this.#ns.storage.undoesLostTakes) {
          for (const consumer of take.consumers) if (consumer.state === 'taking') this.end(consumer, failure);
        }
        continue;
      }
      const { deliveries, nextDueAt, isCut = false } = outcome.value;
      isLeft ||= outcome.value.isLeft === true;
      this.#ns.noteTaken(this.#queue.key, meanBytes(deliveries));
      if (isCut) for (const consumer of take.consumers) consumer.isCut = true;
      if (deliveries.length < take.count) {
        isShort = true;
        this.#dueAt = nextDueAt === null ? null : this.#reachable(nextDueAt, match.wallAt);
      }
      this.#serve(take, deliveries);
    }
    this.#dueAt = earlier(this.#dueAt, match.storedDueAt);
    // Consumers without an element regain their places.
    for (const consumer of match.consumers.toReversed()) {
      if (consumer.state !== 'taking') continue;
      consumer.state = 'waiting';
      this.#waiting.prepend(consumer);
    }
    this.#inFlight = null;
    let more = this.#matchAgain + (isShort ? 0 : match.beyond);
    if (isLeft || (this.#dueAt !== null && this.#dueAt <= this.#ns.clock.now())) {
      // How many elements matured during the match, too late for its takes, is unknown.
      this.#dueAt = null;
      more = MANY;
    }
    this.#matchAgain = 0;
    if (failure === null) this.#continue(more, isShort);
    else this.#backOff(failure);
    if (this.#inFlight === null) this.#turns?.release();
    this.#restIfEmpty();
    // Last, since a claim may then match other wait queues, or end its call.
    for (const consumer of match.consumers) {
      if (consumer.claim !== null && consumer.state === 'waiting') consumer.claim.release(consumer);
    }
  }

  /** Passes what a take returned to its consumers in order, skipping those that are gone. */
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
    while (served < deliveries.length) {
      const { first } = this.#waiting;
      if (first === null || !fits(first, take)) break;
      if (take.leaseMs !== null && first.request.tid !== take.tids) break;
      this.#waiting.remove(first);
      served += this.#deliver(first, deliveries, served);
    }
    if (served < deliveries.length) this.#queue.returnUncounted(deliveries.slice(served));
  }

  /** Each reservation was made in the name of one consumer. What is for one that is gone is returned. */
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

  /** Passes on what a consumer requested, as far as there is; returns how many that were. */
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
      // How far the sink got is unknown: an element may come twice, but none is lost.
      this.#queue.returnUncounted(delivered);
      return delivered.length;
    }
    this.#noteServed(consumer, delivered);
    return delivered.length;
  }

  /** They are of one group, so they are counted in one go. */
  #noteServed({ request }: Consumer, deliveries: readonly Delivery[]): void {
    const { stats, meter } = this.#ns;
    const count = deliveries.length;
    const group = deliveries[0]?.group ?? PLAIN_GROUP;
    stats.add(this.#queue.key, group, request.leaseMs === null ? { get: count } : { reserve: count });
    let endsAt = Number.POSITIVE_INFINITY;
    for (const { lease } of deliveries) if (lease !== null && lease.until < endsAt) endsAt = lease.until;
    if (endsAt < Number.POSITIVE_INFINITY) this.#ns.sweeper.wakeAt(endsAt);
    meter.count(takeOperation(request.leaseMs), 'ok', count);
  }

  /** A sink that throws is a bug of its front end, which must not affect other consumers. */
  #logSinkFailure(error: unknown): void {
    this.#ns.log.warn({ err: error, queue: this.#queue.key }, 'a consumer failed');
  }

  #continue(more: number, isShort: boolean): void {
    this.#backoff.reset();
    if (this.#queue.paused) this.#endTimedOut();
    else if (more > 0) this.#match(more);
    else if (isShort) {
      if (this.#timedOut > 0) this.#endTimedOut();
    }
    // Their signal served consumers before them; they have a right to a look of their own.
    else if (this.#timedOut > 0) this.#match(this.#waiting.size);
    if (this.#inFlight === null) this.#sleep();
  }

  /** The engine is unavailable: consumers continue to wait, but those that timed out end with the error. */
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
    this.#arm(this.#dueAt === null ? pollMs : Math.min(pollMs, this.#dueAt - clock.now()));
  }

  #arm(delayMs: number): void {
    this.#disarm();
    if (!this.#hasConsumers || this.#queue.paused) return;
    const { clock } = this.#ns;
    this.#timer = clock.after(Math.max(0, delayMs), () => {
      this.#timer = null;
      if (this.#dueAt !== null && this.#dueAt <= clock.now()) this.#dueAt = null;
      this.match(MANY);
    });
  }

  #disarm(): void {
    this.#timer?.();
    this.#timer = null;
  }

  /**
   * A due moment by this node's clock. What is known of the engine's clock may be a little ahead of it: an element that
   * seemed due before the match began is looked for a little later, not in a circle.
   */
  #reachable(dueAt: number, matchedAt: number): number {
    const at = toLocal(dueAt, this.#ns, this.#queue.key);
    return at > matchedAt ? at : this.#ns.clock.now() + CLOCK_SKEW_RETRY_MS;
  }

  /** A take for it may be in flight, and an element on its way: then it ends only if that has nothing for it. */
  #noteTimeout(consumer: Consumer): void {
    consumer.timedOut = true;
    this.#timedOut += 1;
  }

  #endTimedOut(failure?: QuaysideError): void {
    if (this.#timedOut === 0) return;
    for (const consumer of this.#waiting) {
      if (consumer.timedOut) this.end(consumer, failure ?? timeoutError(consumer));
    }
  }

  #release(consumer: Consumer): void {
    consumer.state = 'gone';
    consumer.cancelTimeout?.();
    consumer.cancelTimeout = null;
    if (consumer.timedOut) this.#timedOut -= 1;
    const { owner } = consumer.request;
    if (owner !== null) this.#ofUsers -= 1;
    if (consumer.isCounted) this.#ns.waitingLimit.exit(owner);
  }
}

/** A doubly linked list: append, return to the front, remove from anywhere, all in constant time. */
class ConsumerList {
  #first: Consumer | null = null;
  #last: Consumer | null = null;
  #size = 0;

  get first(): Consumer | null {
    return this.#first;
  }

  get size(): number {
    return this.#size;
  }

  append(consumer: Consumer): void {
    consumer.previous = this.#last;
    consumer.next = null;
    if (this.#last === null) this.#first = consumer;
    else this.#last.next = consumer;
    this.#last = consumer;
    this.#size += 1;
  }

  prepend(consumer: Consumer): void {
    consumer.next = this.#first;
    consumer.previous = null;
    if (this.#first === null) this.#last = consumer;
    else this.#first.previous = consumer;
    this.#first = consumer;
    this.#size += 1;
  }

  /** Takes out a consumer that is in this list. */
  remove(consumer: Consumer): void {
    if (consumer.previous === null) this.#first = consumer.next;
    else consumer.previous.next = consumer.next;
    if (consumer.next === null) this.#last = consumer.previous;
    else consumer.next.previous = consumer.previous;
    consumer.previous = null;
    consumer.next = null;
    this.#size -= 1;
  }

  *[Symbol.iterator](): Iterator<Consumer> {
    let consumer = this.#first;
    while (consumer !== null) {
      // The caller may remove the one it was just given.
      const { next } = consumer;
      yield consumer;
      consumer = next;
    }
  }
}

/**
 * Whether what a take returns may go to the consumer: a reservation belongs to the user who requested it. A consumer
 * that is bounded by bytes has a take of its own.
 */
function fits({ request, maxBytes }: Consumer, { leaseMs, owner, user }: SharedTake): boolean {
  if (maxBytes !== null || request.leaseMs !== leaseMs) return false;
  return (leaseMs === null || request.owner === owner) && (user === undefined || request.owner === user);
}

function meanBytes(deliveries: readonly Delivery[]): number {
  let bytes = 0;
  for (const { body } of deliveries) bytes += body.byteLength;
  return bytes / Math.max(1, deliveries.length);
}

/** A consumer joins a shared take: its reservations are kept in its name. */
function noteTid(take: SharedTake, { request: { tid }, count }: Consumer): void {
  if (!Array.isArray(take.tids)) {
    if (take.tids === tid) return;
    take.tids = new Array<string | null>(take.count).fill(take.tids);
  }
  for (let i = 0; i < count; i += 1) take.tids.push(tid);
}

function earlier(a: number | null, b: number | null): number | null {
  if (a === null) return b;
  return b === null ? a : Math.min(a, b);
}

function timeoutError({ request, tid, since }: Consumer): QuaysideError {
  return popTimeout(request.timeoutMs, tid, since);
}

/** What a take failed with, as its callers may see it. */
export function asTakeError(failure: unknown): QuaysideError {
  if (failure instanceof QuaysideError) return failure;
  return new QuaysideError('internal', 'The take failed for a reason that is no fault of the request.', {
    cause: failure,
  });
}

/** An unknown number of elements wakes all watchers: none watches for more than a take returns. */
const UNKNOWN = 1_000_000;

/** The consumers of one wait queue that only watch it. What becomes eligible costs them one comparison together. */
class Watchers {
  readonly #queue: Queue;
  readonly #group: GroupName;
  readonly #consumers = new Set<Consumer>();
  #eligible = 0;
  /** The least `wakeAt` of all. */
  #wakeAt = Number.POSITIVE_INFINITY;
  #counting: Promise<GroupCounts> | null = null;
  /** What `eligible` was when the engine was asked to count. */
  #countedAt = 0;

  constructor(queue: Queue, group: GroupName) {
    this.#queue = queue;
    this.#group = group;
  }

  get size(): number {
    return this.#consumers.size;
  }

  /** How many elements have become eligible; only differences mean something. */
  get eligible(): number {
    return this.#eligible;
  }

  consumers(): Iterable<Consumer> {
    return this.#consumers;
  }

  /** It is woken by the next element. */
  add(consumer: Consumer): void {
    this.#consumers.add(consumer);
    this.wakeWhen(consumer, this.#eligible + 1);
  }

  remove(consumer: Consumer): void {
    this.#consumers.delete(consumer);
    // Without consumers nothing is noted: those that come later must not share a count that began before.
    if (this.#consumers.size === 0) this.#counting = null;
  }

  wakeWhen(consumer: Consumer, wakeAt: number): void {
    consumer.wakeAt = wakeAt;
    this.#wakeAt = Math.min(this.#wakeAt, wakeAt);
    if (wakeAt <= this.#eligible) this.#wake();
  }

  /** `count` elements became eligible; Infinity if it is unknown how many. */
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
    for (const consumer of woken) consumer.claim?.wake(consumer);
  }

  /**
   * What the engine counts. Callers share a call as long as nothing became eligible since it was made, and consumers
   * watched all the time.
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
