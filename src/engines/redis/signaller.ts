import { randomBytes } from 'node:crypto';
import type { JsonValue } from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import { type Listener, type Signaller, Topics } from '../../engine/signaller.ts';
import type { InsertSignals } from './batcher.ts';
import { type Command, ReplyError } from './client/connection.ts';
import { slotOf } from './client/slots.ts';
import type { Topology } from './client/topology.ts';
import type { Keys } from './keys.ts';
import type { Subscriptions } from './subscriptions.ts';

interface SignallerParts {
  readonly topology: Topology;
  readonly keys: Keys;
  readonly subscriptions: Subscriptions;
  readonly log: EngineLog;
}

/**
 * Signals over publish and subscribe; sharded on a cluster, so that a signal visits one server and not all.
 * Subscribers of this node are reached without the server, also while it is away.
 */
export class RedisSignaller implements Signaller, InsertSignals {
  readonly type = 'redis';
  readonly #parts: SignallerParts;
  readonly #origin = randomBytes(8).toString('hex');
  /** How this node's own messages begin, which come back to it. */
  readonly #ownFront = JSON.stringify([this.#origin]).slice(0, -1);
  readonly #topics: Topics<JsonValue>;
  /** Ends the subscription of a topic's channel. */
  readonly #channels = new Map<string, () => void>();

  constructor(parts: SignallerParts) {
    this.#parts = parts;
    this.#topics = new Topics(parts.log);
  }

  publish(topic: string, message: JsonValue): void {
    const { keys, topology } = this.#parts;
    const sent = topology
      .masterOf(slotOf(keys.signalChannel(topic)))
      ?.executeLater({ ...this.#command(topic, message), writes: false });
    // Not repeated and not waited for: a hint that comes late is worth little.
    sent?.catch((error) => {
      if (error instanceof ReplyError) topology.refresh();
    });
    this.#topics.deliverSoon(topic, message);
  }

  /**
   * Behind an insert on the same connection other nodes learn of it when this one does, a round trip earlier. On
   * a cluster the channel may be another server's, which could be quicker than the one that stores.
   */
  follower(topic: string, message: JsonValue): Command | null {
    return this.#parts.topology.isCluster ? null : this.#command(topic, message);
  }

  onStored(topic: string, message: JsonValue): void {
    if (this.#parts.topology.isCluster) this.publish(topic, message);
    else this.#topics.deliverSoon(topic, message);
  }

  subscribe(topic: string, listener: Listener<JsonValue>): () => void {
    if (!this.#topics.has(topic)) this.#channels.set(topic, this.#subscribeChannel(topic));
    const unsubscribe = this.#topics.subscribe(topic, listener);
    return () => {
      if (!unsubscribe()) return;
      this.#channels.get(topic)?.();
      this.#channels.delete(topic);
    };
  }

  #subscribeChannel(topic: string): () => void {
    const { keys, subscriptions } = this.#parts;
    return subscriptions.subscribe(keys.signalChannel(topic), true, (text) => {
      if (text.startsWith(this.#ownFront)) return;
      const [, message] = JSON.parse(text) as [string, JsonValue];
      this.#topics.deliver(topic, message);
    });
  }

  #command(topic: string, message: JsonValue): Command {
    const { keys, topology } = this.#parts;
    return {
      name: topology.isCluster ? 'SPUBLISH' : 'PUBLISH',
      args: [keys.signalChannel(topic), JSON.stringify([this.#origin, message])],
    };
  }
}
