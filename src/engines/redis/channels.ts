import { randomBytes } from 'node:crypto';
import type { JsonValue } from '../../engine/definitions.ts';
import { type Listener, type Signaller, Topics } from '../../engine/signaller.ts';
import { type Command, type RedisConnection, ReplyError } from './client/connection.ts';
import type { Master } from './client/master.ts';
import type { Topology } from './client/topology.ts';
import type { RedisContext } from './context.ts';

interface Channel {
  readonly name: string;
  /** On a cluster, it is published only on the master of its slot. */
  readonly sharded: boolean;
  readonly onGap: () => void;
  /** If so, messages may have been missed when it is subscribed to again. */
  wasSubscribed: boolean;
}

/**
 * Signals, and notifications of changed definitions, over Redis Pub/Sub: over one connection for each master that has
 * any of the channels. Follows moving slots, and subscribes again after a lost connection; messages in between are
 * lost, which `onGap` reports. Subscribers of this engine are called directly, even while the server is unavailable.
 */
export class RedisSignaller implements Signaller {
  readonly type = 'redis';
  readonly #context: Pick<RedisContext, 'keys' | 'topology'>;
  readonly #topics: Topics<string>;
  readonly #channels = new Map<string, Channel>();
  readonly #subscribers = new Map<Master, Subscriber>();
  readonly #origin = randomBytes(8).toString('hex');
  readonly #ownPrefix = JSON.stringify([this.#origin]).slice(0, -1);
  #isRunning = false;
  #isAssignDue = false;

  constructor({ keys, topology, log }: Pick<RedisContext, 'keys' | 'topology' | 'log'>) {
    this.#context = { keys, topology };
    this.#topics = new Topics(log);
    topology.onChange(() => this.#assignSoon());
  }

  /** Resolves when all channels are subscribed to. @throws Error why one is not */
  async start(): Promise<void> {
    this.#isRunning = true;
    this.#assign();
    await Promise.all([...this.#subscribers.values()].map(({ connection }) => connection.ready));
  }

  stop(): void {
    this.#isRunning = false;
    for (const { connection } of this.#subscribers.values()) connection.close();
    this.#subscribers.clear();
  }

  publish(topic: string, message: JsonValue): void {
    this.#publish(this.command(topic, message));
  }

  /** Signals are sharded on a cluster, so that each is sent to one server instead of all. */
  subscribe(topic: string, listener: Listener<JsonValue>): () => void {
    return this.listen(this.#context.keys.signalChannel(topic), { sharded: true }, listener);
  }

  /**
   * Subscribes to a channel, within a moment. Returns a function that unsubscribes.
   * @param options.onGap called when the channel is subscribed to again: messages may have been missed
   */
  listen(
    name: string,
    { sharded, onGap = () => {} }: { readonly sharded: boolean; readonly onGap?: () => void },
    listener: Listener<JsonValue>,
  ): () => void {
    const unsubscribe = this.#topics.subscribe(name, (text) => {
      const [, message] = JSON.parse(text) as [string, JsonValue];
      listener(message);
    });
    if (!this.#channels.has(name)) {
      this.#channels.set(name, { name, sharded, onGap, wasSubscribed: false });
      this.#assignSoon();
    }
    return () => {
      if (!unsubscribe()) return;
      this.#channels.delete(name);
      this.#assignSoon();
    };
  }

  /**
   * The command that publishes a message. On a single server, it is sent behind the insert on the same connection,
   * which saves a round trip. On a cluster, the channel may be on another server, which could publish before the insert
   * is done.
   */
  command(topic: string, message: JsonValue): Command {
    const { keys, topology } = this.#context;
    const args = [keys.signalChannel(topic), this.encode(message)];
    return { name: topology.isCluster ? 'SPUBLISH' : 'PUBLISH', args };
  }

  /** Call this when the batch of the signal has been executed. */
  onStored(command: Command): void {
    if (this.#context.topology.isCluster) this.#publish(command);
    else this.#deliver(command);
  }

  /** The string that is published for a message. */
  encode(message: JsonValue): string {
    return JSON.stringify([this.#origin, message]);
  }

  #publish(command: Command): void {
    const { topology } = this.#context;
    const master = topology.masterOf(topology.slotOf(String(command.args[0])));
    // Neither repeated nor awaited: a late hint is worth little.
    master?.execute({ ...command, writes: false }).catch((error) => {
      if (error instanceof ReplyError) topology.refresh();
    });
    this.#deliver(command);
  }

  /** Delivers a message to the subscribers of this engine only. */
  #deliver({ args }: Command): void {
    this.#topics.deliverSoon(String(args[0]), String(args[1]));
  }

  /** At most once per turn of the event loop: with many channels, each pass takes a while. */
  #assignSoon(): void {
    if (this.#isAssignDue) return;
    this.#isAssignDue = true;
    setImmediate(() => {
      this.#isAssignDue = false;
      this.#assign();
    });
  }

  /** Assigns each channel to the subscriber at the master that has its slot. */
  #assign(): void {
    if (!this.#isRunning) return;
    const { topology } = this.#context;
    const assigned = Map.groupBy(this.#channels.values(), ({ name }) =>
      topology.masterOf(topology.slotOf(name)),
    );
    for (const [master, { connection }] of this.#subscribers) {
      if (assigned.has(master)) continue;
      this.#subscribers.delete(master);
      connection.close();
    }
    for (const [master, channels] of assigned) {
      if (master === null) continue;
      let subscriber = this.#subscribers.get(master);
      if (subscriber === undefined) {
        subscriber = new Subscriber(master, this.#context.topology, (name, text) =>
          this.#onMessage(name, text),
        );
        this.#subscribers.set(master, subscriber);
      }
      subscriber.assign(new Set(channels));
    }
  }

  #onMessage(name: string, text: string): void {
    if (!text.startsWith(this.#ownPrefix)) this.#topics.deliver(name, text);
  }
}

/** A connection to one master that only subscribes. */
class Subscriber {
  readonly connection: RedisConnection;
  readonly #topology: Topology;
  #channels: ReadonlySet<Channel> = new Set();
  /** The channels that were requested on the current connection; null while there is none. */
  #subscribed: ReadonlySet<Channel> | null = null;

  constructor(master: Master, topology: Topology, onMessage: (name: string, text: string) => void) {
    this.#topology = topology;
    this.connection = master.connect({
      setUp: () => this.#update(new Set()),
      onDown: () => {
        this.#subscribed = null;
      },
      heartbeat: (connection) => void connection.send('PING', []).catch(() => {}),
    });
    this.connection.onMessage(onMessage, () => {
      topology.refresh();
      this.connection.reconnect(new Error('a channel has moved to another server'));
    });
  }

  /** Subscribes to new channels and unsubscribes from the others: now, or once connected. */
  assign(channels: ReadonlySet<Channel>): void {
    this.#channels = channels;
    if (this.#subscribed === null) return;
    this.#update(this.#subscribed).catch((error: Error) => this.connection.reconnect(error));
  }

  async #update(before: ReadonlySet<Channel>): Promise<void> {
    const channels = this.#channels;
    this.#subscribed = channels;
    const added = [...channels].filter((channel) => !before.has(channel));
    const removed = [...before].filter((channel) => !channels.has(channel));
    await Promise.all([
      ...removed.map((channel) => this.#send('unsubscribe', channel)),
      ...added.map((channel) => this.#send('subscribe', channel)),
    ]);
    for (const channel of added) {
      if (channel.wasSubscribed) channel.onGap();
      channel.wasSubscribed = true;
    }
  }

  #send(command: 'subscribe' | 'unsubscribe', { name, sharded }: Channel): Promise<unknown> {
    const isSharded = sharded && this.#topology.isCluster;
    return this.connection.send(isSharded ? `s${command}` : command, [name]);
  }
}
