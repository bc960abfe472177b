import type { EngineLog } from './engine.ts';

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
