import { COUNTER_NAMES, type CounterName, type Counters, type Stats, zeroCounters } from '../engine/stats.ts';
import type { GroupName } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';

/**
 * Counters of a namespace that keeps them apart from its elements (`stats: {url, coll}`). What the elements' engine
 * counts by itself, such as dead letters, it keeps beside them; both are read as one.
 */
export class JointStats implements Stats {
  readonly #kept: Stats;
  readonly #byEngine: Stats;

  /** @param byEngine of the engine that has the elements */
  constructor(kept: Stats, byEngine: Stats) {
    this.#kept = kept;
    this.#byEngine = byEngine;
  }

  add(queue: QueueKey, group: GroupName, deltas: Partial<Record<CounterName, number>>): void {
    this.#kept.add(queue, group, deltas);
  }

  async read(queue: QueueKey): Promise<ReadonlyMap<GroupName, Counters>> {
    const [kept, byEngine] = await Promise.all([this.#kept.read(queue), this.#byEngine.read(queue)]);
    const joint = new Map<GroupName, Counters>();
    for (const [group, counters] of [...kept, ...byEngine]) {
      const sums = joint.get(group) ?? zeroCounters();
      for (const name of COUNTER_NAMES) sums[name] += counters[name];
      joint.set(group, sums);
    }
    return joint;
  }

  async flush(): Promise<void> {
    await Promise.all([this.#kept.flush(), this.#byEngine.flush()]);
  }
}
