import type { GroupName } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import { COUNTER_NAMES, type CounterName, type Counters, type Stats, zeroCounters } from './stats.ts';

/**
 * Counters of a namespace that stores them apart from its elements (`stats: {url, coll}`). What the elements' engine
 * counts by itself, such as dead letters, it stores with them; reads return the sums.
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
    const joint = new Map<GroupName, Counters>();
    for (const [group, counters] of [...chosen, ...ofElements]) {
      const sums = joint.get(group) ?? zeroCounters();
      for (const name of COUNTER_NAMES) sums[name] += counters[name];
      joint.set(group, sums);
    }
    return joint;
  }

  async flush(): Promise<void> {
    await Promise.all([this.#chosen.flush(), this.#ofElements.flush()]);
  }
}
