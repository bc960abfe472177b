import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { refusedByStore } from '../../engine/calls.ts';
import { clockFinding, type Finding, finding } from '../../engine/engine.ts';
import type { Host } from '../../engine/settings.ts';
import type { QuaysideError } from '../../model/errors.ts';
import type { Clock } from '../../util/clock.ts';
import type { Settings } from './settings.ts';
import { flag, number, type Parameter, type Query, type Row, type Statement, text } from './statement.ts';

const KEEP_ALIVE_AFTER_MS = 10_000;

/** Returns values in PostgreSQL's text format: each operation parses its own columns. */
const AS_TEXT = { getTypeParser: () => asText } as unknown as pg.CustomTypesConfig;

/**
 * Ends a session as the login user: an administrator may have set a role for its sessions (`ALTER ROLE … SET role`)
 * that must not end them.
 */
const TERMINATE_SESSION: Statement = {
  name: 'end session',
  text: `SELECT set_config('role', 'none', true), pg_terminate_backend(pid, 1000) FROM pg_stat_activity
    WHERE application_name = $1 AND usename = session_user`,
};

const ALIVE: Statement = { name: 'alive', text: 'SELECT 1' };

/** The oldest supported PostgreSQL, as in `server_version_num`. */
const MIN_VERSION = 140_000;

/**
 * The server cancels a statement after this time. A call may time out earlier, since its statement waits for others.
 */
const STATEMENT_TIMEOUT_MS = 3000;
export const LOCK_TIMEOUT_MS = 1500;
/** A node that fails between BEGIN and COMMIT must not keep its rows locked until TCP notices. */
const IDLE_IN_TRANSACTION_MS = 5000;
/** Enough for the largest batch, so that its bodies are not spilled to temporary files. */
const WORK_MEMORY = '64MB';

/**
 * The SQL that configures a session, for one round trip.
 *
 * Plans are forced: a plan made while a table was empty would read all of it when it holds a million rows. Each
 * statement has one right plan, nested loops over the index that was made for it. So other join and scan types are
 * disabled, and the plan is made once instead of for each set of values. So is sorting where an index has the order:
 * while the tables were empty at the last vacuum, each take read and sorted the whole queue by another index.
 */
function sessionSettings({ schema, synchronousCommit }: Settings): string {
  const settings = {
    search_path: schema,
    synchronous_commit: synchronousCommit,
    statement_timeout: STATEMENT_TIMEOUT_MS,
    lock_timeout: LOCK_TIMEOUT_MS,
    idle_in_transaction_session_timeout: IDLE_IN_TRANSACTION_MS,
    default_transaction_isolation: 'read committed',
    plan_cache_mode: 'force_generic_plan',
    enable_seqscan: 'off',
    enable_bitmapscan: 'off',
    enable_hashjoin: 'off',
    enable_mergejoin: 'off',
    enable_sort: 'off',
    jit: 'off',
    work_mem: WORK_MEMORY,
    client_encoding: 'UTF8',
    bytea_output: 'hex',
    timezone: 'UTC',
    standard_conforming_strings: 'on',
    client_min_messages: 'warning',
  };
  return `${Object.entries(settings)
    .map(([name, value]) => `SET ${name} = '${value}'`)
    .join('; ')}; ${UNLIMITED}`;
}

/**
 * Removes an administrator's limits for other sessions: of idle ones, since the listening connection sends nothing, and
 * of transactions, which exists since PostgreSQL 17.
 */
const UNLIMITED = `SELECT set_config(name, '0', false) FROM pg_settings
  WHERE name IN ('idle_session_timeout', 'transaction_timeout')`;

/** The server replies but cannot be used. The message says what to do. */
export class UnfitServer extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'UnfitServer';
  }
}

/**
 * The first statement of each session; `checkSession` reads its row. It marks the session. If the mark is already set,
 * a pooler shares the session among several connections, or passed it on without a reset, so its settings could be
 * those of another client. Not a prepared statement, since a shared session may already have one of that name.
 */
const SESSION_CHECK: Statement = {
  name: '',
  text: `SELECT current_setting('server_version_num'), current_setting('server_encoding'), pg_is_in_recovery(),
    coalesce(current_setting('quayside.session', true), ''), set_config('quayside.session', 'used', false),
    current_setting('default_transaction_read_only')`,
};

/** Checks that the engine can use the server. @throws UnfitServer */
function checkSession(row: Row): void {
  const version = number(row, 0);
  if (version < MIN_VERSION) {
    throw new UnfitServer(`it is PostgreSQL ${Math.floor(version / 10_000)}; use 14 or later`);
  }
  if (text(row, 1) !== 'UTF8') {
    throw new UnfitServer(`the database has encoding ${text(row, 1)}; create one with ENCODING 'UTF8'`);
  }
  if (flag(row, 2)) throw new UnfitServer('it is a standby, which rejects writes; use the primary');
  // Not overridden: an administrator may keep clients away from a server by it, for example from an old primary.
  if (text(row, 5) === 'on') {
    throw new UnfitServer(
      'it is read-only (default_transaction_read_only is on); switch that off for server, database and user, or name the primary',
    );
  }
  if (text(row, 3) !== '') {
    throw new UnfitServer(
      'a connection pooler shares one session among several connections; configure session mode with a reset of sessions, or connect to the server directly',
    );
  }
}

/** The history that a server writes. A standby that is promoted begins a new timeline of the same system. */
export interface Timeline {
  readonly system: string;
  readonly number: number;
}

/** The position of the log names the timeline. A checkpoint does so only after the promotion. */
const TIMELINE: Statement = {
  name: 'timeline',
  text: `SELECT (SELECT system_identifier FROM pg_control_system()), substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)`,
};

const SERVER_SETTINGS: Statement = {
  name: 'server settings',
  text: `SELECT current_setting('server_version'), current_setting('synchronous_commit'), current_setting('fsync'),
    current_setting('full_page_writes'), (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    (SELECT min(name) FROM unnest('{autovacuum,track_counts}'::text[]) AS u(name) WHERE current_setting(name) = 'off')`,
};

/** Checks the server settings on which the promises of the engine depend. @param check names the server */
export async function examineServer(
  connection: Connection,
  check: string,
  now: () => number,
): Promise<readonly Finding[]> {
  const [row = []] = await connection.query(SERVER_SETTINGS, []);
  const here = now();
  const synchronousCommit = text(row, 1);
  const state = (fine: string | false, level: 'warning' | 'error', message: string, hint: string): Finding =>
    fine === false ? finding(check, level, message, hint) : finding(check, 'ok', fine);
  return [
    finding(check, 'ok', `it is PostgreSQL ${text(row, 0)}`),
    state(
      synchronousCommit !== 'off' && `synchronous_commit is ${synchronousCommit}`,
      'warning',
      'synchronous_commit is off: a crash of its machine loses the last acknowledged changes',
      'remove synchronousCommit from the URL, unless that loss is acceptable',
    ),
    state(
      text(row, 2) === 'on' && 'fsync is on',
      'error',
      'fsync is off: a crash of its machine may damage the whole database',
      'set fsync = on in postgresql.conf',
    ),
    state(
      text(row, 3) === 'on' && 'full_page_writes is on',
      'warning',
      'full_page_writes is off: a crash of its machine may damage pages that were being written',
      'set full_page_writes = on, unless its file system writes pages atomically',
    ),
    state(
      row[5] == null && 'autovacuum is on',
      'warning',
      `${row[5]} is off: nothing removes finished elements from the disk, which fills up`,
      'set autovacuum = on and track_counts = on in postgresql.conf',
    ),
    clockFinding(check, number(row, 4), here),
  ];
}

interface ConnectionEvents {
  /** The connection ended. Called once, and never after `close`. */
  readonly onLost: (reason: Error) => void;
  readonly onNotification: (channel: string, payload: string) => void;
}

/**
 * One connection. Statements are pipelined: they are sent without waiting for earlier replies, and PostgreSQL executes
 * them in that order.
 *
 * States: opening -> open -> closed. A closed connection is not reopened; `link.ts` creates a new one.
 */
export class Connection {
  /** Visible in `pg_stat_activity`, and unique: a successor finds the session of a lost connection by it. */
  readonly name: string;
  readonly #settings: Settings;
  readonly #client: pg.Client;
  readonly #clock: Clock;
  #onLost: ((reason: Error) => void) | null;
  /** Statements without a reply. */
  #pending = 0;
  /** When the last reply arrived, or the first of the pending statements was sent. */
  #repliedAt = 0;
  #timeline: Timeline | null = null;

  /** @param role the purpose of the connection, visible in `pg_stat_activity` */
  constructor(
    settings: Settings,
    { host, port }: Host,
    role: string,
    { clock, events }: { clock: Clock; events: ConnectionEvents },
  ) {
    this.#settings = settings;
    this.#clock = clock;
    this.name = `quayside ${role} ${randomBytes(6).toString('hex')}`;
    this.#onLost = events.onLost;
    this.#client = new pg.Client({
      host,
      port,
      user: settings.user,
      password: settings.password,
      database: settings.database,
      ssl: settings.tls === false ? false : { ...settings.tls },
      application_name: this.name,
      keepAlive: true,
      keepAliveInitialDelayMillis: KEEP_ALIVE_AFTER_MS,
      pipeline: true,
      types: AS_TEXT,
    });
    this.#client.on('error', (error) => this.#reportLost(error));
    this.#client.on('end', () => this.#reportLost(new Error('the server closed the connection')));
    this.#client.on('notification', ({ channel, payload = '' }) => events.onNotification(channel, payload));
  }

  /** Whether it has not ended. */
  get isOpen(): boolean {
    return this.#onLost !== null;
  }

  /** Null before it is open, or if the server does not tell it: managed services may restrict the functions. */
  get timeline(): Timeline | null {
    return this.#timeline;
  }

  /** How long the server has sent no reply although statements are pending, ms. */
  get silentMs(): number {
    return this.#pending === 0 ? 0 : this.#clock.monotonic() - this.#repliedAt;
  }

  /**
   * Connects, checks the server and configures the session. The caller bounds the time, and aborts with `destroy`.
   * @throws ConnectionLost if the host does not reply; Refused, UnfitServer if the server cannot be used
   */
  async open(): Promise<void> {
    try {
      await this.#client.connect();
      const [row] = await this.query(SESSION_CHECK, []);
      checkSession(row ?? []);
      await this.#client.query(sessionSettings(this.#settings));
      this.#timeline = await this.#readTimeline();
    } catch (error) {
      throw error instanceof UnfitServer || error instanceof Refused ? error : fromDriver(error);
    }
  }

  /** @throws Refused, ConnectionLost */
  query(statement: Statement, values: readonly Parameter[]): Promise<Row[]> {
    this.#noteSent();
    return new Promise((resolve, reject) => {
      const config = {
        name: statement.name,
        text: statement.text,
        values: [...values],
        rowMode: 'array' as const,
      };
      this.#client.query<(string | null)[]>(config, (error: Error | null, result) => {
        this.#noteReply();
        if (error) reject(fromDriver(error));
        else resolve(result.rows);
      });
    });
  }

  /** Executes SQL without parameters, one or several statements. @throws as `query` */
  async run(sql: string): Promise<void> {
    this.#noteSent();
    try {
      await this.#client.query(sql);
    } catch (error) {
      throw fromDriver(error);
    } finally {
      this.#noteReply();
    }
  }

  /**
   * Executes statements as one transaction, all sent before the first reply: one system call, one round trip. A single
   * statement without `mayCommit` is sent without BEGIN and COMMIT. Returns the rows of each statement.
   * @param mayCommit decides with these rows, which costs another round trip; false: the transaction is rolled back.
   *   Not given: it is committed
   * @throws Refused if it was certainly rolled back; ConnectionLost if it may have been committed
   */
  async transact(
    queries: readonly Query[],
    mayCommit: ((results: readonly (readonly Row[])[]) => boolean) | null = null,
  ): Promise<readonly (readonly Row[])[]> {
    const [only] = queries;
    if (only !== undefined && queries.length === 1 && mayCommit === null) {
      return [await this.#confirmed(this.query(only.statement, only.values), 0)];
    }
    const { stream } = this.#client.connection;
    stream.cork();
    const sent = [
      this.run('BEGIN').then(() => []),
      ...queries.map(({ statement, values }) => this.query(statement, values)),
    ];
    const commit = mayCommit === null ? this.run('COMMIT') : null;
    // Awaited below, after the replies of the statements.
    commit?.catch(() => {});
    stream.uncork();
    const [begin, ...results] = await Promise.allSettled(sent);
    if (begin?.status === 'rejected') {
      await this.#rolledBack(commit);
      return this.#withoutTransaction(begin.reason, results, mayCommit);
    }
    const rows: (readonly Row[])[] = [];
    for (const [query, result] of results.entries()) {
      if (result.status === 'fulfilled') {
        rows.push(result.value);
        continue;
      }
      await this.#rolledBack(commit);
      // After a rejected statement nothing can be committed any more, even if the connection is lost.
      if (result.reason instanceof Refused) result.reason.query = query;
      throw result.reason;
    }
    let shouldCommit: boolean | undefined;
    try {
      shouldCommit = mayCommit?.(rows);
    } catch (error) {
      await this.#rolledBack(null);
      throw error;
    }
    await this.#confirmed(commit ?? this.run(shouldCommit === true ? 'COMMIT' : 'ROLLBACK'));
    return rows;
  }

  /**
   * Ends the server's session of an earlier connection, if it still exists: statements that it has received and not yet
   * executed must not take effect after those sent from now on.
   */
  async endSession(name: string): Promise<void> {
    try {
      await this.query(TERMINATE_SESSION, [name]);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
    }
  }

  /** Closes the socket immediately. Pending statements are rejected with `ConnectionLost`. */
  destroy(reason = new ConnectionLost('The connection was closed.')): void {
    const { stream } = this.#client.connection;
    this.#reportLost(reason);
    stream.destroy();
  }

  /** Closes the connection after pending statements. Resolves when the socket is closed. */
  async close(): Promise<void> {
    this.#onLost = null;
    await this.#client.end();
  }

  /**
   * BEGIN failed, for example because it was cancelled, or timed out on a server that was frozen, so each statement ran
   * as its own transaction. Returns their rows if the result is the same as that of one transaction.
   */
  #withoutTransaction(
    cause: unknown,
    results: readonly PromiseSettledResult<readonly Row[]>[],
    mayCommit: ((results: readonly (readonly Row[])[]) => boolean) | null,
  ): readonly (readonly Row[])[] {
    if (results.every((result) => result.status === 'rejected' && result.reason instanceof Refused)) {
      throw cause;
    }
    const rows = results.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []));
    if (rows.length === results.length && (mayCommit === null || mayCommit(rows))) return rows;
    const error = new ConnectionLost('a transaction did not begin, and a part of it was committed', cause);
    this.destroy(error);
    throw error;
  }

  /**
   * Resolves when a transaction that can no longer be committed has ended.
   * @param ending the pending COMMIT; null: a ROLLBACK has to be sent
   */
  async #rolledBack(ending: Promise<void> | null): Promise<void> {
    try {
      await this.#confirmed(ending ?? this.run('ROLLBACK'));
    } catch {
      // The transaction or the session has ended.
    }
  }

  /**
   * An error reply to a commit proves a rollback only if the server continues to reply: a server that crashes while it
   * writes its log may have written the commit.
   * @param query the index of a statement that is its own transaction
   */
  async #confirmed<T>(ending: Promise<T>, query: number | null = null): Promise<T> {
    try {
      return await ending;
    } catch (error) {
      if (error instanceof Refused) {
        error.query = query;
        await this.#endAborted();
      }
      throw error;
    }
  }

  /**
   * A cancelled COMMIT leaves its transaction aborted, so that every further statement would be rejected. @throws
   * ConnectionLost if the server does not reply
   */
  async #endAborted(): Promise<void> {
    try {
      await this.query(ALIVE, []);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      try {
        await this.run('ROLLBACK');
      } catch (reason) {
        if (!(reason instanceof Refused)) throw reason;
        this.destroy(new ConnectionLost('a transaction could not be rolled back', reason));
      }
    }
  }

  async #readTimeline(): Promise<Timeline | null> {
    try {
      const [[system = null, number = null] = []] = await this.query(TIMELINE, []);
      return system === null || number === null ? null : { system, number: Number.parseInt(number, 16) };
    } catch (error) {
      // After a timeout, the server may have been frozen, and replaced.
      if (error instanceof Refused && !error.isTimeout) return null;
      throw error;
    }
  }

  #noteSent(): void {
    if (this.#pending === 0) this.#repliedAt = this.#clock.monotonic();
    this.#pending += 1;
  }

  #noteReply(): void {
    this.#pending -= 1;
    this.#repliedAt = this.#clock.monotonic();
  }

  #reportLost(reason: Error): void {
    const onLost = this.#onLost;
    this.#onLost = null;
    onLost?.(reason);
  }
}

function asText(value: string): string {
  return value;
}

/** The connection was lost, or never opened. Pending statements may have been applied. */
export class ConnectionLost extends Error {
  constructor(message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause: describe(cause) });
    this.name = 'ConnectionLost';
  }
}

/** PostgreSQL rejected a statement and still serves the connection; the transaction was rolled back. */
export class Refused extends Error {
  /** The SQLSTATE. */
  readonly code: string;
  /** The index of the query in its transaction; null: BEGIN or COMMIT was rejected. */
  query: number | null = null;

  constructor(code: string, message: string) {
    super(message);
    this.name = 'Refused';
    this.code = code;
  }

  get isRetryable(): boolean {
    return RETRYABLE.has(this.code);
  }

  get isTimeout(): boolean {
    return TIMEOUTS.has(this.code);
  }

  /** Whether another session held a lock that the statement needs for longer than `LOCK_TIMEOUT_MS`. */
  get isLockTimeout(): boolean {
    return this.code === LOCK_TIMEOUT;
  }

  /** Whether the server accepts no further connection, or none of this user or to this database. */
  get isTooManyConnections(): boolean {
    return this.code === TOO_MANY_CONNECTIONS;
  }

  /** Whether the server became read-only, since another one is the primary now: this connection is useless. */
  get isReadOnly(): boolean {
    return this.code === READ_ONLY;
  }
}

const DISK_FULL = '53100';
const READ_ONLY = '25006';
const TOO_MANY_CONNECTIONS = '53300';
/**
 * Errors after which a retry may succeed: deadlock, serialization failure, and a unique violation, for example if two
 * nodes create the same queue at the same moment.
 */
const RETRYABLE = new Set(['40P01', '40001', '23505']);
/** A statement waited too long for a lock. */
const LOCK_TIMEOUT = '55P03';
const TIMEOUTS = new Set(['57014', LOCK_TIMEOUT]);
/** Errors after which the server closes the connection: shutdown, crash, dropped database, a limit of its time. */
const CLOSES_CONNECTION = /^(?:57P0[1-5]|25P0[34]|08...)$/;

/** Converts an error of the driver. Values of statements are left out of the message. */
function fromDriver(error: unknown): ConnectionLost | Refused {
  if (error instanceof pg.DatabaseError && error.code !== undefined && !CLOSES_CONNECTION.test(error.code)) {
    return new Refused(error.code, describe(error).message);
  }
  return new ConnectionLost('The connection to PostgreSQL ended.', error);
}

/** A copy of an error that contains no stored values and no secrets. */
function describe(error: unknown): Error {
  if (error instanceof pg.DatabaseError) {
    // Messages of class 22 (data exceptions) quote values.
    const quotesData = error.code?.startsWith('22') ?? false;
    return new Error(
      quotesData ? `PostgreSQL error ${error.code}` : `PostgreSQL error ${error.code}: ${error.message}`,
    );
  }
  return new Error(error instanceof Error ? error.message : String(error));
}

/**
 * The port's error for a rejected call.
 * @param stores whether the call stores elements: a full disk is then `storage-full`
 */
export function refusedError(error: Refused, stores: boolean): QuaysideError {
  return refusedByStore(error, error.code === DISK_FULL && stores);
}
