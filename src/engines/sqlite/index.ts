// SQLite: one file, owned by one worker thread of this process.
//
// Main thread: `storage.ts`, `definitions.ts` and `stats.ts` implement the ports; `client.ts` gathers their calls into
// batches; `protocol.ts` has the operations, and what crosses the thread border.
// Worker, in `worker/`: `main.ts` is the thread; `serve.ts` receives messages; `batch.ts` runs the batches that wait in one transaction, and
// failed ones call by call. `operations.ts` lists the operations, each in the file of its subject: `insert.ts`,
// `take.ts`, `settle.ts` with `moves.ts` (dead letters, copies), `queues.ts`, `scan.ts`, `sweep.ts`, `records.ts`.
// Tables and what memory knows of them: `store.ts` (transactions, ids), `names.ts` (queues, subscriptions, policies),
// `rows.ts` (deliveries, elements, counts, leases). A subscription is one group of one queue.
// The file: `open.ts`, `schema.ts`, `check.ts` and `log-check.ts` (damage), `space.ts` (full disk, lost files),
// `backup.ts`; `restore.ts` works on files that no engine has open.
import { dirname } from 'node:path';
import { BufferedStats } from '../../engine/buffered-stats.ts';
import type { Definitions } from '../../engine/definitions.ts';
import type { Engine, EngineOptions, OpenEngine } from '../../engine/engine.ts';
import type { Signaller } from '../../engine/signaller.ts';
import { LocalSignaller } from '../../engine/signaller.ts';
import type { Stats } from '../../engine/stats.ts';
import type { Storage } from '../../engine/storage.ts';
import { makeFolder } from '../../util/files.ts';
import { WorkerClient } from './client.ts';
import { SqliteDefinitions } from './definitions.ts';
import { diskUsage } from './disk-usage.ts';
import { MEMORY, readSettings, type Settings } from './settings.ts';
import { SqliteCounters } from './stats.ts';
import { SteadyTime } from './steady-time.ts';
import { SqliteStorage } from './storage.ts';

/**
 * The embedded engine: one SQLite file, owned by one worker thread of this process.
 * `sqlite:FILE` (relative to `dataDir`, or absolute) or `sqlite::memory:`.
 * @throws Error for a URL or setting that can never work, before anything is opened
 */
export const open: OpenEngine = (options) => new SqliteEngine(options);

class SqliteEngine implements Engine {
  readonly type = 'sqlite';
  readonly url: string;
  readonly storage: Storage;
  readonly definitions: Definitions;
  readonly signaller: Signaller;
  readonly stats: Stats;
  readonly failed: Promise<Error>;
  readonly disk: Engine['disk'];
  readonly backUp?: (file: string) => Promise<number>;
  readonly #settings: Settings;
  readonly #client: WorkerClient;
  readonly #stats: BufferedStats;
  #stopped: Promise<void> | null = null;

  constructor(options: EngineOptions) {
    const { clock, log } = options;
    this.url = options.url;
    this.#settings = readSettings(options);
    const time = new SteadyTime(clock);
    const { deadlineClock, startThread, ...settings } = this.#settings;
    this.#client = new WorkerClient(deadlineClock, startThread, time, log, {
      ...settings,
      policies: options.namespaces,
      dedupWindowMs: options.dedupWindowMs,
    });
    this.failed = this.#client.failed;
    const { file, minFreeBytes } = this.#settings;
    this.disk = file === MEMORY ? undefined : () => diskUsage(file, minFreeBytes);
    if (file !== MEMORY) this.backUp = (to) => this.#client.backUp(to);
    this.storage = new SqliteStorage(this.#client, time);
    this.definitions = new SqliteDefinitions(this.#client, log);
    this.signaller = new LocalSignaller(log);
    this.#stats = new BufferedStats(new SqliteCounters(this.#client), clock, log);
    this.stats = this.#stats;
  }

  async start(): Promise<void> {
    const { file } = this.#settings;
    if (file !== MEMORY) makeFolder(dirname(file));
    await this.#client.open();
  }

  stop(): Promise<void> {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  }

  ping(): Promise<void> {
    return this.#client.ping();
  }

  async #stop(): Promise<void> {
    // A store that failed cannot take the last counts; they are the one thing that a crash may lose.
    await this.#stats.stop();
    await this.#client.close();
  }
}
