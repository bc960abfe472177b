import type { Definitions, JsonValue } from '../engine/definitions.ts';
import { DefinitionsCache } from '../engine/definitions-cache.ts';
import type { ReadySignal } from '../engine/signaller.ts';
import type { Stats } from '../engine/stats.ts';
import type { Storage } from '../engine/storage.ts';
import { type GroupName, PLAIN_GROUP } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { quote } from '../util/quote.ts';
import type { Admission } from './admission.ts';
import { Agreement, type Difference } from './agreement.ts';
import { Capacity } from './capacity.ts';
import { Channel } from './channel.ts';
import { MANY } from './line.ts';
import { Meter } from './meter.ts';
import type { NodeInfo } from './peers.ts';
import type { BrokerLog, NamespaceSetup } from './ports.ts';
import { Queue } from './queue.ts';
import { type Capabilities, type QueueRecord, queueRecord } from './record.ts';
import type { Sweeper } from './sweeper.ts';
import { UndoneTakes } from './undone-takes.ts';
import type { PendingConsumer, Waiting } from './waiting.ts';

/** What all namespaces of a broker share. */
export interface BrokerParts {
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: BrokerLog;
  readonly admission: Admission;
  /** This node, as the others see it. */
  readonly self: NodeInfo;
  /** Another node serves one of the namespaces. */
  readonly noteNode: (node: NodeInfo) => void;
  readonly makeTid: () => string;
}

/** Names and pause flags are read again this often, ± half, in case a watch missed a change. */
const REREAD_MS = 60_000;

/**
 * One namespace: what its queues share, the consumers that wait on this node, and copies of the names and pause flags
 * that the engine knows.
 */
export class Namespace {
  readonly name: string;
  readonly isStream: boolean;
  readonly defaultGroups: readonly GroupName[];
  readonly defaultGroup: GroupName;
  readonly leaseMs: number;
  readonly type: string;
  readonly capabilities: Capabilities;
  /** Whether elements may expire. Not among `capabilities`, whose fields the spec fixes. */
  readonly hasExpiry: boolean;
  readonly storage: Storage;
  readonly definitions: Definitions;
  readonly stats: Stats;
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: BrokerLog;
  readonly meter: Meter;
  readonly admission: Admission;
  readonly makeTid: () => string;
  readonly undoneTakes: UndoneTakes;
  /** New exchanges that read from here are refused beyond this many. */
  readonly maxExchanges: number;
  /** Null: the namespace may hold any amount. */
  readonly capacity: Capacity | null;
  readonly #setup: NamespaceSetup;
  readonly #sweeper: Sweeper;
  /** Handles of known queues. */
  readonly #queues = new Map<string, Queue>();
  /** The consumers that wait on this node, by queue. */
  readonly #waiting = new Map<string, Waiting>();
  /** Names that the engine knows, so that first uses can be told apart and counted. */
  #known = new Set<string>();
  /** Names that became known while names are being read, by read: what is read may be older. */
  readonly #reloads = new Set<Set<string>>();
  readonly #paused = new Set<string>();
  readonly #pauseFlags: DefinitionsCache;
  #isStopped = false;
  readonly #channel: Channel;
  readonly #agreement: Agreement;
  #rereadTimer: CancelTimer | null = null;

  constructor(setup: NamespaceSetup, parts: BrokerParts, sweeper: Sweeper) {
    const { policy, storage } = setup;
    this.#setup = setup;
    this.#sweeper = sweeper;
    this.name = policy.name;
    this.isStream = policy.groups !== null;
    this.defaultGroups = policy.groups ?? [PLAIN_GROUP];
    this.defaultGroup = this.defaultGroups[0] ?? PLAIN_GROUP;
    this.leaseMs = setup.leaseMs;
    this.maxExchanges = setup.maxExchanges;
    this.type = setup.type;
    this.storage = storage;
    this.definitions = setup.definitions;
    this.stats = setup.stats;
    this.clock = parts.clock;
    this.random = parts.random;
    this.log = parts.log;
    this.meter = new Meter(parts.clock);
    this.admission = parts.admission;
    this.makeTid = parts.makeTid;
    this.undoneTakes = new UndoneTakes(this);
    const isBounded = setup.maxElements !== null || setup.maxBytes !== null;
    this.capacity = isBounded ? new Capacity(setup, this.name, storage, parts.clock) : null;
    this.#channel = new Channel({
      namespace: this.name,
      signaller: setup.signaller,
      topic: setup.shown.signaller.channel,
      self: parts.self,
      configured: setup.configured,
      clock: parts.clock,
      listener: {
        ready: (queue, count) => {
          // Elsewhere something was stored in it.
          this.noteStored({ ns: this.name, name: queue });
          this.#waiting.get(queue)?.match(count);
        },
        cancel: (queue, tid, owner) => this.visit(queue).cancelHere(tid, owner),
        consumers: (queue) => this.#waiting.get(queue)?.pending() ?? [],
        peer: (peer) => {
          this.#agreement.noteNode(peer);
          parts.noteNode(peer.info);
        },
      },
    });
    this.#agreement = new Agreement({
      namespace: this.name,
      configured: setup.configured,
      definitions: setup.definitions,
      clock: parts.clock,
      log: parts.log,
      peers: () => this.#channel.peers(),
    });
    this.#pauseFlags = new DefinitionsCache({
      definitions: setup.definitions,
      kind: 'queue',
      clock: parts.clock,
      isWanted: (key) => this.#queueOfKey(key) !== null,
      onRead: (key, definition) => {
        const name = this.#queueOfKey(key);
        if (name !== null) this.#setPaused(name, definition !== null && isPaused(definition.value));
      },
      onFailedRead: (key, error) =>
        this.log.warn(
          { err: error, ns: this.name, queue: key === null ? null : this.#queueOfKey(key) },
          'a pause flag that changed could not be read yet',
        ),
    });
    const { sched, reserve, pipeline, remove } = storage.capabilities;
    this.hasExpiry = storage.capabilities.expiry;
    this.capabilities = { sched, reserve, pipeline, tape: this.isStream, remove: remove && !this.isStream };
  }

  /** Reads what the engine knows and follows its changes. Called once, before the first request. */
  async start(): Promise<void> {
    this.#pauseFlags.start();
    this.#channel.start();
    if (this.isShared) await this.#agreement.claimVariant();
    await Promise.all([this.reload(), this.capacity?.start()]);
    this.#rereadLater();
  }

  stop(): void {
    this.#isStopped = true;
    this.#rereadTimer?.();
    this.#pauseFlags.stop();
    this.undoneTakes.stop();
    this.#channel.stop();
    this.#agreement.stop();
  }

  /** Reads names and pause flags again (`reload=1`). */
  async reload(): Promise<void> {
    const added = new Set<string>();
    this.#reloads.add(added);
    try {
      const [names] = await Promise.all([this.storage.queues(this.name), this.#pauseFlags.reload()]);
      this.#known = new Set([...names, ...added]);
      for (const name of [...this.#queues.keys()]) if (!this.#known.has(name)) this.#queues.delete(name);
      for (const name of [...this.#waiting.keys()]) this.dropIdle(name);
    } finally {
      this.#reloads.delete(added);
    }
  }

  /**
   * A queue exists from its first insert, pause or consumer that waits. The name was checked by the front end.
   * @throws QuaysideError `too-many-queues` if it does not exist yet and there is no room for it
   */
  queue(name: string): Queue {
    const { maxQueues } = this.#setup;
    if (!this.#known.has(name) && this.#known.size >= maxQueues) {
      throw new QuaysideError(
        'too-many-queues',
        `Namespace ${this.name} has ${maxQueues} queues, its limit; raise maxQueues to add ${quote(name)}.`,
      );
    }
    return this.visit(name);
  }

  /** A queue for a call that makes none, such as a status or a commit, or that the service itself needs: beside the limit. */
  visit(name: string): Queue {
    let queue = this.#queues.get(name);
    if (queue !== undefined) return queue;
    queue = new Queue(this, { ns: this.name, name });
    // Unknown names may be anything that a client invents, so their handles are not kept.
    if (this.#known.has(name)) this.#queues.set(name, queue);
    return queue;
  }

  /** The consumers that wait for a queue on this node, if there are any. */
  waitingAt(name: string): Waiting | undefined {
    return this.#waiting.get(name);
  }

  /** The same for one that joins them. */
  waiting(name: string, make: () => Waiting): Waiting {
    let waiting = this.#waiting.get(name);
    if (waiting === undefined) {
      waiting = make();
      this.#waiting.set(name, waiting);
    }
    return waiting;
  }

  /** All consumers that wait on this node. */
  allWaiting(): Waiting[] {
    return [...this.#waiting.values()];
  }

  /** Nobody waits here any more. What a known queue needs for its next consumer is kept. */
  dropIdle(name: string): void {
    if (!this.#known.has(name) && this.#waiting.get(name)?.isIdle === true) this.#waiting.delete(name);
  }

  isPaused(name: string): boolean {
    return this.#paused.has(name);
  }

  /** The names of the queues that are paused. */
  get pausedNames(): ReadonlySet<string> {
    return this.#paused;
  }

  /** Names of all queues, sorted. */
  async queueNames(): Promise<string[]> {
    return this.storage.queues(this.name);
  }

  /** The engine knows the queue: it counts from now on. */
  noteStored({ name }: QueueKey): void {
    if (this.#known.has(name)) return;
    this.#known.add(name);
    for (const added of this.#reloads) added.add(name);
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

  /** The queue information record (spec 2.2); with `group`, counted for that group alone. */
  async record(name: string, group: GroupName | null): Promise<QueueRecord> {
    const queue = this.visit(name);
    const [counts, counters] = await Promise.all([
      this.storage.counts(queue.key, group ?? undefined),
      this.stats.read(queue.key),
    ]);
    return queueRecord({
      namespace: this,
      shown: this.#setup.shown,
      paused: queue.paused,
      counts,
      counters,
      group,
    });
  }

  async writePaused({ ns, name }: QueueKey, paused: boolean): Promise<void> {
    await this.storage.declare([{ ns, name }]);
    this.noteStored({ ns, name });
    const key = definitionKey(ns, name);
    const version = await this.definitions.put('queue', key, { paused }, 'any');
    this.#pauseFlags.note(key, { key, value: { paused }, version });
    this.#setPaused(name, paused);
  }

  /** Tells other nodes, at the end of this turn, that `count` elements became eligible, or {@link MANY}. */
  announce({ name }: QueueKey, count: number): void {
    this.#channel.announce(name, count);
  }

  /** The same as a signal that the engine takes along with an insert; null where it takes none. */
  readySignal({ name }: QueueKey): ReadySignal | null {
    return this.storage.insertSignaller === this.#setup.signaller ? this.#channel.readySignal(name) : null;
  }

  announceCancel({ name }: QueueKey, tid: string, owner: string | null): void {
    this.#channel.cancel(name, tid, owner);
  }

  /** The calls that wait for a queue on other nodes; without those of a node that does not answer in time. */
  consumersElsewhere({ name }: QueueKey): Promise<readonly PendingConsumer[]> {
    return this.#channel.consumersElsewhere(name);
  }

  /** Whether other nodes may serve this namespace as well. */
  get isShared(): boolean {
    return this.#setup.signaller.type !== 'local';
  }

  /** The URLs, masked, of the engines that it needs: for elements, signals and statistics. */
  get engineUrls(): readonly string[] {
    const { url, signaller, stats } = this.#setup.shown;
    return [url, signaller.url, stats.url];
  }

  /** The other nodes that serve this namespace, as far as they can be heard. */
  peers(): NodeInfo[] {
    return this.#channel.peers().map(({ info }) => info);
  }

  /** The options that other nodes configure differently, by the id of the node. */
  differences(): ReadonlyMap<string, readonly Difference[]> {
    return this.#agreement.differences();
  }

  /** A reservation ends at `at`. */
  leaseEndsAt(at: number): void {
    this.#sweeper.wakeAt(at);
  }

  /** Where failed elements go; null: nowhere. */
  get deadLetterQueue(): string | null {
    return this.#setup.policy.deadLetter?.queue ?? null;
  }

  /** An element went to the dead-letter queue: who waits there may have it. */
  elementDied(): void {
    const name = this.deadLetterQueue;
    if (name === null) return;
    this.noteStored({ ns: this.name, name });
    this.wake(name);
  }

  /** Something may be eligible in a queue, nobody knows how much. */
  wake(name: string): void {
    this.#waiting.get(name)?.match(MANY);
    this.announce({ ns: this.name, name }, MANY);
  }

  #rereadLater(): void {
    if (this.#isStopped) return;
    this.#rereadTimer = this.clock.after(REREAD_MS * (0.5 + this.random()), () => {
      this.reload()
        .catch((error: unknown) =>
          this.log.warn({ err: error, ns: this.name }, 'pause flags could not be read'),
        )
        .finally(() => this.#rereadLater());
    });
  }

  #forget(name: string): void {
    this.#known.delete(name);
    this.#queues.delete(name);
    this.dropIdle(name);
    for (const added of this.#reloads) added.delete(name);
  }

  #setPaused(name: string, paused: boolean): void {
    if (this.#paused.has(name) === paused) return;
    const waiting = this.#waiting.get(name);
    if (paused) {
      this.#paused.add(name);
      waiting?.pause();
    } else {
      this.#paused.delete(name);
      waiting?.resume();
    }
  }

  #queueOfKey(key: string): string | null {
    const [ns, name] = JSON.parse(key) as [string, string];
    return ns === this.name ? name : null;
  }
}

/** Names may hold any character, so the pair is written as JSON rather than joined. */
function definitionKey(ns: string, name: string): string {
  return JSON.stringify([ns, name]);
}

function isPaused(value: JsonValue): boolean {
  return typeof value === 'object' && value !== null && 'paused' in value && value.paused === true;
}
