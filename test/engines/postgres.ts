import assert from 'node:assert/strict';
import pg from 'pg';
import type { Engine } from '../../src/engine/engine.ts';
import { open } from '../../src/engines/postgres/index.ts';
import { type CancelTimer, type Clock, systemClock } from '../../src/util/clock.ts';
import type { EventLog } from '../../src/util/log.ts';
import type {
  CrashMoment,
  DurableTestEngine,
  EngineUnderTest,
  OpenTestEngine,
  TestEngine,
} from '../engines.ts';
import { FakeClock, patient } from '../support/clock.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { RUN_SERVERS, startSharedPostgres, urlOfShared } from '../support/run-servers.ts';
import { until } from '../support/until.ts';
import { PostgresProxy } from './postgres-proxy.ts';

const DAY_MS = 24 * 3600 * 1000;

export const SILENT: EventLog = { info: () => {}, warn: () => {} };

let own: Promise<PostgresServer> | null = null;
let schemas = 0;

/** One server shared by all tests of this process, also for tests that change or count something on the server. */
export function sharedServer(): Promise<PostgresServer> {
  own ??= startSharedPostgres();
  return own;
}

export const sharedPostgres = urlOfShared(RUN_SERVERS.postgres, async () => (await sharedServer()).url());

/** A schema name that no other engine of this process uses. */
export function freshSchema(): string {
  schemas += 1;
  return `test_${process.pid}_${schemas}`;
}

/** SQL that stops a schema's clock at a moment. Nodes read it with their next call. @param now ms since 1970 */
export function clockAt(schema: string, now: number): string {
  return `CREATE OR REPLACE FUNCTION ${schema}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT ${now}::bigint'`;
}

/**
 * Makes PostgreSQL count at once what the sessions of nodes read: by default, a session reports it at most once a
 * second. A main session reports with each statement that reads the clock, the second one with each `delete` of a
 * definition, even if there is none. Call it before the statements of the node are planned. Also stops autovacuum, which
 * would be counted as well (for a million rows, it reads 59,000 pages), and whose statistics change plans.
 */
export async function reportAtOnce(server: Pick<PostgresServer, 'url'>, schema: string): Promise<void> {
  await runSql(
    server,
    `CREATE OR REPLACE FUNCTION ${schema}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
      SELECT pg_stat_force_next_flush(); SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;
    CREATE FUNCTION ${schema}.report() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      PERFORM pg_stat_force_next_flush(); RETURN NULL; END $$;
    CREATE TRIGGER reporting BEFORE DELETE ON ${schema}.definition FOR EACH STATEMENT EXECUTE FUNCTION ${schema}.report();
    DO $$ DECLARE name text; BEGIN
      FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '${schema}' LOOP
        EXECUTE format('ALTER TABLE ${schema}.%I SET (autovacuum_enabled = off)', name);
      END LOOP;
    END $$`,
  );
}

/** Resolves when PostgreSQL has counted what this node's sessions have read, see {@link reportAtOnce}. */
export async function reported(engine: Engine): Promise<void> {
  await Promise.all([engine.ping(), engine.definitions.delete('token', 'of nobody', 'any')]);
}

/** Executes SQL in a new session. */
export async function runSql(server: Pick<PostgresServer, 'url'>, sql: string): Promise<pg.QueryResult> {
  const client = new pg.Client({ connectionString: server.url() });
  await client.connect();
  try {
    return await client.query(sql);
  } finally {
    await client.end();
  }
}

/** The system's clock, or another one that moves by itself; counts the timers that are pending. */
export class CountingClock implements Clock {
  readonly #clock: Clock;
  #pending = 0;

  constructor(clock: Clock = systemClock) {
    this.#clock = clock;
  }

  get pending(): number {
    return this.#pending;
  }

  now(): number {
    return this.#clock.now();
  }

  monotonic(): number {
    return this.#clock.monotonic();
  }

  after(delayMs: number, run: () => void): CancelTimer {
    let isPending = true;
    this.#pending += 1;
    const end = (): void => {
      if (isPending) this.#pending -= 1;
      isPending = false;
    };
    const cancel = this.#clock.after(delayMs, () => {
      end();
      run();
    });
    return () => {
      cancel();
      end();
    };
  }
}

export const POSTGRES: EngineUnderTest = {
  name: 'postgres',
  type: 'postgres',
  open: async (options) => {
    const opened = await openAt(await sharedPostgres(), setUp(options));
    return { ...opened, close: () => closeSound(opened, opened.stop) };
  },
  openDurable: (options) => openDurable(setUp(options)),
};

interface SetUp extends OpenTestEngine {
  readonly schema: string;
  readonly clock: FakeClock;
}

const setUp = (options: OpenTestEngine): SetUp => ({
  ...options,
  schema: freshSchema(),
  clock: new FakeClock(),
});

interface Opened extends Omit<TestEngine, 'close'> {
  readonly schema: string;
  /** A session of the test. */
  readonly control: pg.Client;
  /** Stops the engine. Its data remain. */
  readonly stop: () => Promise<void>;
}

/**
 * Starts an engine. Its time is PostgreSQL's: in tests, the schema's clock function returns the time of the fake clock.
 * Timeouts use the real clock, with patience for a busy machine.
 * @param url of the server, or of a proxy in front of it
 */
async function openAt(
  url: string,
  { namespaces, dedupWindowMs = DAY_MS, schema, clock }: SetUp,
): Promise<Opened> {
  const timers = new CountingClock(patient(systemClock));
  const engine = open({
    url,
    dataDir: '',
    namespaces,
    clock: timers,
    dedupWindowMs,
    settings: { schema },
    log: SILENT,
  });
  await engine.start();
  const control = new pg.Client({ connectionString: await sharedPostgres() });
  await control.connect();

  // Not by `clockAt`: each change of a function makes all sessions plan their statements again.
  await control.query(
    `CREATE SEQUENCE IF NOT EXISTS ${schema}.fake_clock; SELECT setval('${schema}.fake_clock', ${clock.now()});
    CREATE OR REPLACE FUNCTION ${schema}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE
    AS $$ SELECT pg_sequence_last_value('${schema}.fake_clock') $$`,
  );
  const showTime = async (now: number): Promise<void> => {
    await control.query('SELECT setval($1, $2)', [`${schema}.fake_clock`, now]);
    await engine.ping();
  };
  await showTime(clock.now());
  return {
    engine,
    clock,
    schema,
    control,
    now: () => clock.now(),
    passTime: async (ms) => {
      const length = Math.max(0, Math.ceil(ms));
      // Set the database's clock first: timers that fire look for elements due by then.
      await showTime(clock.now() + length);
      clock.advance(length);
    },
    stop: async () => {
      await engine.stop();
      assert.equal(timers.pending, 0, 'a stopped engine leaves no timer');
    },
  };
}

/** An engine behind a proxy, which ends its connections for `crash`. Others need none, which saves its copies. */
async function openDurable(options: SetUp): Promise<DurableTestEngine> {
  const direct = new URL(await sharedPostgres());
  const proxy = await PostgresProxy.start(Number(direct.port));
  const proxied = new URL(direct);
  proxied.port = String(proxy.port);
  const opened = await openAt(proxied.href, options);
  const { control } = opened;
  const stop = async (): Promise<void> => {
    try {
      await opened.stop();
    } finally {
      await proxy.stop();
    }
  };
  return {
    ...opened,
    close: () => closeSound(opened, stop),
    lateSweepMs: 0,
    crash: async (moment, calls) => {
      try {
        await killed(control, proxy, moment, calls);
        await stop();
      } finally {
        await control.end();
      }
      options.clock.advance(1);
      return openDurable(options);
    },
  };
}

/** Stops an engine, checks what it stored and removes it. */
async function closeSound({ control, schema }: Opened, stop: () => Promise<void>): Promise<void> {
  try {
    await stop();
    await assertCounts(control, schema);
    await control.query(`DROP SCHEMA ${schema} CASCADE`);
  } finally {
    await control.end();
  }
}

/** Asserts that the recorded counts, which nothing would correct later, agree with the rows. */
async function assertCounts(control: pg.Client, schema: string): Promise<void> {
  const { rows } = await control.query(`SELECT * FROM
      (SELECT subscription, sum(waiting) AS waiting, sum(reserved) AS reserved, sum(bytes) AS bytes FROM ${schema}.counter GROUP BY 1) t
    FULL JOIN
      (SELECT subscription, count(*) FILTER (WHERE lease_until IS NULL) AS waiting, count(lease_until) AS reserved,
        coalesce(sum(bytes) FILTER (WHERE head IS NOT NULL), 0) AS bytes FROM ${schema}.delivery GROUP BY 1
      UNION ALL SELECT -queue, count(*), 0, sum(octet_length(head) + octet_length(body)) FROM ${schema}.element GROUP BY 1) d
    USING (subscription)
    WHERE (coalesce(t.waiting, 0), coalesce(t.reserved, 0), coalesce(t.bytes, 0))
      <> (coalesce(d.waiting, 0), coalesce(d.reserved, 0), coalesce(d.bytes, 0))`);
  assert.deepEqual(rows, [], 'the counts differ from what is stored');
}

/** Simulates `kill -9`: all connections end at that moment of the next transaction, and no reply arrives. */
async function killed(
  control: pg.Client,
  proxy: PostgresProxy,
  moment: CrashMoment,
  calls: () => void,
): Promise<void> {
  const cut = proxy.cutAt(moment);
  calls();
  await cut;
  const isGone = async (): Promise<boolean> => {
    const open = 'SELECT 1 FROM pg_stat_activity WHERE client_port = ANY($1)';
    return (await control.query(open, [proxy.serverPorts])).rows.length === 0;
  };
  await until(isGone);
}
