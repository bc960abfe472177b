import { type GroupName, PLAIN_GROUP } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import type { EventLog } from '../util/log.ts';
import { LogOnChange } from '../util/log-on-change.ts';
import { CALL_TIMEOUT_MS, isUnknownOutcome, NOT_REACHABLE, unavailable } from './calls.ts';
import { SharedReads } from './shared-reads.ts';

/**
 * The Stats port: counters per queue and group, for people to read. They are buffered: a crash may lose the last second
 * of counts, never an element. If nodes share the engine, counters cover the whole cluster.
 *
 * Producers choose group names, so only about {@link MAX_COUNTED_GROUPS} groups per queue are kept, those with the
 * highest counts. The plain group, which counts for the queue itself, is always kept.
 */
export interface Stats {
  /** Adds to a queue's counters. Returns at once and never throws; a flush follows within a second. */
  add(queue: QueueKey, group: GroupName, deltas: Partial<Counters>): void;
  /** The stored counters plus those that this process still buffers. Groups without counts are absent. */
  read(queue: QueueKey): Promise<ReadonlyMap<GroupName, Counters>>;
  /** Resolves when all counts added so far are stored. */
  flush(): Promise<void>;
  /** Drops the counts of a deleted queue that are not being stored yet. */
  discard(queue: QueueKey): void;
}

/** The counters, by their names in the queue information record (spec 2.2). */
export const COUNTER_NAMES = ['put', 'get', 'reserve', 'commit', 'rollback', 'deadletter'] as const;
export type CounterName = (typeof COUNTER_NAMES)[number];
export type Counters = Record<CounterName, number>;

/** How many groups of one queue have stored counters; between two flushes, as many new ones are counted. */
export const MAX_COUNTED_GROUPS = 1000;

export function zeroCounters(): Counters {
  return { put: 0, get: 0, reserve: 0, commit: 0, rollback: 0, deadletter: 0 };
}

/** Counts elements that were stored in a queue: each once, and on a stream once more for each of its groups. */
export function countPuts(stats: Stats, queue: QueueKey, groups: readonly GroupName[], count: number): void {
  stats.add(queue, PLAIN_GROUP, { put: count });
  for (const group of groups) if (group !== PLAIN_GROUP) stats.add(queue, group, { put: count });
}

/** Counts deliveries that the engine itself moved to the dead-letter queue: no caller knows of these moves. */
export function countDeadLetters(
  stats: Stats,
  from: { readonly queue: QueueKey; readonly group: GroupName },
  to: { readonly queue: QueueKey; readonly groups: readonly GroupName[] },
  count: number,
): void {
  stats.add(from.queue, from.group, { deadletter: count });
  countPuts(stats, to.queue, to.groups, count);
}

/** How long counts may be in memory only. A crash loses at most the counts of this time. */
const FLUSH_AFTER_MS = 900;
/**
 * How many groups of all queues are buffered at most. While the store is unavailable, no others are added, except plain
 * groups, which always are.
 */
const MAX_BUFFERED_GROUPS = 50_000;
/** How many reads may be pending: each is small, so a count bounds their memory. */
const MAX_READS = 20_000;
/** A read is repeated if a flush overlapped it, but no longer than this: then the last reply is returned. */
const REPEAT_READ_MS = 2000;

/** Counts of one queue since the last flush. */
export interface CounterDeltas {
  readonly queue: QueueKey;
  readonly groups: ReadonlyMap<GroupName, Readonly<Counters>>;
}

/** Where an engine stores its counters. */
export interface CounterStore {
  /**
   * Whether one connection carries all calls in order, so that a read sees exactly the writes that were called before
   * it. If not, reads wait until no write is in flight.
   */
  readonly isOrdered: boolean;
  /** Queues that one call reads; 1 if they may be on different servers, so that one that fails hides no other. */
  readonly queuesPerRead: number;
  /** A write takes queues with this many groups together, or one queue with more. */
  readonly groupsPerWrite: number;
  /** Adds in one step. @throws QuaysideError `storage-unavailable`, `outcome-unknown` */
  write(deltas: readonly CounterDeltas[]): Promise<void>;
  /**
   * Calls `found` for each stored group, with the index of its queue.
   * @param deadlineAt by the monotonic clock; an engine that reads by one call, which has its own deadline, ignores it
   * @throws QuaysideError `storage-unavailable`
   */
  read(queues: readonly QueueKey[], onFound: OnStoredCounters, deadlineAt: number): Promise<void>;
}

/** May be called several times for one group: its counters are added up. */
export type OnStoredCounters = (index: number, group: GroupName, counters: Partial<Counters>) => void;

interface Buffered extends CounterDeltas {
  readonly groups: Map<GroupName, Counters>;
}

/**
 * The Stats port of every engine: counts are buffered here and written about once a second, so counting costs no write.
 */
export class BufferedStats implements Stats {
  readonly #store: CounterStore;
  readonly #clock: Clock;
  readonly #failures: LogOnChange;
  /** Nested by namespace and name: a joined key would cost a string for each count. */
  #buffer = new Map<string, Map<string, Buffered>>();
  #bufferedGroups = 0;
  #flushes = 0;
  readonly #flushing = new Set<Promise<void>>();
  readonly #shared: SharedReads<QueueKey, ReadonlyMap<GroupName, Counters>>;
  /** All pending reads. */
  #reads = 0;
  #cancelFlush: CancelTimer | null = null;
  #stopped = false;

  constructor(store: CounterStore, clock: Clock, log: EventLog) {
    this.#store = store;
    this.#clock = clock;
    this.#shared = new SharedReads(
      () => store.queuesPerRead,
      (queues) => this.#readAll(queues),
    );
    this.#failures = new LogOnChange({
      failed: (err) => log.warn({ err }, 'statistics could not be stored'),
      worksAgain: () => log.info({}, 'statistics are stored again'),
    });
  }

  add(queue: QueueKey, group: GroupName, deltas: Partial<Counters>): void {
    const counters = this.#countersOf(queue, group);
    if (counters === null) return;
    addCounters(counters, deltas);
    if (this.#cancelFlush !== null || this.#stopped) return;
    this.#cancelFlush = this.#clock.after(FLUSH_AFTER_MS, () => void this.flush().catch(() => {}));
  }

  async read(queue: QueueKey): Promise<ReadonlyMap<GroupName, Counters>> {
    if (this.#reads >= MAX_READS) {
      throw unavailable(NOT_REACHABLE, new Error('Too many reads of statistics are in flight.'));
    }
    this.#reads += 1;
    try {
      return await this.#shared.read(queue);
    } finally {
      this.#reads -= 1;
    }
  }

  async flush(): Promise<void> {
    this.#stopTimer();
    const queues = [...this.#buffer.values()].flatMap((byName) => [...byName.values()]);
    if (queues.length > 0) {
      this.#buffer = new Map();
      this.#bufferedGroups = 0;
      this.#flushes += 1;
      for (const batch of this.#batchesOf(queues)) {
        const writing = this.#write(batch).finally(() => this.#flushing.delete(writing));
        this.#flushing.add(writing);
      }
    }
    await Promise.all(this.#flushing);
  }

  discard({ ns, name }: QueueKey): void {
    const byName = this.#buffer.get(ns);
    this.#bufferedGroups -= byName?.get(name)?.groups.size ?? 0;
    byName?.delete(name);
  }

  /** @param canFlush whether the store can take the last counts; without it they are lost, as in a crash */
  async stop(canFlush = true): Promise<void> {
    this.#stopped = true;
    if (canFlush) await this.flush().catch(() => {});
    this.#stopTimer();
  }

  /** Splits queues into those of each write. */
  #batchesOf(queues: readonly CounterDeltas[]): CounterDeltas[][] {
    const batches: CounterDeltas[][] = [];
    let left = 0;
    for (const queue of queues) {
      if (left <= 0) {
        batches.push([]);
        left = this.#store.groupsPerWrite;
      }
      batches.at(-1)?.push(queue);
      left -= queue.groups.size;
    }
    return batches;
  }

  /** Counts that are certainly not stored are buffered again. Others may be stored, and must not be added twice. */
  async #write(batch: readonly CounterDeltas[]): Promise<void> {
    try {
      await this.#store.write(batch);
      this.#failures.worked();
    } catch (error) {
      this.#failures.failed(error);
      if (!isUnknownOutcome(error)) {
        for (const { queue, groups } of batch) {
          for (const [group, counters] of groups) this.add(queue, group, counters);
        }
      }
      throw error;
    }
  }

  /** Each count must be included once: either from the buffer or from the store. */
  async #readAll(queues: readonly QueueKey[]): Promise<Map<GroupName, Counters>[]> {
    const startedAt = this.#clock.monotonic();
    for (;;) {
      if (!this.#store.isOrdered) await Promise.allSettled(this.#flushing);
      const flushes = this.#flushes;
      const counts = queues.map((queue) => this.#bufferedOf(queue));
      const onFound: OnStoredCounters = (index, group, stored) => {
        const groups = counts[index];
        const counters = groups?.get(group) ?? zeroCounters();
        addCounters(counters, stored);
        groups?.set(group, counters);
      };
      await this.#store.read(queues, onFound, startedAt + CALL_TIMEOUT_MS);
      const isConsistent = this.#store.isOrdered || this.#flushes === flushes;
      if (isConsistent || this.#clock.monotonic() >= startedAt + REPEAT_READ_MS) return counts;
    }
  }

  #bufferedOf({ ns, name }: QueueKey): Map<GroupName, Counters> {
    const copy = new Map<GroupName, Counters>();
    const groups = this.#buffer.get(ns)?.get(name)?.groups ?? [];
    for (const [group, counters] of groups) copy.set(group, { ...counters });
    return copy;
  }

  /** Null if the bound on groups is reached. */
  #countersOf(queue: QueueKey, group: GroupName): Counters | null {
    let byName = this.#buffer.get(queue.ns);
    let buffered = byName?.get(queue.name);
    let counters = buffered?.groups.get(group);
    if (counters !== undefined) return counters;
    const isOneTooMany =
      (buffered?.groups.size ?? 0) > MAX_COUNTED_GROUPS || this.#bufferedGroups >= MAX_BUFFERED_GROUPS;
    if (isOneTooMany && group !== PLAIN_GROUP) return null;
    if (byName === undefined) {
      byName = new Map();
      this.#buffer.set(queue.ns, byName);
    }
    if (buffered === undefined) {
      buffered = { queue, groups: new Map() };
      byName.set(queue.name, buffered);
    }
    counters = zeroCounters();
    buffered.groups.set(group, counters);
    this.#bufferedGroups += 1;
    return counters;
  }

  #stopTimer(): void {
    this.#cancelFlush?.();
    this.#cancelFlush = null;
  }
}

/** Visits only the names that are given, usually one of six: this is on the path of every request. */
function addCounters(counters: Counters, deltas: Partial<Counters>): void {
  for (const name in deltas) counters[name as CounterName] += deltas[name as CounterName] ?? 0;
}

/**
 * Counters of a namespace that stores them in another engine than its elements (`stats: {url, coll}`). Dead letters and
 * other counts of the elements' engine are stored in that engine; reads return the sums.
 */
export class JointStats implements Stats {
  readonly #chosen: Stats;
  readonly #ofElements: Stats;

  /** @param ofElements of the engine that has the elements */
  constructor(chosen: Stats, ofElements: Stats) {
    this.#chosen = chosen;
    this.#ofElements = ofElements;
  }

  add(queue: QueueKey, group: GroupName, deltas: Partial<Record<CounterName, number>>): void {
    this.#chosen.add(queue, group, deltas);
  }

  async read(queue: QueueKey): Promise<ReadonlyMap<GroupName, Counters>> {
    const [chosen, ofElements] = await Promise.all([this.#chosen.read(queue), this.#ofElements.read(queue)]);
    const sums = new Map<GroupName, Counters>();
    for (const [group, counters] of [...chosen, ...ofElements]) {
      const sum = sums.get(group) ?? zeroCounters();
      for (const name of COUNTER_NAMES) sum[name] += counters[name];
      sums.set(group, sum);
    }
    return sums;
  }

  async flush(): Promise<void> {
    await Promise.all([this.#chosen.flush(), this.#ofElements.flush()]);
  }

  discard(queue: QueueKey): void {
    this.#chosen.discard(queue);
    this.#ofElements.discard(queue);
  }
}
