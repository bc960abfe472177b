import { type Definition, type DefinitionKind, queueOfDefinition } from '../engine/definitions.ts';
import { DefinitionsCaches } from '../engine/definitions-cache.ts';
import type { Storage } from '../engine/storage.ts';
import { namespaceNotFound, QuaysideError, shuttingDown } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { PendingConsumer } from '../model/records.ts';
import type { Clock } from '../util/clock.ts';
import type { EventLog } from '../util/log.ts';
import type { Service } from '../util/service.ts';
import { UserLimit, type UserLimits } from '../util/user-limit.ts';
import { SeriesLimit } from './activity.ts';
import { AppliedChanges } from './applied-changes.ts';
import { type Difference, type NodeInfo, nodeText } from './cluster.ts';
import { EnginePermits } from './engine-permits.ts';
import { checkMigration, Migration, MigrationTargetMissing } from './migration.ts';
import { Namespace, type Shared, type SharedOfEngine, type WhoWaits } from './namespace.ts';
import type { NamespaceSetup } from './ports.ts';
import { Questions } from './questions.ts';
import { LeaseSweeper } from './sweeper.ts';

interface BrokerOptions {
  readonly namespaces: readonly NamespaceSetup[];
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  /** Limits on the blocked calls of this node. A call counts once for each queue that it waits on. */
  readonly waiting: UserLimits;
  readonly log: EventLog;
  /** How this node describes itself to other nodes. */
  readonly node?: Pick<NodeInfo, 'host' | 'pid' | 'version'>;
}

/** Bound on one node's reply: some 15,000 consumers of one queue. `waiting.total` defaults to 10,000. */
const MAX_CONSUMER_BYTES = 4 * 1_048_576;

const UNNAMED = { host: '', pid: 0, version: '' };

/** A node, and the namespaces that it is known to serve. */
interface ServingNode extends NodeInfo {
  readonly isSelf: boolean;
  readonly namespaces: string[];
  /** Options that it configures differently from this node. */
  readonly conflicts: (Difference & { readonly namespace: string })[];
}

/**
 * A node without its front ends: namespaces, queues and waiting consumers. Several brokers may share engines. Start the
 * engines before the broker, and stop them after it.
 */
export class Broker implements Service {
  /** Questions between nodes, for listings that cover all of them. */
  readonly questions: Questions;
  readonly appliedChanges: AppliedChanges;
  readonly #waitingLimit: UserLimit;
  readonly #namespaces = new Map<string, Namespace>();
  readonly #engines = new Map<Storage, SharedOfEngine>();
  readonly #shared: Shared;
  readonly #self: NodeInfo;
  #tids = 0;
  #hasWarnedOfMixture = false;
  /** Versions of other nodes that were warned of, each with the node's id. */
  readonly #otherVersions = new Map<string, string>();
  #stopping: Promise<void> | null = null;

  constructor(options: BrokerOptions) {
    this.#waitingLimit = new UserLimit(options.waiting, tooManyCalls);
    const id = Math.floor(options.random() * 2 ** 48).toString(36);
    this.#self = { id, startedAt: options.clock.now(), ...(options.node ?? UNNAMED) };
    this.questions = new Questions({
      self: id,
      clock: options.clock,
      log: options.log,
      channels: () => this.namespaces().map(({ cluster }) => cluster),
    });
    this.appliedChanges = new AppliedChanges(this.questions, id);
    this.#shared = {
      appliedChanges: this.appliedChanges,
      pauseFlags: this.#cachesOf(options, 'queue', 'a pause flag', (namespace, ...change) =>
        namespace.onPauseFlag(...change),
      ),
      queueOptions: this.#cachesOf(options, 'queue-options', 'options of a queue', (namespace, ...change) =>
        namespace.onOptions(...change),
      ),
      questions: this.questions,
      askWhoWaits: this.questions.register<WhoWaits, PendingConsumer>({
        name: 'queue-consumers',
        maxBytes: MAX_CONSUMER_BYTES,
        reply: ({ ns, name, tid }) => {
          const rows = this.namespace(ns).visit(name).consumers(tid);
          return { total: rows.length, rows };
        },
      }),
      clock: options.clock,
      random: options.random,
      log: options.log,
      waitingLimit: this.#waitingLimit,
      seriesLimit: new SeriesLimit(),
      self: this.#self,
      noteNode: (node) => this.#noteNode(node, options.log),
      makeTid: () => {
        this.#tids += 1;
        return `${id}-${this.#tids.toString(36)}`;
      },
    };
    for (const setup of options.namespaces) {
      const namespace = new Namespace(setup, this.#shared, this.#engineOf(setup.storage));
      this.#namespaces.set(namespace.name, namespace);
    }
    this.appliedChanges.onChange('queue', (ns, key) => this.namespace(ns).readDefinitions(key));
  }

  /** @throws VariantConflict, MigrationTargetMissing */
  async start(): Promise<void> {
    // Resume migrations before anything is stored: inserts must not go to an engine that their namespace is leaving.
    await Promise.all(this.namespaces().map((namespace) => this.#resumeMigration(namespace)));
    await Promise.all(this.namespaces().map((namespace) => namespace.start()));
    if (this.#stopping !== null) return;
    const { pauseFlags, queueOptions } = this.#shared;
    for (const caches of [pauseFlags, queueOptions]) caches.start();
    await Promise.all([pauseFlags.reload(), queueOptions.reload()]);
    await Promise.all(this.namespaces().map((namespace) => namespace.startRereads()));
    await Promise.all([...this.#engines.values()].map(({ sweeper }) => sweeper.sweep()));
  }

  /** Rejects new waiting calls, and ends present ones, with `shutting-down`. Clients can still settle elements. */
  drain(): void {
    this.#waitingLimit.close(shuttingDown);
    for (const namespace of this.#namespaces.values()) namespace.endConsumers(shuttingDown);
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    this.drain();
    this.questions.stop();
    await Promise.all([...this.#namespaces.values()].map((namespace) => namespace.stop()));
    const { pauseFlags, queueOptions } = this.#shared;
    const sweepers = [...this.#engines.values()].map(({ sweeper }) => sweeper);
    await Promise.all([pauseFlags, queueOptions, ...sweepers].map((part) => part.stop()));
  }

  /** Id of this node, as in `nodes`. */
  get nodeId(): string {
    return this.#self.id;
  }

  /** How many calls of users wait on this node. */
  get waiting(): number {
    return this.#waitingLimit.total;
  }

  /** In the order of the configuration. */
  namespaces(): Namespace[] {
    return [...this.#namespaces.values()];
  }

  /** Names of the namespaces that depend on each engine, by the engine's masked URL. */
  namespacesByEngine(): Map<string, string[]> {
    const byEngine = new Map<string, string[]>();
    for (const { name, engineUrls } of this.namespaces()) {
      for (const url of new Set(engineUrls)) byEngine.set(url, [...(byEngine.get(url) ?? []), name]);
    }
    return byEngine;
  }

  /** This node and those that share namespaces with it, the oldest first. */
  nodes(): ServingNode[] {
    const namespaces = [...this.#namespaces.keys()];
    const nodes = new Map<string, ServingNode>([
      [this.#self.id, { ...this.#self, isSelf: true, namespaces, conflicts: [] }],
    ]);
    for (const [name, namespace] of this.#namespaces) {
      const differences = namespace.cluster.differences();
      for (const { info: peer } of namespace.cluster.peers()) {
        const known = nodes.get(peer.id) ?? { ...peer, isSelf: false, namespaces: [], conflicts: [] };
        nodes.set(peer.id, known);
        known.namespaces.push(name);
        for (const difference of differences.get(peer.id) ?? []) {
          known.conflicts.push({ namespace: name, ...difference });
        }
      }
    }
    return [...nodes.values()].sort((a, b) => a.startedAt - b.startedAt);
  }

  /** @throws QuaysideError `namespace-not-found` */
  namespace(name: string): Namespace {
    const namespace = this.#namespaces.get(name);
    if (namespace === undefined) throw namespaceNotFound(name);
    return namespace;
  }

  /**
   * Starts to move a namespace to the engine of namespace `to`: from now on, its inserts go there. Idempotent.
   * @throws QuaysideError as `checkMigration`, and as the engines do; the call may then be repeated
   */
  async migrate(name: string, to: string): Promise<Migration> {
    const [namespace, target] = [this.namespace(name), this.namespace(to)];
    if (namespace.migration?.to !== to) {
      await checkMigration(namespace, target);
      await Migration.store(namespace, target);
      // A concurrent call may have started the migration during the awaits above.
      if (namespace.migration === null) this.#join(namespace, target);
    }
    const { migration } = namespace;
    if (migration === null)
      throw new Error(`Namespace ${name} has no migration, although it was just started.`);
    await migration.copyDefinitions();
    return migration;
  }

  async #resumeMigration(namespace: Namespace): Promise<void> {
    if (namespace.setup.ownsStore !== true) return;
    const to = await Migration.storedTarget(namespace);
    if (to === null) return;
    const target = this.#namespaces.get(to);
    if (target === undefined || target.setup.storage === namespace.setup.storage) {
      throw new MigrationTargetMissing(namespace.name, to);
    }
    await this.#join(namespace, target).copyDefinitions();
  }

  #join(namespace: Namespace, target: Namespace): Migration {
    const migration = new Migration(namespace, target);
    namespace.join(migration, this.#engineOf(migration.storage));
    return migration;
  }

  #noteNode(node: NodeInfo, log: EventLog): void {
    this.#warnOfVersion(node, log);
    this.#warnOfLocal(node, log);
  }

  /** Logs that a version must not share an engine with this one: once, and again after the node with it has gone. */
  #warnOfVersion({ id, host, pid, version: there }: NodeInfo, log: EventLog): void {
    const { version: here } = this.#self;
    if (minorOf(there) === minorOf(here)) return;
    const known = this.#otherVersions.get(there);
    if (known === id) return;
    if (this.namespaces().some(({ cluster }) => cluster.peers().some(({ info }) => info.id === known)))
      return;
    this.#otherVersions.set(there, id);
    log.warn(
      { event: 'versions-differ', here, there, node: { id, host, pid } },
      'another node runs a version that must not share an engine with this one',
    );
  }

  /**
   * Logs once, when another node appears, that some namespaces are local to this node, such as those on SQLite. Clients
   * cannot tell them from shared ones, but find different queues in them on each node.
   */
  #warnOfLocal(node: NodeInfo, log: EventLog): void {
    const local = this.namespaces().filter(({ isShared }) => !isShared);
    if (this.#hasWarnedOfMixture || local.length === 0) return;
    this.#hasWarnedOfMixture = true;
    const names = local.map(({ name }) => name);
    log.warn(
      { event: 'namespaces-apart', namespaces: names, node: { id: node.id, host: node.host, pid: node.pid } },
      `node ${nodeText(node)} shares namespaces with this one, but not ${names.join(', ')}: each node has queues of its own there`,
    );
  }

  #engineOf(storage: Storage): SharedOfEngine {
    let engine = this.#engines.get(storage);
    if (engine === undefined) {
      const sweeper = new LeaseSweeper(storage, this.#shared, (queues) => this.#wake(queues));
      engine = { sweeper, permits: new EnginePermits(this.#shared.clock) };
      this.#engines.set(storage, engine);
    }
    return engine;
  }

  /**
   * Caches of the definitions of one kind, one definition per queue: namespaces of one engine share its cache.
   * @param what names them in the log
   */
  #cachesOf(
    { namespaces, clock, random, log }: BrokerOptions,
    kind: DefinitionKind,
    what: string,
    onChange: (namespace: Namespace, name: string, definition: Definition | null) => void,
  ): DefinitionsCaches {
    return new DefinitionsCaches({
      stores: namespaces.map(({ definitions }) => definitions),
      kind,
      clock,
      random,
      isWanted: (key) => this.#namespaces.has(queueOfDefinition(key).ns),
      onRead: (key, definition, hasChanged, definitions) => {
        const { ns, name } = queueOfDefinition(key);
        const namespace = this.#namespaces.get(ns);
        if (hasChanged && namespace?.definitions === definitions) onChange(namespace, name, definition);
      },
      onFailedRead: (key, err) => {
        const { ns, name: queue } = key === null ? { ns: null, name: null } : queueOfDefinition(key);
        log.warn({ err, ns, queue }, `${what} that changed could not be read yet`);
      },
    });
  }

  #wake(queues: readonly QueueKey[]): void {
    for (const queue of queues) this.#namespaces.get(queue.ns)?.wake(queue);
  }
}

function tooManyCalls({ total, perUser }: UserLimits): QuaysideError {
  return new QuaysideError(
    'too-many-consumers',
    `Too many calls are waiting: at most ${total} may wait on this node, and ${perUser} of one user.`,
    { retryAfterMs: 1000 },
  );
}

/** `MAJOR.MINOR` of a version. Nodes of one MINOR may share an engine. */
function minorOf(version: string): string {
  return version.split('.', 2).join('.');
}
