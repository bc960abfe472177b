import type { Definitions, JsonValue } from '../engine/definitions.ts';
import type { Stats } from '../engine/stats.ts';
import type { Storage } from '../engine/storage.ts';
import type { Clock } from '../model/clock.ts';
import { type GroupName, PLAIN_GROUP } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { Admission } from './admission.ts';
import type { BrokerLog } from './broker.ts';
import { MANY } from './line.ts';
import type { Meter } from './meter.ts';
import type { NamespaceSetup } from './ports.ts';
import { Queue } from './queue.ts';
import { type Capabilities, type QueueRecord, queueRecord } from './record.ts';
import type { Sweeper } from './sweeper.ts';

/** What all namespaces of a broker share. */
export interface BrokerParts {
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: BrokerLog;
  readonly meter: Meter;
  readonly admission: Admission;
  /** Marks this broker's own signals. */
  readonly nodeId: string;
  readonly makeTid: () => string;
}

/** Signals between the nodes of a namespace. Hints: losing one delays, never loses. */
type Signal =
  | { readonly from: string; readonly kind: 'ready'; readonly queue: string; readonly count: number }
  | {
      readonly from: string;
      readonly kind: 'cancel';
      readonly queue: string;
      readonly tid: string;
      readonly owner: string | null;
    };

/**
 * One namespace: its queues, made on first use, and what they share. Queues are known to the engine; the map
 * here holds only what waits on this node and a copy of the pause flags.
 */
export class Namespace {
  readonly name: string;
  readonly isStream: boolean;
  readonly defaultGroups: readonly GroupName[];
  readonly defaultGroup: GroupName;
  readonly leaseMs: number;
  readonly type: string;
  readonly capabilities: Capabilities;
  readonly storage: Storage;
  readonly definitions: Definitions;
  readonly stats: Stats;
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: BrokerLog;
  readonly meter: Meter;
  readonly admission: Admission;
  readonly makeTid: () => string;
  readonly #setup: NamespaceSetup;
  readonly #parts: BrokerParts;
  readonly #sweeper: Sweeper;
  readonly #queues = new Map<string, Queue>();
  /** Names that the engine knows, so that first uses can be told apart and counted. */
  #known = new Set<string>();
  #paused = new Set<string>();
  readonly #endings: (() => void)[] = [];
  /** Elements that became eligible here in this turn, per queue: one signal each, not one an element. */
  readonly #announcements = new Map<string, number>();

  constructor(setup: NamespaceSetup, parts: BrokerParts, sweeper: Sweeper) {
    const { policy, storage } = setup;
    this.#setup = setup;
    this.#parts = parts;
    this.#sweeper = sweeper;
    this.name = policy.name;
    this.isStream = policy.groups !== null;
    this.defaultGroups = policy.groups ?? [PLAIN_GROUP];
    this.defaultGroup = this.defaultGroups[0] ?? PLAIN_GROUP;
    this.leaseMs = setup.leaseMs;
    this.type = setup.type;
    this.storage = storage;
    this.definitions = setup.definitions;
    this.stats = setup.stats;
    this.clock = parts.clock;
    this.random = parts.random;
    this.log = parts.log;
    this.meter = parts.meter;
    this.admission = parts.admission;
    this.makeTid = parts.makeTid;
    const { sched, reserve, pipeline, remove } = storage.capabilities;
    this.capabilities = { sched, reserve, pipeline, tape: this.isStream, remove: remove && !this.isStream };
  }

  /** Reads what the engine knows and follows its changes. Called once, before the first request. */
  async start(): Promise<void> {
    const { signaller } = this.#setup;
    this.#endings.push(
      this.definitions.watch(({ kind, key }) => {
        if (kind === 'queue') void this.#rereadPaused(key);
      }),
      signaller.subscribe(this.#topic, (message) => this.#hear(message)),
    );
    await this.reload();
  }

  stop(): void {
    for (const end of this.#endings.splice(0)) end();
  }

  /** Reads names and pause flags anew (`reload=1`). */
  async reload(): Promise<void> {
    const [names, definitions] = await Promise.all([
      this.storage.queues(this.name),
      this.definitions.list('queue'),
    ]);
    this.#known = new Set([...names, ...this.#queues.keys()]);
    const paused = new Set<string>();
    for (const { key, value } of definitions) {
      const queue = this.#queueOfKey(key);
      if (queue !== null && isPaused(value)) paused.add(queue);
    }
    this.#paused = paused;
    for (const [name, queue] of this.#queues) queue.setPaused(paused.has(name));
  }

  /**
   * A queue exists from its first use. The name was checked by the front end.
   * @throws QuaysideError `too-many-queues`
   */
  queue(name: string): Queue {
    const known = this.#queues.get(name);
    if (known !== undefined) return known;
    if (!this.#known.has(name) && this.#known.size >= this.#setup.maxQueues) {
      throw new QuaysideError(
        'too-many-queues',
        `Namespace ${this.name} has ${this.#setup.maxQueues} queues, its limit; raise maxQueues to add ${name}.`,
      );
    }
    const queue = new Queue(this, { ns: this.name, name }, this.#paused.has(name));
    this.#queues.set(name, queue);
    return queue;
  }

  /** Queues that this node has used since it started: who waits is among them. */
  queuesInUse(): IterableIterator<Queue> {
    return this.#queues.values();
  }

  /** Names of all queues, sorted. */
  async queueNames(): Promise<string[]> {
    return this.storage.queues(this.name);
  }

  /** A queue that was only read or waited for exists as well; its first use makes it known to the engine. */
  noteUse(key: QueueKey): void {
    if (this.#known.has(key.name)) return;
    this.#known.add(key.name);
    this.storage.declare([key]).catch((error: unknown) => {
      this.#known.delete(key.name);
      this.log.warn({ err: error, queue: key }, 'a queue could not be declared; its next use tries again');
    });
  }

  /** The queue information record (spec 2.2); with `group`, counted for that group alone. */
  async record(name: string, group: GroupName | null): Promise<QueueRecord> {
    const queue = this.queue(name);
    if (!this.#known.has(name)) {
      await this.storage.declare([queue.key]);
      this.#known.add(name);
    }
    const [sizes, counters] = await Promise.all([
      this.storage.sizes(queue.key, group ?? undefined),
      this.stats.read(queue.key),
    ]);
    return queueRecord({
      namespace: this,
      shown: this.#setup.shown,
      paused: queue.paused,
      sizes,
      counters,
      group,
    });
  }

  async writePaused({ ns, name }: QueueKey, paused: boolean): Promise<void> {
    await this.storage.declare([{ ns, name }]);
    this.#known.add(name);
    await this.definitions.put('queue', definitionKey(ns, name), { paused }, 'any');
    this.#notePaused(name, paused);
  }

  /** Tells other nodes, at the end of this turn, that elements became eligible. */
  announce(key: QueueKey, count: number): void {
    const pending = this.#announcements.get(key.name);
    this.#announcements.set(key.name, (pending ?? 0) + count);
    if (this.#announcements.size === 1 && pending === undefined) {
      queueMicrotask(() => this.#publishAnnouncements());
    }
  }

  announceCancel(key: QueueKey, tid: string, owner: string | null): void {
    this.#publish({ from: this.#parts.nodeId, kind: 'cancel', queue: key.name, tid, owner });
  }

  /** A reservation ends at `at`. */
  leaseEndsAt(at: number): void {
    this.#sweeper.wakeAt(at);
  }

  /** An element went to the dead-letter queue: who waits there may have it. */
  elementDied(): void {
    const { deadLetter } = this.#setup.policy;
    if (deadLetter === null) return;
    this.wake(deadLetter.queue);
  }

  /** Something may be eligible in a queue, nobody knows how much. */
  wake(name: string): void {
    this.#queues.get(name)?.match(MANY);
    this.announce({ ns: this.name, name }, 1);
  }

  get #topic(): string {
    return `namespace:${this.name}`;
  }

  #publishAnnouncements(): void {
    for (const [queue, count] of this.#announcements) {
      this.#publish({ from: this.#parts.nodeId, kind: 'ready', queue, count });
    }
    this.#announcements.clear();
  }

  #publish(signal: Signal): void {
    this.#setup.signaller.publish(this.#topic, signal);
  }

  #hear(message: JsonValue): void {
    const signal = message as unknown as Signal;
    if (signal.from === this.#parts.nodeId) return;
    const queue = this.#queues.get(signal.queue);
    if (queue === undefined) return;
    if (signal.kind === 'ready') queue.match(signal.count);
    else queue.cancelHere(signal.tid, signal.owner);
  }

  async #rereadPaused(key: string): Promise<void> {
    const name = this.#queueOfKey(key);
    if (name === null) return;
    try {
      const definition = await this.definitions.get('queue', key);
      this.#notePaused(name, definition !== null && isPaused(definition.value));
    } catch (error) {
      this.log.warn({ err: error, ns: this.name, queue: name }, 'a pause flag could not be read');
    }
  }

  #notePaused(name: string, paused: boolean): void {
    if (paused) this.#paused.add(name);
    else this.#paused.delete(name);
    this.#queues.get(name)?.setPaused(paused);
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
