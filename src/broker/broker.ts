import { type Definitions, definitionConflict, type JsonValue } from '../engine/definitions.ts';
import { JointStats, type Stats } from '../engine/stats.ts';
import type { Storage } from '../engine/storage.ts';
import { namespaceNotFound, QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import { quote } from '../util/quote.ts';
import type { Service } from '../util/service.ts';
import { SeriesLimit } from './activity.ts';
import { type Difference, type NodeInfo, nodeText } from './cluster.ts';
import type { PendingConsumer } from './consumer.ts';
import { shuttingDown, WaitingLimit, type WaitingLimits } from './consumer.ts';
import { MigratingStorage } from './migrating-storage.ts';
import { Namespace, type Shared } from './namespace.ts';
import type { BrokerLog, NamespaceSetup } from './ports.ts';
import { Questions } from './questions.ts';
import { type OwnOptions, parseOptions } from './queue-options.ts';
import { Sweeper } from './sweeper.ts';

interface BrokerOptions {
  readonly namespaces: readonly NamespaceSetup[];
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  readonly waiting: WaitingLimits;
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
  readonly #waitingLimit: WaitingLimit;
  readonly #namespaces = new Map<string, Namespace>();
  readonly #sweepers = new Map<Storage, Sweeper>();
  readonly #shared: Shared;
  readonly #self: NodeInfo;
  #tids = 0;
  #hasWarnedOfMixture = false;
  #stopping: Promise<void> | null = null;

  constructor(options: BrokerOptions) {
    this.#waitingLimit = new WaitingLimit(options.waiting);
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
    this.#waitingLimit.close();
    for (const namespace of this.#namespaces.values()) namespace.endConsumers(shuttingDown);
  }

  /** Ends blocked calls of users for whom there is a reason in a namespace. */
  endWaiting(reasonFor: (owner: string, namespace: string) => QuaysideError | null): void {
    for (const namespace of this.#namespaces.values()) {
      namespace.endConsumers(({ request: { owner } }) =>
        owner === null ? null : reasonFor(owner, namespace.name),
      );
    }
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
    return this.#waitingLimit.waiting;
  }

  /** In the order of the configuration. */
  namespaces(): Namespace[] {
    return [...this.#namespaces.values()];
  }

  /** The names of the namespaces that each engine serves, by its masked URL. */
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
   * Moves a namespace to the engine of another one: what is inserted from now on goes there. Idempotent for the same two.
   * @throws QuaysideError as `checkMigration`, and as the engines do; then it may be repeated
   */
  async migrate(name: string, to: string): Promise<Migration> {
    const [namespace, target] = [this.namespace(name), this.namespace(to)];
    if (namespace.migration?.to !== to) {
      await checkMigration(namespace, target);
      const stored = await namespace.definitions.get('migration', name);
      // It is stored already if the outcome of the write was unknown.
      if (stored !== null && migrationTarget(stored.value) !== to)
        throw definitionConflict('migration', name);
      if (stored === null) await namespace.definitions.put('migration', name, migrationValue(to), null);
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
    const stored = await namespace.definitions.get('migration', namespace.name);
    if (stored === null) return;
    const to = migrationTarget(stored.value);
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

  #sweeperFor(storage: Storage, parts: Shared): Sweeper {
    let sweeper = this.#sweepers.get(storage);
    if (sweeper === undefined) {
      sweeper = new Sweeper(storage, parts, (queues) => this.#wake(queues));
      this.#sweepers.set(storage, sweeper);
    }
    return sweeper;
  }

  #wake(queues: readonly QueueKey[]): void {
    for (const queue of queues) this.#namespaces.get(queue.ns)?.wake(queue);
  }
}

/** The configuration lacks what a namespace needs whose elements are in two engines. */
export class MigrationTargetMissing extends Error {
  readonly namespace: string;
  readonly to: string;

  constructor(namespace: string, to: string) {
    super(
      `Namespace ${namespace} moves to the engine of namespace ${to}, which is not configured on another engine.`,
    );
    this.namespace = namespace;
    this.to = to;
  }
}

/**
 * The move of a namespace to the engine of another one. The namespace keeps its name there; the other one names the engine, and has its own
 * queues. The move is a definition in the engine that is left, stored before the first element goes to the new one, so that each later start joins
 * the two engines again before it stores anything.
 */
export class Migration {
  readonly storage: MigratingStorage;
  /** Of the new engine: it gets pause flags and options, too. */
  readonly definitions: Definitions;
  /** Of both engines. */
  readonly stats: Stats;
  /** The namespace that names the new engine. */
  readonly to: string;
  readonly #source: Namespace;

  constructor(source: Namespace, target: Namespace) {
    const { storage, definitions, stats, shown } = target.setup;
    const own = source.setup;
    this.#source = source;
    this.to = target.name;
    this.storage = new MigratingStorage({ from: own.storage, to: storage });
    this.definitions = definitions;
    this.stats = own.shown.stats.url === shown.url ? own.stats : new JointStats(own.stats, stats);
  }

  /** How many elements the engine that is left still has, in a stream once for each group. */
  async left(): Promise<number> {
    const { storage, policy } = this.#source.setup;
    return (await storage.usage(policy.name, false)).elements;
  }

  /** Gives the new engine the pause flags and options that the old one has, and no others. */
  async copyDefinitions(): Promise<void> {
    const { definitions, name } = this.#source;
    for (const kind of ['queue', 'queue-options'] as const) {
      const isOwn = ({ key }: { key: string }): boolean => (JSON.parse(key) as string[])[0] === name;
      const [old, copied] = await Promise.all([definitions.list(kind), this.definitions.list(kind)]);
      const kept = new Set<string>();
      for (const { key, value } of old.filter(isOwn)) {
        kept.add(key);
        const queue = { ns: name, name: (JSON.parse(key) as string[])[1] ?? '' };
        await this.storage.declare([queue], kind === 'queue-options' ? optionsIn(value) : undefined);
        await this.definitions.put(kind, key, value, 'any');
      }
      for (const { key } of copied.filter(isOwn)) {
        if (!kept.has(key)) await this.definitions.delete(kind, key, 'any');
      }
    }
  }
}

/**
 * Checks that a namespace can move to the engine of another one.
 * @throws QuaysideError `not-supported`, `invalid-parameter`, `definition-conflict`
 */
export async function checkMigration(source: Namespace, target: Namespace): Promise<void> {
  const [from, to] = [quote(source.name), quote(target.name)];
  if (source.migration !== null) {
    throw new QuaysideError(
      'definition-conflict',
      `Namespace ${from} moves to the engine of namespace ${quote(source.migration.to)} already.`,
    );
  }
  const { ownsStore, storage, policy } = source.setup;
  if (ownsStore !== true || source.isShared) {
    throw new QuaysideError(
      'not-supported',
      `Namespace ${from} (${source.type}) cannot be moved: other nodes may use its engine at the same time. Only namespaces in a file of SQLite, without a signaller that is shared, can be moved.`,
    );
  }
  const lacks = (what: string): QuaysideError =>
    new QuaysideError('invalid-parameter', `Namespace ${from} cannot move to the engine of ${to}: ${what}.`, {
      parameter: 'to.ns',
    });
  const next = target.setup;
  if (next.storage === storage) throw lacks('it is the same engine');
  if (target.migration !== null) throw lacks('that namespace itself moves to another engine');
  const kindOf = ({ type }: Namespace): string => type.slice(type.indexOf(':') + 1);
  if (kindOf(source) !== kindOf(target)) {
    throw lacks(`their variants differ, ${kindOf(source)} and ${kindOf(target)}`);
  }
  const [groups, others] = [policy.groups ?? [], next.policy.groups ?? []].map((names) => names.join(', '));
  if (groups !== others) throw lacks(`their groups differ, ${groups} and ${others}`);
  if ((await next.storage.usage(source.name, false)).elements > 0) {
    throw lacks(`it has elements of a namespace with the name ${from} already`);
  }
}

/** What is not understood is copied, and as if it were not there. */
function optionsIn(value: JsonValue): OwnOptions | undefined {
  try {
    return parseOptions(value);
  } catch {
    return undefined;
  }
}

function migrationValue(to: string): JsonValue {
  return { to };
}

/** The namespace that a stored migration names. */
function migrationTarget(value: JsonValue): string {
  const isObject = typeof value === 'object' && value !== null && 'to' in value;
  return isObject && typeof value.to === 'string' ? value.to : '';
}
