import type { EngineLog } from '../../engine/engine.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import { describe } from './errors.ts';
import { MAX_TIME_MS } from './settings.ts';
import type { Store } from './store.ts';

const AFTER_MS = 20;
const AT_ONCE = 1000;
/** More than these are left to the server, which deletes them by their index `gone`. */
const MOST_WAITING = 20_000;

/**
 * Deletes the documents of finished deliveries, soon and without anybody waiting for it. What a crash leaves is
 * out of every query, and the server's own clean-up finds it.
 */
export class Reaper {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  #waiting: string[] = [];
  #cancel: CancelTimer | null = null;
  #running: Promise<void> | null = null;
  #isStopped = false;

  constructor(store: Store, clock: Clock, log: EngineLog) {
    this.#store = store;
    this.#clock = clock;
    this.#log = log;
  }

  add(ids: Iterable<string>): void {
    if (this.#waiting.length < MOST_WAITING) this.#waiting.push(...ids);
    this.#schedule();
  }

  /** Deletes what it still can. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#cancel?.();
    this.#cancel = null;
    await this.#running;
    if (this.#waiting.length > 0 && this.#store.isUp) await this.#delete();
  }

  #schedule(): void {
    if (this.#isStopped || this.#cancel !== null || this.#running !== null || this.#waiting.length === 0)
      return;
    this.#cancel = this.#clock.after(AFTER_MS, () => {
      this.#cancel = null;
      this.#running = this.#delete().finally(() => {
        this.#running = null;
        this.#schedule();
      });
    });
  }

  async #delete(): Promise<void> {
    const ids = this.#waiting.splice(0, AT_ONCE);
    try {
      this.#store.assertUp();
      await this.#store.collections.elements.deleteMany(
        // One that was put back meanwhile is not gone any more.
        { _id: { $in: ids }, state: 'gone' },
        { writeConcern: { w: 1, journal: false }, maxTimeMS: MAX_TIME_MS },
      );
    } catch (error) {
      this.#log.info({ err: describe(error), count: ids.length }, 'finished elements are left to the server');
    }
  }
}
