import type { DatabaseSync, StatementSync } from 'node:sqlite';
import { COUNTER_NAMES, type CounterName, MAX_COUNTED_GROUPS } from '../../../engine/stats.ts';
import type { GroupName } from '../../../model/element.ts';
import type { Queue } from './names.ts';

const COLUMNS = COUNTER_NAMES.map((name) => `"${name}"`);

/** The counters of each queue and group. Numbers in and out stand in the order of `COUNTER_NAMES`. */
export class Stats {
  readonly #add: StatementSync;
  readonly #read: StatementSync;
  readonly #forget: StatementSync;

  constructor(db: DatabaseSync) {
    const places = COLUMNS.map(() => '?').join(', ');
    const sums = COLUMNS.map((column) => `${column} = ${column} + excluded.${column}`).join(', ');
    this.#add = db.prepare(
      `INSERT INTO stats (queue, grp, ${COLUMNS.join(', ')}) VALUES (?, ?, ${places})
       ON CONFLICT (queue, grp) DO UPDATE SET ${sums}`,
    );
    this.#read = db.prepare(`SELECT grp, ${COLUMNS.join(', ')} FROM stats WHERE queue = ?`);
    this.#read.setReturnArrays(true);
    this.#forget = db.prepare(
      `DELETE FROM stats WHERE queue = :queue AND grp IN (SELECT grp FROM stats WHERE queue = :queue AND grp <> ''
       ORDER BY ${COLUMNS.join(' + ')} DESC, grp LIMIT -1 OFFSET ${MAX_COUNTED_GROUPS})`,
    );
  }

  add(queue: Queue, group: GroupName, deltas: readonly number[]): void {
    this.#add.run(queue.id, group, ...deltas);
  }

  /** Counts one of what the engine does itself: only it knows when an element is moved to a dead-letter queue. */
  addOne(queue: Queue, group: GroupName, counter: CounterName): void {
    this.add(
      queue,
      group,
      COUNTER_NAMES.map((name) => (name === counter ? 1 : 0)),
    );
  }

  /** Forgets the groups that were counted the least, where there are too many. */
  forgetLeast(queue: Queue): void {
    this.#forget.run({ queue: queue.id });
  }

  read(queue: Queue): [group: GroupName, ...counters: number[]][] {
    return this.#read.all(queue.id) as unknown as [GroupName, ...number[]][];
  }
}
