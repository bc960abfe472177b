import type { JsonValue } from './definitions.ts';
import type { EngineLog } from './engine.ts';

/**
 * The Signaller port: hints between nodes. Best effort: a signal may be lost or come twice, and
 * nothing correct may depend on one. It reaches every subscriber of the topic, those of the publishing
 * node included (one delivery each).
 */
export interface Signaller {
  /** `local`, `redis`, …: shown in the queue information record. Only `local` ends at this process. */
  readonly type: string;
  /** Returns at once; failures are the signaller's to log. */
  publish(topic: string, message: JsonValue): void;
  /** Returns a function that ends the subscription. */
  subscribe(topic: string, listener: (message: JsonValue) => void): () => void;
}

/** The signal that elements were stored: see `Storage.insert`. */
export interface ReadySignal {
  readonly topic: string;
  /** The message about `count` of them; they may have come in several calls. */
  messageFor(count: number): JsonValue;
}

export type Listener<M> = (message: M) => void;

/** Subscribers by topic, on this node. If one throws, that is logged, and the others still receive the message. */
export class Topics<M> {
  readonly #log: EngineLog;
  readonly #listeners = new Map<string, Set<Listener<M>>>();

  constructor(log: EngineLog) {
    this.#log = log;
  }

  has(topic: string): boolean {
    return this.#listeners.has(topic);
  }

  /** Returns a function that ends the subscription, and returns whether that was the last one of its topic. */
  subscribe(topic: string, listener: Listener<M>): () => boolean {
    // Wrapped, so that one function given twice is two subscriptions.
    const own: Listener<M> = (message) => listener(message);
    const listeners = this.#listeners.get(topic) ?? new Set();
    this.#listeners.set(topic, listeners.add(own));
    return () => {
      if (!listeners.delete(own) || listeners.size > 0) return false;
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

  /** After the publisher's own turn, as messages from other nodes arrive. */
  deliverSoon(topic: string, message: M): void {
    if (this.has(topic)) queueMicrotask(() => this.deliver(topic, message));
  }
}

/**
 * Signals within this process: all that an engine needs whose data have one owner, and what a namespace gets
 * that is configured with `local:`.
 */
export class LocalSignaller extends Topics<JsonValue> implements Signaller {
  readonly type = 'local';

  publish(topic: string, message: JsonValue): void {
    this.deliverSoon(topic, message);
  }
}
