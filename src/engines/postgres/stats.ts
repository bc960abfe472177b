import type { EngineLog } from '../../engine/engine.ts';
import {
  COUNTER_NAMES,
  type Counters,
  MOST_COUNTED_GROUPS,
  type Stats,
  zeroCounters,
} from '../../engine/stats.ts';
import { NOT_REACHABLE, unavailable } from '../../engine/store-failures.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import { type GroupName, PLAIN_GROUP } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import { ToldOnce } from '../../model/told-once.ts';
import { int8Array, textArray } from './arrays.ts';
import type { Side } from './side.ts';
import { number, type Query, type Statement, text } from './statement.ts';

/** How long counts may stay in memory only. A crash loses at most these. */
const FLUSH_AFTER_MS = 1000;

/** Reads without an answer, at most: each is small, so a count bounds their memory. */
const MOST_READS = 20_000;

const COLUMNS = COUNTER_NAMES.join(', ');

/** Sorted, so that two nodes that count the same queues do not wait for each other in a circle. */
const ADD: Statement = {
  name: 'add stats',
  text: `INSERT INTO stats AS s (ns, queue, grp, ${COLUMNS})
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], ${COUNTER_NAMES.map((_, index) => `$${index + 4}::bigint[]`).join(', ')})
      AS u(ns, queue, grp, ${COLUMNS}) ORDER BY ns, queue, grp
    ON CONFLICT (ns, queue, grp) DO UPDATE SET ${COUNTER_NAMES.map((name) => `${name} = s.${name} + excluded.${name}`).join(', ')}`,
};

const READ: Statement = {
  name: 'stats',
  text: `SELECT u.ord, s.grp, ${COLUMNS} FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(ns, name, ord)
    JOIN stats s ON s.ns = u.ns AND s.queue = u.name`,
};

/** Forgets, of queues with too many groups, those that were counted the least; not one that somebody counts just now. */
const FORGET_LEAST: Statement = {
  name: 'forget stats',
  text: `WITH x AS MATERIALIZED (SELECT s.ns, s.queue, s.grp, row_number() OVER (
        PARTITION BY s.ns, s.queue ORDER BY ${COUNTER_NAMES.join(' + ')} DESC, s.grp) AS place
      FROM unnest($1::text[], $2::text[]) AS u(ns, name) JOIN stats s ON s.ns = u.ns AND s.queue = u.name AND s.grp <> ''),
    l AS MATERIALIZED (SELECT s.ctid AS tid FROM x JOIN stats s ON s.ns = x.ns AND s.queue = x.queue AND s.grp = x.grp
      WHERE x.place > ${MOST_COUNTED_GROUPS} FOR UPDATE OF s SKIP LOCKED)
    DELETE FROM stats s USING l WHERE s.ctid = l.tid`,
};

type Counts = Map<GroupName, Counters>;

/** Somebody who wants a queue's counters. */
interface Reader {
  readonly queue: QueueKey;
  readonly resolve: (counts: Counts) => void;
  readonly reject: (error: unknown) => void;
}

interface Entry {
  readonly queue: QueueKey;
  readonly group: GroupName;
  readonly counters: Counters;
}

/** The Stats port: counts gather here and leave once a second, so counting costs no write. */
export class PostgresStats implements Stats {
  readonly #side: Side;
  readonly #clock: Clock;
  readonly #told: ToldOnce;
  #buffer = new Map<string, Map<string, Map<GroupName, Entry>>>();
  readonly #flushes = new Set<Promise<unknown>>();
  /** Of this turn. */
  #readers: Reader[] = [];
  /** Those of earlier turns, too. */
  #reads = 0;
  /** Queues with groups that were counted since the last look for too many, and how many such counts there were. */
  readonly #streams = new Map<string, QueueKey>();
  #counted = 0;
  #cancelFlush: CancelTimer | null = null;
  #stopped = false;

  constructor(side: Side, clock: Clock, log: EngineLog) {
    this.#side = side;
    this.#clock = clock;
    this.#told = new ToldOnce({
      failed: (error) => log.warn({ err: error }, 'statistics could not be stored'),
      worksAgain: () => log.info({}, 'statistics are stored again'),
    });
  }

  add(queue: QueueKey, group: GroupName, deltas: Partial<Counters>): void {
    const entry = this.#entry(queue, group);
    if (entry === null) return;
    addCounters(entry.counters, deltas);
    if (this.#stopped) return;
    this.#cancelFlush ??= this.#clock.after(FLUSH_AFTER_MS, () => {
      this.flush().catch((error: unknown) => this.#told.failed(error));
    });
  }

  /** Reads of the same turn, as a listing makes them, are one query. */
  read(queue: QueueKey): Promise<ReadonlyMap<GroupName, Counters>> {
    return new Promise((resolve, reject) => {
      if (this.#reads >= MOST_READS) {
        reject(unavailable(NOT_REACHABLE, new Error('Too many reads wait.')));
        return;
      }
      this.#reads += 1;
      if (this.#readers.length === 0) setImmediate(() => void this.#readAll());
      this.#readers.push({ queue, resolve, reject });
    });
  }

  async flush(): Promise<void> {
    this.#stopTimer();
    const entries = [...this.#buffer.values()].flatMap((queues) =>
      [...queues.values()].flatMap((groups) => [...groups.values()]),
    );
    this.#buffer = new Map();
    if (entries.length > 0) {
      const flush = this.#store(entries);
      this.#flushes.add(flush);
      void flush.finally(() => this.#flushes.delete(flush)).catch(() => {});
    }
    await Promise.all(this.#flushes);
  }

  /** What is still buffered is lost from here on: the one thing that a crash may lose, too. */
  stop(): void {
    this.#stopped = true;
    this.#stopTimer();
  }

  async #readAll(): Promise<void> {
    const readers = this.#readers;
    this.#readers = [];
    try {
      const found = await this.#counts(readers.map(({ queue }) => queue));
      for (const [place, { resolve }] of readers.entries()) resolve(found[place] ?? new Map());
    } catch (error) {
      for (const { reject } of readers) reject(error);
    } finally {
      this.#reads -= readers.length;
    }
  }

  async #counts(queues: readonly QueueKey[]): Promise<Counts[]> {
    const found = queues.map((queue) => this.#buffered(queue));
    const values = [
      textArray(queues.map(({ ns }) => Buffer.from(ns))),
      textArray(queues.map(({ name }) => Buffer.from(name))),
    ];
    // A flush that is under way was sent before, on the same connection: the answer includes it.
    for (const row of await this.#side.ask({ statement: READ, values })) {
      const counts = found[number(row, 0) - 1];
      const group = text(row, 1);
      const stored = zeroCounters();
      for (const [index, name] of COUNTER_NAMES.entries()) stored[name] = number(row, index + 2);
      addCounters(stored, counts?.get(group) ?? {});
      counts?.set(group, stored);
    }
    return found;
  }

  #buffered({ ns, name }: QueueKey): Counts {
    const groups = this.#buffer.get(ns)?.get(name)?.values() ?? [];
    return new Map([...groups].map(({ group, counters }) => [group, { ...counters }]));
  }

  #stopTimer(): void {
    this.#cancelFlush?.();
    this.#cancelFlush = null;
  }

  async #store(entries: readonly Entry[]): Promise<void> {
    try {
      await this.#side.change(addQuery(entries));
      this.#told.worked();
      await this.#forgetLeast(entries);
    } catch (error) {
      // Counts that are surely not stored wait for the next time; others may be, and are not counted twice.
      const isLost = error instanceof QuaysideError && error.code === 'outcome-unknown';
      if (!isLost) for (const { queue, group, counters } of entries) this.add(queue, group, counters);
      throw error;
    }
  }

  /** Whoever counts so many groups may have made too many: looking is worth while then, and not every second. */
  async #forgetLeast(entries: readonly Entry[]): Promise<void> {
    for (const { queue, group } of entries) {
      if (group === PLAIN_GROUP) continue;
      this.#streams.set(JSON.stringify([queue.ns, queue.name]), queue);
      this.#counted += 1;
    }
    if (this.#counted < MOST_COUNTED_GROUPS) return;
    const queues = [...this.#streams.values()];
    this.#streams.clear();
    this.#counted = 0;
    const values = [
      textArray(queues.map(({ ns }) => Buffer.from(ns))),
      textArray(queues.map(({ name }) => Buffer.from(name))),
    ];
    // Too many for a while are no harm, and a failure here must not count what was stored again.
    await this.#side.change({ statement: FORGET_LEAST, values }).catch(() => {});
  }

  #entry(queue: QueueKey, group: GroupName): Entry | null {
    const queues = child(this.#buffer, queue.ns, () => new Map<string, Map<GroupName, Entry>>());
    const groups = child(queues, queue.name, () => new Map<GroupName, Entry>());
    if (groups.size > MOST_COUNTED_GROUPS && group !== PLAIN_GROUP && !groups.has(group)) return null;
    return child(groups, group, () => ({ queue, group, counters: zeroCounters() }));
  }
}

function addQuery(entries: readonly Entry[]): Query {
  return {
    statement: ADD,
    values: [
      textArray(entries.map(({ queue }) => Buffer.from(queue.ns))),
      textArray(entries.map(({ queue }) => Buffer.from(queue.name))),
      textArray(entries.map(({ group }) => Buffer.from(group))),
      ...COUNTER_NAMES.map((name) => int8Array(entries.map(({ counters }) => counters[name]))),
    ],
  };
}

function child<V>(map: Map<string, V>, key: string, make: () => V): V {
  let value = map.get(key);
  if (value === undefined) {
    value = make();
    map.set(key, value);
  }
  return value;
}

function addCounters(to: Counters, deltas: Partial<Counters>): void {
  for (const name of COUNTER_NAMES) to[name] += deltas[name] ?? 0;
}
