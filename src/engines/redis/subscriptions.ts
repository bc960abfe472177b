import type { EngineLog } from '../../engine/engine.ts';
import { type Listener, Topics } from '../../engine/signaller.ts';
import type { RedisConnection } from './client/connection.ts';
import type { Master } from './client/master.ts';
import { slotOf } from './client/slots.ts';
import type { Topology } from './client/topology.ts';

interface AssignedChannel {
  readonly name: string;
  /** On a cluster: published only to the master of the channel's slot. */
  readonly sharded: boolean;
  /** When it is subscribed to again, messages may have been missed. */
  wasSubscribed: boolean;
}

/**
 * The channels that this engine subscribes to, over one connection per master that has any of them. Follows slots
 * when they move, and subscribes again after a lost connection; what was published in between is lost, and
 * `onGap` says so.
 */
export class Subscriptions {
  readonly #topology: Topology;
  readonly #topics: Topics<string>;
  readonly #channels = new Map<string, AssignedChannel>();
  readonly #subscribers = new Map<Master, Subscriber>();
  readonly #onGap: ((channel: string) => void)[] = [];
  #isRunning = false;
  #isAssignDue = false;

  constructor({ topology, log }: { topology: Topology; log: EngineLog }) {
    this.#topology = topology;
    this.#topics = new Topics(log);
    topology.onChange(() => this.#assignSoon());
  }

  /** Resolves when all channels are subscribed to. @throws Error why one is not */
  async start(): Promise<void> {
    this.#isRunning = true;
    this.#assign();
    await Promise.all([...this.#subscribers.values()].map(({ ready }) => ready));
  }

  stop(): void {
    this.#isRunning = false;
    for (const subscriber of this.#subscribers.values()) subscriber.close();
    this.#subscribers.clear();
  }

  /** Subscribes to a channel, from about now on. Returns a function that unsubscribes. */
  subscribe(name: string, sharded: boolean, listener: Listener<string>): () => void {
    const unsubscribe = this.#topics.subscribe(name, listener);
    if (!this.#channels.has(name)) {
      this.#channels.set(name, { name, sharded, wasSubscribed: false });
      this.#assignSoon();
    }
    return () => {
      if (!unsubscribe()) return;
      this.#channels.delete(name);
      this.#assignSoon();
    };
  }

  /** Calls `listener` when a channel is subscribed to again: messages may have been missed. */
  onGap(listener: (channel: string) => void): void {
    this.#onGap.push(listener);
  }

  /** Once a turn: with many channels, each pass over all of them takes a while. */
  #assignSoon(): void {
    if (this.#isAssignDue) return;
    this.#isAssignDue = true;
    setImmediate(() => {
      this.#isAssignDue = false;
      this.#assign();
    });
  }

  /** Gives each channel to the subscriber at the master that has it. */
  #assign(): void {
    if (!this.#isRunning) return;
    const assigned = Map.groupBy(this.#channels.values(), ({ name }) =>
      this.#topology.masterOf(slotOf(name)),
    );
    for (const [master, subscriber] of this.#subscribers) {
      if (assigned.has(master)) continue;
      this.#subscribers.delete(master);
      subscriber.close();
    }
    for (const [master, channels] of assigned) {
      if (master === null) continue;
      const subscriber = this.#subscribers.get(master) ?? this.#connect(master);
      subscriber.assign(new Set(channels));
    }
  }

  #connect(master: Master): Subscriber {
    const subscriber = new Subscriber(master, {
      topology: this.#topology,
      onMessage: (name, message) => this.#topics.deliver(name, message),
      onSubscribed: (channel) => {
        if (channel.wasSubscribed) for (const listener of this.#onGap) listener(channel.name);
        channel.wasSubscribed = true;
      },
    });
    this.#subscribers.set(master, subscriber);
    return subscriber;
  }
}

interface SubscriberOptions {
  readonly topology: Topology;
  readonly onMessage: (name: string, message: string) => void;
  readonly onSubscribed: (channel: AssignedChannel) => void;
}

/** A connection to one master that only subscribes. */
class Subscriber {
  readonly #options: SubscriberOptions;
  readonly #connection: RedisConnection;
  #channels: ReadonlySet<AssignedChannel> = new Set();
  /** What the server was asked for on this connection; null while there is none. */
  #subscribed: ReadonlySet<AssignedChannel> | null = null;

  constructor(master: Master, options: SubscriberOptions) {
    this.#options = options;
    this.#connection = master.connect({
      setUp: () => this.#update(new Set()),
      onDown: () => {
        this.#subscribed = null;
      },
      heartbeat: (connection) => void connection.send('PING', []).catch(() => {}),
    });
    this.#connection.onMessage(options.onMessage, () => {
      options.topology.refresh();
      this.#connection.reconnect(new Error('a channel has moved to another server'));
    });
  }

  /** The first connection, with its channels, or why it failed. */
  get ready(): Promise<void> {
    return this.#connection.ready;
  }

  /** Subscribes to what is new and unsubscribes from the rest: now, or when it is connected. */
  assign(channels: ReadonlySet<AssignedChannel>): void {
    this.#channels = channels;
    if (this.#subscribed === null) return;
    this.#update(this.#subscribed).catch((error: Error) => this.#connection.reconnect(error));
  }

  close(): void {
    this.#connection.close();
  }

  async #update(before: ReadonlySet<AssignedChannel>): Promise<void> {
    const channels = this.#channels;
    this.#subscribed = channels;
    const removed = [...before].filter((channel) => !channels.has(channel));
    const added = [...channels].filter((channel) => !before.has(channel));
    await Promise.all([
      ...removed.map((channel) => this.#send('unsubscribe', channel)),
      ...added.map((channel) => this.#send('subscribe', channel)),
    ]);
    for (const channel of added) this.#options.onSubscribed(channel);
  }

  #send(command: 'subscribe' | 'unsubscribe', { name, sharded }: AssignedChannel): Promise<unknown> {
    const isSharded = sharded && this.#options.topology.isCluster;
    return this.#connection.send(isSharded ? `s${command}` : command, [name]);
  }
}
