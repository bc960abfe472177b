import type { CounterDeltas, CounterStore, OnStoredCounters } from '../../engine/buffered-stats.ts';
import { COUNTER_NAMES, type CounterName } from '../../engine/stats.ts';
import type { QueueKey } from '../../model/names.ts';
import { type Arg, asString } from './client/connection.ts';
import type { Executor } from './client/executor.ts';
import type { Keys } from './keys.ts';
import type { Library } from './library.ts';

/** Elements come first, and a read may have a write to wait for. */
const TIMEOUT_MS = 2000;

/** Counters in a hash per queue. */
export class RedisCounters implements CounterStore {
  readonly isOrdered = false;
  readonly #executor: Executor;
  readonly #keys: Keys;
  readonly #library: Library;

  constructor({ executor, keys, library }: { executor: Executor; keys: Keys; library: Library }) {
    this.#executor = executor;
    this.#keys = keys;
    this.#library = library;
  }

  async write(deltas: readonly CounterDeltas[]): Promise<void> {
    await Promise.all(
      deltas.map(({ queue, groups }) => {
        const key = this.#keys.queue(queue).stats;
        const args: Arg[] = [this.#library.addCounters, 1, key];
        for (const [group, counters] of groups) {
          for (const name of COUNTER_NAMES) {
            if (counters[name] !== 0) args.push(`${name}:${group}`, counters[name]);
          }
        }
        return this.#executor.writeOnce(key, 'FCALL', args, this.#executor.deadline(TIMEOUT_MS));
      }),
    );
  }

  async read(queues: readonly QueueKey[], found: OnStoredCounters): Promise<void> {
    const deadlineAt = this.#executor.deadline(TIMEOUT_MS);
    await Promise.all(
      queues.map(async (queue, index) => {
        const key = this.#keys.queue(queue).stats;
        const flat = await this.#executor.read(key, 'HGETALL', [key], deadlineAt);
        if (!Array.isArray(flat)) return;
        for (let i = 0; i < flat.length; i += 2) {
          const field = asString(flat[i]);
          const colon = field.indexOf(':');
          const name = field.slice(0, colon) as CounterName;
          if (COUNTER_NAMES.includes(name)) {
            found(index, field.slice(colon + 1), { [name]: Number(asString(flat[i + 1])) });
          }
        }
      }),
    );
  }
}
