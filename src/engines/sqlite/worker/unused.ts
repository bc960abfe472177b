import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { Queue } from './names.ts';
import { USE_NOTED_MS } from './names.ts';
import type { Store } from './store.ts';

/** A queue that is empty, not paused and unused for so long is forgotten. Its use is known to the hour. */
const FORGOTTEN_MS = 86_400_000 + USE_NOTED_MS;
/** Between two looks through all queues, and queues looked at in one call. */
const REST_MS = 600_000;
const AT_ONCE = 200;

/** Forgets queues that nobody needs any more, with their statistics: names must not pile up. */
export class Unused {
  readonly #isNeeded: StatementSync;
  readonly #removeStats: StatementSync;
  /** The number of the last queue that was looked at. */
  #upTo = 0;
  #nextAt = Number.NEGATIVE_INFINITY;

  constructor(db: DatabaseSync) {
    this.#isNeeded = db.prepare(
      'SELECT EXISTS (SELECT 1 FROM dedup WHERE queue = :queue) OR EXISTS (SELECT 1 FROM damaged WHERE queue = :queue) AS is_needed',
    );
    this.#removeStats = db.prepare('DELETE FROM stats WHERE queue = ?');
  }

  /** One step, if it is time for one. */
  forget(store: Store): void {
    const { now, names } = store;
    if (now < this.#nextAt) return;
    const queues = names.unusedSince(now - FORGOTTEN_MS, this.#upTo, AT_ONCE);
    for (const queue of queues) {
      // One that was written by a version that noted no use counts as used now.
      if (queue.usedAt === 0) names.use(queue, now);
      else if (this.#isForgettable(store, queue)) this.#forgetOne(store, queue);
    }
    this.#upTo = queues.length < AT_ONCE ? 0 : (queues.at(-1)?.id ?? 0);
    if (queues.length < AT_ONCE) this.#nextAt = now + REST_MS;
  }

  #isForgettable(store: Store, queue: Queue): boolean {
    for (const { counts } of queue.lanes.values()) {
      if (counts.ready + counts.scheduled + counts.reserved > 0) return false;
    }
    if (store.definitions.get('queue', definitionKey(queue))?.value.includes('"paused":true')) return false;
    return Number(this.#isNeeded.get({ queue: queue.id })?.is_needed) === 0;
  }

  #forgetOne(store: Store, queue: Queue): void {
    for (const lane of queue.lanes.values()) store.leases.forget(lane);
    store.retention.forget(queue);
    store.definitions.delete('queue', definitionKey(queue));
    this.#removeStats.run(queue.id);
    store.names.remove(queue);
    if (store.touched.delete(queue)) store.undo.add(() => store.touched.add(queue));
  }
}

/** As the broker writes it (`broker/namespace.ts`). */
function definitionKey({ key: { ns, name } }: Queue): string {
  return JSON.stringify([ns, name]);
}
