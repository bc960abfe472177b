import type { DatabaseSync, StatementSync } from 'node:sqlite';
import type { Queue } from './names.ts';

/** The states of one element's deliveries. */
export interface SharedState {
  readonly ready: number;
  readonly scheduled: number;
  readonly reserved: number;
}

/** Elements that were inserted for several groups: the only ones whose state is more than a delivery's. */
export class SharedElements {
  readonly #states: StatementSync;

  constructor(db: DatabaseSync) {
    this.#states = db.prepare(
      `SELECT sum(d.lease_until IS NULL AND d.due_at <= ?) AS ready,
              sum(d.lease_until IS NULL AND d.due_at > ?) AS scheduled,
              sum(d.lease_until IS NOT NULL) AS reserved
       FROM element e INDEXED BY element_shared CROSS JOIN delivery d ON d.seq = e.seq
       CROSS JOIN lane l ON l.id = d.lane AND l.queue = e.queue
       WHERE e.queue = ? AND e.groups > 1 GROUP BY e.seq`,
    );
  }

  *states(queue: Queue, now: number): Iterable<SharedState> {
    for (const row of this.#states.iterate(now, now, queue.id)) yield row as unknown as SharedState;
  }
}
