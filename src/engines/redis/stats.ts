import {
  COUNTER_NAMES,
  type CounterDeltas,
  type CounterName,
  type CounterStore,
  type OnStoredCounters,
} from '../../engine/stats.ts';
import type { QueueKey } from '../../model/names.ts';
import { type Arg, asString, type Reply } from './client/connection.ts';
import type { RedisContext } from './context.ts';

/** The timeout of a write, shorter than that of other calls: a read may wait for it first. */
const WRITE_TIMEOUT_MS = 2000;
/**
 * Groups per write, and queues per read, on a single server, which needs about a millisecond for them. A read of queues
 * with more than 5,000 counters takes several calls.
 */
const GROUPS_PER_WRITE = 100;
const QUEUES_PER_READ = 100;

/** Counters in a hash per queue. */
export class RedisCounters implements CounterStore {
  readonly isOrdered = false;
  readonly #context: RedisContext;

  constructor(context: RedisContext) {
    this.#context = context;
  }

  get groupsPerWrite(): number {
    return this.#context.topology.queuesPerCall(GROUPS_PER_WRITE);
  }

  get queuesPerRead(): number {
    return this.#context.topology.queuesPerCall(QUEUES_PER_READ);
  }

  async write(deltas: readonly CounterDeltas[]): Promise<void> {
    const { executor, keys } = this.#context;
    const named: string[] = [];
    const args: Arg[] = [];
    for (const { queue, groups } of deltas) {
      const counts: Arg[] = [];
      for (const [group, counters] of groups) {
        for (const name of COUNTER_NAMES) {
          if (counters[name] !== 0) counts.push(`${name}:${group}`, counters[name]);
        }
      }
      const { stats, hash } = keys.queue(queue);
      named.push(stats, hash, keys.list(queue));
      args.push(counts.length, ...counts);
    }
    const [key = '', ...others] = named;
    const options = { repeatable: false, deadlineAt: executor.deadline(WRITE_TIMEOUT_MS) };
    await executor.call('count', [key, ...others], args, options);
  }

  async read(queues: readonly QueueKey[], onFound: OnStoredCounters, deadlineAt: number): Promise<void> {
    const { executor, keys } = this.#context;
    const named = queues.map((queue) => keys.queue(queue).stats);
    // Each call reads at least one queue.
    for (let from = 0; from < named.length; ) {
      const [key = '', ...others] = named.slice(from);
      const reply = await executor.call('counters', [key, ...others], [], { writes: false, deadlineAt });
      const results = reply as readonly (readonly Reply[])[];
      for (const [i, flat] of results.entries()) {
        for (let at = 0; at < flat.length; at += 2) {
          const field = asString(flat[at]);
          const colon = field.indexOf(':');
          const name = field.slice(0, colon) as CounterName;
          if (COUNTER_NAMES.includes(name)) {
            onFound(from + i, field.slice(colon + 1), { [name]: Number(asString(flat[at + 1])) });
          }
        }
      }
      from += results.length;
    }
  }
}
