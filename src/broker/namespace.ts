import { isUnknownOutcome, laterStep } from '../engine/calls.ts';
import {
  type Definition,
  type Definitions,
  isDefinitionConflict,
  queueDefinitionKey,
  queueOfDefinition,
} from '../engine/definitions.ts';
import type { DefinitionsCache, DefinitionsCaches } from '../engine/definitions-cache.ts';
import type { Stats } from '../engine/stats.ts';
import type { Storage } from '../engine/storage.ts';
import { type GroupName, type NewElement, PLAIN_GROUP } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { PendingConsumer } from '../model/records.ts';
import type { Clock } from '../util/clock.ts';
import { isRecord } from '../util/is-record.ts';
import type { EventLog } from '../util/log.ts';
import { LogOnChange } from '../util/log-on-change.ts';
import { ownString } from '../util/own-bytes.ts';
import { quote } from '../util/quote.ts';
import { repeat } from '../util/repeat.ts';
import type { UserLimit } from '../util/user-limit.ts';
import { Activity, type SeriesLimit } from './activity.ts';
import type { AppliedChanges } from './applied-changes.ts';
import type { Capabilities } from './capabilities.ts';
import { type Capacity, namespaceCapacity, queueCapacity } from './capacity.ts';
import { Cluster, type NodeInfo } from './cluster.ts';
import type { Consumer } from './consumer.ts';
import type { EnginePermits } from './engine-permits.ts';
import { Meter } from './meter.ts';
import type { Migration } from './migration.ts';
import type { NamespaceSetup } from './ports.ts';
import type { Ask, Gathered, Questions } from './questions.ts';
import { Queue } from './queue.ts';
import {
  type OwnOptions,
  otherOptions,
  parseOptions,
  QueueOptionsTable,
  showOptions,
  versionOfOptions,
} from './queue-options.ts';
import type { LeaseSweeper } from './sweeper.ts';
import { UndoneTakes } from './undone-takes.ts';
import { MANY, type WaitQueue } from './wait-queue.ts';

/** Asks for the calls that wait for a queue: those with this tid, or all. */
export interface WhoWaits extends QueueKey {
  readonly tid?: string;
}

/** The objects that all namespaces of a broker share. */
export interface Shared {
  /** This node, as it describes itself to others. */
  readonly self: NodeInfo;
  readonly questions: Questions;
  readonly appliedChanges: AppliedChanges;
  /** Called when another node appears in a namespace, or changes its configuration. */
  readonly noteNode: (node: NodeInfo) => void;
  /** The pause flags of the queues of all namespaces. */
  readonly pauseFlags: DefinitionsCaches;
  /** Their stored options. */
  readonly queueOptions: DefinitionsCaches;
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: EventLog;
  readonly waitingLimit: UserLimit;
  readonly seriesLimit: SeriesLimit;
  readonly askWhoWaits: Ask<WhoWaits, PendingConsumer>;
  readonly makeTid: () => string;
}

/** What the namespaces on one engine share. */
export interface SharedOfEngine {
  /** Ends the leases of its queues. */
  readonly sweeper: LeaseSweeper;
  readonly permits: EnginePermits;
}

/** If an element is larger than this, the next ones are expected to be large, until takes return smaller ones. */
const SMALL_BYTES = 1024;
/** The expected size of the first element that this node takes from a queue that existed before. */
const UNKNOWN_BYTES = 1_048_576;

/** How often the names of queues are read again, ± half: signals of other nodes may be lost. */
const REREAD_MS = 60_000;
/** Queues per call of `declare`. */
const MAX_DECLARED = 500;

/**
 * One namespace: the objects that its queues share, the consumers that wait on this node, and copies of the names,
 * pause flags and options that the engine stores.
 */
export class Namespace {
  readonly name: string;
  readonly isStream: boolean;
  readonly defaultGroups: readonly GroupName[];
  readonly defaultGroup: GroupName;
  readonly type: string;
  readonly capabilities: Capabilities;
  /** Whether elements may expire. Not one of `capabilities`, whose fields the spec fixes. */
  readonly hasExpiry: boolean;
  readonly definitions: Definitions;
  readonly activity: Activity;
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: EventLog;
  readonly meter: Meter;
  readonly waitingLimit: UserLimit;
  readonly makeTid: () => string;
  readonly undoneTakes: UndoneTakes;
  /** Null: unlimited. */
  readonly capacity: Capacity | null;
  /** Whether other nodes may serve this namespace as well. */
  readonly isShared: boolean;
  readonly setup: NamespaceSetup;
  /** The options of its queues. */
  readonly options: QueueOptionsTable;
  readonly #shared: Shared;
  /** During a migration, a storage that joins both engines. */
  storage: Storage;
  stats: Stats;
  /** The migration to another engine; it lasts until the configuration names that engine. Null: there is none. */
  migration: Migration | null = null;
  /** The nodes that serve it. */
  readonly cluster: Cluster;
  /** The names of the queues that are paused. */
  readonly pausedNames: ReadonlySet<string>;
  /** The wait queues of this node, by queue and group. */
  readonly waitQueues: ReadonlyMap<string, ReadonlyMap<GroupName, WaitQueue>>;
  sweeper: LeaseSweeper;
  permits: EnginePermits;
  /** Handles of known queues. */
  readonly #queues = new Map<string, Queue>();
  readonly #waitQueues = new Map<string, Map<GroupName, WaitQueue>>();
  /** Names that the engine knows: the first use of another one is recognized, and counts against `maxQueues`. */
  #known = new Set<string>();
  /** Whether names are read for the first time. Until then, a queue that is not known need not be new. */
  #isStarting = false;
  /** Known names whose queues are only being created, by a call that may fail. */
  readonly #assumed = new Set<string>();
  /** Per reload in progress, which queues began or ceased to exist since it started: its result may be older. */
  readonly #reloads = new Set<Map<string, boolean>>();
  readonly #paused = new Set<string>();
  readonly #pauseFlags: DefinitionsCache;
  readonly #storedOptions: DefinitionsCache;
  /** Capacities of the queues that have a bound and got inserts. */
  readonly #capacities = new Map<string, Capacity>();
  /** The expected bytes of the next elements of each known queue. */
  readonly #elementBytes = new Map<string, number>();
  /** Of declarations of queues for which consumers wait: a client may make any number of them. */
  readonly #declareFailures: LogOnChange;
  #isStopped = false;
  /** Whether the options stored before this node started were declared to the engine. */
  #isDeclared = false;
  #stopRereads: (() => void) | null = null;

  constructor(setup: NamespaceSetup, shared: Shared, { sweeper, permits }: SharedOfEngine) {
    const { policy, storage, signaller } = setup;
    this.setup = setup;
    this.pausedNames = this.#paused;
    this.waitQueues = this.#waitQueues;
    this.#shared = shared;
    this.sweeper = sweeper;
    this.permits = permits;
    this.name = policy.name;
    this.isStream = policy.groups !== null;
    this.defaultGroups = policy.groups ?? [PLAIN_GROUP];
    this.defaultGroup = this.defaultGroups[0] ?? PLAIN_GROUP;
    this.type = setup.type;
    this.isShared = signaller.type !== 'local';
    this.storage = storage;
    this.definitions = setup.definitions;
    this.activity = new Activity(shared.clock, shared.seriesLimit);
    this.stats = setup.stats;
    this.clock = shared.clock;
    this.random = shared.random;
    this.log = shared.log;
    this.meter = new Meter(shared.clock);
    this.waitingLimit = shared.waitingLimit;
    this.makeTid = shared.makeTid;
    this.undoneTakes = new UndoneTakes(this);
    this.#declareFailures = new LogOnChange({
      failed: (err) =>
        this.log.warn({ err, ns: this.name }, 'queues could not be declared; their next uses try again'),
      worksAgain: () => this.log.info({ ns: this.name }, 'queues are declared again'),
    });
    const isBounded = setup.maxElements !== null || setup.maxBytes !== null;
    this.capacity = isBounded ? namespaceCapacity(this) : null;
    const { deadLetter, retentionMs, retryDelay = null } = policy;
    const defaults = {
      leaseMs: setup.leaseMs,
      deadLetter,
      retryDelay,
      retentionMs,
      ttlMs: null,
      maxElements: null,
    };
    this.options = new QueueOptionsTable(defaults, setup.queues ?? []);
    this.cluster = new Cluster(this, shared);
    this.#pauseFlags = shared.pauseFlags.of(setup.definitions);
    this.#storedOptions = shared.queueOptions.of(setup.definitions);
    const { sched, reserve, pipeline, remove } = storage.capabilities;
    this.hasExpiry = storage.capabilities.expiry;
    this.capabilities = { sched, reserve, pipeline, tape: this.isStream, remove: remove && !this.isStream };
  }

  /** The store for new definitions: during a migration the new engine, since the old one is not read afterwards. */
  get currentDefinitions(): Definitions {
    return this.migration?.definitions ?? this.definitions;
  }

  /**
   * Whether definitions in a store that mention this namespace's name refer to this namespace. If it is in a file that
   * only this process uses, another node may store definitions about its own namespace of the same name.
   */
  isDefinedIn(definitions: Definitions): boolean {
    const isOwn = definitions === this.definitions || definitions === this.migration?.definitions;
    return isOwn || this.setup.ownsStore !== true;
  }

  /** Starts a migration: from now on, elements may be in two engines, and inserts go to the new one. */
  join(migration: Migration, { sweeper, permits }: SharedOfEngine): void {
    this.migration = migration;
    this.storage = migration.storage;
    this.stats = migration.stats;
    this.sweeper = sweeper;
    this.permits = permits;
  }

  /** Called once, before pause flags and options are read. */
  async start(): Promise<void> {
    this.#isStarting = true;
    this.cluster.start();
    if (this.isShared) await this.cluster.claimVariant();
    await Promise.all([this.#readNames(), this.capacity?.start()]);
  }

  /** Called once, after that, and before the first request: declares options, and reads names again from now on. */
  async startRereads(): Promise<void> {
    await this.#declareStored();
    const reread = async (): Promise<void> => {
      await this.#readNames().catch((error: unknown) =>
        this.log.warn({ err: error, ns: this.name }, 'names of queues could not be read again'),
      );
      if (!this.#isDeclared) await this.#declareStored();
      // While the engine is unavailable, the names cannot be read either, which is logged.
      if (this.isShared) await this.cluster.checkData().catch(() => {});
    };
    if (!this.#isStopped) this.#stopRereads = repeat(reread, REREAD_MS, this);
  }

  /**
   * Stops this node's work in the namespace. Its consumers have ended. Elements that their last takes returned are
   * first returned to their queues.
   */
  async stop(): Promise<void> {
    const waitQueues = [...this.#waitQueues.values()].flatMap((byGroup) => [...byGroup.values()]);
    await Promise.all(waitQueues.map((waitQueue) => waitQueue.matched()));
    await this.undoneTakes.stop();
    this.#isStopped = true;
    this.#stopRereads?.();
    this.cluster.stop();
  }

  /**
   * Declares the stored options to the engine: a node that was killed in `writeOptions` may not have. A full store may
   * reject them. The node must serve its consumers nevertheless, and tries again later.
   */
  async #declareStored(): Promise<void> {
    try {
      await this.#declareAll();
      this.#isDeclared = true;
    } catch (error) {
      this.log.warn(
        { err: error, ns: this.name },
        'stored options of queues could not be declared to the engine yet',
      );
    }
  }

  /** Queues with the same options share a call, since there may be thousands of queues. */
  async #declareAll(): Promise<void> {
    // Options that this version cannot parse are left as the node that stored them declared them.
    const given = [...this.options.names()].flatMap(
      (name) => this.#storedOptions.get(queueDefinitionKey({ ns: this.name, name })) ?? [],
    );
    const sameOptions = Map.groupBy(given, ({ value }) => JSON.stringify(value));
    for (const [text, all] of sameOptions) {
      const options = parseOptions(JSON.parse(text));
      for (let from = 0; from < all.length; from += MAX_DECLARED) {
        const queues = all.slice(from, from + MAX_DECLARED).map(({ key }) => queueOfDefinition(key));
        await this.storage.declare(queues, options);
      }
    }
    if (given.length === 0) return;
    // Another node may have stored and declared newer options in the meantime, which these calls replaced.
    await this.#storedOptions.reload();
    for (const { key, version } of given) {
      const newest = this.#storedOptions.get(key);
      if (newest?.version !== version) await this.applyOptions(queueOfDefinition(key), newest);
    }
  }

  /** Reads names, pause flags and options again (`reload=1`). */
  async reload(): Promise<void> {
    await Promise.all([this.#readNames(), this.#pauseFlags.reload(), this.#storedOptions.reload()]);
  }

  async #readNames(): Promise<void> {
    const news = new Map<string, boolean>();
    this.#reloads.add(news);
    try {
      this.#known = new Set(await this.storage.queues(this.name));
      this.#isStarting = false;
      for (const [name, exists] of news) {
        if (exists) this.#known.add(name);
        else this.#known.delete(name);
      }
      for (const map of [this.#queues, this.#capacities, this.#elementBytes]) {
        for (const name of [...map.keys()]) if (!this.#known.has(name)) map.delete(name);
      }
      for (const name of [...this.#waitQueues.keys()]) this.#dropIdle(name);
    } finally {
      this.#reloads.delete(news);
    }
  }

  /**
   * Returns a queue for a call that may create it: a queue exists from its first insert, pause or waiting consumer. The
   * front end has checked the name.
   * @throws QuaysideError `too-many-queues` if it does not exist yet and the namespace has no capacity for it
   */
  queue(name: string): Queue {
    if (!this.#known.has(name)) this.checkQueueLimit([name]);
    return this.visit(name);
  }

  /** @throws QuaysideError `too-many-queues` if the namespace has no capacity for the new ones among these queues */
  checkQueueLimit(names: readonly string[]): void {
    const { maxQueues } = this.setup;
    const unknown = names.filter((name) => !this.#known.has(name));
    if (unknown.length === 0) return;
    const added = new Set(unknown);
    if (this.#known.size + added.size <= maxQueues) return;
    const newQueues = added.size === 1 ? quote(unknown[0]) : `${added.size} queues`;
    throw new QuaysideError(
      'too-many-queues',
      `Namespace ${this.name} has ${this.#known.size} queues, and its limit is ${maxQueues}; raise maxQueues to add ${newQueues}.`,
    );
  }

  /**
   * Returns a queue for a call that creates none, such as a status or a commit, or for one that the service itself
   * needs. Exempt from the limit.
   */
  visit(name: string): Queue {
    let queue = this.#queues.get(name);
    if (queue !== undefined) return queue;
    // Maps keep this string for long. A copy does not retain the request that the name was cut out of.
    const ownName = ownString(name);
    queue = new Queue(this, { ns: this.name, name: ownName });
    // Clients can invent any number of unknown names, so the handles of these are not kept.
    if (this.#known.has(name)) this.#queues.set(ownName, queue);
    return queue;
  }

  addWaitQueue({ name }: QueueKey, waitQueue: WaitQueue): WaitQueue {
    const byGroup = this.#waitQueues.get(name);
    if (byGroup === undefined) this.#waitQueues.set(name, new Map([[waitQueue.group, waitQueue]]));
    else byGroup.set(waitQueue.group, waitQueue);
    return waitQueue;
  }

  /**
   * Drops an empty wait queue, unless it is that of a known queue's default group: other group names come from
   * requests, and could be any number.
   */
  noteIdle({ name }: QueueKey, waitQueue: WaitQueue): void {
    const byGroup = this.#waitQueues.get(name);
    // It may have been removed before, and replaced by another.
    if (waitQueue.group !== this.defaultGroup && byGroup?.get(waitQueue.group) === waitQueue) {
      byGroup.delete(waitQueue.group);
    }
    if (!this.#known.has(name)) this.#dropIdle(name);
  }

  #dropIdle(name: string): void {
    if (this.#known.has(name)) return;
    const waitQueues = this.#waitQueues.get(name)?.values() ?? [];
    if ([...waitQueues].every(({ isEmpty }) => isEmpty)) this.#waitQueues.delete(name);
  }

  /** Ends the blocked calls of this node for which `reasonFor` returns an error. */
  endConsumers(reasonFor: (consumer: Consumer) => QuaysideError | null): void {
    for (const name of [...this.#waitQueues.keys()]) this.visit(name).endConsumers(reasonFor);
  }

  /** How many users' calls wait on this node, by queue. */
  waitingOfUsers(): Map<string, number> {
    return new Map(
      [...this.#waitQueues].map(([name, byGroup]) => [
        name,
        [...byGroup.values()].reduce((sum, { ofUsers }) => sum + ofUsers, 0),
      ]),
    );
  }

  /** The names of the queues that the engine has, as far as this node knows. */
  get knownNames(): ReadonlySet<string> {
    return this.#known;
  }

  /** Names of all queues, sorted. */
  async queueNames(): Promise<string[]> {
    return this.storage.queues(this.name);
  }

  /** Notes that the engine knows the queue, which counts from now on. */
  noteStored({ name }: QueueKey): void {
    if (this.#assumed.size > 0) this.#assumed.delete(name);
    // Known or not: the engine may have been creating it since before the reload read the names.
    for (const news of this.#reloads) news.set(name, true);
    if (this.#known.has(name)) return;
    this.#known.add(name);
    if (this.#isStarting) return;
    this.#elementBytes.set(name, this.#elementBytes.get(name) ?? 0);
    this.activity.noteNew(name);
  }

  /** The expected size of the next element that a take returns, in bytes. */
  expectedBytes({ name }: QueueKey): number {
    return this.#elementBytes.get(name) ?? (this.#known.has(name) ? UNKNOWN_BYTES : 0);
  }

  /** Notes the size of elements that are being stored: the next takes may return them. */
  noteSizes({ name }: QueueKey, elements: readonly NewElement[]): void {
    let largest = SMALL_BYTES;
    for (const { body } of elements) if (body.byteLength > largest) largest = body.byteLength;
    if (largest > SMALL_BYTES)
      this.#elementBytes.set(name, Math.max(largest, this.#elementBytes.get(name) ?? 0));
  }

  /** Notes the mean size of taken elements. After a large one, the expectation decreases by at most half per take. */
  noteTaken({ name }: QueueKey, bytes: number): void {
    const expected = this.#elementBytes.get(name);
    if (expected !== undefined && bytes <= SMALL_BYTES && expected <= SMALL_BYTES) return;
    if (this.#known.has(name)) this.#elementBytes.set(name, Math.max(bytes, (expected ?? 0) / 2));
  }

  /** Notes a queue that a call is creating. It counts immediately: concurrent inserts must not exceed the limit. */
  noteStoring(key: QueueKey, storing: Promise<unknown>): void {
    if (this.#known.has(key.name)) return;
    this.noteStored(key);
    this.#assumed.add(key.name);
    storing.catch((error: unknown) => {
      // Another call may have created it.
      if (!isUnknownOutcome(error) && this.#assumed.has(key.name)) this.#forget(key.name);
    });
  }

  /** Declares a queue for which a consumer waits, as such a queue exists, too. */
  noteUse(key: QueueKey): void {
    if (this.#known.has(key.name)) return;
    const declaring = this.storage.declare([key]);
    this.noteStoring(key, declaring);
    declaring.then(
      () => {
        // Unless it was deleted since.
        if (this.#assumed.has(key.name)) this.noteStored(key);
        this.#declareFailures.worked();
        this.announce(key, 0);
      },
      (error: unknown) => {
        // Also if the outcome is unknown: it need not exist.
        if (this.#assumed.has(key.name)) this.#forget(key.name);
        this.#declareFailures.failed(error);
      },
    );
  }

  async writePaused(queue: QueueKey, paused: boolean): Promise<void> {
    const declaring = this.storage.declare([queue]);
    this.noteStoring(queue, declaring);
    await declaring;
    this.noteStored(queue);
    // A resume may have created the queue, and changes no flag from which other nodes would know it.
    this.announce(queue, 0);
    const key = queueDefinitionKey(queue);
    const version = await this.definitions.put('queue', key, { paused }, 'any');
    await laterStep(this.migration?.definitions.put('queue', key, { paused }, 'any'));
    this.#pauseFlags.note(key, { key, value: { paused }, version });
    this.#setPaused(queue.name, paused);
  }

  /**
   * Stores the options of a queue; null deletes them. A definition is stored before the engine gets its options. If
   * another write comes in between, the node that finds the newer definition declares that one, so that the definition
   * and the engine agree in the end; see `applyOptions`. A definition is deleted only after the engine has dropped the
   * options: until then, a node that starts declares them.
   * @param versions of the options that may be replaced; null: any
   * @throws QuaysideError `precondition-failed`; `definition-conflict` if another write came in between
   */
  async writeOptions(
    queue: QueueKey,
    options: OwnOptions | null,
    versions: ReadonlySet<string> | null,
  ): Promise<void> {
    const writing = this.#writeOptions(queue, options, versions);
    if (options !== null) this.noteStoring(queue, writing);
    await writing;
  }

  async #writeOptions(
    queue: QueueKey,
    options: OwnOptions | null,
    versions: ReadonlySet<string> | null,
  ): Promise<void> {
    const key = queueDefinitionKey(queue);
    const stored =
      versions === null && options !== null ? null : await this.definitions.get('queue-options', key);
    const own = stored === null ? null : this.#readOptions(queue.name, stored);
    if (versions !== null && !versions.has(versionOfOptions(own))) throw otherOptions(queue);
    let definition: Definition | null = null;
    if (options !== null) {
      const value = showOptions(options);
      const expected = versions === null ? 'any' : (stored?.version ?? null);
      definition = { key, value, version: await this.definitions.put('queue-options', key, value, expected) };
      await laterStep(this.migration?.definitions.put('queue-options', key, value, 'any'));
    } else {
      if (stored === null && !this.#known.has(queue.name)) return;
      await this.storage.declare([queue], null);
      try {
        // If there was no definition, a present one is from a concurrent write; `applyOptions` declares it.
        if (stored !== null) await laterStep(this.definitions.delete('queue-options', key, stored.version));
      } catch (error) {
        // This call removed the options that the concurrent write had declared: declare them again.
        if (isDefinitionConflict(error)) await laterStep(this.applyOptions(queue, null));
        throw error;
      }
      await laterStep(this.migration?.definitions.delete('queue-options', key, 'any'));
    }
    const newest = await laterStep(this.applyOptions(queue, definition));
    this.noteStored(queue);
    this.#storedOptions.note(key, newest);
    this.onOptions(queue.name, newest);
  }

  /**
   * Declares the options of a definition to the engine, and repeats this with newer ones until there are none. Returns
   * the newest definition.
   * @param definition null: there is none
   */
  async applyOptions(queue: QueueKey, definition: Definition | null): Promise<Definition | null> {
    for (let given = definition; ; ) {
      await this.storage.declare([queue], given === null ? null : this.#readOptions(queue.name, given));
      const newest = await this.definitions.get('queue-options', queueDefinitionKey(queue));
      if (newest?.version === given?.version) return newest;
      given = newest;
    }
  }

  /**
   * Drops a queue with its pause flag, options and statistics. If it holds an element, changes nothing and returns
   * false.
   */
  async drop(key: QueueKey): Promise<boolean> {
    // Counters that are still buffered would be written after the drop.
    await this.stats.flush();
    if (!(await this.storage.drop(key))) return false;
    const definition = queueDefinitionKey(key);
    for (const definitions of [
      this.definitions,
      ...(this.migration === null ? [] : [this.migration.definitions]),
    ]) {
      await laterStep(definitions.delete('queue', definition, 'any'));
      await laterStep(definitions.delete('queue-options', definition, 'any'));
    }
    // A new queue of this name may have a pause flag or options by now.
    await laterStep(this.readDefinitions(definition));
    this.noteDeleted(key);
    this.cluster.announceDeletion(key.name);
    return true;
  }

  /** The capacity of a queue; null: unlimited. */
  capacityOf({ key, settings: { maxElements } }: Queue): Capacity | null {
    if (maxElements === null) return null;
    const known = this.#capacities.get(key.name);
    if (known !== undefined) return known;
    const capacity = queueCapacity(this, key, maxElements);
    this.#capacities.set(key.name, capacity);
    return capacity;
  }

  /** This node removed elements of a queue. Called before the client learns of it. */
  noteRemoved({ name }: QueueKey): void {
    this.capacity?.noteRemoved();
    this.#capacities.get(name)?.noteRemoved();
  }

  /**
   * Notifies other nodes, at the end of this turn, that `count` elements became eligible, or {@link MANY}. 0: only that
   * the queue exists.
   * @param groups null: any
   */
  announce({ name }: QueueKey, count: number, groups: Iterable<GroupName> | null = null): void {
    this.activity.note(name);
    this.cluster.announce(name, count, this.isStream ? groups : null);
  }

  /** The calls that wait for a queue on all nodes, except on nodes that do not reply in time. */
  consumersOfAllNodes(params: WhoWaits): Promise<Gathered<PendingConsumer>> {
    return this.#shared.askWhoWaits(params, this.cluster);
  }

  /** The masked URLs of the engines that the namespace needs: for elements, signals and statistics. */
  get engineUrls(): readonly string[] {
    const { url, signaller, stats } = this.setup.shown;
    return [url, signaller.url, stats.url];
  }

  /** An unknown number of elements may have become eligible in a queue without a call of this node. */
  wake(key: QueueKey): void {
    this.noteStored(key);
    this.onReady(key.name, MANY);
    this.announce(key, MANY);
  }

  /**
   * Another node stored or returned `count` elements, or {@link MANY}. 0: its consumers wait for some.
   * @param groups their groups in a stream; not given: any
   */
  onReady(queue: string, count: number, groups?: readonly GroupName[]): void {
    this.noteStored({ ns: this.name, name: queue });
    this.activity.note(queue);
    if (count > 0 && this.#waitQueues.has(queue)) this.visit(queue).match(count, groups);
  }

  /** This node or another one deleted a queue. */
  noteDeleted(key: QueueKey): void {
    this.stats.discard(key);
    this.#forget(key.name);
    for (const news of this.#reloads) news.set(key.name, false);
    // A consumer that began to wait since then creates the queue again. A call that does not wait creates none.
    const consumers = [...(this.#waitQueues.get(key.name)?.values() ?? [])].flatMap((of) => of.consumers());
    if (consumers.some(({ request }) => request.timeoutMs !== 0)) this.noteUse(key);
    // This node may have used a new queue of this name before it learned of the deletion.
    const definition = queueDefinitionKey(key);
    Promise.all([
      this.storage.counts(key),
      this.definitions.get('queue', definition),
      this.definitions.get('queue-options', definition),
    ]).then(
      ([{ ready, scheduled, reserved }, pause, options]) => {
        const isNew = ready + scheduled + reserved > 0 || pause !== null || options !== null;
        if (isNew) this.noteStored(key);
      },
      // The next reload reads the names of all queues.
      () => {},
    );
  }

  /**
   * Waits until the other nodes have applied what this one stored of a queue, or its deletion; see `AppliedChanges`. A
   * node has received the signal of a deletion by then, since signals keep their order.
   */
  othersHave(queue: QueueKey): Promise<void> {
    return this.#shared.appliedChanges.wait('queue', this, queueDefinitionKey(queue));
  }

  /** Reads the pause flag and the stored options of a queue again. @throws as `Definitions.get` */
  async readDefinitions(key: string): Promise<void> {
    await Promise.all([this.#pauseFlags.read(key), this.#storedOptions.read(key)]);
  }

  /** The stored pause flag of a queue changed; null: it has none any more. */
  onPauseFlag(name: string, definition: Definition | null): void {
    this.#setPaused(name, definition !== null && isPaused(definition.value));
  }

  /** The stored options of a queue changed; null: it has none any more. */
  onOptions(name: string, definition: Definition | null): void {
    this.#setOptions(name, definition === null ? null : this.#readOptions(name, definition));
  }

  #forget(name: string): void {
    this.#known.delete(name);
    this.#assumed.delete(name);
    this.#capacities.delete(name);
    this.#elementBytes.delete(name);
    this.#queues.delete(name);
    this.activity.forget(name);
    this.#dropIdle(name);
    for (const news of this.#reloads) news.delete(name);
  }

  #setOptions(name: string, options: OwnOptions | null): void {
    const { maxElements } = this.options.settingsOf(name);
    this.options.note(name, options);
    if (options !== null) this.noteStored({ ns: this.name, name });
    // Only if the bound changed: a new capacity does not know the inserts that the engine has not confirmed yet.
    if (this.options.settingsOf(name).maxElements !== maxElements) this.#capacities.delete(name);
  }

  /** Options that cannot be parsed, as another version may have stored them, count as absent. */
  #readOptions(name: string, { value }: Definition): OwnOptions | null {
    try {
      return parseOptions(value);
    } catch (error) {
      this.log.warn(
        { err: error, ns: this.name, queue: name },
        'stored options of a queue are not understood',
      );
      return null;
    }
  }

  #setPaused(name: string, paused: boolean): void {
    if (this.#paused.has(name) === paused) return;
    if (paused) this.#paused.add(name);
    else this.#paused.delete(name);
    if (paused) this.noteStored({ ns: this.name, name });
    this.activity.note(name);
    this.visit(name).onPaused(paused);
  }
}

function isPaused(value: unknown): boolean {
  return isRecord(value) && value.paused === true;
}
