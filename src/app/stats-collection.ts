import type { CounterName, Counters, Stats } from '../engine/stats.ts';
import type { GroupName } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';

/** What counters are kept under where a namespace names no collection. */
export const USUAL_COLLECTION = 'stats';

/**
 * Counters of a namespace that names a collection of its own (`stats: {coll: …}`): two installations may
 * share one store of statistics though their namespaces have the same names.
 */
export class StatsCollection implements Stats {
  readonly #stats: Stats;
  readonly #collection: string;
  /** Engines know their queues by the object: each key has one counterpart. */
  readonly #keys = new WeakMap<QueueKey, QueueKey>();

  constructor(stats: Stats, collection: string) {
    this.#stats = stats;
    this.#collection = collection;
  }

  add(queue: QueueKey, group: GroupName, deltas: Partial<Record<CounterName, number>>): void {
    this.#stats.add(this.#keyOf(queue), group, deltas);
  }

  read(queue: QueueKey): Promise<ReadonlyMap<GroupName, Counters>> {
    return this.#stats.read(this.#keyOf(queue));
  }

  flush(): Promise<void> {
    return this.#stats.flush();
  }

  /** No namespace's name has a slash, so none can be meant by two keys. */
  #keyOf(queue: QueueKey): QueueKey {
    let key = this.#keys.get(queue);
    if (key === undefined) {
      key = { ns: `${this.#collection}/${queue.ns}`, name: queue.name };
      this.#keys.set(queue, key);
    }
    return key;
  }
}
