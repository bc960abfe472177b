import { BufferedStats } from '../../engine/buffered-stats.ts';
import type { Definitions } from '../../engine/definitions.ts';
import type { Engine, EngineOptions, OpenEngine } from '../../engine/engine.ts';
import { OldStorage } from '../../engine/old-storage.ts';
import type { Signaller } from '../../engine/signaller.ts';
import { countLetters, type Stats } from '../../engine/stats.ts';
import type { Storage } from '../../engine/storage.ts';
import { LeaseTokens } from '../../model/lease-token.ts';
import type { QueueKey } from '../../model/names.ts';
import { type AnyStep, Step } from './call.ts';
import type { Connection } from './connection.ts';
import { DatabaseClock } from './database-clock.ts';
import { DeadLetters } from './dead-letters.ts';
import { PostgresDefinitions } from './definitions.ts';
import { Housekeeping } from './housekeeping.ts';
import { Ids } from './ids.ts';
import { Leases } from './leases.ts';
import { Link } from './link.ts';
import { Names, type Queue } from './names.ts';
import { Pipeline } from './pipeline.ts';
import { Prober } from './prober.ts';
import { migrate } from './schema.ts';
import { readSettings, type Settings } from './settings.ts';
import { Side } from './side.ts';
import { channelOf, PostgresSignaller } from './signaller.ts';
import { PostgresCounters } from './stats.ts';
import { PostgresStorage } from './storage.ts';
import { makeVerbs, type Verbs } from './verbs/index.ts';

/**
 * The PostgreSQL engine: `postgres://user:password@host:port/database`, one schema, three connections a node.
 * @throws Error for a URL or setting that can never work, before anything is opened
 */
export const open: OpenEngine = (options) => new PostgresEngine(options);

class PostgresEngine implements Engine {
  readonly type = 'postgres';
  readonly url: string;
  readonly storage: Storage;
  readonly definitions: Definitions;
  readonly signaller: Signaller;
  readonly stats: Stats;
  /** Never: what PostgreSQL has lost, a reconnect finds out about, and says no until it is mended. */
  readonly failed = new Promise<Error>(() => {});

  readonly #settings: Settings;
  readonly #main: Link;
  readonly #second: Link;
  readonly #listener: Link;
  readonly #side: Side;
  readonly #pipeline: Pipeline;
  readonly #names: Names;
  readonly #leases = new Leases();
  readonly #ids = new Ids();
  readonly #deadLetters: DeadLetters;
  readonly #databaseClock: DatabaseClock;
  readonly #verbs: Verbs;
  readonly #stats: BufferedStats;
  readonly #definitions: PostgresDefinitions;
  readonly #signaller: PostgresSignaller;
  readonly #touched = new Set<Queue>();
  #stopped: Promise<void> | null = null;

  constructor(options: EngineOptions) {
    const { clock, log, namespaces, dedupWindowMs } = options;
    this.url = options.url;
    this.#settings = readSettings(options);
    this.#databaseClock = new DatabaseClock(clock);
    this.#names = new Names(namespaces, this.#databaseClock);
    this.#deadLetters = new DeadLetters(this.#names, namespaces);

    this.#main = new Link(this.#settings, 'main', options, {
      prepare: (connection) => this.#prepareMain(connection),
      lost: () => {},
      back: () => this.#pipeline.resume(),
    });
    this.#second = new Link(this.#settings, 'second', options, {
      prepare: async () => {},
      lost: () => {},
      back: () => this.#side.resume(),
    });
    const side = new Side(this.#second, clock);
    this.#side = side;
    const channel = channelOf(this.#settings.schema);
    this.#listener = new Link(this.#settings, 'listener', options, {
      prepare: (connection) => connection.run(`LISTEN ${channel}`),
      lost: () => {},
      back: () => this.#definitions.signalsMissed(),
      notified: (_channel, payload) => this.#signaller.notified(payload),
    });
    this.#signaller = new PostgresSignaller({ side, listener: this.#listener, channel, clock, log });
    this.#stats = new BufferedStats(new PostgresCounters(side), clock, log);
    this.#definitions = new PostgresDefinitions(side, this.#signaller, log);
    const housekeeping = new Housekeeping(side, namespaces, {
      dedupWindowMs,
      clock: this.#databaseClock,
      deadLetters: this.#deadLetters,
    });

    this.#verbs = makeVerbs({
      ids: this.#ids,
      tokens: new LeaseTokens(),
      names: this.#names,
      clock: this.#databaseClock,
      leases: this.#leases,
      prober: new Prober(side, clock, log),
      monotonic: () => clock.monotonic(),
      deadLetters: this.#deadLetters,
      policies: namespaces,
      dedupWindowMs,
      touched: (queue) => this.#touched.add(queue),
      died: (queue, group, count) => {
        const target = this.#deadLetters.targetOf(queue);
        const to = target && { queue: { ns: target.ns, name: target.queue }, groups: target.groups };
        countLetters(this.#stats, { queue: queue.key, group }, to, count);
      },
    });
    this.#pipeline = new Pipeline({
      clock,
      link: this.#main,
      names: this.#names,
      before: () => this.#before(),
      done: () => housekeeping.noteRound(),
    });
    const storage = new PostgresStorage({
      pipeline: this.#pipeline,
      names: this.#names,
      verbs: this.#verbs,
      housekeeping,
      clock: this.#databaseClock,
      takeTouched: () => this.#takeTouched(),
    });
    this.storage = new OldStorage(storage, namespaces, () => this.#stats);
    this.definitions = this.#definitions;
    this.signaller = this.#signaller;
    this.stats = this.#stats;
  }

  async start(): Promise<void> {
    try {
      // The first one makes the schema that the others use.
      await this.#main.start();
      await Promise.all([this.#second.start(), this.#listener.start()]);
    } catch (error) {
      await this.stop();
      throw error;
    }
    this.#signaller.start();
  }

  stop(): Promise<void> {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  }

  async ping(): Promise<void> {
    const step = new Step(this.#verbs.ping, null, []);
    const now = await this.#pipeline.call({ changes: false, inserts: false, bytes: 0, rows: 1 }, step);
    this.#databaseClock.see(now);
  }

  async #stop(): Promise<void> {
    await this.#pipeline.stop();
    await this.#signaller.stop();
    await this.#stats.stop(this.#second.connection !== null);
    this.#side.stop();
    await Promise.all([this.#main.stop(), this.#second.stop(), this.#listener.stop()]);
  }

  /** What this node remembers of the store may be of another one: after a failover, or a restore. */
  async #prepareMain(connection: Connection): Promise<void> {
    this.#names.reset();
    this.#leases.reset();
    this.#ids.setTag(await migrate(connection, this.#settings));
    await this.#databaseClock.read(connection);
    await this.#deadLetters.prepare(connection);
  }

  #before(): AnyStep | null {
    return this.#leases.mayHaveEnded(this.#databaseClock.now) ? new Step(this.#verbs.lapse, null, []) : null;
  }

  #takeTouched(): QueueKey[] {
    const keys = [...this.#touched].map(({ key }) => key);
    this.#touched.clear();
    return keys;
  }
}
