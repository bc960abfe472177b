import type { QueueKey } from '../../model/names.ts';
import { queueText } from './documents.ts';
import { duplicatesOf } from './errors.ts';
import { MAX_TIME_MS } from './settings.ts';
import type { Store } from './store.ts';

/** Names that this node has surely seen stored; more than these are asked for again. */
const MOST_REMEMBERED = 100_000;

/** Which queues exist: those that were declared, or that something was once inserted into. */
export class KnownQueues {
  readonly #store: Store;
  #known = new Set<string>();

  constructor(store: Store) {
    this.#store = store;
  }

  /** The store may be another one, as after a restore. */
  forget(): void {
    this.#known = new Set();
  }

  /** Makes queues known, durably. Idempotent. @throws what the driver throws */
  async make(queues: Iterable<QueueKey>): Promise<void> {
    const missing = new Map<string, QueueKey>();
    for (const queue of queues) {
      const text = queueText(queue);
      if (!this.#known.has(text)) missing.set(text, queue);
    }
    if (missing.size === 0) return;
    await this.#write(missing, 1);
    if (this.#known.size > MOST_REMEMBERED) this.forget();
    for (const text of missing.keys()) this.#known.add(text);
  }

  /** The names of a namespace's queues, sorted. @throws what the driver throws */
  async names(ns: string): Promise<string[]> {
    const { queues } = this.#store.collections;
    const found = await queues.find({ ns }, { projection: { name: 1 }, maxTimeMS: MAX_TIME_MS }).toArray();
    return found.map(({ name }) => name).sort();
  }

  async #write(queues: ReadonlyMap<string, QueueKey>, attempt: number): Promise<void> {
    const operations = [...queues].map(([_id, { ns, name }]) => ({
      updateOne: { filter: { _id }, update: { $setOnInsert: { ns, name } }, upsert: true },
    }));
    const { writeConcern } = this.#store.settings;
    try {
      await this.#store.collections.queues.bulkWrite(operations, {
        ordered: false,
        writeConcern,
        maxTimeMS: MAX_TIME_MS,
      });
    } catch (error) {
      // Another node made the same name at this moment; the next attempt finds it.
      if (duplicatesOf(error) === null || attempt > 3) throw error;
      await this.#write(queues, attempt + 1);
    }
  }
}
