import { randomBytes } from 'node:crypto';
import pg from 'pg';
import type { Host } from '../../engine/settings.ts';
import { ConnectionLost, fromDriver, Refused } from './errors.ts';
import type { Settings } from './settings.ts';
import { flag, number, type Parameter, type Query, type Row, type Statement, text } from './statement.ts';

/** How long a connect may take, name resolution, TLS and login included. */
const CONNECT_TIMEOUT_MS = 3000;
const KEEP_ALIVE_AFTER_MS = 10_000;

/** Values stay PostgreSQL's text: each operation reads its own columns. */
const AS_TEXT = { getTypeParser: () => asText } as unknown as pg.CustomTypesConfig;

const END_SESSION: Statement = {
  name: 'end session',
  text: 'SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE application_name = $1 AND usename = current_user',
};

const ALIVE: Statement = { name: 'alive', text: 'SELECT 1' };

/** The oldest PostgreSQL that is supported, as `server_version_num` has it. */
const OLDEST_VERSION = 140_000;

/** The server cancels a statement after this time, before its call expires (`batcher.ts`). */
const STATEMENT_TIMEOUT_MS = 3000;
const LOCK_TIMEOUT_MS = 1500;
/** A node that fails between BEGIN and COMMIT must not keep its rows locked until TCP notices. */
const IDLE_IN_TRANSACTION_MS = 5000;
/** Room for the largest batch, so that its bodies are not written to a temporary file on their way. */
const WORK_MEMORY = '64MB';

/**
 * The settings of each of our sessions, as one round trip of SQL.
 *
 * Plans are forced: a plan that was made while a table was empty would read all of it when it holds a million rows. Each
 * statement has one right plan, nested loops over the index that was made for it. So the other kinds are switched off, and
 * the plan is made once and not for each set of values.
 */
function sessionSettings({ schema, synchronousCommit }: Settings): string {
  const settings = {
    search_path: schema,
    synchronous_commit: synchronousCommit,
    statement_timeout: STATEMENT_TIMEOUT_MS,
    lock_timeout: LOCK_TIMEOUT_MS,
    idle_in_transaction_session_timeout: IDLE_IN_TRANSACTION_MS,
    default_transaction_isolation: 'read committed',
    default_transaction_read_only: 'off',
    plan_cache_mode: 'force_generic_plan',
    enable_seqscan: 'off',
    enable_bitmapscan: 'off',
    enable_hashjoin: 'off',
    enable_mergejoin: 'off',
    jit: 'off',
    work_mem: WORK_MEMORY,
    client_encoding: 'UTF8',
    bytea_output: 'hex',
    timezone: 'UTC',
    standard_conforming_strings: 'on',
    client_min_messages: 'warning',
  };
  return Object.entries(settings)
    .map(([name, value]) => `SET ${name} = '${value}'`)
    .join('; ');
}

/** A server that replies and cannot be used. The message says what to do. */
class UnfitServer extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'UnfitServer';
  }
}

/** Sent in each new session, for `checkSession`. */
const SESSION_CHECK: Statement = {
  name: 'session',
  text: `SELECT current_setting('server_version_num'), current_setting('server_encoding'), pg_is_in_recovery()`,
};

/** Checks that the engine can use the server. @throws UnfitServer */
function checkSession(row: Row): void {
  const version = number(row, 0);
  if (version < OLDEST_VERSION) {
    throw new UnfitServer(`it is PostgreSQL ${Math.floor(version / 10_000)}; use 14 or later`);
  }
  if (text(row, 1) !== 'UTF8') {
    throw new UnfitServer(`the database has encoding ${text(row, 1)}; create one with ENCODING 'UTF8'`);
  }
  if (flag(row, 2)) throw new UnfitServer('it is a standby, which takes no writes; name the primary');
}

/** How a transaction ended, as far as this node can know. */
export type Ended =
  /** It is committed, or was rolled back as its caller chose; the rows of each statement. */
  | { readonly how: 'committed'; readonly results: readonly (readonly Row[])[] }
  /** It was certainly rolled back, because of the query at that place. */
  | { readonly how: 'refused'; readonly error: Refused; readonly query: number }
  /** The connection ended before the reply: it was committed or it was not. */
  | { readonly how: 'lost'; readonly error: ConnectionLost };

export interface ConnectionEvents {
  /** The connection ended. Called once, and never after `close`. */
  readonly lost: (reason: Error) => void;
  readonly notified: (channel: string, payload: string) => void;
  /** Aborted if the connection is not needed any more, opened or not. */
  readonly signal: AbortSignal;
}

/**
 * One connection. Statements are pipelined: they are sent at once, without waiting for earlier replies, and PostgreSQL
 * executes them in that order.
 *
 * States: opening -> open -> closed. A closed one is not reopened; `link.ts` makes a new one.
 */
export class Connection {
  /** Visible in `pg_stat_activity`, and unique: a successor finds the session of a lost connection by it. */
  readonly name: string;
  readonly #client: pg.Client;
  #lost: ((reason: Error) => void) | null;

  /**
   * Connects, sets the session up and checks the server.
   * @param role the purpose of the connection, visible in `pg_stat_activity`
   * @throws ConnectionLost if the host does not reply; Refused, UnfitServer if the server cannot be used
   */
  static async open(
    settings: Settings,
    host: Host,
    role: string,
    events: ConnectionEvents,
  ): Promise<Connection> {
    const { signal } = events;
    signal.throwIfAborted();
    const connection = new Connection(settings, host, role, events);
    const abandon = (): void => connection.destroy();
    signal.addEventListener('abort', abandon);
    try {
      await connection.#client.connect();
      await connection.#client.query(sessionSettings(settings));
      const [row] = await connection.query(SESSION_CHECK, []);
      checkSession(row ?? []);
    } catch (error) {
      connection.destroy();
      throw error instanceof UnfitServer || error instanceof Refused ? error : fromDriver(error);
    } finally {
      signal.removeEventListener('abort', abandon);
    }
    return connection;
  }

  private constructor(settings: Settings, { host, port }: Host, role: string, events: ConnectionEvents) {
    this.name = `quayside ${role} ${randomBytes(6).toString('hex')}`;
    this.#lost = events.lost;
    this.#client = new pg.Client({
      host,
      port,
      user: settings.user,
      password: settings.password,
      database: settings.database,
      ssl: settings.tls === false ? false : { ...settings.tls },
      application_name: this.name,
      connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
      keepAlive: true,
      keepAliveInitialDelayMillis: KEEP_ALIVE_AFTER_MS,
      pipeline: true,
      types: AS_TEXT,
    });
    this.#client.on('error', (error) => this.#lose(error));
    this.#client.on('end', () => this.#lose(new Error('the server closed the connection')));
    this.#client.on('notification', ({ channel, payload = '' }) => events.notified(channel, payload));
  }

  /** @throws Refused, ConnectionLost */
  query(statement: Statement, values: readonly Parameter[]): Promise<Row[]> {
    return new Promise((resolve, reject) => {
      const config = {
        name: statement.name,
        text: statement.text,
        values: [...values],
        rowMode: 'array' as const,
      };
      this.#client.query<(string | null)[]>(config, (error: Error | null, result) => {
        if (error) reject(fromDriver(error));
        else resolve(result.rows);
      });
    });
  }

  /** Executes SQL without parameters, one or several statements. @throws as `query` */
  async run(sql: string): Promise<void> {
    try {
      await this.#client.query(sql);
    } catch (error) {
      throw fromDriver(error);
    }
  }

  /**
   * Executes statements as one transaction, all sent before the first reply: one system call, one round trip. One
   * statement is a transaction of its own.
   * @param mayCommit asked with the rows of each statement, in a round trip of its own; false: the transaction is rolled back.
   *   Not given: it is committed
   */
  async transact(
    queries: readonly Query[],
    mayCommit: ((results: readonly (readonly Row[])[]) => boolean) | null = null,
  ): Promise<Ended> {
    const [only] = queries;
    if (only !== undefined && queries.length === 1 && mayCommit === null) {
      try {
        return { how: 'committed', results: [await this.query(only.statement, only.values)] };
      } catch (error) {
        return this.#confirmed(failed(error));
      }
    }
    const { stream } = this.#client.connection;
    stream.cork();
    const sent = [
      this.run('BEGIN').then(() => []),
      ...queries.map(({ statement, values }) => this.query(statement, values)),
    ];
    const committed = mayCommit === null ? this.run('COMMIT') : null;
    // Looked at when the statements have their replies.
    committed?.catch(() => {});
    stream.uncork();
    const [, ...results] = await Promise.allSettled(sent);
    const rows: (readonly Row[])[] = [];
    for (const [query, result] of results.entries()) {
      if (result.status === 'fulfilled') {
        rows.push(result.value);
        continue;
      }
      await (committed ?? this.run('ROLLBACK')).catch(() => {});
      // After a rejected statement nothing can be committed any more, even if the connection ends.
      return failed(result.reason, query);
    }
    const ending = committed ?? this.run(mayCommit?.(rows) === true ? 'COMMIT' : 'ROLLBACK');
    const [end] = await Promise.allSettled([ending]);
    if (end.status === 'rejected') return this.#confirmed(failed(end.reason));
    return { how: 'committed', results: rows };
  }

  /**
   * Ends the server's session of an earlier connection, if it is still there: statements that it has received and not executed
   * must not take effect after what is sent from now on.
   */
  async endSession(name: string): Promise<void> {
    try {
      await this.query(END_SESSION, [name]);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
    }
  }

  /** Ends it at once. Pending statements are rejected with `ConnectionLost`. */
  destroy(): void {
    const { stream } = this.#client.connection;
    this.#lose(new ConnectionLost('The connection was closed.'));
    stream.destroy();
  }

  /** Closes it after pending statements. Resolves when the socket is closed. */
  async close(): Promise<void> {
    this.#lost = null;
    await this.#client.end();
  }

  /**
   * An error in place of a commit's reply means a rollback only if the server continues: one that fails while it writes its
   * log may have written the commit.
   */
  async #confirmed(ended: Ended): Promise<Ended> {
    if (ended.how !== 'refused') return ended;
    try {
      await this.query(ALIVE, []);
      return ended;
    } catch (error) {
      return failed(error);
    }
  }

  #lose(reason: Error): void {
    const lost = this.#lost;
    this.#lost = null;
    lost?.(reason);
  }
}

function failed(error: unknown, query = 0): Ended {
  if (error instanceof Refused) return { how: 'refused', error, query };
  // Anything else is no reply of PostgreSQL, so the outcome is unknown.
  const lost = error instanceof ConnectionLost ? error : new ConnectionLost('The connection failed.', error);
  return { how: 'lost', error: lost };
}

function asText(value: string): string {
  return value;
}
