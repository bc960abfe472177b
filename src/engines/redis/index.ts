// Files:
//   storage.ts      the Storage port: which calls of the library each operation makes; what all variants have in common
//   verbs/          how these calls are encoded as arguments, and their results decoded
//   batcher.ts      batches the calls of each queue, one batch in flight: sequence numbers, deadlines
//   reply.ts        decodes the replies of the library
//   client/         sends a batch to the master of its slot, and repeats it until there is a reply; ioredis
//   library/*.lua   the code that runs inside Redis; queue.lua describes the keys, session.lua a call and its reply
//   outbox.ts       moves elements to queues in other slots of a cluster (library/outbox.lua)
//   registry.ts     names of queues, and when to sweep which
//   sweeper.ts      sweeps them, and removes unused queues
//   list.ts         the Storage port for the `list` variant
//   definitions, stats, channels: the other ports
//   settings, policies, keys, encoding: options; policies for the library; key names; contents and ids as bytes
//   library.ts      joins library/*.lua into the source that servers load; context.ts: what all of these share
// A take: RedisStorage.take → Batchers.call → Executor.execute → Master.execute → RedisConnection.send → `take` in
// library/take.lua

import type { Definitions } from '../../engine/definitions.ts';
import {
  clockFinding,
  type Engine,
  type EngineOptions,
  type Finding,
  finding,
  type OpenEngine,
} from '../../engine/engine.ts';
import { BufferedStats, countDeadLetters } from '../../engine/stats.ts';
import type { Storage } from '../../engine/storage.ts';
import { Batchers } from './batcher.ts';
import { RedisSignaller } from './channels.ts';
import { ReplyError } from './client/connection.ts';
import { Executor } from './client/executor.ts';
import type { ServerFacts } from './client/master.ts';
import { Topology } from './client/topology.ts';
import type { RedisContext } from './context.ts';
import { openDefinitions } from './definitions.ts';
import { Keys, parseQueueText } from './keys.ts';
import { readLibrary } from './library.ts';
import { ListStorage } from './list.ts';
import { Outbox } from './outbox.ts';
import { Policies } from './policies.ts';
import { Registry } from './registry.ts';
import { readSettings, type Settings } from './settings.ts';
import { RedisCounters } from './stats.ts';
import { RedisStorage } from './storage.ts';
import { Sweeper } from './sweeper.ts';

export const open: OpenEngine = (options) => new RedisEngine(options);

/** The four ports on Redis, and the connections that they share. */
class RedisEngine implements Engine {
  readonly type = 'redis';
  readonly url: string;
  readonly storage: Storage;
  readonly definitions: Definitions;
  readonly signaller: RedisSignaller;
  /** Never resolves: the engine recovers when its server is available again. */
  readonly failed: Promise<Error> = new Promise(() => {});
  readonly stats: BufferedStats;
  readonly #context: RedisContext;
  readonly #batchers: Batchers;
  readonly #outbox: Outbox;
  #isDurabilityLogged = false;
  /** The failures that were logged, by server and reason; empty while all servers can be reached. */
  readonly #loggedFailures = new Set<string>();
  #stopping: Promise<void> | null = null;

  /** @throws Error that names a wrong setting */
  constructor(options: EngineOptions) {
    const { clock, log, namespaces, dedupWindowMs } = options;
    this.url = options.url;
    const settings = readSettings(options);
    const library = readLibrary();
    const topology = new Topology({
      clock,
      library,
      loadsLibrary: true,
      settings,
      onReady: (facts, _server, mayHaveLostWrites) => {
        if (mayHaveLostWrites) registry.noteLoss();
        this.#onReady(facts);
      },
      onDown: (server, reason) => this.#onDown(server, reason),
      onReplicas: (server, hasReplicas) => this.#onReplicas(server, hasReplicas),
    });
    const context: RedisContext = {
      clock,
      log,
      namespaces,
      dedupWindowMs,
      settings,
      topology,
      keys: new Keys(settings.prefix, settings.login.db),
      executor: new Executor({ clock, log, settings, topology }, library.name),
      policies: new Policies(namespaces),
    };
    this.#context = context;
    const signaller = new RedisSignaller(context);
    const registry = new Registry(context);
    const stats = new BufferedStats(new RedisCounters(context), clock, log);
    const batchers = new Batchers({
      ...context,
      registry,
      signaller,
      onReply: (queue, reply, sentAt, awaitedUntil) => {
        if (reply.died !== null) {
          const target = parseQueueText(reply.died.to);
          const groups = context.policies.defaultGroups(queue.ns);
          for (const [group, count] of reply.died.counts) {
            countDeadLetters(stats, { queue, group }, { queue: target, groups }, count);
          }
          sweeper.affected.note(target);
        }
        return outbox.onReply(queue, reply, sentAt, awaitedUntil);
      },
    });
    const definitions = openDefinitions(context, signaller);
    const sweeper = new Sweeper(context, batchers, registry, definitions);
    const outbox = new Outbox(context, batchers, (queue) => sweeper.affected.note(queue));
    this.#batchers = batchers;
    this.#outbox = outbox;
    this.signaller = signaller;
    this.definitions = definitions;
    this.stats = stats;
    const StorageOfVariant = settings.variant === 'list' ? ListStorage : RedisStorage;
    this.storage = new StorageOfVariant(batchers, sweeper);
  }

  async start(): Promise<void> {
    try {
      await this.#context.topology.start();
      // Otherwise, the signaller would open connections that nothing closes.
      this.#throwIfStopped();
      await this.signaller.start();
    } catch (error) {
      this.#throwIfStopped();
      await this.stop();
      throw this.#startError(error);
    }
  }

  /** Flushes buffered statistics and undoes takes of unknown outcome, as far as the servers reply soon. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  /**
   * Resolves if a master serves keys: while one of a cluster is unavailable, the queues of the others still work.
   * @throws QuaysideError `storage-unavailable`
   */
  async ping(): Promise<void> {
    const { topology, executor, keys } = this.#context;
    const deadlineAt = executor.deadline();
    const key = keys.due;
    // Unlike PING, this is rejected while the cluster is down.
    const command = { name: 'EXISTS', args: [key], writes: false };
    const replies = topology.masters().map((master) => master.execute(command).catch(acceptRedirection));
    // The slot map of a cluster may be outdated, and another server may serve the key.
    await Promise.any(replies).catch(() => executor.read(key, 'EXISTS', [key], deadlineAt));
  }

  async examine(): Promise<readonly Finding[]> {
    try {
      return await examineMasters(this.#context);
    } catch (error) {
      throw this.#startError(error);
    }
  }

  #throwIfStopped(): void {
    if (this.#stopping !== null) throw new Error('The engine was stopped while it started.');
  }

  #startError(error: unknown): Error {
    const reason = (error instanceof Error ? error.message : String(error)).replace(/\.$/, '');
    // Some reasons end with a hint, after a semicolon.
    const hint = reason.includes('; ') ? '' : `; ${hintOf(reason)}`;
    return new Error(`${this.#context.settings.maskedUrl}: ${reason}${hint}`);
  }

  async #stop(): Promise<void> {
    await Promise.all([this.stats.stop(), this.#batchers.settle()]);
    this.#batchers.stop();
    this.#outbox.stop();
    this.signaller.stop();
    this.#context.executor.stop();
    this.#context.topology.stop();
  }

  #onDown(server: string, { message }: Error): void {
    const { log, settings } = this.#context;
    const failure = `${server}: ${message}`;
    if (this.#loggedFailures.has(failure) || this.#stopping !== null) return;
    this.#loggedFailures.add(failure);
    log.warn({ engine: settings.maskedUrl, server, reason: message }, 'Redis cannot be reached');
  }

  #onReplicas(server: string, hasReplicas: boolean): void {
    const { log, settings } = this.#context;
    const fields = { engine: settings.maskedUrl, server };
    if (hasReplicas)
      log.info(fields, 'Redis has a replica again: changes are acknowledged when it has them.');
    else log.warn(fields, 'Redis has no replica any more: changes are acknowledged without one.');
  }

  /** Logs once how durable acknowledged changes are with the server's settings. */
  #onReady({ appendOnly, appendFsync, replicas }: ServerFacts): void {
    const { log, settings } = this.#context;
    const engine = settings.maskedUrl;
    if (this.#loggedFailures.size > 0) {
      this.#loggedFailures.clear();
      log.info({ engine }, 'Redis can be reached again');
    }
    if (this.#isDurabilityLogged) return;
    this.#isDurabilityLogged = true;
    const wait = settings.wait ?? Math.min(1, replicas);
    const replication =
      wait === 0
        ? 'a failover may lose the last of them'
        : `${wait} ${wait === 1 ? 'replica has' : 'replicas have'} them as well`;
    const fields = { engine, appendOnly, appendFsync, wait };
    if (!appendOnly) {
      log.warn(
        fields,
        `Redis keeps no append-only file: a restart loses acknowledged changes; ${replication}.`,
      );
    } else if (appendFsync === 'always') {
      log.info(fields, `Changes are on disk when they are acknowledged; ${replication}.`);
    } else if (appendFsync === 'everysec') {
      log.info(fields, `Changes reach the disk about a second after they are acknowledged; ${replication}.`);
    } else if (appendFsync === null) {
      log.info(fields, `CONFIG GET does not show when changes reach the disk; ${replication}.`);
    } else {
      log.warn(fields, `Changes reach the disk many seconds after they are acknowledged; ${replication}.`);
    }
  }
}

/** What to do if servers cannot be used. @param reason may be an error reply, after the address if there are several */
function hintOf(reason: string): string {
  const [, code] = /(?:^|: )([A-Z]+) /.exec(reason) ?? [];
  if (code === 'NOPERM')
    return 'give the user the rights that the page on Redis lists (ACL SETUSER, docs/engines/redis.md)';
  if (code === 'WRONGPASS' || code === 'NOAUTH') return "correct user and password in the namespace's url";
  return "start Redis there, or correct the namespace's url";
}

/** A server that names another one for a key serves its own keys. */
function acceptRedirection(error: unknown): void {
  if (!(error instanceof ReplyError && /^(MOVED|ASK) /.test(error.message))) throw error;
}

/**
 * Checks that each master's settings can keep the engine's promises, and that the user has the rights that a start
 * needs. Loads no functions.
 * @throws Error as a start does, if the servers cannot be used
 */
async function examineMasters({ clock, log, keys, settings }: RedisContext): Promise<readonly Finding[]> {
  const findings = new Map<string, readonly Finding[]>();
  const topology = new Topology({
    clock,
    library: readLibrary(),
    loadsLibrary: false,
    settings,
    onReady: (facts, server) => findings.set(server, findingsOf(facts, server, settings, clock.now())),
    onDown: () => {},
    onReplicas: () => {},
  });
  const signaller = new RedisSignaller({ keys, topology, log });
  signaller.subscribe('doctor', () => {});
  signaller.listen(keys.definitionChannel('queue'), { sharded: false }, () => {});
  try {
    await topology.start();
    await signaller.start();
  } finally {
    signaller.stop();
    topology.stop();
  }
  return [...findings.values()].flat();
}

function findingsOf(
  facts: ServerFacts,
  check: string,
  settings: Settings,
  localTime: number,
): readonly Finding[] {
  return [
    finding(check, 'ok', `it is version ${facts.version}`),
    // Connections to a server with another policy fail.
    finding(check, 'ok', 'its maxmemory-policy is noeviction'),
    appendOnlyFinding(facts, check),
    replicasFinding(facts, check, settings),
    clockFinding(check, facts.now, localTime),
  ];
}

function appendOnlyFinding({ appendOnly, appendFsync }: ServerFacts, check: string): Finding {
  if (!appendOnly) {
    const message = 'it keeps no append-only file: a restart loses acknowledged changes';
    return finding(check, 'warning', message, 'set appendonly yes');
  }
  if (appendFsync === 'no') {
    const message =
      'its appendfsync is no: a crash of its machine loses many seconds of acknowledged changes';
    return finding(check, 'warning', message, 'set appendfsync everysec, or always');
  }
  const fsync = appendFsync === null ? 'which CONFIG GET does not show' : appendFsync;
  return finding(check, 'ok', `it keeps an append-only file; its appendfsync is ${fsync}`);
}

/** A start accepts a server with fewer replicas than `wait`, which acknowledges no change until they connect. */
function replicasFinding({ replicas }: ServerFacts, check: string, { wait }: Settings): Finding {
  const connected = `its connected replicas: ${replicas}`;
  if (wait !== null && wait > replicas) {
    const message = `${connected}; wait is ${wait}, so no change is acknowledged`;
    return finding(check, 'error', message, 'connect the replicas, or lower wait');
  }
  const awaited = wait ?? Math.min(1, replicas);
  const needed = awaited === 0 ? 'changes do not wait for them' : `changes wait for ${awaited} of them`;
  return finding(check, 'ok', `${connected}; ${needed}`);
}
