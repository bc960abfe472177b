import type { CancelTimer, Clock } from './clock.ts';
import { ConcurrencyLimit } from './concurrency-limit.ts';

/**
 * Changes of definitions that an engine is given at once: those for thousands of users who are removed together leave
 * other calls their turns.
 */
export const MAX_CHANGES = 32;

interface RetriesParts {
  readonly clock: Clock;
  /** From a failure to the next try. */
  readonly delayMs: number;
  /** Called at the first failure of work by this name, and not again until it has worked. */
  readonly failed: (name: string, error: unknown) => void;
  /** Work in progress at once, for each engine; not given: any. */
  readonly maxAtOnce?: number;
}

/** Does work that may fail: again and again, until it works or is no longer wanted. */
export class Retries {
  readonly #parts: RetriesParts;
  /** What failed last time, by name. */
  readonly #failing = new Set<string>();
  readonly #timers = new Map<string, CancelTimer>();
  /** By engine. */
  readonly #running: ConcurrencyLimit;
  #stopped = false;

  constructor(parts: RetriesParts) {
    this.#parts = parts;
    this.#running = new ConcurrencyLimit({
      perKey: parts.maxAtOnce ?? Number.POSITIVE_INFINITY,
      maxWaiting: Number.POSITIVE_INFINITY,
      rejection: () => new Error('any amount of work may wait'),
    });
  }

  /**
   * Does it now, and later if need be. Resolves after this try, and never rejects.
   * @param engine the name of the one that it changes, if there are several: what is for another does not wait for it
   */
  async do(name: string, work: () => Promise<void>, engine = ''): Promise<void> {
    this.#cancel(name);
    try {
      await this.#running.run(engine, work);
      this.#failing.delete(name);
    } catch (error) {
      if (this.#stopped) return;
      if (!this.#failing.has(name)) this.#parts.failed(name, error);
      this.#failing.add(name);
      this.#cancel(name);
      this.#timers.set(
        name,
        this.#parts.clock.after(this.#parts.delayMs, () => void this.do(name, work, engine)),
      );
    }
  }

  /** Ends all retries. */
  stop(): void {
    this.#stopped = true;
    for (const name of [...this.#timers.keys()]) this.#cancel(name);
  }

  #cancel(name: string): void {
    this.#timers.get(name)?.();
    this.#timers.delete(name);
  }
}
