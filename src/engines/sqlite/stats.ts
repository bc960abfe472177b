import type { CounterDeltas, CounterStore, OnStoredCounters } from '../../engine/buffered-stats.ts';
import { COUNTER_NAMES, zeroCounters } from '../../engine/stats.ts';
import type { QueueKey } from '../../model/names.ts';
import type { WorkerClient } from './client.ts';
import { type Fields, nameOf } from './protocol.ts';

/** Counters in the worker's file. Calls keep their order. */
export class SqliteCounters implements CounterStore {
  readonly isOrdered = true;
  readonly #client: WorkerClient;

  constructor(client: WorkerClient) {
    this.#client = client;
  }

  write(deltas: readonly CounterDeltas[]): Promise<void> {
    return this.#client.call(
      'statsAdd',
      () => {
        const fields: Fields = [];
        for (const { queue, groups } of deltas) {
          for (const [group, counters] of groups) {
            fields.push(nameOf(queue), group, ...COUNTER_NAMES.map((name) => counters[name]));
          }
        }
        return [fields];
      },
      () => {},
    );
  }

  async read(queues: readonly QueueKey[], found: OnStoredCounters): Promise<void> {
    await Promise.all(
      queues.map((queue, index) =>
        this.#client.call(
          'statsRead',
          () => [nameOf(queue)],
          (fields) => readCounters(fields, index, found),
        ),
      ),
    );
  }
}

function readCounters(fields: Fields, index: number, found: OnStoredCounters): void {
  for (let at = 0; at < fields.length; at += 1 + COUNTER_NAMES.length) {
    const counters = zeroCounters();
    for (const [i, name] of COUNTER_NAMES.entries()) counters[name] = fields[at + 1 + i] as number;
    found(index, fields[at] as string, counters);
  }
}
