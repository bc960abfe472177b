import type { CounterDeltas, CounterStore, OnStoredCounters } from '../../engine/buffered-stats.ts';
import { COUNTER_NAMES, MAX_COUNTED_GROUPS, zeroCounters } from '../../engine/stats.ts';
import { PLAIN_GROUP } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import type { AuxiliaryConnection } from './link.ts';
import { int8Array, number, type Query, type Statement, text, textArray } from './statement.ts';

const COLUMNS = COUNTER_NAMES.join(', ');

/** Sorted, so that two nodes that count the same queues cannot deadlock. */
const ADD_COUNTERS: Statement = {
  name: 'add stats',
  text: `INSERT INTO stats AS s (ns, queue, grp, ${COLUMNS})
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], ${COUNTER_NAMES.map((_, index) => `$${index + 4}::bigint[]`).join(', ')})
      AS u(ns, queue, grp, ${COLUMNS}) ORDER BY ns, queue, grp
    ON CONFLICT (ns, queue, grp) DO UPDATE SET ${COUNTER_NAMES.map((name) => `${name} = s.${name} + excluded.${name}`).join(', ')}`,
};

const READ_COUNTERS: Statement = {
  name: 'stats',
  text: `SELECT u.ord, s.grp, ${COLUMNS} FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(ns, name, ord)
    JOIN stats s ON s.ns = u.ns AND s.queue = u.name`,
};

/** Deletes the groups with the lowest counts of queues with too many groups; skips rows that are being updated. */
const DELETE_LEAST_COUNTED: Statement = {
  name: 'forget stats',
  text: `WITH x AS MATERIALIZED (SELECT s.ns, s.queue, s.grp, row_number() OVER (
        PARTITION BY s.ns, s.queue ORDER BY ${COUNTER_NAMES.join(' + ')} DESC, s.grp) AS place
      FROM unnest($1::text[], $2::text[]) AS u(ns, name) JOIN stats s ON s.ns = u.ns AND s.queue = u.name AND s.grp <> ''),
    l AS MATERIALIZED (SELECT s.ctid AS tid FROM x JOIN stats s ON s.ns = x.ns AND s.queue = x.queue AND s.grp = x.grp
      WHERE x.place > ${MAX_COUNTED_GROUPS} FOR UPDATE OF s SKIP LOCKED)
    DELETE FROM stats s USING l WHERE s.ctid = l.tid`,
};

/** Stores counters in the table `stats` on the auxiliary connection, which keeps the order of calls. */
export class PostgresCounters implements CounterStore {
  readonly isOrdered = true;
  /** A statement for 100,000 took more than the 3 s that it may take. */
  readonly groupsPerWrite = 2_000;
  readonly #auxiliary: AuxiliaryConnection;
  /** Queues whose groups were counted since the last check for too many groups, and the number of such counts. */
  readonly #streams = new Map<string, QueueKey>();
  #counted = 0;

  constructor(auxiliary: AuxiliaryConnection) {
    this.#auxiliary = auxiliary;
  }

  async write(deltas: readonly CounterDeltas[]): Promise<void> {
    await this.#auxiliary.change(addQuery(deltas));
    await this.#deleteLeastCounted(deltas);
  }

  async read(queues: readonly QueueKey[], onFound: OnStoredCounters): Promise<void> {
    for (const row of await this.#auxiliary.query({ statement: READ_COUNTERS, values: columnsOf(queues) })) {
      const counters = zeroCounters();
      for (const [index, name] of COUNTER_NAMES.entries()) counters[name] = number(row, index + 2);
      onFound(number(row, 0) - 1, text(row, 1), counters);
    }
  }

  /** Runs only after so many counts of groups that a queue may have too many, not every second. */
  async #deleteLeastCounted(deltas: readonly CounterDeltas[]): Promise<void> {
    for (const { queue, groups } of deltas) {
      const counted = groups.has(PLAIN_GROUP) ? groups.size - 1 : groups.size;
      if (counted === 0) continue;
      this.#streams.set(JSON.stringify([queue.ns, queue.name]), queue);
      this.#counted += counted;
    }
    if (this.#counted < MAX_COUNTED_GROUPS) return;
    const queues = [...this.#streams.values()];
    this.#streams.clear();
    this.#counted = 0;
    // Too many groups do no harm for a while, and a failure here must not make the caller write its counts again.
    await this.#auxiliary
      .change({ statement: DELETE_LEAST_COUNTED, values: columnsOf(queues) })
      .catch(() => {});
  }
}

function addQuery(deltas: readonly CounterDeltas[]): Query {
  const rows = deltas.flatMap(({ queue, groups }) =>
    [...groups].map(([group, counters]) => ({ queue, group, counters })),
  );
  return {
    statement: ADD_COUNTERS,
    values: [
      ...columnsOf(rows.map(({ queue }) => queue)),
      textArray(rows.map(({ group }) => group)),
      ...COUNTER_NAMES.map((name) => int8Array(rows.map(({ counters }) => counters[name]))),
    ],
  };
}

/** The parameters for namespaces and names. */
function columnsOf(queues: readonly QueueKey[]): [Buffer, Buffer] {
  return [textArray(queues.map(({ ns }) => ns)), textArray(queues.map(({ name }) => name))];
}
