import type { CounterDeltas, CounterStore, OnStoredCounters } from '../../engine/buffered-stats.ts';
import {
  type Definition,
  type DefinitionChange,
  type DefinitionKind,
  type Definitions,
  DefinitionWatchers,
  definitionConflict,
  type JsonValue,
} from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import { COUNTER_NAMES } from '../../engine/stats.ts';
import type { QueueKey } from '../../model/names.ts';
import type { WorkerClient } from './client.ts';
import { type DefinitionRow, type Fields, nameOf } from './protocol.ts';

/** The Definitions port over the worker. The file has one owner, so watching is a call in this process. */
export class SqliteDefinitions implements Definitions {
  readonly #client: WorkerClient;
  readonly #watchers: DefinitionWatchers;

  constructor(client: WorkerClient, log: EngineLog) {
    this.#client = client;
    this.#watchers = new DefinitionWatchers(log);
  }

  get(kind: DefinitionKind, key: string): Promise<Definition | null> {
    return this.#client.call(
      'definitionGet',
      () => [kind, key],
      (row) => (row === null ? null : readDefinition(row)),
    );
  }

  list(kind: DefinitionKind): Promise<Definition[]> {
    return this.#client.call(
      'definitionList',
      () => [kind],
      (rows) => rows.map(readDefinition).sort((a, b) => (a.key < b.key ? -1 : 1)),
    );
  }

  async put(
    kind: DefinitionKind,
    key: string,
    value: JsonValue,
    expected: string | null | 'any',
  ): Promise<string> {
    const version = await this.#client.call(
      'definitionPut',
      () => [kind, key, JSON.stringify(value), expected],
      (result) => result,
    );
    if (version === null) throw definitionConflict(kind, key);
    this.#watchers.notify({ kind, key });
    return version;
  }

  async delete(kind: DefinitionKind, key: string, expected: string | 'any'): Promise<boolean> {
    const wasThere = await this.#client.call(
      'definitionDelete',
      () => [kind, key, expected],
      (result) => result,
    );
    if (wasThere === null) throw definitionConflict(kind, key);
    if (wasThere) this.#watchers.notify({ kind, key });
    return wasThere;
  }

  watch(listener: (change: DefinitionChange) => void): () => void {
    return this.#watchers.add(listener);
  }
}

function readDefinition([key, value, version]: DefinitionRow): Definition {
  return { key, value: JSON.parse(value) as JsonValue, version };
}

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
          (rows) => {
            for (const { grp, ...counters } of rows) found(index, grp, counters);
          },
        ),
      ),
    );
  }
}
