import { randomBytes } from 'node:crypto';
import pg from 'pg';
import type { Host } from '../../engine/server-url.ts';
import { ConnectionLost, fromDriver, Refused } from './errors.ts';
import { checkSession, SESSION_CHECK, sessionSettings, UnfitServer } from './session.ts';
import type { Settings } from './settings.ts';
import type { Parameter, Query, Row, Statement } from './statement.ts';

/** How long a connect may take, name resolution, TLS and login included. */
const CONNECT_TIMEOUT_MS = 3000;
const KEEP_ALIVE_AFTER_MS = 10_000;

/** Values stay as PostgreSQL's text: each verb reads its own columns, and a number needs no detour. */
const AS_TEXT = { getTypeParser: () => asText } as unknown as pg.CustomTypesConfig;

const END_SESSION: Statement = {
  name: 'end session',
  text: 'SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE application_name = $1 AND usename = current_user',
};

const ALIVE: Statement = { name: 'alive', text: 'SELECT 1' };

/** How a transaction ended, as far as this side can know. */
export type Ended =
  /** It is committed; the rows of each statement. */
  | { readonly how: 'committed'; readonly results: readonly (readonly Row[])[] }
  /** It was rolled back, wholly and for sure, because of the query at that place. */
  | { readonly how: 'refused'; readonly error: Refused; readonly query: number }
  /** The connection ended before the reply: it was committed or it was not. */
  | { readonly how: 'lost'; readonly error: ConnectionLost };

export interface ConnectionEvents {
  /** The connection ended for whatever reason; called once, and never after `close`. */
  readonly lost: (reason: Error) => void;
  readonly notified: (channel: string, payload: string) => void;
  /** Aborted where nobody wants the connection any more, opened or not. */
  readonly signal: AbortSignal;
}

/**
 * One connection. Statements are sent as soon as they are given, without waiting for earlier answers
 * (pipelining), and are run by PostgreSQL in that order.
 *
 * States: opening -> open -> closed. A closed one is not reopened; `link.ts` makes a new one.
 */
export class Connection {
  /** Shown in `pg_stat_activity`, and unique: by it, a successor finds the session of a lost connection. */
  readonly name: string;
  readonly #client: pg.Client;
  #lost: ((reason: Error) => void) | null;

  /**
   * Connects, sets the session up and checks the server.
   * @param role what the connection is for, as `pg_stat_activity` shows it
   * @throws ConnectionLost where the host does not answer; Refused, UnfitServer where it is no server for us
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

  /** Runs SQL text without parameters, one or several statements. @throws as `query` */
  async run(sql: string): Promise<void> {
    try {
      await this.#client.query(sql);
    } catch (error) {
      throw fromDriver(error);
    }
  }

  /**
   * Runs statements as one transaction, all sent before the first is answered: one system call, one round trip. One
   * statement is a transaction of its own.
   */
  async transact(queries: readonly Query[]): Promise<Ended> {
    const [only] = queries;
    if (only !== undefined && queries.length === 1) {
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
    const committed = this.run('COMMIT');
    stream.uncork();
    const [[, ...results], [commit]] = await Promise.all([
      Promise.allSettled(sent),
      Promise.allSettled([committed]),
    ]);
    const rows: (readonly Row[])[] = [];
    for (const [query, result] of results.entries()) {
      // What follows a rejected statement cannot be committed any more, whatever happens to the connection.
      if (result.status === 'rejected') return failed(result.reason, query);
      rows.push(result.value);
    }
    if (commit.status === 'rejected') return this.#confirmed(failed(commit.reason));
    return { how: 'committed', results: rows };
  }

  /**
   * Ends the server's side of an earlier connection, if it is still there: what it has read and not run yet
   * must not take effect after what is sent from now on.
   */
  async endSession(name: string): Promise<void> {
    try {
      await this.query(END_SESSION, [name]);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
    }
  }

  /** Ends it at once. What is under way is rejected with `ConnectionLost`. */
  destroy(): void {
    const { stream } = this.#client.connection;
    this.#lose(new ConnectionLost('The connection was given up.'));
    stream.destroy();
  }

  /** Says goodbye after what is under way, and resolves when the socket is closed. */
  async close(): Promise<void> {
    this.#lost = null;
    await this.#client.end();
  }

  /**
   * An error that came in place of a commit's reply means a rollback only if the server lives on: one that
   * ends while it writes its log may have written the commit.
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
  // Anything else is no reply of PostgreSQL's, so nothing is known.
  const lost = error instanceof ConnectionLost ? error : new ConnectionLost('The connection failed.', error);
  return { how: 'lost', error: lost };
}

function asText(value: string): string {
  return value;
}
