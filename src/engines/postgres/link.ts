import { randomInt } from 'node:crypto';
import {
  CALL_TIMEOUT_MS,
  inTime,
  isUnreachable,
  NOT_REACHABLE,
  runTimer,
  unavailable,
  unknownOutcome,
} from '../../engine/calls.ts';
import { WrongStore } from '../../engine/engine.ts';
import { type Host, hostText, withTlsHint } from '../../engine/settings.ts';
import type { QuaysideError } from '../../model/errors.ts';
import { Backoff } from '../../util/backoff.ts';
import type { CancelTimer, Clock } from '../../util/clock.ts';
import { LineLimit } from '../../util/line-limit.ts';
import type { EventLog } from '../../util/log.ts';
import { Connection, ConnectionLost, Refused, refusedError } from './connection.ts';
import { Primary } from './primary.ts';
import type { Settings } from './settings.ts';
import type { Query, Row } from './statement.ts';

/** Pauses between failed connects: short, since nothing works without a connection. */
const BACKOFF = { minMs: 50, maxMs: 1000 };
const RANDOM_STEPS = 2 ** 32;
/**
 * How long a connect may take, including name resolution, TLS and login. A server that accepts a connection and sends
 * nothing must not delay the next attempt.
 */
const OPEN_TIMEOUT_MS = 5000;
/**
 * The same for the last host at a start: no call waits yet, and a node that cannot connect exits, so a busy server gets
 * more time.
 */
const START_TIMEOUT_MS = 15_000;
/** How long preparing a reconnect may take; unlimited at a start, since another node may be creating the schema. */
const PREPARE_TIMEOUT_MS = 10_000;
/**
 * If statements are pending and no reply has arrived for this long, the server is gone: it would have cancelled the
 * statement by then.
 */
const SILENT_MS = 4000;
/** How long a graceful close may take before the socket is destroyed. */
const CLOSE_TIMEOUT_MS = 1000;

interface LinkEvents {
  /**
   * Prepares a new connection, which is used only after this has resolved. If it rejects, the connection is closed and
   * another one is tried.
   */
  readonly prepare?: (connection: Connection) => Promise<void>;
  /** A connection is ready again. Not called for the first one. */
  readonly onReconnected?: () => void;
  readonly onNotification?: (channel: string, payload: string) => void;
}

interface LinkParts {
  readonly clock: Clock;
  readonly log: EventLog;
  /** Shared by the links of a node. */
  readonly primary?: Primary;
}

/**
 * Keeps one connection open: reconnects when it is lost, with growing pauses.
 *
 * States: new -> `start` -> up <-> away -> `stop` -> stopped.
 */
export class Link {
  readonly #settings: Settings;
  readonly #role: string;
  readonly #clock: Clock;
  readonly #log: EventLog;
  readonly #events: LinkEvents;
  readonly #primary: Primary;
  #connection: Connection | null = null;
  /** While there is no connection: resolves with the next one. */
  #next = Promise.withResolvers<Connection>();
  #downSince: number | null = null;
  #attempts = 0;
  /** The name of the last connection that was ready. */
  #predecessor: string | null = null;
  #cancelRetry: CancelTimer | null = null;
  #cancelSilence: CancelTimer | null = null;
  /** By SQLSTATE. */
  readonly #rejections: LineLimit;
  readonly #backoff = new Backoff(() => randomInt(RANDOM_STEPS) / RANDOM_STEPS, BACKOFF);
  /** The last failure of each host since the connection was lost. */
  readonly #reasons = new Map<Host | undefined, string>();
  /** Settles when no attempt is in progress. */
  #retrying: Promise<void> = Promise.resolve();
  /** The connection of the attempt in progress. */
  #openingConnection: Connection | null = null;
  #isStopped = false;

  constructor(
    settings: Settings,
    role: string,
    { clock, log, primary = new Primary() }: LinkParts,
    events: LinkEvents = {},
  ) {
    this.#settings = settings;
    this.#role = role;
    this.#clock = clock;
    this.#log = log;
    this.#events = events;
    this.#primary = primary;
    primary.follow(() => {
      if (primary.hasReplaced(this.#connection?.timeline ?? null)) this.drop('another server is the primary');
    });
    this.#rejections = new LineLimit(clock, (code, leftOut) =>
      log.warn(
        { server: settings.maskedUrl, role, code, leftOut },
        'PostgreSQL rejected further calls; their lines were left out',
      ),
    );
  }

  /** The connection to use now; null while there is none. */
  get connection(): Connection | null {
    return this.#connection;
  }

  /** The next connection, while there is none. @throws ConnectionLost if the link is stopped before */
  get next(): Promise<Connection> {
    return this.#isStopped ? Promise.reject(NO_CONNECTION) : this.#next.promise;
  }

  /** For how long there has been no connection, ms; 0 while there is one. */
  get downMs(): number {
    return this.#downSince === null ? 0 : this.#clock.monotonic() - this.#downSince;
  }

  /**
   * Opens the first connection, trying each host once.
   * @throws Error naming the server and the reason; WrongStore if a host has a store that this version cannot use
   */
  async start(): Promise<void> {
    const reasons: string[] = [];
    let isWrongStore = false;
    let isFull = false;
    for (let triesLeft = this.#settings.hosts.length; triesLeft > 0; triesLeft -= 1) {
      try {
        await this.#open(triesLeft > 1 ? OPEN_TIMEOUT_MS : START_TIMEOUT_MS, null);
        return;
      } catch (error) {
        reasons.push(withTlsHint(reasonOf(error), TLS_SETTINGS));
        isWrongStore ||= error instanceof WrongStore;
        isFull = error instanceof Refused && error.isTooManyConnections;
      }
    }
    const reason = reasons.join(', ');
    const hint = reason.includes(';') ? '' : `; ${isFull ? MORE_CONNECTIONS : CHECK_SERVER}`;
    const message = `${this.#settings.maskedUrl}: ${reason}${hint}`;
    throw isWrongStore ? new WrongStore(message) : new Error(message);
  }

  /**
   * Returns the port's error for a call that the server rejected, and logs the reason: the client does not get it.
   * @param stores whether the call stores elements
   */
  refused(error: Refused, stores: boolean): QuaysideError {
    if (error.isReadOnly) this.drop('it became read-only');
    else if (this.#rejections.admit(error.code)) {
      this.#log.warn(
        { server: this.#settings.maskedUrl, role: this.#role, reason: error.message },
        'PostgreSQL rejected a call',
      );
    }
    return refusedError(error, stores);
  }

  /** Closes a connection that is unusable, and reconnects. */
  drop(reason: string): void {
    const connection = this.#connection;
    if (connection === null) return;
    this.#onLost(connection, new Error(reason));
    connection.destroy();
  }

  /**
   * Drops the connection as soon as it has been silent for {@link SILENT_MS}. A timed-out call is no reason to drop it:
   * a slow server may need most of that time for each of several statements.
   */
  dropIfSilent(): void {
    this.#cancelSilence?.();
    this.#cancelSilence = null;
    const silentMs = this.#connection?.silentMs ?? 0;
    if (silentMs >= SILENT_MS) this.drop('it does not reply');
    else if (silentMs > 0) {
      const dueAt = this.#clock.monotonic() + SILENT_MS - silentMs;
      this.#cancelSilence = this.#clock.after(SILENT_MS - silentMs, () =>
        runTimer(this.#clock.monotonic() - dueAt, () => this.dropIfSilent()),
      );
    }
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#cancelRetry?.();
    this.#cancelSilence?.();
    this.#openingConnection?.destroy();
    this.#next.promise.catch(() => {});
    this.#next.reject(NO_CONNECTION);
    await this.#retrying;
    this.#rejections.flush();
    const connection = this.#connection;
    this.#connection = null;
    if (connection === null) return;
    const cancel = this.#clock.after(CLOSE_TIMEOUT_MS, () => connection.destroy());
    await connection.close();
    cancel();
  }

  /** The host to try next. */
  get #host(): Host | undefined {
    const { hosts } = this.#settings;
    return hosts[this.#attempts % hosts.length];
  }

  /** @param prepareMs how long preparing may take; null: without limit */
  async #open(openMs: number, prepareMs: number | null): Promise<void> {
    if (this.#isStopped) throw STOPPED;
    const host = this.#host;
    this.#attempts += 1;
    if (host === undefined) throw new Error('no host is named');
    const connection = new Connection(this.#settings, host, this.#role, {
      clock: this.#clock,
      events: {
        onNotification: this.#events.onNotification ?? (() => {}),
        onLost: (reason) => this.#onLost(connection, reason),
      },
    });
    this.#openingConnection = connection;
    try {
      await this.#within(openMs, connection.open());
      this.#primary.admit(connection.timeline);
      const prepared = this.#prepare(connection);
      await (prepareMs === null ? prepared : this.#within(prepareMs, prepared));
      if (this.#isStopped) throw STOPPED;
      if (!connection.isOpen) throw new ConnectionLost('The connection ended.');
      // Another connection may have found a newer one in the meantime.
      this.#primary.admit(connection.timeline);
      this.#predecessor = connection.name;
      this.#connection = connection;
      this.#next.resolve(connection);
    } catch (error) {
      connection.destroy();
      throw error;
    } finally {
      this.#openingConnection = null;
    }
  }

  async #prepare(connection: Connection): Promise<void> {
    if (this.#predecessor !== null) await connection.endSession(this.#predecessor);
    await this.#events.prepare?.(connection);
  }

  #within(limitMs: number, step: Promise<void>): Promise<void> {
    const late = (): Error => new ConnectionLost(`it did not reply within ${limitMs / 1000} s`);
    return inTime(this.#clock, step, late, limitMs);
  }

  #onLost(connection: Connection, reason: Error): void {
    if (this.#connection !== connection || this.#isStopped) return;
    this.#connection = null;
    this.#next = Promise.withResolvers();
    this.#cancelSilence?.();
    this.#downSince = this.#clock.monotonic();
    this.#log.warn(
      { server: this.#settings.maskedUrl, role: this.#role, reason: reason.message },
      'PostgreSQL is unavailable',
    );
    this.#retryAfter(0);
  }

  #retryAfter(delayMs: number): void {
    this.#cancelRetry = this.#clock.after(delayMs, () => {
      this.#retrying = this.#retry();
    });
  }

  async #retry(): Promise<void> {
    this.#cancelRetry = null;
    const host = this.#host;
    const fields = {
      server: this.#settings.maskedUrl,
      ...(host !== undefined && { host: hostText(host) }),
      role: this.#role,
    };
    try {
      await this.#open(OPEN_TIMEOUT_MS, PREPARE_TIMEOUT_MS);
    } catch (error) {
      if (this.#isStopped) return;
      const reason = reasonOf(error);
      // Only if it differs from that of the host's last attempt: a server that is unavailable for a day must not fill
      // the log.
      if (reason !== this.#reasons.get(host)) {
        this.#reasons.set(host, reason);
        this.#log.warn({ ...fields, reason }, 'PostgreSQL is still unavailable');
      }
      this.#backoff.noteFailure();
      this.#retryAfter(this.#backoff.delayMs());
      return;
    }
    this.#downSince = null;
    this.#backoff.reset();
    this.#reasons.clear();
    this.#log.info(fields, 'PostgreSQL is available again');
    this.#events.onReconnected?.();
  }
}

const STOPPED = new Error('the engine was stopped');

const CHECK_SERVER =
  'check that the server is running, and that host, port, database, user and password are correct';
const MORE_CONNECTIONS =
  'raise max_connections, or the CONNECTION LIMIT of the user or database, or close connections of others: each node needs three connections';

const TLS_SETTINGS = {
  authority: 'sslrootcert=FILE',
  name: '',
  without: 'sslmode=disable in the URL',
  with: 'sslmode=verify-full in the URL',
};

/** The message of the innermost cause, which names the errno or SQLSTATE. None contains a password. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? reasonOf(error.cause) : error.message;
}

/** Limit of pending calls on the auxiliary connection. Each is small, so a count bounds their memory. */
const MAX_PENDING_CALLS = 5000;

const NO_CONNECTION = new ConnectionLost('There is no connection.');
const NO_REPLY = new ConnectionLost('No reply in time.');

/**
 * The auxiliary connection, for everything that is not about the elements of one queue and must not delay such calls:
 * definitions, statistics, signals, housekeeping. Each query is its own transaction; queries are executed in the order
 * in which they are sent.
 */
export class AuxiliaryConnection {
  readonly #link: Link;
  readonly #clock: Clock;
  /** The number of pending calls. */
  #pendingCalls = 0;

  constructor(link: Link, clock: Clock) {
    this.#link = link;
    this.#clock = clock;
  }

  /** Runs a query that changes nothing. @throws QuaysideError `storage-unavailable` */
  query(query: Query): Promise<Row[]> {
    return this.#run(query, false);
  }

  /** Runs a change. @throws QuaysideError `storage-unavailable`, `outcome-unknown` */
  change(query: Query): Promise<Row[]> {
    return this.#run(query, true);
  }

  async #run({ statement, values }: Query, isChange: boolean): Promise<Row[]> {
    if (isUnreachable(this.#link.downMs) || this.#pendingCalls >= MAX_PENDING_CALLS)
      throw unavailable(NOT_REACHABLE, NO_CONNECTION);
    let isSent = false;
    const onLate = (): Error => {
      if (isSent) this.#link.dropIfSilent();
      return NO_REPLY;
    };
    const deadlineAt = this.#clock.monotonic() + CALL_TIMEOUT_MS;
    this.#pendingCalls += 1;
    try {
      const connection = this.#link.connection ?? (await inTime(this.#clock, this.#link.next, onLate));
      isSent = true;
      const reply = connection.query(statement, values);
      return await inTime(this.#clock, reply, onLate, deadlineAt - this.#clock.monotonic());
    } catch (error) {
      if (error instanceof Refused) {
        throw this.#link.refused(error, false);
      }
      throw isSent && isChange ? unknownOutcome(error as Error) : unavailable(NOT_REACHABLE, error as Error);
    } finally {
      this.#pendingCalls -= 1;
    }
  }
}
