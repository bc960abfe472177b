// The PostgreSQL engine. `storage.ts` turns calls of the Storage port into items; `batcher.ts` places them into
// batches, which run as one transaction after another on the main connection. Each kind of item is an operation
// (`operations.ts`) with one SQL statement, which takes its rows as one array per column and returns results by row
// number: `insert.ts`, `take.ts`, `settle.ts`, `scan.ts`, and `queues.ts` for the rest. `sql.ts` has the SQL that
// statements share, `statement.ts` encodes their parameters. `expire.ts` expires leases and elements before a batch.
// `registry.ts` knows the queues and computes ids, `watermark.ts` decides where reads of an index begin, and when at
// its front again, `content.ts` encodes elements. `settings.ts` checks the configuration, `schema.ts` has the tables.
// `link.ts` reconnects a connection (`connection.ts`) to the newest primary (`primary.ts`), and has the auxiliary one,
// which serves everything else: `housekeeping.ts`, `signaller.ts`, counts of streams, and the definitions and counters
// of this file.

import { AffectedQueues } from '../../engine/affected-queues.ts';
import {
  type DefinitionChange,
  type DefinitionStore,
  type StoredDefinition,
  StoredDefinitions,
} from '../../engine/definitions.ts';
import {
  type Engine,
  type EngineOptions,
  type Finding,
  finding,
  type OpenEngine,
} from '../../engine/engine.ts';
import { type Host, hostText } from '../../engine/settings.ts';
import type { Signaller } from '../../engine/signaller.ts';
import {
  BufferedStats,
  COUNTER_NAMES,
  type CounterDeltas,
  type CounterStore,
  countDeadLetters,
  MAX_COUNTED_GROUPS,
  type OnStoredCounters,
  zeroCounters,
} from '../../engine/stats.ts';
import { type GroupName, PLAIN_GROUP } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import type { EventLog } from '../../util/log.ts';
import { Batcher } from './batcher.ts';
import { type Connection, examineServer } from './connection.ts';
import { Ids } from './content.ts';
import { Expirer } from './expire.ts';
import { Housekeeping } from './housekeeping.ts';
import { AuxiliaryConnection, Link } from './link.ts';
import { type Context, DatabaseClock } from './operations.ts';
import { Primary } from './primary.ts';
import { PING } from './queues.ts';
import { Registry } from './registry.ts';
import { examineSchema, prepareSchema } from './schema.ts';
import { readSettings, type Settings } from './settings.ts';
import { PostgresSignaller } from './signaller.ts';
import { int8Array, number, type Query, type Row, type Statement, text, textArray } from './statement.ts';
import { PostgresStorage } from './storage.ts';
import { Prober } from './watermark.ts';

/**
 * The PostgreSQL engine: `postgres://user:password@host:port/database`, one schema, three connections per node.
 * @throws Error for a URL or setting that can never work, before anything is opened
 */
export const open: OpenEngine = (options) => new PostgresEngine(options);

class PostgresEngine implements Engine {
  readonly type = 'postgres';
  readonly url: string;
  readonly storage: PostgresStorage;
  readonly definitions: StoredDefinitions;
  readonly signaller: PostgresSignaller;
  readonly stats: BufferedStats;
  /** Never resolves: if PostgreSQL has lost its data, reconnects fail until an operator has repaired it. */
  readonly failed = new Promise<Error>(() => {});

  readonly #options: EngineOptions;
  readonly #settings: Settings;
  readonly #mainLink: Link;
  readonly #auxiliaryLink: Link;
  readonly #listenerLink: Link;
  readonly #batcher: Batcher;
  readonly #context: Context;
  #stopped: Promise<void> | null = null;

  constructor(options: EngineOptions) {
    const { clock, log, namespaces, dedupWindowMs } = options;
    this.url = options.url;
    this.#options = options;
    this.#settings = readSettings(options);
    const parts = { clock, log, primary: new Primary() };
    this.#mainLink = new Link(this.#settings, 'main', parts, {
      prepare: (connection) => this.#prepareMain(connection),
      onReconnected: () => this.#batcher.resume(),
    });
    this.#auxiliaryLink = new Link(this.#settings, 'second', parts, {});
    const auxiliary = new AuxiliaryConnection(this.#auxiliaryLink, clock);
    const channel = `${this.#settings.schema}_signals`;
    this.#listenerLink = new Link(this.#settings, 'listener', parts, {
      prepare: (connection) => connection.run(`LISTEN ${channel}`),
      onReconnected: () => this.definitions.notifyMissed(),
      onNotification: (_channel, payload) => this.signaller.receive(payload),
    });
    this.signaller = new PostgresSignaller({
      auxiliary,
      listener: this.#listenerLink,
      channel,
      clock,
      log,
    });
    this.stats = new BufferedStats(new PostgresCounters(auxiliary), clock, log);
    this.definitions = openDefinitions(auxiliary, this.signaller, log);

    const databaseClock = new DatabaseClock(clock);
    const registry = new Registry(namespaces, databaseClock);
    const affected = new AffectedQueues();
    const context = {
      ids: new Ids(),
      registry,
      clock: databaseClock,
      prober: new Prober(auxiliary, clock, log),
      dedupWindow: String(dedupWindowMs),
      affected,
      onDeadLetters: (queue: QueueKey, group: GroupName, to: string, count: number) => {
        const target = { queue: { ns: queue.ns, name: to }, groups: registry.defaultGroups(queue) };
        affected.note(target.queue);
        countDeadLetters(this.stats, { queue, group }, target, count);
      },
    };
    this.#context = { ...context, expirer: new Expirer(context, log) };
    const { dedupWindow } = context;
    const housekeeping = new Housekeeping(auxiliary, {
      namespaces,
      registry,
      clock: databaseClock,
      dedupWindow,
      log,
    });
    this.#batcher = new Batcher({
      clock,
      link: this.#mainLink,
      registry,
      expirer: this.#context.expirer,
      onBatch: () => housekeeping.noteBatch(),
    });
    this.storage = new PostgresStorage(this.#context, {
      batcher: this.#batcher,
      housekeeping,
      auxiliary,
      clock,
    });
  }

  async start(): Promise<void> {
    try {
      // The main connection creates the schema that the others use.
      await this.#mainLink.start();
      await Promise.all([this.#auxiliaryLink.start(), this.#listenerLink.start()]);
    } catch (error) {
      await this.stop();
      throw error;
    }
    this.signaller.start();
  }

  stop(): Promise<void> {
    this.#stopped ??= this.#stopOnce();
    return this.#stopped;
  }

  ping(): Promise<void> {
    return this.storage.ping();
  }

  /**
   * Works on a database without a schema, and creates none. Opens two connections, since only the second one shows that
   * a pooler shares their sessions.
   */
  async examine(): Promise<readonly Finding[]> {
    const check = this.#settings.maskedUrl;
    const findings: Finding[] = [];
    const examineAll = async (connection: Connection): Promise<void> => {
      findings.push(...(await examineServer(connection, check, () => this.#options.clock.now())));
      findings.push(await examineSchema(connection, this.#settings));
    };
    const links = [examineAll, undefined].map(
      (prepare) => new Link(this.#settings, 'doctor', this.#options, prepare && { prepare }),
    );
    try {
      for (const link of links) await link.start();
      findings.push(...(await this.#examineHosts()));
      return findings;
    } finally {
      await Promise.all(links.map((link) => link.stop()));
    }
  }

  /** Reports hosts that all accept writes, but are not one server: a node uses the first one that it reaches. */
  async #examineHosts(): Promise<readonly Finding[]> {
    const { hosts, maskedUrl } = this.#settings;
    if (hosts.length === 1) return [];
    const found = await Promise.all(hosts.map((host) => this.#primaryAt(host)));
    // Two addresses of one server have the same key.
    const primaries = new Map(found.filter((entry) => entry !== null));
    if (primaries.size < 2) return [];
    return [
      finding(
        maskedUrl,
        'error',
        `its hosts are different primaries: ${[...primaries.values()].join(', ')}`,
        'stop the one that was replaced, and make it a standby of the other: what nodes store there is lost',
      ),
    ];
  }

  /** The identity of the primary at a host, and its description; null: there is none, or it does not tell. */
  async #primaryAt(host: Host): Promise<[key: string, description: string] | null> {
    const link = new Link({ ...this.#settings, hosts: [host] }, 'doctor', this.#options);
    try {
      await link.start();
      const { connection } = link;
      const timeline = connection?.timeline ?? null;
      if (connection === null || timeline === null) return null;
      // Two standbys that were promoted, and a copy of a server, may have the same timeline.
      const [[startedAt = null] = []] = await connection.query(STARTED_AT, []);
      return [JSON.stringify({ ...timeline, startedAt }), `${hostText(host)} on timeline ${timeline.number}`];
    } catch {
      // A standby, or a server that cannot be reached: no node uses it now.
      return null;
    } finally {
      await link.stop();
    }
  }

  async #stopOnce(): Promise<void> {
    await this.#batcher.stop();
    await this.signaller.stop();
    await this.stats.stop(this.#auxiliaryLink.connection !== null);
    await Promise.all([this.#mainLink, this.#auxiliaryLink, this.#listenerLink].map((link) => link.stop()));
  }

  /** After a failover or a restore, the store may be another one: discards what this node remembers about it. */
  async #prepareMain(connection: Connection): Promise<void> {
    const { ids, clock, expirer, registry } = this.#context;
    expirer.reset();
    registry.reset();
    ids.setTag((await prepareSchema(connection, this.#settings)).tag);
    const [row = []] = await connection.query(PING, []);
    clock.update(number(row, 0));
  }
}

const STARTED_AT: Statement = { name: 'started at', text: 'SELECT pg_postmaster_start_time()' };

// Definitions.

const GET_DEFINITION: Statement = {
  name: 'definition',
  text: 'SELECT key, value, version FROM definition WHERE kind = $1 AND key = $2',
};
const LIST_DEFINITIONS: Statement = {
  name: 'definitions',
  text: 'SELECT key, value, version FROM definition WHERE kind = $1',
};
const PUT_ANY_DEFINITION: Statement = {
  name: 'put definition',
  text: `INSERT INTO definition VALUES ($1, $2, $3, nextval('definition_version'))
    ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value, version = excluded.version RETURNING version`,
};
const PUT_NEW_DEFINITION: Statement = {
  name: 'put new definition',
  text: `INSERT INTO definition VALUES ($1, $2, $3, nextval('definition_version')) ON CONFLICT DO NOTHING RETURNING version`,
};
const PUT_NEXT_DEFINITION: Statement = {
  name: 'put next definition',
  text: `UPDATE definition SET value = $3, version = nextval('definition_version')
    WHERE kind = $1 AND key = $2 AND version::text = $4 RETURNING version`,
};
const DELETE_DEFINITION: Statement = {
  name: 'delete definition',
  text: 'DELETE FROM definition WHERE kind = $1 AND key = $2 AND ($3::text IS NULL OR version::text = $3) RETURNING key',
};

/** The topic of changes; topics of front ends do not begin with a dot. */
const DEFINITIONS_TOPIC = '.definitions';

/** Stores definitions in the table `definition`. Changes are signaled to all nodes, including this one. */
function openDefinitions(
  auxiliary: AuxiliaryConnection,
  signaller: Signaller,
  log: EventLog,
): StoredDefinitions {
  const store: DefinitionStore = {
    get: async (kind, key) => {
      const [row] = await auxiliary.query({ statement: GET_DEFINITION, values: [kind, key] });
      return row === undefined ? null : storedDefinition(row);
    },
    list: async (kind) =>
      (await auxiliary.query({ statement: LIST_DEFINITIONS, values: [kind] })).map(storedDefinition),
    put: async (kind, key, value, expected) => {
      const values = [kind, key, value];
      const [row] = await auxiliary.change(
        expected === 'any'
          ? { statement: PUT_ANY_DEFINITION, values }
          : expected === null
            ? { statement: PUT_NEW_DEFINITION, values }
            : { statement: PUT_NEXT_DEFINITION, values: [...values, expected] },
      );
      return row === undefined ? null : text(row, 0);
    },
    delete: async (kind, key, expected) => {
      const isAny = expected === 'any';
      const [deleted] = await auxiliary.change({
        statement: DELETE_DEFINITION,
        values: [kind, key, isAny ? null : expected],
      });
      return deleted !== undefined || (isAny ? false : null);
    },
  };
  const definitions = new StoredDefinitions(store, log, ({ kind, key }) =>
    signaller.publish(DEFINITIONS_TOPIC, { kind, key }),
  );
  signaller.subscribe(DEFINITIONS_TOPIC, (change) =>
    definitions.notify(change as unknown as DefinitionChange),
  );
  return definitions;
}

function storedDefinition(row: Row): StoredDefinition {
  return [text(row, 0), text(row, 1), text(row, 2)];
}

// Counters.

const COUNTER_COLUMNS = COUNTER_NAMES.join(', ');

/** Sorted, so that two nodes that count the same queues cannot deadlock. */
const ADD_COUNTERS: Statement = {
  name: 'add stats',
  text: `INSERT INTO stats AS s (ns, queue, grp, ${COUNTER_COLUMNS})
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], ${COUNTER_NAMES.map((_, index) => `$${index + 4}::bigint[]`).join(', ')})
      AS u(ns, queue, grp, ${COUNTER_COLUMNS}) ORDER BY ns, queue, grp
    ON CONFLICT (ns, queue, grp) DO UPDATE SET ${COUNTER_NAMES.map((name) => `${name} = s.${name} + excluded.${name}`).join(', ')}`,
};

const READ_COUNTERS: Statement = {
  name: 'stats',
  text: `SELECT u.ord, s.grp, ${COUNTER_COLUMNS} FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(ns, name, ord)
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
class PostgresCounters implements CounterStore {
  readonly isOrdered = true;
  readonly queuesPerRead = Number.POSITIVE_INFINITY;
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
    await this.#auxiliary.change(addCountersQuery(deltas));
    await this.#deleteLeastCounted(deltas);
  }

  async read(queues: readonly QueueKey[], onFound: OnStoredCounters): Promise<void> {
    for (const row of await this.#auxiliary.query({
      statement: READ_COUNTERS,
      values: queueColumns(queues),
    })) {
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
      .change({ statement: DELETE_LEAST_COUNTED, values: queueColumns(queues) })
      .catch(() => {});
  }
}

function addCountersQuery(deltas: readonly CounterDeltas[]): Query {
  const rows = deltas.flatMap(({ queue, groups }) =>
    [...groups].map(([group, counters]) => ({ queue, group, counters })),
  );
  return {
    statement: ADD_COUNTERS,
    values: [
      ...queueColumns(rows.map(({ queue }) => queue)),
      textArray(rows.map(({ group }) => group)),
      ...COUNTER_NAMES.map((name) => int8Array(rows.map(({ counters }) => counters[name]))),
    ],
  };
}

/** The parameters for namespaces and names. */
function queueColumns(queues: readonly QueueKey[]): [Buffer, Buffer] {
  return [textArray(queues.map(({ ns }) => ns)), textArray(queues.map(({ name }) => name))];
}
