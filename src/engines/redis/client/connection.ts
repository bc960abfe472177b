import { connect as connectTcp, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { AbstractConnector, Redis, Command as RedisCommand } from 'ioredis';
import { runTimer } from '../../../engine/calls.ts';
import { withTlsHint } from '../../../engine/settings.ts';
import type { CancelTimer, Clock } from '../../../util/clock.ts';
import { type Address, type Login, tlsTo } from '../settings.ts';

/**
 * Arguments that are already encoded for the protocol, in one buffer: a buffer for each, which the command then copied,
 * took a third of the node's processor time for an insert of 64 elements. Only for calls of functions.
 */
export class EncodedArgs {
  readonly count: number;
  readonly bytes: Buffer;

  /** @param args each in two parts */
  constructor(args: readonly (readonly [Uint8Array, Uint8Array])[]) {
    let size = 0;
    for (const [head, rest] of args) size += FRAME_BYTES + head.length + rest.length;
    const target = Buffer.allocUnsafe(size);
    let end = 0;
    for (const [head, rest] of args) {
      end = writeLength(head.length + rest.length, target, end);
      target.set(head, end);
      target.set(rest, end + head.length);
      end = writeLineEnd(target, end + head.length + rest.length);
    }
    this.count = args.length;
    this.bytes = target.subarray(0, end);
  }
}

export type Arg = string | number | Buffer | EncodedArgs;

/** A reply as Redis sends it: strings are buffers. */
export type Reply = Buffer | number | null | readonly Reply[];

export interface Command {
  readonly name: string;
  readonly args: readonly Arg[];
}

/**
 * An error reply of Redis. The driver's error contains the arguments, and so element bodies: only its message is kept.
 */
export class ReplyError extends Error {
  constructor(message: string) {
    super(withoutDot(message));
  }
}

/** The connection closed before the reply arrived. */
export class CommandLost extends Error {
  /** False if no byte of the command can have arrived. */
  readonly sent: boolean;

  constructor(sent: boolean) {
    super('the connection to Redis was lost');
    this.sent = sent;
  }
}

export interface ConnectionOptions {
  readonly clock: Clock;
  readonly login: Login;
  /** The address of the server. Called before each connect, since a Sentinel may name another one after a failover. */
  readonly locate: () => Promise<Address>;
  /** Prepares a new connection. If it fails, the connection is closed and another one is opened. */
  readonly setUp: (connection: RedisConnection) => Promise<void>;
  /** The connection is set up and in use. */
  readonly onReady?: () => void;
  /** It was lost or could not be opened. The message says why, without credentials. */
  readonly onDown?: (reason: Error) => void;
  /** Every reply that is not an error, once the connection is set up. */
  readonly onReply?: () => void;
  /** Called every two seconds, to send something: a dead peer is detected by its silence. Must not throw. */
  readonly heartbeat?: (connection: RedisConnection) => void;
  /** How long the server may be silent during the first connect. */
  readonly firstConnectMs?: number;
}

/** How long a server may be silent during a connect. */
export const CONNECT_MS = 2_000;
/** The same at a start, for the last server to try: no call is waiting yet, and a node that cannot connect exits. */
export const START_CONNECT_MS = 10_000;
const FIRST_RETRY_MS = 50;
const MAX_RETRY_MS = 1_000;
const TICK_MS = 500;
const TICKS_PER_HEARTBEAT = 4;
/** Shorter than `SUSPECT_MS`: a server that waits for its replicas must not count as silent. */
const WAIT_MS = 700;
/** A server that owes a reply for this long is sent nothing more until it replies. */
const SUSPECT_MS = 1_000;
/** A server that owes a reply for this long is disconnected: it may have vanished without closing. */
const SILENCE_MS = 3_000;
const SILENT = 'no answer in time';
const CUT_OFF = /ECONNRESET|EPIPE/;

/**
 * A connection to one server, opened again whenever it is lost. Commands are answered in the order in which they
 * are sent, and never sent twice.
 *
 * ioredis connects, logs in, encodes and decodes. It neither queues nor retries: it rejects all pending commands when
 * a connection closes (`retryStrategy: null`), and the next one is opened here, on the injected clock.
 */
export class RedisConnection {
  /** Resolves when the first connect has succeeded. @throws Error why it failed, also if it was closed before */
  readonly ready: Promise<void>;
  /** How many replicas must have a write on this connection. Set by `setUp`. */
  wait = 0;
  /** The server to which it connected last, as {@link addressText}; null before the first connect. */
  address: string | null = null;
  readonly #redis: Redis;
  readonly #options: ConnectionOptions;
  readonly #first = Promise.withResolvers<void>();
  #isReady = false;
  #isClosed = false;
  /** The replies to the current `WAIT` and to the next one. */
  #waiting: Promise<Reply> | null = null;
  #waitingNext: Promise<Reply> | null = null;
  /** When the server last sent something, or a connect or a command began to wait for it. */
  #aliveAt = 0;
  #ticks = 0;
  #reason: Error | null = null;
  #connectMs: number;
  #retryMs = FIRST_RETRY_MS;
  #cancelTick: CancelTimer = () => {};
  #cancelRetry: CancelTimer = () => {};

  constructor(options: ConnectionOptions) {
    this.#options = options;
    this.#connectMs = options.firstConnectMs ?? CONNECT_MS;
    this.ready = this.#first.promise;
    this.ready.catch(() => {});
    const { username, password } = options.login;
    this.#redis = new Redis({
      Connector: connectorOf(() => this.#open()),
      ...(username === null ? {} : { username }),
      ...(password === null ? {} : { password }),
      ...(options.login.tls === null ? {} : { tls: {} }),
      protocol: 2,
      lazyConnect: true,
      retryStrategy: null,
      connectTimeout: 0,
      enableOfflineQueue: false,
      enableReadyCheck: false,
      autoResubscribe: false,
      autoResendUnfulfilledCommands: false,
      disableClientInfo: true,
      connectionName: 'quayside',
      keepAlive: 10_000,
    });
    this.#redis.on('error', ({ message }: Error) => {
      // The driver's error contains the arguments of the command, such as the password.
      this.#reason ??= new Error(withoutDot(message));
    });
    this.#redis.on('ready', () => void this.#setUp());
    this.#redis.on('end', () => this.#onEnd());
    this.#connect();
    this.#tick();
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** It is set up, and the server is not silent. */
  get isHealthy(): boolean {
    return this.#isReady && this.#silentMs < SUSPECT_MS;
  }

  /** Commands without a reply yet. */
  get pending(): number {
    return this.#redis.commandQueue.length;
  }

  /** @throws ReplyError, CommandLost */
  send(name: string, args: readonly Arg[]): Promise<Reply> {
    const redis = this.#redis;
    if (redis.status !== 'ready' || !redis.stream.writable) return Promise.reject(new CommandLost(false));
    if (redis.commandQueue.length === 0) this.#noteAlive();
    const command = name === CALL ? new FunctionCall(args) : new RedisCommand(name, args as Buffer[]);
    return (redis.sendCommand(command) as Promise<Reply>).then(this.#onReply, throwOwnError);
  }

  /**
   * Resolves with how many replicas have all that was sent on this connection. There is one `WAIT` at a time: until it
   * returns, the server executes nothing else of this connection, so with a stalled replica, one per turn would pile
   * up.
   * @throws ReplyError, CommandLost
   */
  replicated(): Promise<Reply> {
    if (this.#waiting === null) return this.#sendWait();
    this.#waitingNext ??= this.#waiting.then(
      () => this.#sendWait(),
      () => this.#sendWait(),
    );
    return this.#waitingNext;
  }

  /** Everything that is sent until `uncork` goes into one packet. */
  cork(): void {
    this.#redis.stream.cork();
  }

  uncork(): void {
    this.#redis.stream.uncork();
  }

  /** @param onMoved a sharded channel has moved to another server */
  onMessage(listener: (channel: string, message: string) => void, onMoved: () => void): void {
    this.#redis.on('message', listener);
    this.#redis.on('smessage', listener);
    this.#redis.on('moved', onMoved);
  }

  /** Closes this connection, for this reason, and opens another. */
  reconnect(reason: Error): void {
    const stream: Redis['stream'] | undefined = this.#redis.stream;
    if (stream === undefined || stream.destroyed) return;
    this.#reason ??= reason;
    // Not gracefully, which would wait for a server that may never reply.
    stream.destroy();
  }

  /** Closes the connection permanently. Data that was sent before is still transmitted. */
  close(): void {
    this.#isClosed = true;
    this.#isReady = false;
    this.#cancelTick();
    this.#cancelRetry();
    this.#first.reject(new CommandLost(false));
    this.#redis.stream?.destroy();
  }

  get #silentMs(): number {
    const { status } = this.#redis;
    const isOwed = this.pending > 0 || status === 'connecting' || status === 'connect';
    return isOwed ? this.#options.clock.monotonic() - this.#aliveAt : 0;
  }

  #sendWait(): Promise<Reply> {
    this.#waitingNext = null;
    this.#waiting = this.send('WAIT', [this.wait, WAIT_MS]).finally(() => {
      // If there is a next `WAIT`, it has set `#waiting` already.
      if (this.#waitingNext === null) this.#waiting = null;
    });
    return this.#waiting;
  }

  #connect(): void {
    this.#noteAlive();
    // Events report the outcome.
    this.#redis.connect().catch(() => {});
  }

  async #open(): Promise<Socket> {
    const { locate, login } = this.#options;
    const address = await locate();
    if (this.#isClosed) throw new CommandLost(false);
    this.address = addressText(address);
    const socket =
      login.tls === null
        ? connectTcp(address)
        : connectTls({ ...address, ...tlsTo(address.host, login.tls) });
    socket.on('error', (error) => {
      error.message = this.#withHint(error.message);
    });
    socket.on('data', () => this.#noteAlive());
    this.#noteAlive();
    return socket;
  }

  readonly #onReply = (reply: Reply): Reply => {
    if (this.#isReady) this.#options.onReply?.();
    return reply;
  };

  #noteAlive(): void {
    this.#aliveAt = this.#options.clock.monotonic();
  }

  async #setUp(): Promise<void> {
    const { stream } = this.#redis;
    try {
      await this.#options.setUp(this);
      if (stream.destroyed || this.#isClosed) return;
      this.#isReady = true;
      this.#connectMs = CONNECT_MS;
      this.#retryMs = FIRST_RETRY_MS;
      this.#options.onReply?.();
      this.#first.resolve();
      this.#options.onReady?.();
    } catch (error) {
      if (stream === this.#redis.stream) this.reconnect(error as Error);
    }
  }

  #onEnd(): void {
    this.#isReady = false;
    if (this.#isClosed) return;
    const { clock, onDown } = this.#options;
    this.#connectMs = CONNECT_MS;
    const reason = this.#reason ?? new CommandLost(false);
    this.#reason = null;
    this.#cancelRetry = clock.after(this.#retryMs, () => this.#connect());
    this.#retryMs = Math.min(2 * this.#retryMs, MAX_RETRY_MS);
    this.#first.reject(reason);
    onDown?.(reason);
  }

  /**
   * A server that gets TLS where it expects commands waits for the end of a line; one that gets commands where it
   * expects TLS resets the connection.
   */
  #withHint(message: string): string {
    const isTls = this.#options.login.tls !== null;
    if (isTls && (message === SILENT || CUT_OFF.test(message))) {
      return `${message}; if this port does not use TLS, write redis: for rediss:`;
    }
    if (!isTls && CUT_OFF.test(message))
      return `${message}; if this port expects TLS, write rediss: for redis:, or else check maxclients of Redis`;
    return withTlsHint(message, TLS_SETTINGS);
  }

  #tick(): void {
    const { clock } = this.#options;
    const dueAt = clock.monotonic() + TICK_MS;
    this.#cancelTick = clock.after(TICK_MS, () => runTimer(clock.monotonic() - dueAt, () => this.#onTick()));
  }

  #onTick(): void {
    if (this.#isClosed) return;
    const { heartbeat } = this.#options;
    this.#ticks++;
    if (this.#silentMs > (this.#isReady ? SILENCE_MS : this.#connectMs))
      this.reconnect(new Error(this.#withHint(SILENT)));
    else if (this.#isReady && this.#ticks % TICKS_PER_HEARTBEAT === 0) heartbeat?.(this);
    this.#tick();
  }
}

export function addressText({ host, port }: Address): string {
  return `${host}:${port}`;
}

/** A string in a reply. */
export function asString(reply: Reply | undefined): string {
  return Buffer.isBuffer(reply) ? reply.toString() : String(reply ?? '');
}

/**
 * Opens sockets for ioredis. Its own connectors would suffice for a fixed address, but its Sentinel connector cannot
 * verify the certificate of the master that it finds, and uses timers of its own (ADR 0010).
 */
function connectorOf(open: () => Promise<Socket>): new () => AbstractConnector {
  return class extends AbstractConnector {
    constructor() {
      super(0);
    }

    async connect(): Promise<Socket> {
      this.stream = await open();
      return this.stream as Socket;
    }
  };
}

/**
 * A call of a function, whose many arguments are encoded in one pass. ioredis creates a list of three strings or
 * buffers for each argument and copies it, which took a seventh of the processor time of an insert.
 */
class FunctionCall extends RedisCommand {
  readonly #args: readonly Arg[];

  constructor(args: readonly Arg[]) {
    super(CALL, []);
    this.#args = args;
  }

  override toWritable(): Buffer {
    let size = FRAME_BYTES;
    let count = 1;
    for (const arg of this.#args) {
      count += arg instanceof EncodedArgs ? arg.count : 1;
      size += arg instanceof EncodedArgs ? arg.bytes.length : FRAME_BYTES;
      if (typeof arg === 'string') size += MAX_CHARACTER_BYTES * arg.length;
      else if (arg instanceof Buffer) size += arg.length;
    }
    const target = Buffer.allocUnsafe(size);
    let end = target.write(`*${count}\r\n$${CALL.length}\r\n${CALL}\r\n`);
    for (const arg of this.#args) {
      if (arg instanceof EncodedArgs) {
        target.set(arg.bytes, end);
        end += arg.bytes.length;
      } else if (typeof arg === 'object') {
        end = writeLength(arg.length, target, end);
        target.set(arg, end);
        end = writeLineEnd(target, end + arg.length);
      } else {
        end += target.write(`$${Buffer.byteLength(`${arg}`)}\r\n${arg}\r\n`, end);
      }
    }
    return target.subarray(0, end);
  }
}

const CALL = 'FCALL';
/** More than the protocol adds to an argument, or than a number takes with that. */
const FRAME_BYTES = 64;
const MAX_CHARACTER_BYTES = 3;
const [DOLLAR, ZERO, CR, LF] = [0x24, 0x30, 0x0d, 0x0a];

/** Writes the head of an argument of this length. Returns where the argument begins. */
function writeLength(length: number, target: Buffer, at: number): number {
  target[at] = DOLLAR;
  let digits = 1;
  for (let limit = 10; length >= limit; limit *= 10) digits++;
  let rest = length;
  for (let place = at + digits; place > at; place--) {
    const higher = Math.floor(rest / 10);
    target[place] = ZERO + rest - 10 * higher;
    rest = higher;
  }
  return writeLineEnd(target, at + 1 + digits);
}

/** Returns the position after the line end. */
function writeLineEnd(target: Buffer, at: number): number {
  target[at] = CR;
  target[at + 1] = LF;
  return at + 2;
}

function throwOwnError(error: Error): never {
  if (error.name === 'ReplyError') throw new ReplyError(error.message);
  throw new CommandLost(true);
}

/** Our messages contain those of Redis, some of which end with a dot. */
function withoutDot(message: string): string {
  return message.replace(/\.$/, '');
}

const TLS_SETTINGS = {
  authority: 'ca=FILE',
  name: ', or give that name by servername=NAME',
  without: 'redis: for rediss:',
  with: 'rediss: for redis:',
};
