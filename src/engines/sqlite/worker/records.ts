import type { DatabaseSync } from 'node:sqlite';
import type { StoredDefinition } from '../../../engine/definitions.ts';
import { COUNTER_NAMES, type CounterName, MAX_COUNTED_GROUPS } from '../../../engine/stats.ts';
import type { GroupName } from '../../../model/element.ts';
import type { CounterEntry, QueueName, StoredCounters } from '../protocol.ts';
import type { Queues, WorkerQueue } from './queues.ts';
import { prepareAll, type Statements } from './schema.ts';

const COLUMNS = COUNTER_NAMES.map((name) => `"${name}"`);

/** The element that was stored with an idempotency key. */
interface Seen {
  readonly seq: number;
  readonly fingerprint: string | null;
}

const PLACES = COLUMNS.map(() => '?').join(', ');
const SUMS = COLUMNS.map((column) => `${column} = ${column} + excluded.${column}`).join(', ');

// Versions are numbers of the same sequence as elements, compared as strings.
const DEFINITIONS = 'SELECT key, value, CAST(version AS TEXT) FROM definition WHERE kind = ?';

const SQL = {
  findKey: 'SELECT seq, fingerprint FROM dedup WHERE queue = ? AND key = ? AND seen_at > ?',
  putKey: 'INSERT OR REPLACE INTO dedup (queue, key, seq, seen_at, fingerprint) VALUES (?, ?, ?, ?, ?)',
  hasKeys: 'SELECT 1 FROM dedup WHERE queue = ? LIMIT 1',
  forgetKeys:
    'DELETE FROM dedup WHERE (queue, key) IN (SELECT queue, key FROM dedup WHERE seen_at <= ? ORDER BY seen_at LIMIT ?)',
  definition: `${DEFINITIONS} AND key = ?`,
  definitions: DEFINITIONS,
  putDefinition: 'INSERT OR REPLACE INTO definition (kind, key, value, version) VALUES (?, ?, ?, ?)',
  deleteDefinition: 'DELETE FROM definition WHERE kind = ? AND key = ?',
  addCounts: `INSERT INTO stats (queue, grp, ${COLUMNS.join(', ')}) VALUES (?, ?, ${PLACES})
              ON CONFLICT (queue, grp) DO UPDATE SET ${SUMS}`,
  hasCounts: 'SELECT 1 FROM stats WHERE queue = ? LIMIT 1',
  counts: `SELECT grp, ${COLUMNS.join(', ')} FROM stats WHERE queue = ?`,
  forgetCounts: `DELETE FROM stats WHERE queue = :queue AND grp IN (SELECT grp FROM stats WHERE queue = :queue AND grp <> ''
                 ORDER BY ${COLUMNS.join(' + ')} DESC, grp LIMIT -1 OFFSET ${MAX_COUNTED_GROUPS})`,
} as const;

/** The small tables: idempotency keys, definitions, counters. */
export class Records {
  readonly #queues: Queues;
  readonly #windowMs: number;
  readonly #sql: Statements<typeof SQL>;

  constructor(db: DatabaseSync, queues: Queues, windowMs: number) {
    this.#queues = queues;
    this.#windowMs = windowMs;
    this.#sql = prepareAll(db, SQL);
  }

  /** The element that was stored with this idempotency key within the window; null if there is none. */
  seen(queue: WorkerQueue, key: string, now: number): Seen | null {
    return this.#sql.findKey.get(queue.id, key, now - this.#windowMs);
  }

  remember(queue: WorkerQueue, key: string, { seq, fingerprint }: Seen, now: number): void {
    this.#sql.putKey.run(queue.id, key, seq, now, fingerprint);
  }

  hasKeys(queue: WorkerQueue): boolean {
    return this.#sql.hasKeys.value(queue.id) !== null;
  }

  /** Deletes up to `limit` idempotency keys that are past the window. Returns whether there may be more. */
  forgetKeys(now: number, limit: number): boolean {
    return this.#sql.forgetKeys.run(now - this.#windowMs, limit) === limit;
  }

  definition(kind: string, key: string): StoredDefinition | null {
    return this.#sql.definition.arrays<StoredDefinition>(kind, key)[0] ?? null;
  }

  definitions(kind: string): StoredDefinition[] {
    return this.#sql.definitions.arrays(kind);
  }

  /**
   * @param version the new version
   * @returns whether the stored version is the `expected` one, as in the port; if not, nothing changes
   */
  putDefinition(kind: string, key: string, value: string, expected: string | null, version: number): boolean {
    if (expected !== 'any' && (this.definition(kind, key)?.[2] ?? null) !== expected) return false;
    this.#sql.putDefinition.run(kind, key, value, version);
    return true;
  }

  /** @returns whether the definition existed; null if its version is not the `expected` one, so nothing changes */
  deleteDefinition(kind: string, key: string, expected: string): boolean | null {
    const stored = this.definition(kind, key)?.[2] ?? null;
    if (expected !== 'any' && stored !== expected) return null;
    return this.#sql.deleteDefinition.run(kind, key) === 1;
  }

  addStats(entries: readonly CounterEntry[], now: number): void {
    const streams = new Set<WorkerQueue>();
    for (const [name, group, ...counts] of entries) {
      // The namespace's elements may be stored in another engine, so that this file has only counters of the queue.
      const queue = this.#queues.use(name, now);
      if (group !== '') streams.add(queue);
      this.#sql.addCounts.run(queue.id, group, ...counts);
    }
    // If there are too many groups, the counters of the least active ones are deleted.
    for (const { id } of streams) this.#sql.forgetCounts.run({ queue: id });
  }

  /** Counts an event of the engine itself: only it knows when an element moves to a dead-letter queue. */
  countOne(queue: WorkerQueue, group: GroupName, counter: CounterName): void {
    const counts = COUNTER_NAMES.map((name) => (name === counter ? 1 : 0));
    this.#sql.addCounts.run(queue.id, group, ...counts);
  }

  hasCounts(queue: WorkerQueue): boolean {
    return this.#sql.hasCounts.value(queue.id) !== null;
  }

  stats(name: QueueName): StoredCounters[] {
    const queue = this.#queues.find(name);
    return queue === null ? [] : this.#sql.counts.all(queue.id);
  }
}
