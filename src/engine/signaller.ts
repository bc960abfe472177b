import type { GroupName } from '../model/element.ts';
import type { EventLog } from '../util/log.ts';
import type { JsonValue } from './definitions.ts';

/**
 * The Signaller port: hints between nodes. Delivery is best effort: a signal may be lost or arrive twice, and
 * correctness must not depend on it. A signal reaches every subscriber of its topic on every node, including the
 * publishing one, once per subscription.
 */
export interface Signaller {
  /** `local`, `redis`, …: returned in the queue information record. Signals leave this process unless it is `local`. */
  readonly type: string;
  /** Returns immediately; the signaller logs failures. */
  publish(topic: string, message: JsonValue): void;
  /** Returns a function that ends the subscription. */
  subscribe(topic: string, listener: (message: JsonValue) => void): () => void;
}

/** The signal that elements were stored: see `Storage.insert`. */
export interface ReadySignal {
  readonly topic: string;
  /** The message about `count` elements in these groups, which may come from several calls. */
  messageFor(count: number, groups: ReadonlySet<GroupName>): JsonValue;
}

export type Listener<M> = (message: M) => void;

/** Subscribers on this node, by topic. If a listener throws, that is logged, and the others still get the message. */
export class Topics<M> {
  readonly #log: EventLog;
  readonly #listeners = new Map<string, Set<Listener<M>>>();

  constructor(log: EventLog) {
    this.#log = log;
  }

  has(topic: string): boolean {
    return this.#listeners.has(topic);
  }

  /** Returns a function that ends the subscription, and returns whether that was the last one of its topic. */
  subscribe(topic: string, listener: Listener<M>): () => boolean {
    // Wrapped, so that subscribing the same function twice makes two subscriptions.
    const wrapped: Listener<M> = (message) => listener(message);
    const listeners = this.#listeners.get(topic) ?? new Set();
    this.#listeners.set(topic, listeners.add(wrapped));
    return () => {
      if (!listeners.delete(wrapped) || listeners.size > 0) return false;
      this.#listeners.delete(topic);
      return true;
    };
  }

  deliver(topic: string, message: M): void {
    for (const listener of [...(this.#listeners.get(topic) ?? [])]) {
      try {
        listener(message);
      } catch (error) {
        this.#log.warn({ topic, err: error }, 'a listener of a topic failed');
      }
    }
  }

  /** Delivers after the caller's own code has run, as messages from other nodes do. */
  deliverSoon(topic: string, message: M): void {
    if (this.has(topic)) queueMicrotask(() => this.deliver(topic, message));
  }
}

/**
 * Signals within this process. Sufficient for an engine whose data are used by one process only, and used by namespaces
 * that are configured with `local:`.
 */
export class LocalSignaller extends Topics<JsonValue> implements Signaller {
  readonly type = 'local';

  publish(topic: string, message: JsonValue): void {
    this.deliverSoon(topic, message);
  }
}
