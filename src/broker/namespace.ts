import {
  type Definition,
  type DefinitionKind,
  type Definitions,
  isDefinitionConflict,
  type JsonValue,
  queueDefinitionKey,
  queueOfDefinition,
} from '../engine/definitions.ts';
import { DefinitionsCache } from '../engine/definitions-cache.ts';
import type { ReadySignal } from '../engine/signaller.ts';
import type { Stats } from '../engine/stats.ts';
import type { RequestKey, Storage, Usage } from '../engine/storage.ts';
import {
  contentBytes,
  type Delivery,
  type GroupName,
  type NewElement,
  PLAIN_GROUP,
} from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import { isRecord } from '../util/is-record.ts';
import { ownString } from '../util/own-bytes.ts';
import { quote } from '../util/quote.ts';
import { repeat } from '../util/repeat.ts';
import { Retries } from '../util/retries.ts';
import type { UserLimit } from '../util/user-limit.ts';
import { Activity, type SeriesLimit } from './activity.ts';
import { Cluster, type NodeInfo } from './cluster.ts';
import type { Consumer, PendingConsumer } from './consumer.ts';
import type { EngineTurns, WeighedContent } from './engine-turns.ts';
import { Meter } from './meter.ts';
import type { Migration } from './migration.ts';
import type { BrokerLog, NamespaceSetup } from './ports.ts';
import type { Ask, MessagePart, Questions } from './questions.ts';
import type { Capabilities } from './queue.ts';
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
import { MANY, type WaitQueue } from './wait-queue.ts';

/** What all namespaces of a broker share. */
export interface Shared {
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: BrokerLog;
  readonly waitingLimit: UserLimit;
  readonly engineTurns: EngineTurns;
  readonly seriesLimit: SeriesLimit;
  /** This node, as the others see it. */
  readonly self: NodeInfo;
  readonly questions: Questions;
  readonly askWhoWaits: Ask<QueueKey, PendingConsumer>;
  /** Another node serves one of the namespaces. */
  readonly noteNode: (node: NodeInfo) => void;
  readonly makeTid: () => string;
}

/** An element of more bytes makes those of its queue count as large until takes bring smaller ones. */
const SMALL_BYTES = 1024;
/** What is expected of the first element that this node takes from a queue that was there before. */
const UNKNOWN_BYTES = 1_048_576;

/** Names, pause flags and options are read again this often, ± half, in case a watch missed a change. */
const REREAD_MS = 60_000;
/** Queues that are declared in one call. */
const MAX_DECLARED = 500;

/**
 * One namespace: what its queues share, the consumers that wait on this node, and copies of the names, pause flags and
 * options that the engine knows.
 */
export class Namespace {
  readonly name: string;
  readonly isStream: boolean;
  readonly defaultGroups: readonly GroupName[];
  readonly defaultGroup: GroupName;
  readonly type: string;
  readonly capabilities: Capabilities;
  /** Whether elements may expire. Not among `capabilities`, whose fields the spec fixes. */
  readonly hasExpiry: boolean;
  readonly definitions: Definitions;
  readonly activity: Activity;
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: BrokerLog;
  readonly meter: Meter;
  readonly waitingLimit: UserLimit;
  readonly makeTid: () => string;
  readonly undoneTakes: UndoneTakes;
  /** New exchanges that read from here are rejected beyond this many. */
  readonly maxExchanges: number;
  /** Null: the namespace may hold any amount. */
  readonly capacity: Capacity | null;
  /** Whether other nodes may serve this namespace as well. */
  readonly isShared: boolean;
  readonly setup: NamespaceSetup;
  /** The options of its queues. */
  readonly options: QueueOptionsTable;
  readonly #shared: Shared;
  /** While the namespace moves, it is that of both engines. */
  storage: Storage;
  stats: Stats;
  /** The move to another engine, from its start until the configuration names that one; null: there is none. */
  migration: Migration | null = null;
  /** The nodes that serve it. */
  readonly cluster: Cluster;
  /** The names of the queues that are paused. */
  readonly pausedNames: ReadonlySet<string>;
  /** Ends the leases of its queues. */
  sweeper: LeaseSweeper;
  /** Handles of known queues. */
  readonly #queues = new Map<string, Queue>();
  /** The consumers that wait on this node, by queue and group. */
  readonly #waitQueues = new Map<string, Map<GroupName, WaitQueue>>();
  /** Names that the engine knows, so that first uses are recognized and counted. */
  #known = new Set<string>();
  /** Names that became known while names are being read, by read: what is read may be older. */
  readonly #reloads = new Set<Set<string>>();
  readonly #paused = new Set<string>();
  readonly #pauseFlags: DefinitionsCache;
  readonly #storedOptions: DefinitionsCache;
  /** Of queues with a bound that were inserted into. */
  readonly #capacities = new Map<string, Capacity>();
  /** About how many bytes an element at the front of a known queue has, as far as this node knows. */
  readonly #elementBytes = new Map<string, number>();
  #isStopped = false;
  /** Whether the engine was given the options that were stored before this node started. */
  #isDeclared = false;
  #endRereads: (() => void) | null = null;

  constructor(setup: NamespaceSetup, shared: Shared, sweeper: LeaseSweeper) {
    const { policy, storage, signaller } = setup;
    this.setup = setup;
    this.pausedNames = this.#paused;
    this.#shared = shared;
    this.sweeper = sweeper;
    this.name = policy.name;
    this.isStream = policy.groups !== null;
    this.defaultGroups = policy.groups ?? [PLAIN_GROUP];
    this.defaultGroup = this.defaultGroups[0] ?? PLAIN_GROUP;
    this.maxExchanges = setup.maxExchanges;
    this.type = setup.type;
    this.isShared = signaller.type !== 'local';
    this.storage = storage;
    this.definitions = setup.definitions;
    this.activity = new Activity(shared.clock, shared.seriesLimit);
    this.stats = this.activity.watched(setup.stats);
    this.clock = shared.clock;
    this.random = shared.random;
    this.log = shared.log;
    this.meter = new Meter(shared.clock);
    this.waitingLimit = shared.waitingLimit;
    this.makeTid = shared.makeTid;
    this.undoneTakes = new UndoneTakes(this);
    const isBounded = setup.maxElements !== null || setup.maxBytes !== null;
    this.capacity = isBounded ? namespaceCapacity(setup, () => this.storage, shared.clock) : null;
    const { deadLetter, retentionMs, retryDelay = null } = policy;
    const general = {
      leaseMs: setup.leaseMs,
      deadLetter,
      retryDelay,
      retentionMs,
      ttlMs: null,
      maxElements: null,
    };
    this.options = new QueueOptionsTable(general, setup.queues ?? []);
    this.cluster = new Cluster({
      namespace: this.name,
      signaller,
      topic: setup.shown.signaller.channel,
      self: shared.self,
      configured: setup.configured,
      definitions: setup.definitions,
      clock: shared.clock,
      log: shared.log,
      listener: this,
    });
    this.#pauseFlags = this.#definitionsOf('queue', 'a pause flag', (name, definition) =>
      this.#setPaused(name, definition !== null && isPaused(definition.value)),
    );
    this.#storedOptions = this.#definitionsOf('queue-options', 'options of a queue', (name, definition) =>
      this.#setOptions(name, definition === null ? null : this.#readOptions(name, definition)),
    );
    const { sched, reserve, pipeline, remove } = storage.capabilities;
    this.hasExpiry = storage.capabilities.expiry;
    this.capabilities = { sched, reserve, pipeline, tape: this.isStream, remove: remove && !this.isStream };
  }

  /**
   * Where a new definition is to be stored. An engine that the namespace leaves is not read any more when the move is
   * over.
   */
  get currentDefinitions(): Definitions {
    return this.migration?.definitions ?? this.definitions;
  }

  /**
   * Whether what a store defines about a namespace of this name is about this one: another node that shares the store
   * may have another one of the same name, if this one is in a file that only this process uses.
   */
  isDefinedIn(definitions: Definitions): boolean {
    const isOwn = definitions === this.definitions || definitions === this.migration?.definitions;
    return isOwn || this.setup.ownsStore !== true;
  }

  /** From now on its elements are in two engines, and what is inserted goes to the new one. */
  join(migration: Migration, sweeper: LeaseSweeper): void {
    this.migration = migration;
    this.storage = migration.storage;
    this.stats = this.activity.watched(migration.stats);
    this.sweeper = sweeper;
  }

  /** Reads what the engine knows and follows its changes. Called once, before the first request. */
  async start(): Promise<void> {
    this.#pauseFlags.start();
    this.#storedOptions.start();
    this.cluster.start();
    if (this.isShared) await this.cluster.claimVariant();
    await Promise.all([this.reload(), this.capacity?.start()]);
    await this.#declareStored();
    const reread = async (): Promise<void> => {
      await this.reload().catch((error: unknown) =>
        this.log.warn({ err: error, ns: this.name }, 'pause flags and options could not be read'),
      );
      if (!this.#isDeclared) await this.#declareStored();
    };
    if (!this.#isStopped) this.#endRereads = repeat(reread, REREAD_MS, this);
  }

  /**
   * Ends what this node does in it. Its consumers have ended; what the last takes for them brought is returned first.
   */
  async stop(): Promise<void> {
    const waitQueues = [...this.#waitQueues.values()].flatMap((byGroup) => [...byGroup.values()]);
    await Promise.all(waitQueues.map((waitQueue) => waitQueue.matched()));
    await this.undoneTakes.stop();
    this.#isStopped = true;
    this.#endRereads?.();
    this.#pauseFlags.stop();
    this.#storedOptions.stop();
    this.cluster.stop();
  }

  /**
   * Gives the engine the options that are stored: a node that was killed in the middle of `writeOptions` has not. A
   * store that is full may reject them, and the node must serve its consumers nevertheless; it tries again later.
   */
  async #declareStored(): Promise<void> {
    try {
      await this.#declareAll();
      this.#isDeclared = true;
    } catch (error) {
      this.log.warn({ err: error, ns: this.name }, 'the engine could not be given the options of queues yet');
    }
  }

  /** Queues with the same options share a call, since there may be thousands. */
  async #declareAll(): Promise<void> {
    // Those of another version, which are not understood, stay as its node gave them to the engine.
    const understood = new Set(this.options.names());
    const given = this.#storedOptions
      .keys()
      .filter((key) => understood.has(queueOfDefinition(key).name))
      .flatMap((key) => this.#storedOptions.get(key) ?? []);
    const sameOptions = Map.groupBy(given, ({ value }) => JSON.stringify(value));
    for (const [text, all] of sameOptions) {
      const options = parseOptions(JSON.parse(text));
      for (let from = 0; from < all.length; from += MAX_DECLARED) {
        const queues = all.slice(from, from + MAX_DECLARED).map(({ key }) => queueOfDefinition(key));
        await this.storage.declare(queues, options);
      }
    }
    if (given.length === 0) return;
    // What another node has stored since may have come before.
    await this.#storedOptions.reload();
    for (const { key, version } of given) {
      const newest = this.#storedOptions.get(key);
      if (newest?.version !== version) await this.applyOptions(queueOfDefinition(key), newest);
    }
  }

  /** Reads names, pause flags and options again (`reload=1`). */
  async reload(): Promise<void> {
    const added = new Set<string>();
    this.#reloads.add(added);
    try {
      const [names] = await Promise.all([
        this.storage.queues(this.name),
        this.#pauseFlags.reload(),
        this.#storedOptions.reload(),
      ]);
      this.#known = new Set([...names, ...added]);
      for (const name of [...this.#queues.keys()]) if (!this.#known.has(name)) this.#queues.delete(name);
      for (const name of [...this.#capacities.keys()])
        if (!this.#known.has(name)) this.#capacities.delete(name);
      for (const name of [...this.#elementBytes.keys()])
        if (!this.#known.has(name)) this.#elementBytes.delete(name);
      for (const name of [...this.#waitQueues.keys()]) this.#dropIdle(name);
    } finally {
      this.#reloads.delete(added);
    }
  }

  /**
   * A queue exists from its first insert, pause or consumer that waits. The name was checked by the front end.
   * @throws QuaysideError `too-many-queues` if it does not exist yet and there is no room for it
   */
  queue(name: string): Queue {
    if (!this.#known.has(name)) this.checkRoom([name]);
    return this.visit(name);
  }

  /** @throws QuaysideError `too-many-queues` if there is no room for all of these queues that do not exist yet */
  checkRoom(names: readonly string[]): void {
    const { maxQueues } = this.setup;
    const unknown = names.filter((name) => !this.#known.has(name));
    if (unknown.length === 0) return;
    const added = new Set(unknown);
    if (this.#known.size + added.size <= maxQueues) return;
    const what = added.size === 1 ? quote(unknown[0]) : `${added.size} queues`;
    throw new QuaysideError(
      'too-many-queues',
      `Namespace ${this.name} has ${this.#known.size} queues, and its limit is ${maxQueues}; raise maxQueues to add ${what}.`,
    );
  }

  /**
   * A queue for a call that creates none, such as a status or a commit, or that the service itself needs: exempt from
   * the limit.
   */
  visit(name: string): Queue {
    let queue = this.#queues.get(name);
    if (queue !== undefined) return queue;
    // All that lasts has the name of the handle, which must not retain the request that it was cut out of.
    const own = ownString(name);
    queue = new Queue(this, { ns: this.name, name: own });
    // Unknown names may be anything that a client invents, so their handles are not kept.
    if (this.#known.has(name)) this.#queues.set(own, queue);
    return queue;
  }

  /** The wait queues of a queue on this node, by group; undefined if there are none. */
  waitQueues(name: string): ReadonlyMap<GroupName, WaitQueue> | undefined {
    return this.#waitQueues.get(name);
  }

  addWaitQueue({ name }: QueueKey, waitQueue: WaitQueue): WaitQueue {
    const byGroup = this.#waitQueues.get(name);
    if (byGroup === undefined) this.#waitQueues.set(name, new Map([[waitQueue.group, waitQueue]]));
    else byGroup.set(waitQueue.group, waitQueue);
    return waitQueue;
  }

  /** A wait queue is empty. Group names come from requests, so only that of a known queue's default group is kept. */
  noteIdle({ name }: QueueKey, waitQueue: WaitQueue): void {
    const byGroup = this.#waitQueues.get(name);
    // It may have been removed before, and another may have its place.
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

  /** Ends the blocked calls of this node for which there is a reason. */
  endConsumers(reasonFor: (consumer: Consumer) => QuaysideError | null): void {
    for (const name of [...this.#waitQueues.keys()]) this.visit(name).endConsumers(reasonFor);
  }

  /** How many calls of users wait on this node, by queue. */
  waitingOfUsers(): Map<string, number> {
    return new Map(
      [...this.#waitQueues].map(([name, byGroup]) => [
        name,
        [...byGroup.values()].reduce((sum, { ofUsers }) => sum + ofUsers, 0),
      ]),
    );
  }

  /** The names of the queues that the engine knows, as far as this node does. */
  get knownNames(): ReadonlySet<string> {
    return this.#known;
  }

  /** Names of all queues, sorted. */
  async queueNames(): Promise<string[]> {
    return this.storage.queues(this.name);
  }

  /** The engine knows the queue: it counts from now on. */
  noteStored({ name }: QueueKey): void {
    if (this.#known.has(name)) return;
    this.#known.add(name);
    this.#elementBytes.set(name, 0);
    this.activity.noteNew(name);
    for (const added of this.#reloads) added.add(name);
  }

  /**
   * Calls `store` in the user's turn, see `EngineTurns`; null: at once. Not async: this is on every insert's path.
   * @param store may throw
   */
  inTurn<T>(user: string | null, elements: readonly WeighedContent[], store: () => Promise<T>): Promise<T> {
    if (user !== null) return this.#shared.engineTurns.insert(this.storage, user, elements, store);
    try {
      return store();
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** See `EngineTurns.tryRead`. */
  tryRead(user: string, bytes: number): (() => void) | null {
    return this.#shared.engineTurns.tryRead(this.storage, user, bytes);
  }

  /** See `EngineTurns.read`. */
  read(user: string, bytes: number): Promise<() => void> {
    return this.#shared.engineTurns.read(this.storage, user, bytes);
  }

  /** About how many bytes a take of one element will read. */
  expectedBytes({ name }: QueueKey): number {
    return this.#elementBytes.get(name) ?? (this.#known.has(name) ? UNKNOWN_BYTES : 0);
  }

  /** Elements are being stored that takes may find in front from now on. */
  noteLarge({ name }: QueueKey, elements: readonly NewElement[]): void {
    let largest = SMALL_BYTES;
    for (const { body } of elements) if (body.byteLength > largest) largest = body.byteLength;
    if (largest > SMALL_BYTES)
      this.#elementBytes.set(name, Math.max(largest, this.#elementBytes.get(name) ?? 0));
  }

  /**
   * A take read so many bytes for an element. After a large one, the next ones are expected to be large as well, by
   * half each time.
   */
  noteTaken({ name }: QueueKey, bytes: number): void {
    const expected = this.#elementBytes.get(name);
    if (expected !== undefined && bytes <= SMALL_BYTES && expected <= SMALL_BYTES) return;
    if (this.#known.has(name)) this.#elementBytes.set(name, Math.max(bytes, (expected ?? 0) / 2));
  }

  /** The engine is about to know the queue, which counts already, lest many at once pass the limit. */
  noteStoring(key: QueueKey, storing: Promise<unknown>): void {
    if (this.#known.has(key.name)) return;
    this.noteStored(key);
    storing.catch((error: unknown) => {
      if (!(error instanceof QuaysideError) || error.code !== 'outcome-unknown') this.#forget(key.name);
    });
  }

  /** A queue for which a consumer waits exists as well; its first use makes it known to the engine. */
  noteUse(key: QueueKey): void {
    if (this.#known.has(key.name)) return;
    this.noteStored(key);
    this.storage.declare([key]).catch((error: unknown) => {
      this.#forget(key.name);
      this.log.warn({ err: error, queue: key }, 'a queue could not be declared; its next use tries again');
    });
  }

  async writePaused(queue: QueueKey, paused: boolean): Promise<void> {
    await this.storage.declare([queue]);
    this.noteStored(queue);
    const key = queueDefinitionKey(queue);
    const version = await this.definitions.put('queue', key, { paused }, 'any');
    await this.migration?.definitions.put('queue', key, { paused }, 'any');
    this.#pauseFlags.note(key, { key, value: { paused }, version });
    this.#setPaused(queue.name, paused);
  }

  /**
   * Stores the options of a queue; null: it has none any more. The definition comes first, and the engine gets what it
   * says: if another write comes in between, the node that finds the newer definition gives that to the engine, so that
   * both end with the same; see `applyOptions`. A definition is deleted only when the engine has forgotten what it
   * said: as long as it is there, a node that starts gives it to the engine.
   * @param versions of the options that may be replaced; null: any
   * @throws QuaysideError `precondition-failed`; `definition-conflict` if another write came in between
   */
  async writeOptions(
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
      await this.migration?.definitions.put('queue-options', key, value, 'any');
    } else {
      if (stored === null && !this.#known.has(queue.name)) return;
      await this.storage.declare([queue], null);
      try {
        // If there was none, one that is there now is another write's, and `applyOptions` gives it to the engine.
        if (stored !== null) await this.definitions.delete('queue-options', key, stored.version);
      } catch (error) {
        // The engine has forgotten what the other write has given it.
        if (isDefinitionConflict(error)) await this.applyOptions(queue, null);
        throw error;
      }
      await this.migration?.definitions.delete('queue-options', key, 'any');
    }
    const newest = await this.applyOptions(queue, definition);
    this.noteStored(queue);
    this.#storedOptions.note(key, newest);
    this.#setOptions(queue.name, newest === null ? null : this.#readOptions(queue.name, newest));
  }

  /**
   * Gives the engine the options that a definition has, and those of a newer one, until there is none. Returns the
   * newest.
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
   * Forgets a queue that holds nothing, with its pause flag, options and statistics. Returns false, and changes
   * nothing, if it holds an element.
   */
  async drop(key: QueueKey): Promise<boolean> {
    // Counts that are still buffered would come back after it.
    await this.stats.flush();
    if (!(await this.storage.drop(key))) return false;
    const definition = queueDefinitionKey(key);
    for (const definitions of [
      this.definitions,
      ...(this.migration === null ? [] : [this.migration.definitions]),
    ]) {
      await definitions.delete('queue', definition, 'any');
      await definitions.delete('queue-options', definition, 'any');
    }
    this.#pauseFlags.note(definition, null);
    this.#storedOptions.note(definition, null);
    this.#setPaused(key.name, false);
    this.#setOptions(key.name, null);
    this.#forget(key.name);
    return true;
  }

  /** What bounds a queue. */
  capacityOf({ key, settings: { maxElements } }: Queue): Capacity | null {
    if (maxElements === null) return null;
    const known = this.#capacities.get(key.name);
    if (known !== undefined) return known;
    const capacity = queueCapacity(key, maxElements, () => this.storage, this.clock);
    this.#capacities.set(key.name, capacity);
    return capacity;
  }

  /** Notifies other nodes, at the end of this turn, that `count` elements became eligible, or {@link MANY}. */
  announce({ name }: QueueKey, count: number): void {
    this.activity.note(name);
    this.cluster.announce(name, count);
  }

  /** The same as a signal that the engine publishes with an insert; null if it publishes none. */
  readySignal({ name }: QueueKey): ReadySignal | null {
    return this.storage.insertSignaller === this.setup.signaller ? this.cluster.readySignal(name) : null;
  }

  /** The calls that wait for a queue on all nodes; without those of a node that does not reply in time. */
  async consumersOfAllNodes(queue: QueueKey): Promise<readonly PendingConsumer[]> {
    const { nodes } = await this.#shared.askWhoWaits(queue, this.cluster);
    return nodes.flatMap(({ rows }) => rows);
  }

  /** The URLs, masked, of the engines that it needs: for elements, signals and statistics. */
  get engineUrls(): readonly string[] {
    const { url, signaller, stats } = this.setup.shown;
    return [url, signaller.url, stats.url];
  }

  /**
   * The names of the queues to which failed elements go, each once: the namespace's own, and those that options of
   * queues name.
   */
  get deadLetterQueues(): readonly string[] {
    return this.options.deadLetterQueues;
  }

  /**
   * Elements went to their queue's dead-letter queue: to the one that this node knows of, or to another one that was
   * declared since. The engine knows which one that is, and names it to a sweep.
   */
  elementsDied({ settings }: Queue): void {
    const name = settings.deadLetter?.queue ?? null;
    if (name !== null) this.wake({ ns: this.name, name });
    this.sweeper.sweepForDeadLetters();
  }

  /** An unknown number of elements may have become eligible in a queue, by a step of the engine's own. */
  wake(key: QueueKey): void {
    this.noteStored(key);
    this.onReady(key.name, MANY);
    this.announce(key, MANY);
  }

  /** Another node stored or returned so many elements, or {@link MANY}. */
  onReady(queue: string, count: number): void {
    // Another node stored elements in it.
    this.noteStored({ ns: this.name, name: queue });
    this.activity.note(queue);
    if (this.#waitQueues.has(queue)) this.visit(queue).match(count);
  }

  onCancel(queue: string, tid: string, owner: string | null): void {
    this.visit(queue).cancelHere(tid, owner);
  }

  /** Another node is there, or configures something else than before. */
  onPeer(node: NodeInfo): void {
    this.#shared.noteNode(node);
  }

  /** Another node stops. */
  onGone(node: string): void {
    this.#shared.questions.onGone(node);
  }

  /** A part of a question, or of a reply, came from another node. */
  onMessage(from: string, part: MessagePart): void {
    this.#shared.questions.onMessage(this.cluster, from, part);
  }

  /** The definitions of one kind, each of a queue of this namespace. @param what they are, for the log */
  #definitionsOf(
    kind: DefinitionKind,
    what: string,
    onChange: (name: string, definition: Definition | null) => void,
  ): DefinitionsCache {
    return new DefinitionsCache({
      definitions: this.definitions,
      kind,
      clock: this.clock,
      isWanted: (key) => this.#queueOfKey(key) !== null,
      onRead: (key, definition, hasChanged) => {
        const name = this.#queueOfKey(key);
        if (name !== null && hasChanged) onChange(name, definition);
      },
      onFailedRead: (key, error) =>
        this.log.warn(
          { err: error, ns: this.name, queue: key === null ? null : this.#queueOfKey(key) },
          `${what} that changed could not be read yet`,
        ),
    });
  }

  #forget(name: string): void {
    this.#known.delete(name);
    this.#capacities.delete(name);
    this.#elementBytes.delete(name);
    this.#queues.delete(name);
    this.activity.forget(name);
    this.#dropIdle(name);
    for (const added of this.#reloads) added.delete(name);
  }

  #setOptions(name: string, options: OwnOptions | null): void {
    const { maxElements } = this.options.settingsOf(name);
    this.options.note(name, options);
    // Another one would not know of inserts that the engine has not confirmed yet.
    if (this.options.settingsOf(name).maxElements !== maxElements) this.#capacities.delete(name);
  }

  /** What is not understood, as another version may have stored it, is as if it were not there. */
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
    this.activity.note(name);
    this.visit(name).onPaused(paused);
  }

  #queueOfKey(key: string): string | null {
    const { ns, name } = queueOfDefinition(key);
    return ns === this.name ? name : null;
  }
}

function isPaused(value: JsonValue): boolean {
  return isRecord(value) && value.paused === true;
}

interface UndoneTakesHost {
  readonly storage: Storage;
  readonly clock: Clock;
  readonly log: BrokerLog;
  readonly inTurn: Namespace['inTurn'];
}

const RETRY_MS = 1_000;
/** In whose turn undone pops are stored: no user's. */
const UNDONE = '';
/** Bodies that are kept for an engine that is unavailable, in one namespace; what exceeds this is tried once. */
const MAX_BYTES = 64 * 1_048_576;

/**
 * Pops that are undone. While their engine is unavailable, this node has the only copy of what it popped, so it retries
 * until they are stored again, or it stops.
 */
class UndoneTakes {
  readonly #host: UndoneTakesHost;
  readonly #retries: Retries;
  #bytes = 0;
  #count = 0;
  #made = 0;
  /** First tries that have no outcome yet. */
  readonly #begun = new Set<Promise<void>>();

  constructor(host: UndoneTakesHost) {
    this.#host = host;
    this.#retries = new Retries({
      clock: host.clock,
      delayMs: RETRY_MS,
      failed: (_name, error) =>
        host.log.warn(
          { err: error },
          'popped elements could not be returned to their queue yet; the node retries until they are',
        ),
    });
  }

  /**
   * Calls the engine in this turn, so that takes which follow share the batch, unless 4 MiB are on their way already.
   * Never throws.
   * @param done called when they are stored; `isLate`: not by a call in this turn
   */
  begin(queue: QueueKey, popped: readonly Delivery[], done: (isLate: boolean) => void): void {
    const bytes = popped.reduce((sum, { body }) => sum + body.byteLength, 0);
    const mayRepeat = this.#bytes + bytes <= MAX_BYTES;
    this.#bytes += bytes;
    this.#count += popped.length;
    this.#made += 1;
    let tries = 0;
    const put = async (): Promise<void> => {
      tries += 1;
      try {
        const isNow = await this.#store(queue, popped);
        done(tries > 1 || !isNow);
      } catch (error) {
        if (mayRepeat && isCertain(error)) throw error;
        this.#lost(error, queue, popped);
        // They may be stored all the same, or still be: takes that are called from now on come behind that.
        if (!isCertain(error)) done(true);
      }
      this.#bytes -= bytes;
      this.#count -= popped.length;
    };
    const first = this.#retries.do(String(this.#made), put).finally(() => this.#begun.delete(first));
    this.#begun.add(first);
  }

  /**
   * In turn with the inserts of users: thousands of clients that vanish together return what they popped in steps. If
   * the turn does not come in time, without one: this node has the only copy. Returns whether the engine was called
   * before this returned.
   */
  async #store(queue: QueueKey, popped: readonly Delivery[]): Promise<boolean> {
    let isSent = false;
    const store = (): Promise<void> => {
      isSent = true;
      return this.#host.storage.undoTake(queue, popped);
    };
    const storing = this.#host.inTurn(UNDONE, popped, store);
    const isNow = isSent;
    try {
      await storing;
    } catch (error) {
      if (isSent) throw error;
      await store();
    }
    return isNow;
  }

  /** Ends the retries, once all that was begun has been tried. */
  async stop(): Promise<void> {
    await Promise.all(this.#begun);
    this.#retries.stop();
    if (this.#count === 0) return;
    this.#host.log.warn({ count: this.#count }, 'popped elements may be lost: their engine is unavailable');
  }

  #lost(error: unknown, queue: QueueKey, popped: readonly Delivery[]): void {
    const ids = popped.map(({ id }) => id);
    this.#host.log.warn({ err: error, queue, ids }, 'elements could not be returned to their queue');
  }
}

/** If the outcome is unknown, a consumer may have the element by now: a pop delivers at most once. */
function isCertain(error: unknown): boolean {
  return (
    error instanceof QuaysideError && (error.code === 'storage-unavailable' || error.code === 'storage-full')
  );
}

/** What a namespace, or a queue, may hold; null: no bound. */
interface CapacityLimits {
  readonly maxElements: number | null;
  readonly maxBytes: number | null;
}

interface Amount {
  readonly elements: number;
  readonly bytes: number;
}

/** The size of an element of one group without its content, and of each further group, about. */
const ELEMENT_BYTES = 100;
const DELIVERY_BYTES = 60;

const NOTHING: Amount = { elements: 0, bytes: 0 };
/** While inserts come, usage is read at most this often. */
const REFRESH_MS = 1_000;
/** And that of a queue that seems full, for which one read is cheap: a small one may be emptied many times a second. */
const FULL_REFRESH_MS = 20;
/** And for no larger part of the time than one in so many: an engine with many queues takes a while. */
const REST_FACTOR = 20;
/**
 * What seems full may have been emptied since it was read, however long ago. So an insert waits for a reading that
 * takes at most about so long.
 */
const SHORT_READ_MS = 250;

/**
 * Rejects inserts into a namespace, or a queue, that holds as much as it may. The engine's count is read again while
 * inserts come; between two reads, what this node stores is added to it, so an insert costs two comparisons and no
 * round trip.
 *
 * What is added is never too little: inserts whose end is not known at a reading are added to it, although the engine
 * may have counted them. What was consumed, and what other nodes stored, shows at the next reading. So one node alone
 * never exceeds `maxElements`, and several exceed it by at most what the others store between two reads. Bytes are an
 * estimate between two reads, and those of other namespaces of the same store show at the next one.
 */
class Capacity {
  readonly #limits: CapacityLimits;
  readonly #source: CapacitySource;
  readonly #clock: Pick<Clock, 'monotonic'>;
  #starting: Promise<void> | null = null;
  #isStarted = false;
  #held = NOTHING;
  /** Of inserts that the engine has not answered yet. */
  #pending = NOTHING;
  /** Admitted since the reading in progress began. */
  #since = NOTHING;
  #reading: Promise<void> | null = null;
  /** How long the last reading took that succeeded. */
  #readMs = 0;
  #readFrom = Number.NEGATIVE_INFINITY;
  /** The same if it seems full. */
  #readAgainFrom = Number.NEGATIVE_INFINITY;

  constructor(limits: CapacityLimits, source: CapacitySource, clock: Pick<Clock, 'monotonic'>) {
    this.#limits = limits;
    this.#source = source;
    this.#clock = clock;
  }

  /** Reads what is held, before the first insert. */
  start(): Promise<void> {
    this.#starting ??= this.#read().then(
      () => {
        this.#isStarted = true;
      },
      (error: unknown) => {
        this.#starting = null;
        throw error;
      },
    );
    return this.#starting;
  }

  /**
   * Calls `store` if there is capacity for the elements that it adds: at once, or if that is to be read first,
   * afterwards.
   * @param leaving how many leave in the same step; what does not grow may be full
   * @param request the key of all elements, which is stored once
   * @throws QuaysideError `namespace-full` or `queue-full`
   */
  admit<T>(
    elements: readonly NewElement[],
    store: () => Promise<T>,
    { leaving = 0, request = null }: { leaving?: number; request?: RequestKey | null } = {},
  ): Promise<T> {
    const whole = amountOf(elements, request);
    if (whole.elements <= leaving) return store();
    return this.admitAmount({ elements: whole.elements - leaving, bytes: whole.bytes }, store);
  }

  /**
   * The same for elements that the engine copies.
   * @param amount of deliveries, and the bytes of their content
   * @throws QuaysideError `namespace-full` or `queue-full`
   */
  admitAmount<T>(amount: Amount, store: () => Promise<T>): Promise<T> {
    if (!this.#isStarted) return this.start().then(() => this.#admit(amount, store));
    const isFull = !this.#fits(amount);
    const readFrom = isFull ? this.#readAgainFrom : this.#readFrom;
    if (this.#clock.monotonic() >= readFrom && this.#reading === null) this.#read().catch(() => {});
    const waits = this.#source.waitsForRead || (isFull && this.#readMs <= SHORT_READ_MS);
    if (waits && this.#reading !== null) {
      const admit = (): Promise<T> => this.#admit(amount, store);
      return this.#reading.then(admit, admit);
    }
    return this.#admit(amount, store);
  }

  #admit<T>(amount: Amount, store: () => Promise<T>): Promise<T> {
    this.#check(amount);
    const stored = store();
    this.#held = sum(this.#held, amount);
    this.#pending = sum(this.#pending, amount);
    this.#since = sum(this.#since, amount);
    const settled = (): void => {
      this.#pending = {
        elements: this.#pending.elements - amount.elements,
        bytes: this.#pending.bytes - amount.bytes,
      };
    };
    stored.then(settled, settled);
    return stored;
  }

  #fits({ elements, bytes }: Amount): boolean {
    const { maxElements, maxBytes } = this.#limits;
    const fits = maxElements === null || this.#held.elements + elements <= maxElements;
    return fits && (maxBytes === null || this.#held.bytes + bytes <= maxBytes);
  }

  #check(amount: Amount): void {
    if (this.#fits(amount)) return;
    const { maxElements, maxBytes } = this.#limits;
    const isByElements = maxElements !== null && this.#held.elements + amount.elements > maxElements;
    throw isByElements
      ? this.#source.full(`${maxElements} elements`, 'maxElements')
      : this.#source.full(`${maxBytes} bytes`, 'maxBytes');
  }

  #read(): Promise<void> {
    const reading = this.#readNow().finally(() => {
      this.#reading = null;
    });
    this.#reading = reading;
    return reading;
  }

  async #readNow(): Promise<void> {
    const startedAt = this.#clock.monotonic();
    const pending = this.#pending;
    this.#since = NOTHING;
    try {
      const { elements, bytes } = await this.#source.read();
      this.#held = sum({ elements, bytes: bytes ?? 0 }, sum(pending, this.#since));
      this.#readMs = this.#clock.monotonic() - startedAt;
    } finally {
      const now = this.#clock.monotonic();
      // Not after one that failed: the engine was unavailable rather than slow.
      const restMs = REST_FACTOR * this.#readMs;
      this.#readFrom = now + Math.max(REFRESH_MS, restMs);
      this.#readAgainFrom = now + Math.max(this.#source.fullRefreshMs, restMs);
    }
  }
}

/** What a bound is about. */
interface CapacitySource {
  /** What it holds. */
  read(): Promise<Usage>;
  /** How often that is read at most if it seems full. */
  readonly fullRefreshMs: number;
  /** Whether inserts wait for a read in progress; else, unless it seems full, they go by the one before. */
  readonly waitsForRead: boolean;
  /** @param limit in words */
  full(limit: string, option: string): QuaysideError;
}

/** @param storage the namespace's, which changes if it moves to another engine */
function namespaceCapacity(
  setup: CapacityLimits & { readonly policy: { readonly name: string } },
  storage: () => Storage,
  clock: Pick<Clock, 'monotonic'>,
): Capacity {
  const { policy, maxBytes } = setup;
  const source: CapacitySource = {
    read: () => storage().usage(policy.name, maxBytes !== null),
    fullRefreshMs: REFRESH_MS,
    waitsForRead: false,
    full: (limit, option) =>
      new QuaysideError(
        'namespace-full',
        `Namespace ${quote(policy.name)} holds as much as it may (${limit}). Consume elements, or raise ${option}.`,
      ),
  };
  return new Capacity(setup, source, clock);
}

/** In a stream an element counts once for each of its groups, as in a namespace. */
function queueCapacity(
  key: QueueKey,
  maxElements: number,
  storage: () => Storage,
  clock: Pick<Clock, 'monotonic'>,
): Capacity {
  const source: CapacitySource = {
    read: async () => {
      const counts = await storage().counts(key);
      const groups = counts.groups.size === 0 ? [counts] : [...counts.groups.values()];
      const elements = groups.reduce(
        (sum, { ready, scheduled, reserved }) => sum + ready + scheduled + reserved,
        0,
      );
      return { elements, bytes: null };
    },
    fullRefreshMs: FULL_REFRESH_MS,
    waitsForRead: true,
    full: (limit, option) =>
      new QuaysideError(
        'queue-full',
        `Queue ${quote(key.name)} holds as much as it may (${limit}). Consume elements, or raise ${option} of its options.`,
      ),
  };
  return new Capacity({ maxElements, maxBytes: null }, source, clock);
}

/** What some elements add, as `Storage.usage` counts it: in a stream an element counts once for each group. */
function amountOf(elements: readonly NewElement[], request: RequestKey | null): Amount {
  let deliveries = 0;
  let bytes = request === null ? 0 : keyBytes(request.key);
  for (const element of elements) {
    const { groups, contentType, dedupKey } = element;
    const count = groups.length === 1 ? 1 : new Set(groups).size;
    deliveries += count;
    bytes += ELEMENT_BYTES + (count - 1) * DELIVERY_BYTES + (contentType?.length ?? 0);
    bytes += contentBytes(element);
    if (dedupKey !== null) bytes += keyBytes(dedupKey);
  }
  return { elements: deliveries, bytes };
}

/** A key stands in a table and in its index. */
function keyBytes(key: string): number {
  return 2 * key.length + DELIVERY_BYTES;
}

function sum(a: Amount, b: Amount): Amount {
  return { elements: a.elements + b.elements, bytes: a.bytes + b.bytes };
}
