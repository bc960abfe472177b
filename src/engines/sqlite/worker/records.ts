import type { DatabaseSync } from 'node:sqlite';
import { COUNTER_NAMES, type CounterName, MAX_COUNTED_GROUPS } from '../../../engine/stats.ts';
import type { GroupName } from '../../../model/element.ts';
import type { DefinitionRow, Fields, QueueName } from '../protocol.ts';
import type { Queue } from './names.ts';
import type { Bodies } from './operations.ts';
import { prepareAll, prepareArrays, type Statements } from './statements.ts';
import type { Store } from './store.ts';

const COLUMNS = COUNTER_NAMES.map((name) => `"${name}"`);

/** The element that a dedup key stored. */
export interface Seen {
  readonly seq: number;
  readonly fingerprint: string | null;
}

const PLACES = COLUMNS.map(() => '?').join(', ');
const SUMS = COLUMNS.map((column) => `${column} = ${column} + excluded.${column}`).join(', ');

const SQL = {
  findKey: 'SELECT seq, fingerprint FROM dedup WHERE queue = ? AND key = ? AND seen_at > ?',
  putKey: 'INSERT OR REPLACE INTO dedup (queue, key, seq, seen_at, fingerprint) VALUES (?, ?, ?, ?, ?)',
  forgetKeys:
    'DELETE FROM dedup WHERE (queue, key) IN (SELECT queue, key FROM dedup WHERE seen_at <= ? ORDER BY seen_at LIMIT ?)',
  putDefinition: 'INSERT OR REPLACE INTO definition (kind, key, value, version) VALUES (?, ?, ?, ?)',
  deleteDefinition: 'DELETE FROM definition WHERE kind = ? AND key = ?',
  addCounts: `INSERT INTO stats (queue, grp, ${COLUMNS.join(', ')}) VALUES (?, ?, ${PLACES})
              ON CONFLICT (queue, grp) DO UPDATE SET ${SUMS}`,
  forgetCounts: `DELETE FROM stats WHERE queue = :queue AND grp IN (SELECT grp FROM stats WHERE queue = :queue AND grp <> ''
                 ORDER BY ${COLUMNS.join(' + ')} DESC, grp LIMIT -1 OFFSET ${MAX_COUNTED_GROUPS})`,
} as const;

// Versions are numbers of the same sequence as elements, and compared as texts.
const DEFINITIONS = 'SELECT key, value, CAST(version AS TEXT) FROM definition WHERE kind = ?';
const ARRAYS_SQL = {
  definition: `${DEFINITIONS} AND key = ?`,
  definitions: `${DEFINITIONS} ORDER BY key`,
  counts: `SELECT grp, ${COLUMNS.join(', ')} FROM stats WHERE queue = ?`,
} as const;

/** Small tables that are no elements: dedup keys, definitions, counters. */
export class Records {
  readonly #windowMs: number;
  readonly #sql: Statements<typeof SQL>;
  readonly #arrays: Statements<typeof ARRAYS_SQL>;

  constructor(db: DatabaseSync, windowMs: number) {
    this.#windowMs = windowMs;
    this.#sql = prepareAll(db, SQL);
    this.#arrays = prepareArrays(db, ARRAYS_SQL);
  }

  /** The element that this dedup key stored, within the window. */
  seen(queue: Queue, key: string, now: number): Seen | null {
    return (
      (this.#sql.findKey.get(queue.id, key, now - this.#windowMs) as unknown as Seen | undefined) ?? null
    );
  }

  remember(queue: Queue, key: string, { seq, fingerprint }: Seen, now: number): void {
    this.#sql.putKey.run(queue.id, key, seq, now, fingerprint);
  }

  /** Forgets up to `limit` dedup keys that are past the window. Returns whether there may be more. */
  forgetKeys(now: number, limit: number): boolean {
    return Number(this.#sql.forgetKeys.run(now - this.#windowMs, limit).changes) === limit;
  }

  definition(kind: string, key: string): DefinitionRow | null {
    return (this.#arrays.definition.get(kind, key) as unknown as DefinitionRow | undefined) ?? null;
  }

  definitions(kind: string): DefinitionRow[] {
    return this.#arrays.definitions.all(kind) as unknown as DefinitionRow[];
  }

  putDefinition(kind: string, key: string, value: string, version: number): void {
    this.#sql.putDefinition.run(kind, key, value, version);
  }

  deleteDefinition(kind: string, key: string): boolean {
    return this.#sql.deleteDefinition.run(kind, key).changes === 1;
  }

  /** @param counts in the order of `COUNTER_NAMES` */
  addCounts(queue: Queue, group: GroupName, counts: readonly number[]): void {
    this.#sql.addCounts.run(queue.id, group, ...counts);
  }

  /** Counts one of what the engine does itself: only it knows when an element is moved to a dead-letter queue. */
  countOne(queue: Queue, group: GroupName, counter: CounterName): void {
    this.addCounts(
      queue,
      group,
      COUNTER_NAMES.map((name) => (name === counter ? 1 : 0)),
    );
  }

  /** Forgets the groups that were counted the least, if there are too many. */
  forgetLeastCounted(queue: Queue): void {
    this.#sql.forgetCounts.run({ queue: queue.id });
  }

  counts(queue: Queue): Fields[] {
    return this.#arrays.counts.all(queue.id) as unknown as Fields[];
  }
}

export function definitionPut(
  { records, ids }: Store,
  _: Bodies,
  kind: string,
  key: string,
  value: string,
  expected: string | null,
): string | null {
  if (expected !== 'any' && (records.definition(kind, key)?.[2] ?? null) !== expected) return null;
  const version = ids.next();
  records.putDefinition(kind, key, value, version);
  return String(version);
}

export function definitionDelete(
  { records }: Store,
  _: Bodies,
  kind: string,
  key: string,
  expected: string,
): boolean | null {
  const stored = records.definition(kind, key)?.[2] ?? null;
  if (expected !== 'any' && stored !== expected) return null;
  return records.deleteDefinition(kind, key);
}

export function statsAdd({ records, names, now }: Store, _: Bodies, entries: Fields): null {
  const streams = new Set<Queue>();
  const stride = 2 + COUNTER_NAMES.length;
  for (let at = 0; at < entries.length; at += stride) {
    // Statistics of a namespace that is stored elsewhere, or of another collection, are all that is known of its queues.
    const queue = names.use(entries[at] as QueueName, now);
    const group = entries[at + 1] as string;
    if (group !== '') streams.add(queue);
    records.addCounts(queue, group, entries.slice(at + 2, at + stride) as number[]);
  }
  for (const queue of streams) records.forgetLeastCounted(queue);
  return null;
}

export function statsRead({ records, names }: Store, _: Bodies, name: QueueName): Fields {
  const queue = names.find(name);
  return queue === null ? [] : records.counts(queue).flat();
}
