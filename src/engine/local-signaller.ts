import type { JsonValue } from './definitions.ts';
import type { EngineLog } from './engine.ts';
import type { Signaller } from './signaller.ts';

type Listener = (message: JsonValue) => void;

/**
 * Signals within this process: all that an engine needs whose data have one owner, and what a namespace gets
 * that asks for `local:`. They arrive after the publisher's own turn, as they would from another node.
 */
export class LocalSignaller implements Signaller {
  readonly type = 'local';
  readonly #log: EngineLog;
  readonly #topics = new Map<string, Set<Listener>>();

  constructor(log: EngineLog) {
    this.#log = log;
  }

  publish(topic: string, message: JsonValue): void {
    if (!this.#topics.has(topic)) return;
    queueMicrotask(() => {
      for (const listener of [...(this.#topics.get(topic) ?? [])]) this.#deliver(listener, topic, message);
    });
  }

  subscribe(topic: string, listener: Listener): () => void {
    const own: Listener = (message) => listener(message);
    const listeners = this.#topics.get(topic) ?? new Set();
    this.#topics.set(topic, listeners.add(own));
    return () => {
      listeners.delete(own);
      if (listeners.size === 0 && this.#topics.get(topic) === listeners) this.#topics.delete(topic);
    };
  }

  #deliver(listener: Listener, topic: string, message: JsonValue): void {
    try {
      listener(message);
    } catch (error) {
      this.#log.warn({ topic, err: error }, 'a listener of a signal failed');
    }
  }
}
