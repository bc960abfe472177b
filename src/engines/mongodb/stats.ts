import type { AnyBulkWriteOperation } from 'mongodb';
import type { EngineLog } from '../../engine/engine.ts';
import {
  COUNTER_NAMES,
  type Counters,
  MOST_COUNTED_GROUPS,
  type Stats,
  zeroCounters,
} from '../../engine/stats.ts';
import { NOT_REACHABLE, unavailable, unknownOutcome } from '../../engine/store-failures.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import { type GroupName, PLAIN_GROUP } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { ToldOnce } from '../../model/told-once.ts';
import { queueText } from './documents.ts';
import { describe, duplicatesOf, fromDriver, Lost } from './errors.ts';
import { MAX_TIME_MS } from './settings.ts';
import type { Store } from './store.ts';

/** The counters of one group of one queue. */
export interface StatsDocument extends Partial<Counters> {
  readonly _id: string;
  /** Namespace and name, as one text. */
  readonly queue: string;
  readonly group: GroupName;
}

interface Entry {
  readonly queue: QueueKey;
  readonly group: GroupName;
  readonly counters: Counters;
}

/** Somebody who wants a queue's counters. */
interface Reader {
  readonly queue: string;
  readonly resolve: (counts: Map<GroupName, Counters>) => void;
  readonly reject: (error: unknown) => void;
}

/** How long counts may stay in memory only. A crash loses at most these. */
const FLUSH_AFTER_MS = 1000;
/** Reads without an answer, at most: each is small, so a count bounds their memory. */
const MOST_READS = 20_000;

/** The Stats port: counts gather here and leave once a second as increments, so counting costs no write. */
export class MongoStats implements Stats {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #told: ToldOnce;
  /** By queue and group. */
  #buffer = new Map<string, Map<GroupName, Entry>>();
  /** What is on its way to the server, added to what is read there only if it came first. */
  #flush: Promise<void> = Promise.resolve();
  #readers: Reader[] = [];
  #reads = 0;
  /** Queues with groups that were counted since the last look for too many, and how many such counts there were. */
  readonly #streams = new Set<string>();
  #counted = 0;
  #cancelFlush: CancelTimer | null = null;
  #stopped = false;

  constructor(store: Store, clock: Clock, log: EngineLog) {
    this.#store = store;
    this.#clock = clock;
    this.#told = new ToldOnce({
      failed: (error) => log.warn({ err: describe(error) }, 'statistics could not be stored'),
      worksAgain: () => log.info({}, 'statistics are stored again'),
    });
  }

  add(queue: QueueKey, group: GroupName, deltas: Partial<Counters>): void {
    const text = queueText(queue);
    const groups = this.#buffer.get(text) ?? new Map<GroupName, Entry>();
    this.#buffer.set(text, groups);
    const known = groups.get(group);
    if (known === undefined && groups.size > MOST_COUNTED_GROUPS && group !== PLAIN_GROUP) return;
    const entry = known ?? { queue, group, counters: zeroCounters() };
    groups.set(group, entry);
    addTo(entry.counters, deltas);
    if (this.#stopped) return;
    this.#cancelFlush ??= this.#clock.after(FLUSH_AFTER_MS, () => {
      this.flush().catch((error: unknown) => this.#told.failed(error));
    });
  }

  /** Reads of the same turn, as a listing makes them, are one query. */
  read(queue: QueueKey): Promise<ReadonlyMap<GroupName, Counters>> {
    return new Promise((resolve, reject) => {
      if (this.#reads >= MOST_READS) {
        reject(unavailable(NOT_REACHABLE, new Error('Too many reads wait.')));
        return;
      }
      this.#reads += 1;
      if (this.#readers.length === 0) setImmediate(() => void this.#readAll());
      this.#readers.push({ queue: queueText(queue), resolve, reject });
    });
  }

  /** One flush after the other: a read has to know which counts the server has. */
  flush(): Promise<void> {
    this.#stopTimer();
    const flush = this.#flush.catch(() => {}).then(() => this.#storeAll());
    this.#flush = flush;
    return this.#store.within(flush, unknownOutcome);
  }

  /** What is still buffered is lost from here on: the one thing that a crash may lose, too. */
  stop(): void {
    this.#stopped = true;
    this.#stopTimer();
  }

  async #readAll(): Promise<void> {
    const readers = this.#readers;
    this.#readers = [];
    try {
      const wanted = new Set(readers.map(({ queue }) => queue));
      const counts = this.#flush.catch(() => {}).then(() => this.#counts(wanted));
      const found = await this.#store.within(counts, (fault) => fault);
      for (const { queue, resolve } of readers) {
        const groups = [...(found.get(queue) ?? [])];
        resolve(new Map(groups.map(([group, counters]) => [group, { ...counters }])));
      }
    } catch (error) {
      const fault = unavailable(NOT_REACHABLE, fromDriver(error));
      for (const { reject } of readers) reject(fault);
    } finally {
      this.#reads -= readers.length;
    }
  }

  async #counts(queues: ReadonlySet<string>): Promise<Map<string, Map<GroupName, Counters>>> {
    await this.#store.ready();
    const found = new Map<string, Map<GroupName, Counters>>();
    const countsOf = (queue: string, group: GroupName): Counters => {
      const groups = found.get(queue) ?? new Map<GroupName, Counters>();
      found.set(queue, groups);
      const counters = groups.get(group) ?? zeroCounters();
      groups.set(group, counters);
      return counters;
    };
    // Nothing is awaited between the two, so what is buffered now is not in what the server answers.
    const buffered = [...queues].flatMap((queue) => [...(this.#buffer.get(queue) ?? new Map()).values()]);
    for (const { queue, group, counters } of buffered as Entry[]) {
      addTo(countsOf(queueText(queue), group), counters);
    }
    const cursor = this.#store.collections.stats.find(
      { queue: { $in: [...queues] } },
      { maxTimeMS: MAX_TIME_MS },
    );
    for (const { queue, group, ...counters } of await cursor.toArray()) {
      addTo(countsOf(queue, group), counters);
    }
    return found;
  }

  async #storeAll(): Promise<void> {
    const entries = [...this.#buffer.values()].flatMap((groups) => [...groups.values()]);
    if (entries.length === 0) return;
    this.#buffer = new Map();
    if (!this.#store.isUp) {
      this.#keep(entries);
      throw unavailable(NOT_REACHABLE, new Lost('There is no primary now.'));
    }
    try {
      await this.#write(entries);
      this.#told.worked();
      // Too many for a while are no harm.
      await this.#forgetLeast(entries).catch(() => {});
    } catch (error) {
      // Some may be stored; none is to be counted twice.
      throw unknownOutcome(fromDriver(error));
    }
  }

  async #write(entries: readonly Entry[]): Promise<void> {
    try {
      await this.#store.collections.stats.bulkWrite(entries.map(increment), {
        ordered: false,
        writeConcern: this.#store.settings.writeConcern,
        maxTimeMS: MAX_TIME_MS,
      });
    } catch (error) {
      // Two nodes made the same document at once; the one that is told so finds it when it tries again.
      const again = duplicatesOf(error);
      if (again === null) throw error;
      await this.#write(again.flatMap((place) => entries[place] ?? []));
    }
  }

  /** Whoever counts so many groups may have made too many: looking is worth while then, and not every second. */
  async #forgetLeast(entries: readonly Entry[]): Promise<void> {
    for (const { queue, group } of entries) {
      if (group === PLAIN_GROUP) continue;
      this.#streams.add(queueText(queue));
      this.#counted += 1;
    }
    if (this.#counted < MOST_COUNTED_GROUPS) return;
    const queues = [...this.#streams];
    this.#streams.clear();
    this.#counted = 0;
    const { stats } = this.#store.collections;
    for (const queue of queues) {
      const least = await stats
        .aggregate<{ _id: string }>(
          [
            { $match: { queue, group: { $ne: PLAIN_GROUP } } },
            { $project: { sum: { $sum: COUNTER_NAMES.map((name) => `$${name}`) } } },
            { $sort: { sum: -1, _id: 1 } },
            { $skip: MOST_COUNTED_GROUPS },
            { $project: { _id: 1 } },
          ],
          { maxTimeMS: MAX_TIME_MS },
        )
        .toArray();
      if (least.length > 0) await stats.deleteMany({ _id: { $in: least.map(({ _id }) => _id) } });
    }
  }

  #keep(entries: readonly Entry[]): void {
    for (const { queue, group, counters } of entries) this.add(queue, group, counters);
  }

  #stopTimer(): void {
    this.#cancelFlush?.();
    this.#cancelFlush = null;
  }
}

function increment({ queue, group, counters }: Entry): AnyBulkWriteOperation<StatsDocument> {
  const text = queueText(queue);
  const deltas = COUNTER_NAMES.filter((name) => counters[name] !== 0).map((name) => [name, counters[name]]);
  return {
    updateOne: {
      filter: { _id: JSON.stringify([queue.ns, queue.name, group]) },
      update: { $inc: Object.fromEntries(deltas), $setOnInsert: { queue: text, group } },
      upsert: true,
    },
  };
}

function addTo(to: Counters, deltas: Partial<Counters>): void {
  for (const name of COUNTER_NAMES) to[name] += deltas[name] ?? 0;
}
