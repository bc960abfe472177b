import type { CancelTimer, Clock } from './clock.ts';
import { ConcurrencyLimit } from './concurrency-limit.ts';

/** Concurrent changes of definitions per engine: removing thousands of users must not starve other calls. */
export const MAX_CHANGES = 32;

interface RetriesOptions {
  readonly clock: Clock;
  /** Delay between a failure and the next attempt. */
  readonly delayMs: number;
  /** Called at the first failure of work with this name, and again only after it has succeeded. */
  readonly failed: (name: string, error: unknown) => void;
  /** Concurrent work per engine; unlimited by default. */
  readonly maxAtOnce?: number;
}

/** Retries work until it succeeds or `stop` is called. */
export class Retries {
  readonly #options: RetriesOptions;
  /** Names of the work whose last attempt failed. */
  readonly #failing = new Set<string>();
  readonly #timers = new Map<string, CancelTimer>();
  /** Keyed by engine. */
  readonly #running: ConcurrencyLimit;
  #stopped = false;

  constructor(options: RetriesOptions) {
    this.#options = options;
    this.#running = new ConcurrencyLimit({
      perKey: options.maxAtOnce ?? Number.POSITIVE_INFINITY,
    });
  }

  /**
   * Attempts the work now, and schedules a retry if it fails. Resolves after this attempt with its error, null if it
   * succeeded, and never rejects.
   * @param name replaces a pending retry with the same name
   * @param engine the engine that the work changes, if there are several: each has its own limit
   */
  async do(name: string, work: () => Promise<void>, engine = ''): Promise<unknown> {
    this.#cancel(name);
    try {
      await this.#running.run(engine, work);
      this.#failing.delete(name);
      return null;
    } catch (error) {
      if (this.#stopped) return error;
      if (!this.#failing.has(name)) this.#options.failed(name, error);
      this.#failing.add(name);
      this.#cancel(name);
      this.#timers.set(
        name,
        this.#options.clock.after(this.#options.delayMs, () => void this.do(name, work, engine)),
      );
      return error;
    }
  }

  /** Cancels all pending retries. */
  stop(): void {
    this.#stopped = true;
    for (const name of [...this.#timers.keys()]) this.#cancel(name);
  }

  #cancel(name: string): void {
    this.#timers.get(name)?.();
    this.#timers.delete(name);
  }
}
