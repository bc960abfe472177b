import { constants } from 'node:crypto';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import {
  createServer as createTlsServer,
  type SecureContextOptions,
  type Server as TlsServer,
} from 'node:tls';
import { bodyLimit } from '../access/body-limit.ts';
import { connectionLimit } from '../access/connection-limit.ts';
import { Networks } from '../access/networks.ts';
import type { Authenticator, User } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import { overloaded, shuttingDown } from '../model/errors.ts';
import type { SessionInfo } from '../model/records.ts';
import type { Clock } from '../util/clock.ts';
import type { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import { InputTurns } from '../util/input-turns.ts';
import { ExcessConnections, LineLimit } from '../util/line-limit.ts';
import type { FrontEndLog } from '../util/log.ts';
import type { Service } from '../util/service.ts';
import {
  addressOf,
  listen,
  peerOf,
  TCP_KEEP_ALIVE_MS,
  TLS_VERSION,
  type TlsMaterial,
} from '../util/sockets.ts';
import type { UserLimit } from '../util/user-limit.ts';
import type { ClientSession } from './client-session.ts';
import { type ClientCertificate, readClientCertificate } from './login.ts';
import { readProxyHeader } from './proxy-header.ts';
import type { ClientSocket } from './socket-writer.ts';

/**
 * Options that every front end with sessions has, validated by `config`. Durations are in ms, sizes in bytes.
 */
export interface SessionOptions {
  readonly host: string;
  /** 0: any free port; see `SessionServer.address`. */
  readonly port: number;
  /** Maximum body size of an element that a client sends. */
  readonly bodyLimit: number;
  /** PEM contents; null: plain TCP. */
  readonly tls: TlsMaterial | null;
  /** Proxies whose connections begin with a PROXY protocol header. */
  readonly trustedProxies: Networks;
  /** Maximum open connections; further ones are closed on arrival. */
  readonly maxSockets: number;
  /** How long a client may take for its TLS handshake, and then to send its login. */
  readonly loginTimeoutMs: number;
  /** How long `stop` waits for sessions to end before it cuts their connections. */
  readonly drainMs: number;
  /** Whether the end of each connection is logged at level `info`. */
  readonly logsAccess: boolean;
}

/** The defaults of the configuration; each protocol has its own port. */
export const SESSION_DEFAULTS: Omit<SessionOptions, 'port'> = {
  host: '127.0.0.1',
  bodyLimit: 1_048_576,
  tls: null,
  trustedProxies: new Networks([]),
  maxSockets: 10_000,
  loginTimeoutMs: 10_000,
  drainMs: 10_000,
  logsAccess: false,
};

/** What a front end with sessions needs. */
export interface SessionDependencies<Options extends SessionOptions = SessionOptions> {
  readonly broker: Broker;
  readonly authenticator: Authenticator;
  readonly options: Options;
  readonly log: FrontEndLog;
  readonly clock: Clock;
  /** Version of the program, which is shown to clients. */
  readonly version: string;
  /** Those of all front ends; not given: this one has its own. */
  readonly inputTurns?: InputTurns;
  /** The same: see `bodyLimit`. */
  readonly bodies?: ConcurrencyLimit;
}

/** How a protocol runs over WebSocket. */
interface WebSocketProtocol {
  /** Names of the subprotocol, the preferred one first. */
  readonly subprotocols: readonly string[];
  /**
   * Whether clients may send text messages, and messages that are UTF-8 are sent as text, which some clients expect. If
   * false, all messages are binary.
   */
  readonly usesText: boolean;
}

/** What a server knows about a new connection. */
export interface NewConnection {
  /** Names the connection in the log. */
  readonly id: string;
  /** Address of the client, even if it connects through a trusted proxy. */
  readonly address: string;
  readonly certificate: ClientCertificate;
}

/** Limits on log lines, which clients could cause with frames of a few bytes, or which all sessions would write. */
interface LineLimits {
  /** Frames rejected for a missing right, by user and error message. */
  readonly forbidden: LineLimit;
  /** Connections that end before their login, by network. */
  readonly beforeLogin: LineLimit;
  /** Failed calls of the engine that no client asked for, by log message. */
  readonly failures: LineLimit;
}

/** A front end with sessions: one listener, plain or TLS, and its connections. */
export abstract class SessionServer<Options extends SessionOptions = SessionOptions> implements Service {
  readonly broker: Broker;
  readonly authenticator: Authenticator;
  readonly options: Options;
  readonly log: FrontEndLog;
  readonly clock: Clock;
  /** Version of the program. */
  readonly version: string;
  readonly counts: SessionCounts = zeroCounts();
  /** Limits the logged-in connections of each user. */
  readonly logins: UserLimit;
  readonly lineLimits: LineLimits;
  /** Divides the time for input among the clients of all front ends. */
  readonly inputTurns: InputTurns;
  /** Limits the bytes of bodies in memory, of all front ends together. */
  readonly bodies: ConcurrencyLimit;
  readonly #protocol: string;
  readonly #server: Server;
  /** Does the TLS handshakes of connections that `#server` accepts, and does not listen itself; null without TLS. */
  readonly #tls: TlsServer | null;
  /** All sockets, including those in a TLS handshake and those given to `accept`. */
  readonly #sockets = new Set<ClientSocket>();
  /** Addresses of clients behind trusted proxies, by the address and port of the proxy's connection. */
  readonly #proxiedAddresses = new Map<string, string>();
  readonly #sessions = new Set<ClientSession>();
  readonly #startedAt: string;
  readonly #excess: ExcessConnections;
  #stopping: Promise<void> | null = null;

  /** @param protocol display name */
  constructor(protocol: string, dependencies: SessionDependencies<Options>) {
    const { clock, log, options } = dependencies;
    this.broker = dependencies.broker;
    this.authenticator = dependencies.authenticator;
    this.options = options;
    this.log = log;
    this.clock = clock;
    this.version = dependencies.version;
    this.inputTurns = dependencies.inputTurns ?? new InputTurns();
    this.bodies = dependencies.bodies ?? bodyLimit(clock);
    this.#protocol = protocol;
    this.#startedAt = clock.now().toString(36);
    this.lineLimits = {
      forbidden: new LineLimit(clock, (detail, leftOut) => {
        const fields = { event: 'forbidden', protocol, detail, leftOut };
        log.warn(fields, 'further frames without the right were rejected; their lines were left out');
      }),
      beforeLogin: new LineLimit(clock, (network, leftOut) => {
        const fields = { protocol, network, leftOut };
        log.info(fields, 'further connections ended before their login; their lines were left out');
      }),
      failures: new LineLimit(clock, (cause, leftOut) => {
        const fields = { protocol, cause, leftOut };
        log.warn(fields, 'calls of sessions failed further in the same way; their lines were left out');
      }),
    };
    const { tls, maxSockets } = options;
    this.#excess = new ExcessConnections(protocol, maxSockets, dependencies);
    this.logins = connectionLimit(protocol, maxSockets);
    // `#admit` allows half-open connections. With TLS not before: if a client closed its side during the handshake, the
    // socket would stay open until the handshake times out.
    this.#server = createServer({ allowHalfOpen: tls === null });
    this.#server.on('connection', (socket: Socket) => this.#connected(socket));
    this.#tls =
      tls === null
        ? null
        : createTlsServer(
            {
              ...this.#contextOptions(tls),
              requestCert: tls.clientCa !== undefined,
              // A client without an accepted certificate may log in with a password.
              rejectUnauthorized: false,
              handshakeTimeout: options.loginTimeoutMs,
            },
            (socket) => this.#admit(socket),
          );
    // Node reports a handshake that takes too long, but does not close its connection.
    this.#tls?.on('tlsClientError', (_error, socket) => socket.destroy());
  }

  abstract readonly webSocket: WebSocketProtocol;
  /** Creates the session of a connection. */
  protected abstract openSession(socket: ClientSocket, connection: NewConnection): ClientSession;

  /** The address that it listens on. @throws Error before `start` has resolved */
  get address(): AddressInfo {
    return addressOf(this.#server, this.#protocol);
  }

  /** Resolves when the server listens; rejects if it cannot bind the address. */
  start(): Promise<void> {
    const { host, port } = this.options;
    return listen(this.#server, { host, port }, this.#protocol, this.log);
  }

  /**
   * Accepts no further connections, and ends every session with `shutting-down` once its pending calls have ended; cuts
   * those that are left after `drainMs`. Elements that clients hold return to their queues without a failed try.
   */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  /** Uses another certificate for new connections. @throws Error if it cannot be read */
  reloadTls(tls: TlsMaterial): void {
    this.#tls?.setSecureContext(this.#contextOptions(tls));
  }

  /** Lists the logged-in sessions. */
  describeSessions(): SessionInfo[] {
    return [...this.#sessions].flatMap((session) => session.describe() ?? []);
  }

  /**
   * Call when users were reloaded or API tokens have ended. A session whose user is gone ends; of the others, consumers
   * and links end that need a right which their user has lost.
   * @param affected only the sessions of these users; null: all sessions
   */
  renewUsers(affected: ReadonlySet<User> | null = null): void {
    for (const session of this.#sessions) session.renewUser(affected);
  }

  /** @throws QuaysideError `shutting-down`, or `overloaded` if `maxSockets` are open */
  checkCapacity(): void {
    if (this.#stopping !== null) throw shuttingDown();
    if (!this.#hasMaxSockets) return;
    // The client is sent this error, so it is not logged as an excess connection is.
    throw overloaded(
      `${this.#protocol} has ${this.options.maxSockets} connections, the maximum (maxSockets).`,
    );
  }

  /** Starts the session of a connection from another listener, after `checkCapacity` has passed. */
  accept(socket: ClientSocket, address: string): void {
    this.#sockets.add(socket);
    socket.on('close', () => this.#sockets.delete(socket));
    this.#startSession(socket, address);
  }

  /** Not the listener's own limit, which does not count connections that `accept` added. */
  get #hasMaxSockets(): boolean {
    return this.#sockets.size >= this.options.maxSockets;
  }

  #contextOptions({ cert, key, clientCa }: TlsMaterial): SecureContextOptions {
    const options = { cert, key, ...TLS_VERSION };
    if (this.options.tls?.clientCa === undefined) return options;
    // Without `ca`, Node would trust the public authorities. Without tickets, no TLS session is resumed, so the
    // certificate of each connection is checked against the current authorities.
    return { ...options, ca: clientCa ?? [], secureOptions: constants.SSL_OP_NO_TICKET };
  }

  #connected(socket: Socket): void {
    if (this.#hasMaxSockets) {
      this.#excess.note();
      socket.destroy();
      return;
    }
    this.#sockets.add(socket);
    const peer = peerOf(socket);
    socket.on('close', () => {
      this.#sockets.delete(socket);
      this.#proxiedAddresses.delete(peer);
    });
    const { remoteAddress: proxy = '' } = socket;
    const { options, clock, log } = this;
    if (!options.trustedProxies.has(proxy)) {
      this.#handshake(socket);
      return;
    }
    readProxyHeader(socket, clock, (result) => {
      if ('error' in result) {
        // Not logged: health checks connect and send nothing.
        if (socket.bytesRead === 0 || this.#stopping !== null) return;
        log.warn(
          { proxy, problem: result.error },
          `${this.#protocol}: a trusted proxy sent no valid PROXY header`,
        );
        return;
      }
      if (result.address !== null) this.#proxiedAddresses.set(peer, result.address);
      this.#handshake(socket);
    });
  }

  /** Runs the TLS handshake, if there is one, before the protocol's first byte is read. */
  #handshake(socket: Socket): void {
    if (this.#tls === null) this.#admit(socket);
    else this.#tls.emit('connection', socket);
  }

  #admit(socket: Socket): void {
    // A TLS handshake or a PROXY header that began before `stop` may be complete only now.
    if (this.#stopping !== null) {
      socket.destroy();
      return;
    }
    // A client may close its sending side first; its requests are executed and answered nevertheless.
    socket.allowHalfOpen = true;
    socket.setNoDelay(true);
    socket.setKeepAlive(true, TCP_KEEP_ALIVE_MS);
    this.#startSession(socket, this.#proxiedAddresses.get(peerOf(socket)) ?? socket.remoteAddress ?? '');
  }

  #startSession(socket: ClientSocket, address: string): void {
    this.counts.connections += 1;
    const id = `${this.#startedAt}-${this.counts.connections.toString(36)}`;
    const certificate = readClientCertificate(socket);
    const session = this.openSession(socket, { id, address, certificate });
    this.#sessions.add(session);
    const { clock, log, options } = this;
    const openedAt = clock.monotonic();
    void session.done.then(() => {
      this.#sessions.delete(session);
      const ms = Math.round(clock.monotonic() - openedAt);
      const fields = { event: 'access', protocol: this.#protocol, connection: id, address, ms };
      log[options.logsAccess ? 'info' : 'debug'](fields, 'a connection ended');
    });
  }

  async #stop(): Promise<void> {
    const { clock, options, log } = this;
    const timedOut = Promise.withResolvers<void>();
    const cancelDeadline = clock.after(options.drainMs, () => {
      log.warn(
        { connections: this.#sessions.size },
        `${this.#protocol} sessions were cut: they took too long to end`,
      );
      for (const socket of this.#sockets) socket.destroy();
      timedOut.resolve();
    });
    const closed = new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
    });
    const ended = [...this.#sessions].map(({ done }) => done);
    for (const session of this.#sessions) session.endByServer(shuttingDown());
    await Promise.race([Promise.all(ended), timedOut.promise]);
    // Sockets that are still open have no session: their TLS handshake or PROXY header is incomplete.
    for (const socket of this.#sockets) socket.destroy();
    await closed;
    cancelDeadline();
    const { forbidden, beforeLogin, failures } = this.lineLimits;
    for (const limit of [forbidden, beforeLogin, failures]) limit.flush();
    this.#excess.flush();
  }
}

/** Metrics of one front end. Those up to `stalled` are gauges, the others are counters. */
export type SessionCounts = ReturnType<typeof zeroCounts>;

export function zeroCounts() {
  return {
    /** Logged-in clients. */
    sessions: 0,
    /** Consumers of all sessions. */
    subscriptions: 0,
    /** AMQP only: links in both directions, including those of consumers. */
    links: 0,
    /** Reserved elements that were sent and are not settled yet. */
    unacknowledged: 0,
    /** Sum of the windows of all consumers. */
    window: 0,
    /** Bytes that the kernel does not have yet. */
    outgoingBytes: 0,
    /** Connections whose last write the kernel has taken only in part. */
    stalled: 0,
    connections: 0,
    receivedBytes: 0,
    frames: 0,
    /** Elements sent to clients. */
    messages: 0,
    /** Sessions that the server ended with an error. */
    errors: 0,
  };
}
