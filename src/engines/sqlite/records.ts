import type { CounterStore } from '../../engine/buffered-stats.ts';
import type { DefinitionStore } from '../../engine/definitions.ts';
import { COUNTER_NAMES } from '../../engine/stats.ts';
import type { WorkerClient } from './client.ts';
import { type Fields, nameOf } from './protocol.ts';

/** Definitions in the worker's file. */
export function sqliteDefinitions(client: WorkerClient): DefinitionStore {
  return {
    get: (kind, key) => client.ask('definitionGet', kind, key),
    list: (kind) => client.ask('definitionList', kind),
    put: (kind, key, value, expected) => client.ask('definitionPut', kind, key, value, expected),
    delete: (kind, key, expected) => client.ask('definitionDelete', kind, key, expected),
  };
}

/** Counters in the worker's file. Calls keep their order. */
export function sqliteCounters(client: WorkerClient): CounterStore {
  return {
    isOrdered: true,
    write: (deltas) => {
      const fields: Fields = [];
      for (const { queue, groups } of deltas) {
        for (const [group, counters] of groups) {
          fields.push(nameOf(queue), group, ...COUNTER_NAMES.map((name) => counters[name]));
        }
      }
      return client.ask('statsAdd', fields);
    },
    read: async (queues, found) => {
      const stored = await Promise.all(queues.map((queue) => client.ask('statsRead', nameOf(queue))));
      for (const [index, rows] of stored.entries()) {
        for (const { grp, ...counters } of rows) found(index, grp, counters);
      }
    },
  };
}
