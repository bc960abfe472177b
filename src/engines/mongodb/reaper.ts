import type { EngineLog } from '../../engine/engine.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import { describe } from './errors.ts';
import { MAX_TIME_MS } from './settings.ts';
import type { Store } from './store.ts';

const AFTER_MS = 20;
/** Changes whose documents go with one command. */
const AT_ONCE = 200;
/** More documents than these are left to the server, which deletes them by their index `gone`. */
const MOST_WAITING = 20_000;

/**
 * Deletes the documents of finished deliveries, soon and without anybody waiting for it. What a crash leaves is
 * out of every query, and the server's own clean-up finds it.
 */
export class Reaper {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  /** By the name of the change that finished them. */
  #waiting = new Map<string, string[]>();
  #count = 0;
  #cancel: CancelTimer | null = null;
  #running: Promise<void> | null = null;
  #isStopped = false;

  constructor(store: Store, clock: Clock, log: EngineLog) {
    this.#store = store;
    this.#clock = clock;
    this.#log = log;
  }

  /** @param op the change that finished them: one that was put back since, and finished again, is another's */
  add(op: string, ids: readonly string[]): void {
    if (ids.length === 0 || this.#count >= MOST_WAITING) return;
    this.#count += ids.length;
    this.#waiting.set(op, [...(this.#waiting.get(op) ?? []), ...ids]);
    this.#schedule();
  }

  /** Deletes what it still can. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#cancel?.();
    this.#cancel = null;
    await this.#running;
    if (this.#waiting.size > 0 && this.#store.isUp) await this.#delete();
  }

  #schedule(): void {
    if (this.#isStopped || this.#cancel !== null || this.#running !== null || this.#waiting.size === 0)
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
    const some = [...this.#waiting].slice(0, AT_ONCE);
    let count = 0;
    for (const [op, ids] of some) {
      this.#waiting.delete(op);
      count += ids.length;
    }
    this.#count -= count;
    const statements = some.map(([op, ids]) => ({
      deleteMany: { filter: { _id: { $in: ids }, op, state: 'gone' as const } },
    }));
    try {
      this.#store.assertUp();
      await this.#store.collections.elements.bulkWrite(statements, {
        ordered: false,
        writeConcern: { w: 1, journal: false },
        maxTimeMS: MAX_TIME_MS,
      });
    } catch (error) {
      this.#log.info({ err: describe(error), count }, 'finished elements are left to the server');
    }
  }
}
