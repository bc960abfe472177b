import type { DefinitionChange } from './definitions.ts';
import type { EngineLog } from './engine.ts';

/**
 * An engine that hears again reads what it missed. The connection that reads may still be away; then it tries
 * anew this often.
 */
export const CATCH_UP_AGAIN_MS = 500;

/** Who watches an engine's definitions on this node. A watcher that throws is logged, and the others still hear. */
export class DefinitionWatchers {
  readonly #log: EngineLog;
  readonly #watchers = new Set<(change: DefinitionChange) => void>();

  constructor(log: EngineLog) {
    this.#log = log;
  }

  get isEmpty(): boolean {
    return this.#watchers.size === 0;
  }

  /** Answers a function that ends it, harmless when repeated. */
  add(listener: (change: DefinitionChange) => void): () => void {
    // Wrapped, so that one function given twice is two watchers.
    const watcher = (change: DefinitionChange): void => listener(change);
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  tell({ kind, key }: DefinitionChange): void {
    for (const watcher of [...this.#watchers]) {
      try {
        watcher({ kind, key });
      } catch (error) {
        this.#log.warn({ err: error, kind, key }, 'a watcher of definitions failed');
      }
    }
  }
}
