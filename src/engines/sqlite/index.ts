// SQLite: one file, owned by one worker thread of this process.
//
// Main thread: `storage.ts` implements the Storage port, this file the other ports; `client.ts` gathers calls into
// batches; `protocol.ts` defines the operations and the messages between the threads; `settings.ts` checks the
// configuration; `steady-time.ts` is the clock of both threads. `restore.ts` replaces files of engines that do not run.
// Worker, in `worker/`: `main.ts` is the entry point; `serve.ts` receives messages; `batch.ts` lists the operations,
// runs all waiting batches in one transaction, isolates calls that fail, and merges small calls. Each operation is in
// the file of its subject: `insert.ts`, `take.ts` (with undone takes and scans), `settle.ts`, `sweep.ts` (with purges);
// `delivery.ts` has failed tries, dead letters, copies and damaged elements. Tables and their state in memory:
// `store.ts` (transactions), `ids.ts`, `queues.ts` (names, subscriptions, policies), `rows.ts` (deliveries, elements,
// leases), `unwritten.ts` (reservations in memory), `counts.ts` (of deliveries and elements by state), `checksums.ts`,
// `tokens.ts` (of leases), `records.ts` (idempotency keys, definitions, counters). A subscription is one group of one
// queue.
// The file: `open.ts`, `schema.ts`, `log-check.ts` (damage), `space.ts` (full disk, deleted files), `errors.ts`, and
// `backup.ts`.
import { stat, statfs } from 'node:fs/promises';
import { dirname } from 'node:path';
import {
  type DefinitionStore,
  type Definitions,
  type StoredDefinition,
  StoredDefinitions,
} from '../../engine/definitions.ts';
import type { DiskUsage, Engine, EngineOptions, OpenEngine } from '../../engine/engine.ts';
import { LocalSignaller, type Signaller } from '../../engine/signaller.ts';
import { BufferedStats, COUNTER_NAMES, type CounterStore } from '../../engine/stats.ts';
import type { Storage } from '../../engine/storage.ts';
import { makeFolder } from '../../util/files.ts';
import { WorkerClient } from './client.ts';
import { type CounterEntry, nameOf } from './protocol.ts';
import { MEMORY, readSettings } from './settings.ts';
import { SteadyTime } from './steady-time.ts';
import { SqliteStorage } from './storage.ts';

/**
 * The embedded engine: one SQLite file, owned by one worker thread of this process.
 * `sqlite:FILE` (absolute, or relative to `dataDir`) or `sqlite::memory:`.
 * @throws Error for an invalid URL or setting, before anything is opened
 */
export const open: OpenEngine = (options) => new SqliteEngine(options);

class SqliteEngine implements Engine {
  readonly type = 'sqlite';
  readonly url: string;
  readonly storage: Storage;
  readonly definitions: Definitions;
  readonly signaller: Signaller;
  readonly stats: BufferedStats;
  readonly failed: Promise<Error>;
  readonly disk: Engine['disk'];
  readonly backUp?: (file: string) => Promise<number>;
  readonly #file: string;
  readonly #client: WorkerClient;
  #stopped: Promise<void> | null = null;

  constructor(options: EngineOptions) {
    const { clock, log } = options;
    this.url = options.url;
    const { settings, thread } = readSettings(options);
    const { file, minFreeBytes } = settings;
    const time = new SteadyTime(clock);
    this.#client = new WorkerClient(thread, time, log, {
      ...settings,
      policies: options.namespaces,
      dedupWindowMs: options.dedupWindowMs,
    });
    this.failed = this.#client.failed;
    this.#file = file;
    this.disk = file === MEMORY ? undefined : () => diskUsage(file, minFreeBytes);
    if (file !== MEMORY) this.backUp = (to) => this.#client.backUp(to);
    this.storage = new SqliteStorage(this.#client, time);
    this.definitions = new StoredDefinitions(sqliteDefinitions(this.#client), log);
    this.signaller = new LocalSignaller(log);
    this.stats = new BufferedStats(sqliteCounters(this.#client), clock, log);
  }

  async start(): Promise<void> {
    if (this.#file !== MEMORY) makeFolder(dirname(this.#file));
    await this.#client.open();
  }

  stop(): Promise<void> {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  }

  ping(): Promise<void> {
    return this.#client.invoke('ping');
  }

  async #stop(): Promise<void> {
    // A failed store cannot store the last counter deltas, the only data that a failure may lose.
    await this.stats.stop();
    await this.#client.close();
  }
}

/** Runs on the main thread, so that a scrape of metrics does not wait for the worker. */
async function diskUsage(file: string, minFreeBytes: number): Promise<DiskUsage> {
  const [database, log, disk] = await Promise.all([
    sizeOf(file),
    sizeOf(`${file}-wal`),
    statfs(dirname(file)),
  ]);
  return { fileBytes: database + log, freeBytes: disk.bavail * disk.bsize, minFreeBytes };
}

/** Size of a file in bytes; 0 if it does not exist, as the log after a clean stop. */
function sizeOf(file: string): Promise<number> {
  return stat(file).then(
    ({ size }) => size,
    () => 0,
  );
}

/** Stores definitions in the worker's file. */
function sqliteDefinitions(client: WorkerClient): DefinitionStore {
  return {
    get: (kind, key) =>
      client.call(
        () => ['definitionGet', kind, key],
        (row) => row && checkedJson(row),
      ),
    list: (kind) =>
      client.call(
        () => ['definitionList', kind],
        (rows) => rows.map(checkedJson),
      ),
    put: (kind, key, value, expected) => client.invoke('definitionPut', kind, key, value, expected),
    delete: (kind, key, expected) => client.invoke('definitionDelete', kind, key, expected),
  };
}

/** Stores counters in the worker's file. */
function sqliteCounters(client: WorkerClient): CounterStore {
  return {
    isOrdered: true,
    queuesPerRead: Number.POSITIVE_INFINITY,
    groupsPerWrite: 2_000,
    write: (deltas) => {
      const entries: CounterEntry[] = [];
      for (const { queue, groups } of deltas) {
        for (const [group, counters] of groups) {
          entries.push([nameOf(queue), group, ...COUNTER_NAMES.map((name) => counters[name])]);
        }
      }
      return client.invoke('statsAdd', entries);
    },
    read: async (queues, found) => {
      const stored = await Promise.all(queues.map((queue) => client.invoke('statsRead', nameOf(queue))));
      for (const [index, rows] of stored.entries()) {
        for (const { grp, ...counters } of rows) found(index, grp, counters);
      }
    },
  };
}

/**
 * Checks that the value is JSON. Called while the reply is read, where an error ends the store: the file is damaged.
 */
function checkedJson(stored: StoredDefinition): StoredDefinition {
  JSON.parse(stored[1]);
  return stored;
}
