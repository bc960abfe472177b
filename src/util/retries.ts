import type { CancelTimer, Clock } from './clock.ts';

interface RetriesParts {
  readonly clock: Clock;
  /** From a failure to the next try. */
  readonly delayMs: number;
  /** Called at the first failure of work by this name, and not again until it has worked. */
  readonly failed: (name: string, error: unknown) => void;
}

/** Does work that may fail: again and again, until it works or is no longer wanted. */
export class Retries {
  readonly #parts: RetriesParts;
  /** What failed last time, by name. */
  readonly #failing = new Set<string>();
  readonly #timers = new Map<string, CancelTimer>();
  #stopped = false;

  constructor(parts: RetriesParts) {
    this.#parts = parts;
  }

  /** Does it now, and later if need be. Resolves after this try, and never rejects. */
  async do(name: string, work: () => Promise<void>): Promise<void> {
    this.#cancel(name);
    try {
      await work();
      this.#failing.delete(name);
    } catch (error) {
      if (this.#stopped) return;
      if (!this.#failing.has(name)) this.#parts.failed(name, error);
      this.#failing.add(name);
      this.#cancel(name);
      this.#timers.set(
        name,
        this.#parts.clock.after(this.#parts.delayMs, () => void this.do(name, work)),
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
