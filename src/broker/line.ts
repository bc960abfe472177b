import type { Storage, TakeResult } from '../engine/storage.ts';
import type { Delivery, GroupName } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { type Consumer, ConsumerList } from './consumer.ts';
import { toLocal } from './engine-time.ts';
import { type Meter, takeOperation } from './meter.ts';

/** What a line needs of its queue. */
export interface LineHost {
  readonly key: QueueKey;
  readonly storage: Storage;
  readonly clock: Clock;
  /** 0 (inclusive) to 1; spreads the safety-net polls. */
  readonly random: () => number;
  /** Hears of each take, and of each consumer that ends without an element. */
  readonly meter: Meter;
  readonly paused: boolean;
  /** Other nodes may store here, and say so by signals. */
  readonly isShared: boolean;
  /** Elements were handed to a consumer: count them. */
  served(consumer: Consumer, deliveries: readonly Delivery[]): void;
  /** A consumer is gone from the line for good: forget its tid, its place in the limits. */
  released(consumer: Consumer): void;
  /** Nobody is left to take this: undo the take. */
  returnUndelivered(delivery: Delivery): void;
  /** A consumer's sink threw: a fault of its front end, for the log. */
  sinkFailed(error: unknown): void;
  /** Nobody waits in this line any more, and nothing is under way for it. */
  emptied(line: Line): void;
}

/** Elements asked for in one round, at most: bounds the work of one turn, not the throughput. */
const MOST_PER_ROUND = 1000;
/** Different leases (pop is one, too) and users in one round: each is a `take` of its own in the same round trip. */
const MOST_RUNS = 64;
/**
 * The safety net: with consumers waiting, the engine is asked at least this often, ± half. Signals that come from
 * other nodes may be lost with a connection; those within this process are not.
 */
const POLL_MS = { alone: 30_000, shared: 3_000 };
/** After an engine error the next try waits this long, doubled up to {@link LAST_BACKOFF_MS}, ± half. */
const FIRST_BACKOFF_MS = 100;
const LAST_BACKOFF_MS = 5_000;
/** Where a due moment seems past, the engine is asked again after this long. */
const CLOCK_SKEW_RETRY_MS = 20;

/** For `match`: nobody knows how many became eligible. */
export const MANY = Number.POSITIVE_INFINITY;

const NOTHING_MORE: readonly Delivery[] = Object.freeze([]);

/** Neighbours in the line that ask alike, and so are served by one `take`. */
interface Run {
  readonly leaseMs: number | null;
  /** To whom its reservations belong; null for pops. */
  readonly owner: string | null;
  readonly consumers: Consumer[];
  /** How many elements they ask for together. */
  count: number;
}

/** What is under way: whom the engine was asked for, and how many more might have been served. */
interface Round {
  readonly runs: readonly Run[];
  readonly asked: readonly Consumer[];
  readonly beyond: number;
  /** When the takes were asked for, on the monotonic clock and on the wall clock. */
  readonly startedAt: number;
  readonly askedAt: number;
  /** The earliest maturity stored since it began, which the takes may not have seen. */
  storedDueAt: number | null;
}

/**
 * The waiting line of one group of one queue, and the one place where elements meet consumers.
 *
 * Insert, rollback, resume, lease end, maturity and hints from other nodes all end in {@link match}, and say
 * how many elements became eligible, so that one insert wakes one consumer, whoever else waits. At rest
 * nothing is eligible that nobody was told of. At most one round of takes is under way; a `match` during it
 * is added up and done after it, so that a wake-up between "the engine looked" and "we heard" is never lost.
 * One timer sleeps until the next due moment, or the next poll of the safety net.
 *
 * A `match` that directly follows an `insert` travels in the same round trip (the storage port promises the
 * order), so that waking a consumer costs no second fsync.
 */
export class Line {
  readonly group: GroupName;
  readonly #host: LineHost;
  readonly #waiting = new ConsumerList();
  #round: Round | null = null;
  /** Elements that became eligible during the round under way. */
  #matchAgain = 0;
  /** The earliest known maturity that has not come, or null. */
  #dueAt: number | null = null;
  #timer: CancelTimer | null = null;
  #backoffMs = 0;
  /** Consumers whose time is over: they are answered as soon as it is sure that nothing is there for them. */
  #impatient = 0;

  constructor(host: LineHost, group: GroupName) {
    this.#host = host;
    this.group = group;
  }

  get isEmpty(): boolean {
    return this.#waiting.size === 0 && this.#round === null;
  }

  /** True while the line sleeps until a known maturity (`wakeup_timeout` of the consumer record). */
  get awaitsMaturity(): boolean {
    return this.#timer !== null && this.#dueAt !== null;
  }

  /** Those who wait, in the order in which they came. */
  consumers(): Consumer[] {
    const asked = this.#round?.asked.filter((consumer) => consumer.state === 'asked') ?? [];
    return [...asked, ...this.#waiting];
  }

  /** Joins at the end and looks for an element. */
  join(consumer: Consumer): void {
    this.#waiting.append(consumer);
    const { timeoutMs } = consumer.request;
    if (timeoutMs === 0) this.#losePatience(consumer);
    else if (timeoutMs !== null) {
      consumer.cancelTimeout = this.#host.clock.after(timeoutMs, () => this.#timeOut(consumer));
    }
    if (this.#host.paused) this.#endImpatient();
    // Hints are counted in elements: of several who join during a round each is due a look of its own.
    else this.match(consumer.count);
  }

  /** The client went away. Whatever arrives for it later goes to somebody else, or back. */
  leave(consumer: Consumer): void {
    if (consumer.state === 'gone') return;
    if (consumer.state === 'waiting') this.#waiting.remove(consumer);
    this.#release(consumer);
    this.#restIfEmpty();
  }

  /** Ends a consumer with an answer other than an element, which is counted; that one leaves is not. */
  end(consumer: Consumer, reason: QuaysideError): void {
    if (consumer.state === 'gone') return;
    this.leave(consumer);
    this.#host.meter.countError(takeOperation(consumer.request.leaseMs), reason);
    this.#tell(() => consumer.sink.end(reason));
  }

  /** `count` elements became eligible, or {@link MANY}: pair them with the first who wait. */
  match(count: number): void {
    if (this.#round !== null) {
      this.#matchAgain += count;
      return;
    }
    if (this.#waiting.size === 0 || this.#host.paused) return;
    this.#disarm();
    const { runs, asked, askedFor } = this.#callUp(Math.min(count, MOST_PER_ROUND));
    const beyond = Math.max(0, count - askedFor);
    const { storage, key, clock } = this.#host;
    this.#round = {
      runs,
      asked,
      beyond,
      startedAt: clock.monotonic(),
      askedAt: clock.now(),
      storedDueAt: null,
    };
    const takes = runs.map((run) =>
      storage.take(key, { group: this.group, count: run.count, leaseMs: run.leaseMs, owner: run.owner }),
    );
    // Each outcome is looked at alone: one failed take must not lose what another one handed out.
    void Promise.allSettled(takes).then((outcomes) => this.#endRound(outcomes));
  }

  /** An element that matures at `at` was stored: sleep no longer than until then. */
  matureAt(at: number): void {
    if (this.#round !== null) {
      this.#round.storedDueAt = earlier(this.#round.storedDueAt, at);
    } else if (this.#waiting.size > 0 && earlier(this.#dueAt, at) !== this.#dueAt) {
      this.#dueAt = at;
      if (this.#backoffMs === 0) this.#sleep();
    }
  }

  /** The queue was paused: the timer rests. Those whose time is over are answered now. */
  pause(): void {
    this.#disarm();
    this.#endImpatient();
  }

  /** Takes consumers for `count` elements out of the line, as runs of neighbours that ask alike. */
  #callUp(count: number): { runs: Run[]; asked: Consumer[]; askedFor: number } {
    const runs: Run[] = [];
    const asked: Consumer[] = [];
    let askedFor = 0;
    let run: Run | undefined;
    for (const consumer of this.#waiting) {
      if (askedFor >= count) break;
      if (askedFor > 0 && askedFor + consumer.count > MOST_PER_ROUND) break;
      if (run === undefined || !asksAlike(consumer, run)) {
        if (runs.length === MOST_RUNS) break;
        const { leaseMs, owner } = consumer.request;
        run = { leaseMs, owner: leaseMs === null ? null : owner, consumers: [], count: 0 };
        runs.push(run);
      }
      this.#waiting.remove(consumer);
      consumer.state = 'asked';
      run.consumers.push(consumer);
      run.count += consumer.count;
      asked.push(consumer);
      askedFor += consumer.count;
    }
    return { runs, asked, askedFor };
  }

  #endRound(outcomes: readonly PromiseSettledResult<TakeResult>[]): void {
    const round = this.#round;
    if (round === null) return;
    let short = false;
    let fault: QuaysideError | null = null;
    for (const [i, run] of round.runs.entries()) {
      const outcome = outcomes[i];
      // The takes of a round travel together, and are looked at together.
      this.#host.meter.observeSince(takeOperation(run.leaseMs), round.startedAt);
      if (outcome === undefined || outcome.status === 'rejected') {
        fault = asError(outcome?.reason);
        if (fault.code === 'outcome-unknown' && !this.#host.storage.undoesLostTakes) {
          this.#endUnsure(run, fault);
        }
        continue;
      }
      const { deliveries, nextDueAt } = outcome.value;
      if (deliveries.length < run.count) {
        short = true;
        this.#dueAt = nextDueAt === null ? null : this.#reachable(nextDueAt, round.askedAt);
      }
      this.#serve(run, deliveries);
    }
    this.#dueAt = earlier(this.#dueAt, round.storedDueAt);
    this.#returnToLine(round.asked);
    this.#round = null;
    const more = this.#matchAgain + (short ? 0 : round.beyond) + this.#fallenDue();
    this.#matchAgain = 0;
    if (fault === null) this.#goOn(more, short);
    else this.#backOff(fault);
  }

  /** They may have taken, or reserved, something that nobody will see: who went on waiting would never hear of it. */
  #endUnsure({ consumers }: Run, fault: QuaysideError): void {
    for (const consumer of consumers) if (consumer.state === 'asked') this.end(consumer, fault);
  }

  /** Hands a run's deliveries to its consumers in order, skipping those who have gone. */
  #serve(run: Run, deliveries: readonly Delivery[]): void {
    let served = 0;
    for (const consumer of run.consumers) {
      if (served === deliveries.length) return;
      if (consumer.state === 'asked') served += this.#hand(consumer, deliveries, served);
    }
    while (served < deliveries.length) {
      const consumer = this.#firstWaiting(run);
      if (consumer === null) break;
      this.#waiting.remove(consumer);
      served += this.#hand(consumer, deliveries, served);
    }
    for (const spare of deliveries.slice(served)) this.#host.returnUndelivered(spare);
  }

  /** Hands a consumer what it asked for, as far as there is; answers how many that were. */
  #hand(consumer: Consumer, deliveries: readonly Delivery[], from: number): number {
    const first = deliveries[from];
    if (first === undefined) return 0;
    const more = consumer.count === 1 ? NOTHING_MORE : deliveries.slice(from + 1, from + consumer.count);
    this.#release(consumer);
    const handed = more.length === 0 ? [first] : [first, ...more];
    if (this.#tell(() => consumer.sink.deliver(first, more))) {
      this.#host.served(consumer, handed);
    } else {
      // Nobody knows how far it got: an element may come twice, but none is lost.
      for (const delivery of handed) this.#host.returnUndelivered(delivery);
    }
    return handed.length;
  }

  /** Calls a sink; answers false where it threw, which is no matter of the others who wait. */
  #tell(call: () => void): boolean {
    try {
      call();
      return true;
    } catch (error) {
      this.#host.sinkFailed(error);
      return false;
    }
  }

  /** The first in the line, if it asks alike: a spare element goes to it rather than back. */
  #firstWaiting(run: Run): Consumer | null {
    const { first } = this.#waiting;
    return first !== null && asksAlike(first, run) ? first : null;
  }

  /** Whoever was asked and not served regains its old place. */
  #returnToLine(asked: readonly Consumer[]): void {
    for (const consumer of asked.toReversed()) {
      if (consumer.state !== 'asked') continue;
      consumer.state = 'waiting';
      this.#waiting.prepend(consumer);
    }
  }

  #goOn(more: number, short: boolean): void {
    this.#backoffMs = 0;
    if (this.#host.paused) this.#endImpatient();
    else if (more > 0) this.match(more);
    else if (short) this.#endImpatient();
    // Their hint served somebody before them; they have a right to a look of their own.
    else if (this.#impatient > 0) this.match(this.#waiting.size);
    if (this.#round === null) this.#sleep();
    this.#restIfEmpty();
  }

  /** The engine is away: who waits goes on waiting, who will not wait hears why. */
  #backOff(fault: QuaysideError): void {
    this.#endImpatient(fault);
    this.#backoffMs = Math.min(Math.max(this.#backoffMs * 2, FIRST_BACKOFF_MS), LAST_BACKOFF_MS);
    this.#arm(this.#backoffMs * (0.5 + this.#host.random()));
    this.#restIfEmpty();
  }

  #restIfEmpty(): void {
    if (this.#waiting.size > 0) return;
    this.#disarm();
    this.#dueAt = null;
    if (this.isEmpty) this.#host.emptied(this);
  }

  #sleep(): void {
    const pollMs = POLL_MS[this.#host.isShared ? 'shared' : 'alone'] * (0.5 + this.#host.random());
    this.#arm(this.#dueAt === null ? pollMs : Math.min(pollMs, this.#dueAt - this.#host.clock.now()));
  }

  #arm(delayMs: number): void {
    this.#disarm();
    if (this.#waiting.size === 0 || this.#host.paused) return;
    this.#timer = this.#host.clock.after(Math.max(0, delayMs), () => {
      this.#timer = null;
      if (this.#dueAt !== null && this.#dueAt <= this.#host.clock.now()) this.#dueAt = null;
      this.match(MANY);
    });
  }

  #disarm(): void {
    this.#timer?.();
    this.#timer = null;
  }

  /**
   * By this node's clock. What is known of the engine's may be a little ahead of it: an element that seemed due
   * before the engine was asked is asked for again a little later, not in a circle.
   */
  #reachable(dueAt: number, askedAt: number): number {
    const at = toLocal(dueAt, this.#host, this.#host.key);
    return at > askedAt ? at : this.#host.clock.now() + CLOCK_SKEW_RETRY_MS;
  }

  /** How many elements matured during the round, too late for its takes: {@link MANY} or none. */
  #fallenDue(): number {
    if (this.#dueAt === null || this.#dueAt > this.#host.clock.now()) return 0;
    this.#dueAt = null;
    return MANY;
  }

  #timeOut(consumer: Consumer): void {
    this.#losePatience(consumer);
    if (consumer.state === 'waiting') this.end(consumer, timeoutError(consumer));
  }

  #losePatience(consumer: Consumer): void {
    consumer.timedOut = true;
    this.#impatient += 1;
  }

  #endImpatient(fault?: QuaysideError): void {
    if (this.#impatient === 0) return;
    for (const consumer of this.#waiting) {
      if (consumer.timedOut) this.end(consumer, fault ?? timeoutError(consumer));
    }
  }

  #release(consumer: Consumer): void {
    consumer.state = 'gone';
    consumer.cancelTimeout?.();
    consumer.cancelTimeout = null;
    if (consumer.timedOut) this.#impatient -= 1;
    this.#host.released(consumer);
  }
}

/** Whether what a run takes may go to the consumer: a reservation belongs to the user who asked for it. */
function asksAlike({ request }: Consumer, { leaseMs, owner }: Run): boolean {
  return request.leaseMs === leaseMs && (leaseMs === null || request.owner === owner);
}

function earlier(a: number | null, b: number | null): number | null {
  if (a === null) return b;
  return b === null ? a : Math.min(a, b);
}

function timeoutError(consumer: Consumer): QuaysideError {
  return new QuaysideError(
    'pop-timeout',
    `No element became eligible within ${consumer.request.timeoutMs} ms.`,
    {
      extra: { timeout: true, tid: consumer.tid, since: new Date(consumer.since).toISOString() },
    },
  );
}

function asError(fault: unknown): QuaysideError {
  if (fault instanceof QuaysideError) return fault;
  return new QuaysideError('internal', 'The take failed for a reason that is no fault of the request.', {
    cause: fault,
  });
}
