import { randomBytes } from 'node:crypto';
import type { JsonValue } from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import type { Signaller } from '../../engine/signaller.ts';
import type { CarriedSignals } from './calls/lanes.ts';
import { type Command, ReplyError } from './client/connection.ts';
import { slotOf } from './client/slots.ts';
import type { Topology } from './client/topology.ts';
import type { Keys } from './keys.ts';
import type { Subscriptions } from './subscriptions.ts';

type Listener = (message: JsonValue) => void;

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
export class RedisSignaller implements Signaller, CarriedSignals {
  readonly type = 'redis';
  readonly #parts: SignallerParts;
  readonly #origin = randomBytes(8).toString('hex');
  /** How this node's own messages begin, which come back to it. */
  readonly #ownFront = JSON.stringify([this.#origin]).slice(0, -1);
  readonly #topics = new Map<string, Set<Listener>>();

  constructor(parts: SignallerParts) {
    this.#parts = parts;
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
    this.#deliverSoon(topic, message);
  }

  /**
   * Behind an insert on the same connection other nodes hear of it when this one does, a round trip earlier. On
   * a cluster the channel may be another server's, which could be quicker than the one that stores.
   */
  carry(topic: string, message: JsonValue): Command | null {
    return this.#parts.topology.isCluster ? null : this.#command(topic, message);
  }

  carried(topic: string, message: JsonValue): void {
    if (this.#parts.topology.isCluster) this.publish(topic, message);
    else this.#deliverSoon(topic, message);
  }

  subscribe(topic: string, listener: Listener): () => void {
    const { keys, subscriptions } = this.#parts;
    const own: Listener = (message) => listener(message);
    const listeners = this.#topics.get(topic) ?? new Set();
    this.#topics.set(topic, listeners.add(own));
    const unsubscribe = subscriptions.subscribe(keys.signalChannel(topic), true, (text) => {
      if (text.startsWith(this.#ownFront)) return;
      const [, message] = JSON.parse(text) as [string, JsonValue];
      own(message);
    });
    return () => {
      unsubscribe();
      listeners.delete(own);
      if (listeners.size === 0 && this.#topics.get(topic) === listeners) this.#topics.delete(topic);
    };
  }

  #command(topic: string, message: JsonValue): Command {
    const { keys, topology } = this.#parts;
    return {
      name: topology.isCluster ? 'SPUBLISH' : 'PUBLISH',
      args: [keys.signalChannel(topic), JSON.stringify([this.#origin, message])],
    };
  }

  #deliverSoon(topic: string, message: JsonValue): void {
    if (this.#topics.has(topic)) queueMicrotask(() => this.#deliver(topic, message));
  }

  #deliver(topic: string, message: JsonValue): void {
    for (const listener of [...(this.#topics.get(topic) ?? [])]) {
      try {
        listener(message);
      } catch (error) {
        this.#parts.log.warn({ topic, err: error }, 'a listener of a signal failed');
      }
    }
  }
}
