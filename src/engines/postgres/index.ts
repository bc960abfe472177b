// The PostgreSQL engine. `storage.ts` turns calls of the Storage port into items; `batcher.ts` places them into
// batches, which run as one transaction after another on the main connection. Each kind of item is an operation
// (`operations.ts`) with one SQL statement, which takes its rows as one array per column and returns results by row
// number: `insert.ts`, `take.ts`, `settle.ts`, `scan.ts`, and `queues.ts` for the rest. `sql.ts` has the SQL that
// statements share, `statement.ts` encodes their parameters. `expire.ts` expires leases and elements before a batch.
// `registry.ts` knows the queues and computes ids, `watermark.ts` decides where reads of an index begin,
// `full-reads.ts` when they begin at its front again, `content.ts` encodes elements. `settings.ts` checks the
// configuration, `schema.ts` has the tables. `link.ts` reconnects a connection (`connection.ts`), and has the auxiliary
// one, which serves everything else: `housekeeping.ts` with `counter-sums.ts`, counts of streams, and the other ports.

import { AffectedQueues } from '../../engine/affected-queues.ts';
import { BufferedStats } from '../../engine/buffered-stats.ts';
import type { StoredDefinitions } from '../../engine/definitions.ts';
import type { Engine, EngineOptions, Finding, OpenEngine } from '../../engine/engine.ts';
import { countDeadLetters } from '../../engine/stats.ts';
import type { GroupName } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { Batcher } from './batcher.ts';
import { type Connection, examineServer } from './connection.ts';
import { Ids } from './content.ts';
import { CounterSums } from './counter-sums.ts';
import { openDefinitions } from './definitions.ts';
import { Expirer } from './expire.ts';
import { Housekeeping } from './housekeeping.ts';
import { AuxiliaryConnection, Link } from './link.ts';
import { type Context, DatabaseClock } from './operations.ts';
import { PING } from './queues.ts';
import { Registry } from './registry.ts';
import { prepareSchema } from './schema.ts';
import { readSettings, type Settings } from './settings.ts';
import { PostgresSignaller } from './signaller.ts';
import { number } from './statement.ts';
import { PostgresCounters } from './stats.ts';
import { PostgresStorage } from './storage.ts';
import { Prober } from './watermark.ts';

/**
 * The PostgreSQL engine: `postgres://user:password@host:port/database`, one schema, three connections per node.
 * @throws Error for a URL or setting that can never work, before anything is opened
 */
export const open: OpenEngine = (options) => new PostgresEngine(options);

class PostgresEngine implements Engine {
  readonly type = 'postgres';
  readonly url: string;
  readonly storage: PostgresStorage;
  readonly definitions: StoredDefinitions;
  readonly signaller: PostgresSignaller;
  readonly stats: BufferedStats;
  /** Never resolves: if PostgreSQL has lost its data, reconnects fail until an operator has repaired it. */
  readonly failed = new Promise<Error>(() => {});

  readonly #options: EngineOptions;
  readonly #settings: Settings;
  readonly #mainLink: Link;
  readonly #auxiliaryLink: Link;
  readonly #listenerLink: Link;
  readonly #batcher: Batcher;
  readonly #context: Context;
  #stopped: Promise<void> | null = null;

  constructor(options: EngineOptions) {
    const { clock, log, namespaces, dedupWindowMs } = options;
    this.url = options.url;
    this.#options = options;
    this.#settings = readSettings(options);
    this.#mainLink = new Link(this.#settings, 'main', options, {
      prepare: (connection) => this.#prepareMain(connection),
      onReconnected: () => this.#batcher.resume(),
    });
    this.#auxiliaryLink = new Link(this.#settings, 'second', options, {});
    const auxiliary = new AuxiliaryConnection(this.#auxiliaryLink, clock);
    const channel = `${this.#settings.schema}_signals`;
    this.#listenerLink = new Link(this.#settings, 'listener', options, {
      prepare: (connection) => connection.run(`LISTEN ${channel}`),
      onReconnected: () => this.definitions.notifyMissed(),
      onNotification: (_channel, payload) => this.signaller.receive(payload),
    });
    this.signaller = new PostgresSignaller({
      auxiliary,
      listener: this.#listenerLink,
      channel,
      clock,
      log,
    });
    this.stats = new BufferedStats(new PostgresCounters(auxiliary), clock, log);
    this.definitions = openDefinitions(auxiliary, this.signaller, log);

    const databaseClock = new DatabaseClock(clock);
    const registry = new Registry(namespaces, databaseClock);
    const counterSums = new CounterSums(auxiliary, clock, registry.counterWatermark);
    const affected = new AffectedQueues();
    const context = {
      ids: new Ids(),
      registry,
      clock: databaseClock,
      prober: new Prober(auxiliary, clock, log),
      dedupWindow: String(dedupWindowMs),
      affected,
      onDeadLetters: (queue: QueueKey, group: GroupName, to: string, count: number) => {
        const target = { queue: { ns: queue.ns, name: to }, groups: registry.defaultGroups(queue) };
        affected.note(target.queue);
        countDeadLetters(this.stats, { queue, group }, target, count);
      },
    };
    this.#context = { ...context, expirer: new Expirer(context, log) };
    this.#batcher = new Batcher({
      clock,
      link: this.#mainLink,
      registry,
      expirer: this.#context.expirer,
      onBatch: () => counterSums.noteBatch(),
    });
    this.storage = new PostgresStorage(this.#context, {
      batcher: this.#batcher,
      housekeeping: new Housekeeping(auxiliary, {
        namespaces,
        registry,
        clock: databaseClock,
        dedupWindow: context.dedupWindow,
        counterSums,
        log,
      }),
      auxiliary,
      clock,
    });
  }

  async start(): Promise<void> {
    try {
      // The main connection creates the schema that the others use.
      await this.#mainLink.start();
      await Promise.all([this.#auxiliaryLink.start(), this.#listenerLink.start()]);
    } catch (error) {
      await this.stop();
      throw error;
    }
    this.signaller.start();
  }

  stop(): Promise<void> {
    this.#stopped ??= this.#stopOnce();
    return this.#stopped;
  }

  ping(): Promise<void> {
    return this.storage.ping();
  }

  /** Works on a database without a schema, and creates none. */
  async examine(): Promise<readonly Finding[]> {
    let findings: readonly Finding[] = [];
    const link = new Link(this.#settings, 'doctor', this.#options, {
      prepare: async (connection) => {
        findings = await examineServer(connection, this.#settings.maskedUrl, () => this.#options.clock.now());
      },
    });
    try {
      await link.start();
      return findings;
    } finally {
      await link.stop();
    }
  }

  async #stopOnce(): Promise<void> {
    await this.#batcher.stop();
    await this.signaller.stop();
    await this.stats.stop(this.#auxiliaryLink.connection !== null);
    await Promise.all([this.#mainLink, this.#auxiliaryLink, this.#listenerLink].map((link) => link.stop()));
  }

  /** After a failover or a restore, the store may be another one: discards what this node remembers about it. */
  async #prepareMain(connection: Connection): Promise<void> {
    const { ids, clock, expirer, registry } = this.#context;
    expirer.reset();
    registry.reset();
    ids.setTag(await prepareSchema(connection, this.#settings));
    const [row = []] = await connection.query(PING, []);
    clock.update(number(row, 0));
  }
}
