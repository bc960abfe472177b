import type { Storage } from '../engine/storage.ts';
import { namespaceNotFound, QuaysideError, shuttingDown } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import type { Service } from '../util/service.ts';
import { UserLimit, type UserLimits } from '../util/user-limit.ts';
import { SeriesLimit } from './activity.ts';
import { type Difference, type NodeInfo, nodeText } from './cluster.ts';
import type { PendingConsumer } from './consumer.ts';
import { EngineTurns } from './engine-turns.ts';
import { checkMigration, Migration, MigrationTargetMissing } from './migration.ts';
import { Namespace, type Shared } from './namespace.ts';
import type { BrokerLog, NamespaceSetup } from './ports.ts';
import { Questions } from './questions.ts';
import { LeaseSweeper } from './sweeper.ts';

interface BrokerOptions {
  readonly namespaces: readonly NamespaceSetup[];
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  /** Of blocked calls on this node. A call counts once for each queue on which it waits. */
  readonly waiting: UserLimits;
  readonly log: BrokerLog;
  /** What other nodes learn of this one. */
  readonly node?: Pick<NodeInfo, 'host' | 'pid' | 'version'>;
}

/** While it is being put together. */
type Writable<Node extends ServingNode> = Omit<Node, 'namespaces' | 'conflicts'> & {
  readonly namespaces: string[];
  readonly conflicts: ServingNode['conflicts'][number][];
};

/** Some 15,000 consumers of a queue that wait on one node; `waiting.total` is 10,000 by default. */
const MAX_CONSUMER_BYTES = 4 * 1_048_576;

const UNNAMED = { host: '', pid: 0, version: '' };

/** A node, and which namespaces it serves as far as this one knows. */
interface ServingNode extends NodeInfo {
  readonly isSelf: boolean;
  readonly namespaces: readonly string[];
  /** Options that it configures otherwise than this node. */
  readonly conflicts: readonly (Difference & { readonly namespace: string })[];
}

/**
 * A node without its front ends: namespaces, queues, and who waits. Several brokers may share engines.
 * The engines are started before it and stopped after it.
 */
export class Broker implements Service {
  /** What nodes ask each other. */
  readonly questions: Questions;
  readonly #waitingLimit: UserLimit;
  readonly #namespaces = new Map<string, Namespace>();
  readonly #sweepers = new Map<Storage, LeaseSweeper>();
  readonly #shared: Shared;
  readonly #self: NodeInfo;
  #tids = 0;
  #hasWarnedOfMixture = false;
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
    const parts: Shared = {
      questions: this.questions,
      askWhoWaits: this.questions.register<QueueKey, PendingConsumer>({
        name: 'queue-consumers',
        maxBytes: MAX_CONSUMER_BYTES,
        reply: ({ ns, name }) => {
          const rows = this.namespace(ns).visit(name).consumers();
          return { total: rows.length, rows };
        },
      }),
      clock: options.clock,
      random: options.random,
      log: options.log,
      waitingLimit: this.#waitingLimit,
      engineTurns: new EngineTurns(options.clock),
      seriesLimit: new SeriesLimit(),
      self: this.#self,
      noteNode: (node) => this.#noteNode(node, options.log),
      makeTid: () => {
        this.#tids += 1;
        return `${id}-${this.#tids.toString(36)}`;
      },
    };
    this.#shared = parts;
    for (const setup of options.namespaces) {
      const sweeper = this.#sweeperFor(setup.storage, parts);
      this.#namespaces.set(setup.policy.name, new Namespace(setup, parts, sweeper));
    }
  }

  /** @throws VariantConflict, MigrationTargetMissing */
  async start(): Promise<void> {
    // Before anything is stored: what is inserted must not go to an engine that a namespace leaves.
    await Promise.all(this.namespaces().map((namespace) => this.#resumeMigration(namespace)));
    await Promise.all([...this.#namespaces.values()].map((namespace) => namespace.start()));
    await Promise.all([...this.#sweepers.values()].map((sweeper) => sweeper.sweep()));
  }

  /** Rejects new calls that would wait, and ends those that do with `shutting-down`. Settling continues. */
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
    await Promise.all([...this.#sweepers.values()].map((sweeper) => sweeper.stop()));
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

  /** The names of the namespaces that need each engine, by its masked URL. */
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
    const nodes = new Map<string, Writable<ServingNode>>([
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
   * Moves a namespace to the engine of another one: what is inserted from now on goes there. Idempotent for the same
   * two.
   * @throws QuaysideError as `checkMigration`, and as the engines do; then it may be repeated
   */
  async migrate(name: string, to: string): Promise<Migration> {
    const [namespace, target] = [this.namespace(name), this.namespace(to)];
    if (namespace.migration?.to !== to) {
      await checkMigration(namespace, target);
      await Migration.store(namespace, to);
      // Another call may have joined them in the meantime.
      if (namespace.migration === null) this.#join(namespace, target);
    }
    const { migration } = namespace;
    if (migration === null) throw new Error('a namespace that was joined moves');
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
    namespace.join(migration, this.#sweeperFor(migration.storage, this.#shared));
    return migration;
  }

  /**
   * Namespaces of this node alone, such as those on SQLite, look like the shared ones to clients, which find other
   * queues there on each node. That matters, and is logged, once there is another node.
   */
  #noteNode(node: NodeInfo, log: BrokerLog): void {
    const own = this.namespaces().filter(({ isShared }) => !isShared);
    if (this.#hasWarnedOfMixture || own.length === 0) return;
    this.#hasWarnedOfMixture = true;
    const names = own.map(({ name }) => name);
    log.warn(
      { event: 'namespaces-apart', namespaces: names, node: { id: node.id, host: node.host, pid: node.pid } },
      `node ${nodeText(node)} shares namespaces with this one, but not ${names.join(', ')}: each node has queues of its own there`,
    );
  }

  #sweeperFor(storage: Storage, parts: Shared): LeaseSweeper {
    let sweeper = this.#sweepers.get(storage);
    if (sweeper === undefined) {
      sweeper = new LeaseSweeper(storage, parts, (queues) => this.#wake(queues));
      this.#sweepers.set(storage, sweeper);
    }
    return sweeper;
  }

  #wake(queues: readonly QueueKey[]): void {
    for (const queue of queues) this.#namespaces.get(queue.ns)?.wake(queue);
  }
}

function tooManyCalls({ total, perUser }: UserLimits): QuaysideError {
  return new QuaysideError(
    'too-many-consumers',
    `Too many calls wait already: at most ${total} on this node and ${perUser} for one user.`,
    { retryAfterMs: 1000 },
  );
}
