import type { JsonValue } from './definitions.ts';
import type { EngineLog } from './engine.ts';
import type { Signaller } from './signaller.ts';
import { type Listener, Topics } from './topics.ts';

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
