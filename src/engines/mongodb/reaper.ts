import type { AnyBulkWriteOperation } from 'mongodb';
import type { EngineLog } from '../../engine/engine.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import { ToldOnce } from '../../model/told-once.ts';
import { CONTENT, type ElementDocument } from './documents.ts';
import { describe } from './errors.ts';
import { MAX_TIME_MS } from './settings.ts';
import type { Store } from './store.ts';

const AFTER_MS = 20;
/** Changes whose documents go with one command. */
const AT_ONCE = 200;
/** More documents than these are left to the server, which deletes them by their index `gone`. */
const MOST_WAITING = 20_000;

/** A finished delivery, with the key that is still to be remembered. */
type Finished = Pick<ElementDocument, '_id' | 'key'>;

/**
 * Deletes the documents of finished deliveries, soon and without anybody waiting for it. What a crash leaves is
 * out of every query, and the server's own clean-up finds it. What has a dedup key only loses its content.
 */
export class Reaper {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #told: ToldOnce;
  /** By the name of the change that finished them. */
  #waiting = new Map<string, Finished[]>();
  #count = 0;
  #cancel: CancelTimer | null = null;
  #running: Promise<void> | null = null;
  #isStopped = false;

  constructor(store: Store, clock: Clock, log: EngineLog) {
    this.#store = store;
    this.#clock = clock;
    this.#told = new ToldOnce({
      failed: (error) => log.info({ err: describe(error) }, 'finished elements are left to the server'),
      worksAgain: () => log.info({}, 'finished elements are deleted again'),
    });
  }

  /** @param op the change that finished them: one that was put back since, and finished again, is another's */
  add(op: string, finished: readonly Finished[]): void {
    if (finished.length === 0 || this.#count >= MOST_WAITING) return;
    this.#count += finished.length;
    const named = finished.map(({ _id, key }) => (key === undefined ? { _id } : { _id, key }));
    this.#waiting.set(op, [...(this.#waiting.get(op) ?? []), ...named]);
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
    for (const [op, finished] of some) {
      this.#waiting.delete(op);
      count += finished.length;
    }
    this.#count -= count;
    const statements = some.flatMap(([op, finished]) => statementsOf(op, finished));
    try {
      this.#store.assertUp();
      await this.#store.collections.elements.bulkWrite(statements, {
        ordered: false,
        writeConcern: { w: 1, journal: false },
        maxTimeMS: MAX_TIME_MS,
      });
      this.#told.worked();
    } catch (error) {
      this.#told.failed(error);
    }
  }
}

/** One that was put back meanwhile is not gone any more, or has another change's name. */
function statementsOf(op: string, finished: readonly Finished[]): AnyBulkWriteOperation<ElementDocument>[] {
  const [keyed, others] = [true, false].map((isKeyed) =>
    finished.filter(({ key }) => (key !== undefined) === isKeyed).map(({ _id }) => _id),
  );
  const named = (ids: readonly string[] = []) => ({ _id: { $in: [...ids] }, op, state: 'gone' }) as const;
  const statements: AnyBulkWriteOperation<ElementDocument>[] = [];
  if (others?.length) statements.push({ deleteMany: { filter: named(others) } });
  if (keyed?.length) statements.push({ updateMany: { filter: named(keyed), update: { $unset: CONTENT } } });
  return statements;
}
