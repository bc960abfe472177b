import { Command, Redis } from 'ioredis';
import { withTlsHint } from '../../../engine/tls-hint.ts';
import type { CancelTimer, Clock } from '../../../model/clock.ts';
import type { Address, Login } from '../settings.ts';
import { tlsTo } from '../tls.ts';

export type Arg = string | number | Buffer;

/** A reply as it came: strings are buffers. */
export type Reply = Buffer | number | null | readonly Reply[];

/** Redis said no, in these words. They name no password and no body. */
export class ReplyError extends Error {}

/** The connection ended before the reply came. */
export class ConnectionLost extends Error {
  /** False where not a byte of the command can have arrived. */
  readonly sent: boolean;

  constructor(sent: boolean) {
    super('the connection to Redis was lost');
    this.sent = sent;
  }
}

/** Without any reply for this long the connection is given up: the other end may be gone without a word. */
const STALL_MS = 3_000;
const WATCH_MS = 500;

/**
 * One TCP connection to one server, from `open` to its end; never reconnected, never re-sent. Commands are
 * answered in the order in which they were sent.
 */
export class Connection {
  readonly #redis: Redis;
  readonly #clock: Clock;
  #outstanding = 0;
  /** When the last reply came, or the first command that waits was sent. */
  #aliveAt = 0;
  #cancelWatch: CancelTimer | null = null;
  /** Called at each reply that is not an error. */
  onReply: () => void = () => {};

  private constructor(redis: Redis, clock: Clock) {
    this.#redis = redis;
    this.#clock = clock;
    redis.once('end', () => {
      this.#cancelWatch?.();
      this.#cancelWatch = null;
    });
  }

  /**
   * Connects, logs in and selects the database.
   * @throws Error whose message says why, without credentials
   */
  static async open(
    { host, port }: Address,
    login: Login,
    clock: Clock,
    timeoutMs: number,
  ): Promise<Connection> {
    const redis = new Redis({
      host,
      port,
      ...(login.username === null ? {} : { username: login.username }),
      ...(login.password === null ? {} : { password: login.password }),
      ...(login.tls === null ? {} : { tls: tlsTo(host, login.tls) }),
      db: login.db,
      protocol: 2,
      lazyConnect: true,
      retryStrategy: () => null,
      enableOfflineQueue: false,
      enableReadyCheck: false,
      autoResubscribe: false,
      autoResendUnfulfilledCommands: false,
      disableClientInfo: true,
      connectionName: 'quayside',
      keepAlive: 10_000,
    });
    let reason: Error | null = null;
    redis.on('error', (error: Error) => {
      reason ??= error;
    });
    const cancel = clock.after(timeoutMs, () => {
      reason ??= new Error(NO_ANSWER);
      end(redis);
    });
    try {
      await redis.connect();
    } catch (error) {
      end(redis);
      throw new Error(explained((reason ?? (error as Error)).message, login.tls !== null));
    } finally {
      cancel();
    }
    // The driver goes on in database 0 where another could not be selected, and only emits why.
    const refused = reason as Error | null;
    if (refused !== null) {
      end(redis);
      throw new Error(
        `database ${login.db} cannot be selected (${refused.message}); name one that it has, which is 0 alone on a cluster, and let the user run SELECT`,
      );
    }
    return new Connection(redis, clock);
  }

  /** Calls `listener` once, when the connection has ended, for whatever reason. */
  onEnd(listener: () => void): void {
    if (this.#redis.status === 'end') queueMicrotask(listener);
    else this.#redis.once('end', listener);
  }

  /** Commands that wait for their reply. */
  get outstanding(): number {
    return this.#outstanding;
  }

  /** For how long the server has owed a reply, ms; 0 where it owes none. */
  get silentMs(): number {
    return this.#outstanding === 0 ? 0 : this.#clock.monotonic() - this.#aliveAt;
  }

  /** @throws ReplyError, ConnectionLost */
  async send(name: string, args: readonly Arg[]): Promise<Reply> {
    if (this.#redis.status !== 'ready' || !this.#redis.stream.writable) throw new ConnectionLost(false);
    if (this.#outstanding === 0) this.#aliveAt = this.#clock.monotonic();
    this.#outstanding++;
    this.#watch();
    try {
      const reply = (await this.#redis.sendCommand(new Command(name, [...args]))) as Reply;
      this.onReply();
      return reply;
    } catch (error) {
      if (error instanceof Error && error.name === 'ReplyError') throw new ReplyError(error.message);
      throw new ConnectionLost(true);
    } finally {
      this.#outstanding--;
      this.#aliveAt = this.#clock.monotonic();
    }
  }

  /** What `write` sends leaves in one piece. */
  together(write: () => void): void {
    const { stream } = this.#redis;
    stream.cork();
    try {
      write();
    } finally {
      stream.uncork();
    }
  }

  /**
   * Listens for messages.
   * @param moved called when a sharded channel has gone to another server
   */
  onMessage(message: (channel: string, text: string) => void, moved: () => void): void {
    this.#redis.on('message', message);
    this.#redis.on('smessage', message);
    this.#redis.on('moved', moved);
  }

  async subscribe(channel: string, sharded: boolean): Promise<void> {
    try {
      await (sharded ? this.#redis.ssubscribe(channel) : this.#redis.subscribe(channel));
    } catch (error) {
      throw new Error((error as Error).message);
    }
  }

  async unsubscribe(channel: string, sharded: boolean): Promise<void> {
    await (sharded ? this.#redis.sunsubscribe(channel) : this.#redis.unsubscribe(channel));
  }

  close(): void {
    end(this.#redis);
  }

  #watch(): void {
    this.#cancelWatch ??= this.#clock.after(WATCH_MS, () => {
      this.#cancelWatch = null;
      if (this.silentMs > STALL_MS) this.close();
      else if (this.#outstanding > 0) this.#watch();
    });
  }
}

const NO_ANSWER = 'no answer in time';
const CUT_OFF = /ECONNRESET|EPIPE/;

/**
 * A server that gets TLS where it expects commands waits for the end of a line; one that gets commands where it expects
 * TLS cuts the connection off.
 */
function explained(message: string, isTls: boolean): string {
  if (isTls && (message === NO_ANSWER || CUT_OFF.test(message))) {
    return `${message}; if this port does not use TLS, write redis: for rediss:`;
  }
  if (!isTls && CUT_OFF.test(message))
    return `${message}; if this port expects TLS, write rediss: for redis:`;
  return withTlsHint(message, TLS_SETTINGS);
}

const TLS_SETTINGS = {
  authority: 'ca=FILE',
  name: ', or give that name by servername=NAME',
  without: 'redis: for rediss:',
  with: 'rediss: for redis:',
};

/** At once: a graceful end would wait for a server that may never answer. */
function end(redis: Redis): void {
  const stream: Redis['stream'] | undefined = redis.stream;
  if (stream === undefined) redis.disconnect();
  else stream.destroy();
}
