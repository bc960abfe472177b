import { randomInt } from 'node:crypto';
import type { EngineLog } from '../../engine/engine.ts';
import { withTlsHint } from '../../engine/settings.ts';
import { Backoff } from '../../util/backoff.ts';
import type { CancelTimer, Clock } from '../../util/clock.ts';
import { Connection } from './connection.ts';
import type { Settings } from './settings.ts';

/** Between connects that fail: shorter than for other work, as nothing can be done without a connection. */
const BACKOFF = { minMs: 50, maxMs: 1000 };
const RANDOM_STEPS = 2 ** 32;
/** A server that accepts a connection and sends nothing must not delay the next attempt. */
const OPEN_TIMEOUT_MS = 5000;
/** A reconnect prepares little; the first connection may wait for another node that creates the schema. */
const PREPARE_TIMEOUT_MS = 10_000;
/** How long a graceful close may take before the socket is destroyed. */
const CLOSE_TIMEOUT_MS = 1000;

export interface LinkEvents {
  /**
   * A connection was opened. It is used only after this has resolved; if it rejects, the connection is closed and another one
   * is tried.
   */
  readonly prepare: (connection: Connection) => Promise<void>;
  /** A connection that was ready is gone. */
  readonly lost: (reason: Error) => void;
  /** A connection is ready again. Not called for the first one. */
  readonly back: () => void;
  readonly notified?: (channel: string, payload: string) => void;
}

/**
 * Keeps one connection open: opens the first, and another one when it ends, with growing pauses.
 *
 * States: new -> `start` -> up <-> away -> `stop` -> stopped.
 */
export class Link {
  readonly #settings: Settings;
  readonly #role: string;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  readonly #events: LinkEvents;
  #connection: Connection | null = null;
  #awaySince: number | null = null;
  #attempts = 0;
  /** The name of the last connection that was ready. */
  #predecessor: string | null = null;
  #cancelRetry: CancelTimer | null = null;
  readonly #backoff = new Backoff(() => randomInt(RANDOM_STEPS) / RANDOM_STEPS, BACKOFF);
  #lastReason = '';
  /** Settles when no attempt is in progress. */
  #retrying: Promise<void> = Promise.resolve();
  readonly #stopped = new AbortController();

  constructor(
    settings: Settings,
    role: string,
    { clock, log }: { clock: Clock; log: EngineLog },
    events: LinkEvents,
  ) {
    this.#settings = settings;
    this.#role = role;
    this.#clock = clock;
    this.#log = log;
    this.#events = events;
  }

  /** The connection to use now; null while there is none. */
  get connection(): Connection | null {
    return this.#connection;
  }

  /** How long there has been no connection, ms; 0 while there is one. */
  get awayMs(): number {
    return this.#awaySince === null ? 0 : this.#clock.monotonic() - this.#awaySince;
  }

  /** Opens the first connection, trying each host once. @throws Error naming the server and the reason */
  async start(): Promise<void> {
    const reasons: string[] = [];
    for (const _ of this.#settings.hosts) {
      try {
        await this.#open(null);
        return;
      } catch (error) {
        reasons.push(withTlsHint(reasonOf(error), TLS_SETTINGS));
      }
    }
    const reason = reasons.join(', ');
    const hint = reason.includes(';')
      ? ''
      : '; see that the server runs, and that host, port, user and password are right';
    throw new Error(`${this.#settings.shown}: ${reason}${hint}`);
  }

  /** Closes the connection, as after a reply that did not come, and opens another one. */
  drop(reason: string): void {
    const connection = this.#connection;
    if (connection === null) return;
    this.#onLost(connection, new Error(reason));
    connection.destroy();
  }

  async stop(): Promise<void> {
    this.#stopped.abort(new Error('the engine was stopped'));
    this.#cancelRetry?.();
    await this.#retrying;
    const connection = this.#connection;
    this.#connection = null;
    if (connection === null) return;
    const cancel = this.#clock.after(CLOSE_TIMEOUT_MS, () => connection.destroy());
    await connection.close();
    cancel();
  }

  /** @param prepareMs how long preparing may take; null: without limit */
  async #open(prepareMs: number | null): Promise<void> {
    const { hosts } = this.#settings;
    const host = hosts[this.#attempts % hosts.length];
    this.#attempts += 1;
    if (host === undefined) throw new Error('no host is named');
    let ended: Error | null = null;
    let ready: Connection | null = null;
    const opened = await this.#within(OPEN_TIMEOUT_MS, (signal) =>
      Connection.open(this.#settings, host, this.#role, {
        signal,
        notified: this.#events.notified ?? ignore,
        lost: (reason) => {
          ended = reason;
          if (ready !== null) this.#onLost(ready, reason);
        },
      }),
    );
    try {
      await this.#within(prepareMs, (signal) => this.#prepare(opened, signal));
      if (ended !== null) throw ended;
      this.#stopped.signal.throwIfAborted();
      this.#predecessor = opened.name;
      this.#connection = opened;
      ready = opened;
    } catch (error) {
      opened.destroy();
      throw error;
    }
  }

  async #prepare(connection: Connection, signal: AbortSignal): Promise<void> {
    const abandon = (): void => connection.destroy();
    signal.addEventListener('abort', abandon);
    try {
      if (this.#predecessor !== null) await connection.endSession(this.#predecessor);
      await this.#events.prepare(connection);
    } finally {
      // Otherwise `#stopped` would reference the connection as long as the link exists, and `stop` would destroy it.
      signal.removeEventListener('abort', abandon);
    }
  }

  /** Runs something that a signal can end, until a time limit or `stop`. */
  async #within<T>(limitMs: number | null, run: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const late = new AbortController();
    const cancel =
      limitMs === null ? ignore : this.#clock.after(limitMs, () => late.abort(new Error('it took too long')));
    const signal = AbortSignal.any([late.signal, this.#stopped.signal]);
    try {
      const done = await run(signal);
      signal.throwIfAborted();
      return done;
    } finally {
      cancel();
    }
  }

  #onLost(connection: Connection, reason: Error): void {
    if (this.#connection !== connection || this.#stopped.signal.aborted) return;
    this.#connection = null;
    this.#awaySince = this.#clock.monotonic();
    this.#log.warn(
      { server: this.#settings.shown, role: this.#role, reason: reason.message },
      'PostgreSQL is unavailable',
    );
    this.#events.lost(reason);
    this.#retryAfter(0);
  }

  #retryAfter(delayMs: number): void {
    this.#cancelRetry = this.#clock.after(delayMs, () => {
      this.#retrying = this.#retry();
    });
  }

  async #retry(): Promise<void> {
    this.#cancelRetry = null;
    try {
      await this.#open(PREPARE_TIMEOUT_MS);
    } catch (error) {
      if (this.#stopped.signal.aborted) return;
      this.#logUnavailable(reasonOf(error));
      this.#backoff.noteFailure();
      this.#retryAfter(this.#backoff.delayMs());
      return;
    }
    this.#awaySince = null;
    this.#backoff.reset();
    this.#lastReason = '';
    this.#log.info({ server: this.#settings.shown, role: this.#role }, 'PostgreSQL is available again');
    this.#events.back();
  }

  /** Once for each reason: a server that is unavailable for a day must not fill the log. */
  #logUnavailable(reason: string): void {
    if (reason === this.#lastReason) return;
    this.#lastReason = reason;
    this.#log.warn(
      { server: this.#settings.shown, role: this.#role, reason },
      'PostgreSQL is still unavailable',
    );
  }
}

const TLS_SETTINGS = {
  authority: 'sslrootcert=FILE',
  name: '',
  without: 'sslmode=disable in the URL',
  with: 'sslmode=verify-full in the URL',
};

/** The deepest message, which names the errno or SQLSTATE. None of them holds a password. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? reasonOf(error.cause) : error.message;
}

function ignore(): void {}
