import type { JsonValue } from './definitions.ts';
import type { EngineLog } from './engine.ts';
import { type Listener, Topics } from './topics.ts';

/**
 * The Signaller port: hints between nodes. Best effort: a signal may be lost, never doubled to harm, and
 * nothing correct may depend on one. It reaches every subscriber of the topic, those of the publishing
 * node included (one delivery each).
 */
export interface Signaller {
  /** `local`, `redis`, …: shown in the queue information record. Only `local` ends at this process. */
  readonly type: string;
  /** Returns at once; failures are the signaller's to log. */
  publish(topic: string, message: JsonValue): void;
  /** Answers a function that ends the subscription. */
  subscribe(topic: string, listener: (message: JsonValue) => void): () => void;
}

/** What is to be said of elements once they are stored: see `Storage.insert`. */
export interface ReadySignal {
  readonly topic: string;
  /** The message about so many of them; they may have come in several calls. */
  say(count: number): JsonValue;
}

/**
 * Signals within this process: all that an engine needs whose data have one owner, and what a namespace gets
 * that is configured with `local:`.
 */
export class LocalSignaller implements Signaller {
  readonly type = 'local';
  readonly #topics: Topics<JsonValue>;

  constructor(log: EngineLog) {
    this.#topics = new Topics(log);
  }

  publish(topic: string, message: JsonValue): void {
    this.#topics.deliverSoon(topic, message);
  }

  subscribe(topic: string, listener: Listener<JsonValue>): () => void {
    return this.#topics.subscribe(topic, listener);
  }
}
