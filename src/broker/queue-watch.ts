import type { Clock } from '../util/clock.ts';
import { EarliestTimer } from '../util/earliest-timer.ts';
import { LogOnChange } from '../util/log-on-change.ts';
import type { Service } from '../util/service.ts';
import type { QueueReading } from './activity.ts';
import { untilDue } from './engine-time.ts';
import type { Namespace } from './namespace.ts';
import { readQueue } from './queue-record.ts';

/** Receives the counts of all queues of this node as they change. What it throws is logged; the poller continues. */
export interface QueueFollower {
  /** A queue was read: at first all of them, then those that changed. */
  onQueue(namespace: Namespace, name: string, reading: QueueReading): void;
  onGone(namespace: Namespace, name: string): void;
  /**
   * A round ended in which queues were read or gone.
   * @param isFilled whether it was the first one after which all queues had been read, or the engine is unavailable
   */
  onRound(namespace: Namespace, isFilled: boolean): void;
}

/** The time between rounds without a follower: rates and charts need samples this often. */
const RESTING_MS = 10_000;
/** Unchanged queues read per round without a follower. All 10,000 queues then take 200 s. */
const RESTING_PER_ROUND = 500;
/** The minimum time between rounds with a follower. */
const LIVE_MS = 500;
/**
 * With a follower, how often unchanged queues are read, and how many: other nodes may have consumed from them. All
 * 10,000 queues then take 200 s.
 */
const LIVE_CYCLE_MS = 2_000;
const LIVE_PER_ROUND = 100;
/** Changed queues read per round; the others wait for the next round. */
const MAX_CHANGED = 1_000;
/** Queues read concurrently: enough to fill an engine's batch, few enough not to delay other calls. */
const READ_AT_ONCE = 32;
/** The pause after a round is at least this many times as long as the round, to leave the engine to other calls. */
const REST_FACTOR = 4;
const RETRY_MS = 5_000;

/**
 * Reads the counts of queues from their engines: one poller per namespace and node, for all features that need them.
 * Each reading goes into the samples of its queue, for rates and charts, and to the follower, if there is one. With a
 * follower, queues changed by this node are read promptly, and the others in turn.
 */
export class QueueWatch implements Service {
  readonly #polls: readonly NamespacePoll[];

  constructor(namespaces: readonly Namespace[]) {
    this.#polls = namespaces.map((namespace) => new NamespacePoll(namespace));
  }

  async start(): Promise<void> {
    for (const poll of this.#polls) poll.start();
  }

  async stop(): Promise<void> {
    await Promise.all(this.#polls.map((poll) => poll.stop()));
  }

  /** Resolves when nothing is being read. */
  async idle(): Promise<void> {
    await Promise.all(this.#polls.map((poll) => poll.idle()));
  }

  /** Sets the follower, which is then notified of every queue; null removes it. */
  follow(follower: QueueFollower | null): void {
    for (const poll of this.#polls) poll.follow(follower);
  }
}

class NamespacePoll {
  readonly #namespace: Namespace;
  readonly #clock: Clock;
  #follower: QueueFollower | null = null;
  /** Whether the follower has not been notified of all queues yet. */
  #isFilling = false;
  readonly #followerFailures: LogOnChange;
  /** Whether the follower threw in this round. */
  #hasFollowerFailed = false;
  /** Counts calls of `follow`: a round that began before the last one does not end the filling of its follower. */
  #follows = 0;
  /** Names that remain to be read in the present cycle through all queues; the next one is last. */
  #cycle: string[] = [];
  #cycleAt = Number.NEGATIVE_INFINITY;
  /** When the next round may begin. */
  #readyAt = 0;
  /** When the next element of a queue matures, by the monotonic clock. */
  readonly #dueAt = new Map<string, number>();
  /** Queues whose last reading failed: name to when it may be read again, by the monotonic clock. */
  readonly #failed = new Map<string, number>();
  readonly #timer: EarliestTimer;
  #reading: Promise<void> | null = null;
  #isStopped = true;

  constructor(namespace: Namespace) {
    const { clock, log, name: ns } = namespace;
    this.#namespace = namespace;
    this.#clock = clock;
    this.#followerFailures = new LogOnChange({
      failed: (err) => log.warn({ err, ns }, 'a follower of queues failed'),
      worksAgain: () => log.info({ ns }, 'the follower of queues works again'),
    });
    this.#timer = new EarliestTimer(clock, () => {
      this.#reading = this.#round().finally(() => {
        this.#reading = null;
      });
    });
  }

  start(): void {
    this.#isStopped = false;
    // Rates and charts start with the first reading.
    this.#arm(0);
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#namespace.activity.follow(null);
    this.#timer.cancel();
    await this.idle();
  }

  async idle(): Promise<void> {
    await this.#reading;
  }

  follow(follower: QueueFollower | null): void {
    this.#follower = follower;
    this.#isFilling = follower !== null;
    this.#follows += 1;
    this.#cycle = [];
    this.#namespace.activity.follow(follower === null ? null : () => this.#onChange());
    if (follower === null) this.#dueAt.clear();
    if (this.#isStopped || this.#reading !== null) return;
    this.#readyAt = 0;
    this.#arm(follower === null ? RESTING_MS : 0);
  }

  #onChange(): void {
    if (this.#reading !== null) return;
    this.#arm(Math.max(0, this.#readyAt - this.#clock.monotonic()));
  }

  /** Starts the next round in `delayMs` at the latest. */
  #arm(delayMs: number): void {
    if (!this.#isStopped) this.#timer.within(delayMs);
  }

  async #round(): Promise<void> {
    const startedAt = this.#clock.monotonic();
    const { activity, knownNames } = this.#namespace;
    const changed = activity.takeChanged(MAX_CHANGED);
    const follows = this.#follows;
    this.#hasFollowerFailed = false;
    const gone = activity.forgetUnknown(knownNames, changed.keys());
    this.#reportGone(gone);
    for (const name of gone) changed.delete(name);
    for (const name of this.#due(startedAt)) if (!changed.has(name)) changed.set(name, startedAt);
    const names = [...new Set([...changed.keys(), ...this.#nextOfCycle(startedAt)])];
    const unread = await this.#readAll(names, changed);
    for (const name of unread) if (changed.has(name)) activity.note(name);
    const isDone = this.#cycle.length === 0 || unread.length === names.length;
    const isFilled = this.#isFilling && isDone && this.#follows === follows;
    if (isFilled) this.#isFilling = false;
    if (isFilled || names.length > 0 || gone.length > 0)
      this.#notify((follower) => follower.onRound(this.#namespace, isFilled));
    if (!this.#hasFollowerFailed) this.#followerFailures.worked();
    this.#rest(startedAt, unread.length > 0);
  }

  /** A bug of the follower must neither end the poller nor look like a failure of the engine. */
  #notify(call: (follower: QueueFollower) => void): void {
    if (this.#follower === null) return;
    try {
      call(this.#follower);
    } catch (error) {
      this.#hasFollowerFailed = true;
      this.#followerFailures.failed(error);
    }
  }

  #rest(startedAt: number, hasFailed: boolean): void {
    const now = this.#clock.monotonic();
    const isLive = this.#follower !== null;
    const paceMs = isLive ? LIVE_MS : RESTING_MS;
    const restMs = Math.max(startedAt + paceMs - now, REST_FACTOR * (now - startedAt));
    // A call to an unavailable server takes seconds. The queues of other servers must not wait for a multiple of that.
    const pauseMs = this.#isFilling ? 0 : hasFailed ? Math.min(restMs, RETRY_MS) : restMs;
    this.#readyAt = now + pauseMs;
    // In a microtask, since `#reading` still refers to the round that ends now.
    queueMicrotask(() => {
      const isDue = this.#isFilling || !isLive || this.#namespace.activity.hasChanged;
      this.#arm(isDue ? pauseMs : Math.max(pauseMs, this.#nextDueIn(now)));
    });
  }

  #nextDueIn(now: number): number {
    let next = this.#cycleAt + LIVE_CYCLE_MS;
    for (const at of this.#dueAt.values()) if (at < next) next = at;
    return Math.max(0, next - now);
  }

  /** Removes and returns the queues whose next element has matured. */
  #due(now: number): string[] {
    const due: string[] = [];
    for (const [name, at] of this.#dueAt) if (at <= now) due.push(name);
    for (const name of due) this.#dueAt.delete(name);
    return due;
  }

  /** Removes and returns the next queues of the cycle. */
  #nextOfCycle(now: number): string[] {
    const isLive = this.#follower !== null;
    if (isLive && !this.#isFilling && now < this.#cycleAt + LIVE_CYCLE_MS) return [];
    if (this.#cycle.length === 0) this.#startCycle();
    this.#cycleAt = now;
    const count = this.#isFilling ? MAX_CHANGED : isLive ? LIVE_PER_ROUND : RESTING_PER_ROUND;
    return this.#cycle.splice(-count);
  }

  #startCycle(): void {
    const { knownNames, activity } = this.#namespace;
    // Those that the engine removed, or another node of which this one missed the signal.
    this.#reportGone(activity.forgetUnknown(knownNames));
    for (const name of this.#failed.keys()) if (!knownNames.has(name)) this.#failed.delete(name);
    this.#cycle = [...knownNames];
  }

  #reportGone(names: readonly string[]): void {
    for (const name of names) {
      this.#dueAt.delete(name);
      this.#notify((follower) => follower.onGone(this.#namespace, name));
    }
  }

  /**
   * Reads queues, and returns the names of those that were not read. One master of a cluster may be unavailable while
   * others work, so queues that failed before are read after all others, and not in each round. If all queues of a
   * batch fail, the remaining ones wait for the next round.
   */
  async #readAll(names: readonly string[], changed: ReadonlyMap<string, number>): Promise<string[]> {
    const now = this.#clock.monotonic();
    const fresh: string[] = [];
    const again: string[] = [];
    const unread: string[] = [];
    for (const name of names) {
      const at = this.#failed.get(name);
      (at === undefined ? fresh : at <= now ? again : unread).push(name);
    }
    again.sort((a, b) => (this.#failed.get(a) ?? 0) - (this.#failed.get(b) ?? 0));
    const sorted = [...fresh, ...again];
    for (let from = 0; from < sorted.length && !this.#isStopped; from += READ_AT_ONCE) {
      const batch = sorted.slice(from, from + READ_AT_ONCE);
      await Promise.all(batch.map((name) => this.#read(name, changed.get(name) ?? null)));
      const failed = batch.filter((name) => this.#failed.has(name));
      if (failed.length === batch.length) return [...unread, ...sorted.slice(from)];
      unread.push(...failed);
    }
    return unread;
  }

  async #read(name: string, changedAt: number | null): Promise<void> {
    const namespace = this.#namespace;
    let reading: QueueReading;
    try {
      reading = await readQueue(namespace.visit(name));
    } catch {
      // The engine is unavailable; other code logs this and raises an alarm.
      this.#failed.set(name, this.#clock.monotonic() + RETRY_MS);
      return;
    }
    this.#failed.delete(name);
    // It was dropped in the meantime.
    if (!namespace.knownNames.has(name)) return;
    namespace.activity.noteReading(name, reading, changedAt);
    if (this.#follower === null || this.#isStopped) return;
    this.#noteDue(name, reading);
    this.#notify((follower) => follower.onQueue(namespace, name, reading));
  }

  #noteDue(name: string, { counts: { scheduled, nextMatureAt } }: QueueReading): void {
    const namespace = this.#namespace;
    const inMs = nextMatureAt === null ? 0 : untilDue(nextMatureAt, namespace, namespace.visit(name).key);
    if (scheduled > 0 && inMs > 0) this.#dueAt.set(name, this.#clock.monotonic() + inMs);
    else this.#dueAt.delete(name);
  }
}
