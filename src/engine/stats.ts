import { type GroupName, PLAIN_GROUP } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';

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
