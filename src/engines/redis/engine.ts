import { randomBytes } from 'node:crypto';
import { BufferedStats } from '../../engine/buffered-stats.ts';
import type { Definitions } from '../../engine/definitions.ts';
import type { Engine, EngineOptions, Finding } from '../../engine/engine.ts';
import type { Signaller } from '../../engine/signaller.ts';
import { countDeadLetters, type Stats } from '../../engine/stats.ts';
import type { Storage } from '../../engine/storage.ts';
import { Batchers } from './batcher.ts';
import { Executor } from './client/executor.ts';
import type { ServerFacts } from './client/server-check.ts';
import { Topology } from './client/topology.ts';
import { RedisDefinitions } from './definitions.ts';
import { examineMasters } from './examine.ts';
import { Keys, parseQueueText } from './keys.ts';
import { type Library, readLibrary } from './library.ts';
import { ListStorage } from './list.ts';
import { Outbox } from './outbox.ts';
import { Policies } from './policies.ts';
import { Registry } from './registry.ts';
import { readSettings, type Settings } from './settings.ts';
import { RedisSignaller } from './signaller.ts';
import { RedisCounters } from './stats.ts';
import { RedisStorage } from './storage.ts';
import { Subscriptions } from './subscriptions.ts';
import { Sweeper } from './sweeper.ts';

/** The four ports on Redis, and the connections that they share. */
export class RedisEngine implements Engine {
  readonly type = 'redis';
  readonly url: string;
  readonly storage: Storage;
  readonly definitions: Definitions;
  readonly signaller: Signaller;
  readonly stats: Stats;
  /** Never: a server that is away comes back, and what it lost it lost before it answered. */
  readonly failed: Promise<Error> = new Promise(() => {});
  readonly #options: EngineOptions;
  readonly #settings: Settings;
  readonly #topology: Topology;
  readonly #executor: Executor;
  readonly #keys: Keys;
  readonly #batchers: Batchers;
  readonly #outbox: Outbox;
  readonly #subscriptions: Subscriptions;
  readonly #stopBuffers: () => Promise<void>;
  #isDurabilityLogged = false;
  /** Why which server is away, as it was said; empty while all can be reached. */
  readonly #loggedReasons = new Set<string>();
  #starting: Promise<void> | null = null;
  #stopping: Promise<void> | null = null;

  /** @throws Error that names a wrong setting */
  constructor(options: EngineOptions) {
    const { clock, log, dedupWindowMs } = options;
    this.url = options.url;
    this.#options = options;
    const settings = readSettings(options);
    const { shown, givenTime } = settings;
    const library = readLibrary();
    this.#settings = settings;
    this.#keys = new Keys(settings.prefix, settings.login.db);
    const topology = this.#openTopology(library);
    const executor = new Executor({ clock, topology, log, shown });
    this.#topology = topology;
    this.#executor = executor;
    this.#subscriptions = new Subscriptions({ topology, log });
    const signaller = new RedisSignaller({
      topology,
      keys: this.#keys,
      subscriptions: this.#subscriptions,
      log,
    });
    this.signaller = signaller;
    const registry = new Registry({ executor, keys: this.#keys, library, givenTime });
    const counters = new RedisCounters({ executor, keys: this.#keys, library });
    const stats = new BufferedStats(counters, clock, log);
    const policies = new Policies(options.namespaces);
    const isList = settings.variant === 'list';
    const batchers = new Batchers({
      clock,
      log,
      keys: this.#keys,
      executor,
      library,
      givenTime,
      client: randomBytes(8),
      policies,
      registry,
      topology,
      isList,
      signals: signaller,
      onReply: (queue, reply, awaitedUntil) => {
        if (reply.died !== null) {
          const target = parseQueueText(reply.died.to);
          const groups = policies.deadLetterGroups(queue);
          for (const [group, count] of reply.died.counts) {
            countDeadLetters(stats, { queue, group }, { queue: target, groups }, count);
          }
          sweeper.noteAffected(target);
        }
        return this.#outbox.onReply(queue, reply, awaitedUntil);
      },
    });
    this.#batchers = batchers;
    const shared = {
      executor,
      isList,
      keys: this.#keys,
      library,
      subscriptions: this.#subscriptions,
    };
    this.definitions = new RedisDefinitions({ ...shared, log });
    const { definitions } = this;
    const { namespaces } = options;
    const sweeper = new Sweeper({ batchers, registry, definitions, namespaces, policies, dedupWindowMs });
    this.#outbox = new Outbox({
      batchers,
      clock,
      log,
      dedupWindowMs,
      onArrival: (queue) => sweeper.noteAffected(queue),
    });
    this.stats = stats;
    this.storage = isList
      ? new ListStorage({ ...shared, batchers, registry, sweeper, dedupWindowMs, signaller })
      : new RedisStorage({ ...shared, batchers, registry, sweeper, policies, dedupWindowMs, signaller });
    this.#stopBuffers = () => stats.stop();
  }

  start(): Promise<void> {
    this.#starting ??= this.#start();
    return this.#starting;
  }

  /** What is buffered is flushed, as far as the server answers soon. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  /** @throws QuaysideError `storage-unavailable` */
  async ping(): Promise<void> {
    const masters = this.#topology.masters();
    const deadlineAt = this.#executor.deadline();
    const pings = masters.map((master) => master.execute({ name: 'PING', args: [], writes: false }));
    const isAnswered = (await Promise.allSettled(pings)).every(({ status }) => status === 'fulfilled');
    const key = this.#keys.due;
    // A cluster whose slot map is being refreshed may serve it elsewhere.
    if (masters.length === 0 || !isAnswered) await this.#executor.read(key, 'EXISTS', [key], deadlineAt);
  }

  async examine(): Promise<readonly Finding[]> {
    try {
      return await examineMasters(this.#settings, this.#options);
    } catch (error) {
      throw this.#startError(error);
    }
  }

  #openTopology(library: Library): Topology {
    const { clock, log } = this.#options;
    return new Topology({
      clock,
      library,
      settings: this.#settings,
      onReady: (facts) => this.#onReady(facts),
      onDown: (server, reason) => {
        const why = `${server}: ${reason.message}`;
        if (this.#loggedReasons.has(why) || this.#stopping !== null) return;
        this.#loggedReasons.add(why);
        log.warn({ engine: this.#settings.shown, server, reason: reason.message }, 'Redis cannot be reached');
      },
    });
  }

  async #start(): Promise<void> {
    try {
      await this.#topology.start();
      await this.#subscriptions.start();
    } catch (error) {
      await this.stop();
      throw this.#startError(error);
    }
  }

  #startError(error: unknown): Error {
    const why = (error instanceof Error ? error.message : String(error)).replace(/\.$/, '');
    // Some reasons bring a remedy of their own, after a semicolon.
    const remedy = why.includes('; ') ? '' : "; start Redis there, or correct the namespace's url";
    return new Error(`${this.#settings.shown}: ${why}${remedy}`);
  }

  async #stop(): Promise<void> {
    await this.#stopBuffers();
    this.#batchers.stop();
    this.#outbox.stop();
    this.#subscriptions.stop();
    this.#executor.stop();
    this.#topology.stop();
  }

  /** Says once what the server's settings mean for what was answered. */
  #onReady({ appendOnly, appendFsync, replicas }: ServerFacts): void {
    const { log } = this.#options;
    const engine = this.#settings.shown;
    if (this.#loggedReasons.size > 0) {
      this.#loggedReasons.clear();
      log.info({ engine }, 'Redis can be reached again');
    }
    if (this.#isDurabilityLogged) return;
    this.#isDurabilityLogged = true;
    const wait = this.#settings.wait ?? Math.min(1, replicas);
    const replication =
      wait === 0 ? 'a failover may lose the last of them' : `${wait} replica has them as well`;
    const fields = { engine, appendOnly, appendFsync, wait };
    if (!appendOnly) {
      log.warn(fields, `Redis keeps no append-only file: a restart loses answered changes; ${replication}.`);
    } else if (appendFsync === 'always') {
      log.info(fields, `Changes are on disk when they are answered; ${replication}.`);
    } else {
      log.info(fields, `Changes reach the disk about a second after they are answered; ${replication}.`);
    }
  }
}
