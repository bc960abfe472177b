import { dirname } from 'node:path';
import { BufferedStats } from '../../engine/buffered-stats.ts';
import type { Definitions } from '../../engine/definitions.ts';
import type { Engine, EngineOptions, OpenEngine } from '../../engine/engine.ts';
import { LocalSignaller } from '../../engine/local-signaller.ts';
import { OldStorage } from '../../engine/old-storage.ts';
import type { Signaller } from '../../engine/signaller.ts';
import type { Stats } from '../../engine/stats.ts';
import type { Storage } from '../../engine/storage.ts';
import { makeFolder } from '../../files/make-folder.ts';
import { Client } from './client.ts';
import { SqliteDefinitions } from './definitions.ts';
import { diskUsage } from './disk-usage.ts';
import { Housekeeping } from './housekeeping.ts';
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
  readonly #client: Client;
  readonly #stats: BufferedStats;
  readonly #housekeeping: Housekeeping;
  #stopped: Promise<void> | null = null;

  constructor(options: EngineOptions) {
    const { clock, log } = options;
    this.url = options.url;
    this.#settings = readSettings(options);
    const time = new SteadyTime(clock);
    this.#client = new Client(time, log, {
      ...this.#settings,
      policies: options.namespaces,
      dedupWindowMs: options.dedupWindowMs,
    });
    this.failed = this.#client.failed;
    const { file } = this.#settings;
    this.disk = file === MEMORY ? undefined : () => diskUsage(file);
    if (file !== MEMORY) this.backUp = (to) => this.#client.backUp(to);
    this.#housekeeping = new Housekeeping(this.#client, clock, log);
    this.storage = new OldStorage(
      new SqliteStorage(this.#client, time, this.#housekeeping),
      options.namespaces,
      () => this.stats,
    );
    this.definitions = new SqliteDefinitions(this.#client, log);
    this.signaller = new LocalSignaller(log);
    this.#stats = new BufferedStats(new SqliteCounters(this.#client), clock, log);
    this.stats = this.#stats;
  }

  async start(): Promise<void> {
    const { file } = this.#settings;
    if (file !== MEMORY) makeFolder(dirname(file));
    await this.#client.open();
    // A purge that the last run did not finish clearing away.
    this.#housekeeping.due();
  }

  stop(): Promise<void> {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  }

  async ping(): Promise<void> {
    this.#client.begin('ping');
    await this.#client.end('ping', () => {});
  }

  async #stop(): Promise<void> {
    // A store that failed cannot take the last counts; they are the one thing that a crash may lose.
    await this.#stats.stop();
    this.#housekeeping.stop();
    await this.#client.close();
  }
}
