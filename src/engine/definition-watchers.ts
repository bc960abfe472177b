import { DEFINITION_KINDS, type DefinitionChange } from './definitions.ts';
import type { EngineLog } from './engine.ts';
import { type Listener, Topics } from './topics.ts';

const TOPIC = 'definitions';

/** The watchers of an engine's definitions on this node. */
export class DefinitionWatchers {
  readonly #topics: Topics<DefinitionChange>;

  constructor(log: EngineLog) {
    this.#topics = new Topics(log);
  }

  /** As `Definitions.watch`. */
  add(listener: Listener<DefinitionChange>): () => void {
    return this.#topics.subscribe(TOPIC, listener);
  }

  notify(change: DefinitionChange): void {
    this.#topics.deliver(TOPIC, change);
  }

  /** Notifications of other nodes may have been lost. */
  notifyMissed(): void {
    for (const kind of DEFINITION_KINDS) this.notify({ kind, key: null });
  }
}
