import type { CounterDeltas, CounterStore, OnStoredCounters } from '../../engine/buffered-stats.ts';
import { COUNTER_NAMES, type Counters, zeroCounters } from '../../engine/stats.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Client } from './client.ts';
import type { MessageReader } from './message.ts';

/** Counters in the worker's file. Calls keep their order. */
export class SqliteCounters implements CounterStore {
  readonly isOrdered = true;
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  write(deltas: readonly CounterDeltas[]): Promise<void> {
    const call = this.#client.begin('statsAdd');
    call.value(deltas.reduce((sum, { groups }) => sum + groups.size, 0));
    for (const { queue, groups } of deltas) {
      for (const [group, counters] of groups) {
        call.value(this.#client.handle(queue));
        call.value(group);
        for (const name of COUNTER_NAMES) call.value(counters[name]);
      }
    }
    return this.#client.end('statsAdd', () => {});
  }

  async read(queues: readonly QueueKey[], found: OnStoredCounters): Promise<void> {
    await Promise.all(
      queues.map((queue, index) => {
        this.#client.begin('statsRead').value(this.#client.handle(queue));
        return this.#client.end('statsRead', (reply) => {
          for (let left = reply.number(); left > 0; left--) found(index, reply.text(), readCounters(reply));
        });
      }),
    );
  }
}

function readCounters(reply: MessageReader): Counters {
  const counters = zeroCounters();
  for (const name of COUNTER_NAMES) counters[name] = reply.number();
  return counters;
}
