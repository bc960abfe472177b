import { constants } from 'node:crypto';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import {
  createServer as createTlsServer,
  type SecureContextOptions,
  type Server as TlsServer,
} from 'node:tls';
import { connectionLimit } from '../access/connection-limit.ts';
import { Networks } from '../access/networks.ts';
import type { Authenticator, RenewUser, User } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { SessionInfo } from '../broker/consumer.ts';
import { QuaysideError, shuttingDown } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { ExcessConnections } from '../util/excess-connections.ts';
import { LineLimit } from '../util/line-limit.ts';
import type { FrontEndLog } from '../util/log.ts';
import type { Service } from '../util/service.ts';
import {
  addressOf,
  listen,
  peerOf,
  TCP_KEEP_ALIVE_MS,
  TLS_HANDSHAKE_MS,
  TLS_VERSION,
  type TlsMaterial,
} from '../util/sockets.ts';
import type { UserLimit } from '../util/user-limit.ts';
import type { ClientSession } from './client-session.ts';
import { type ClientCertificate, readClientCertificate } from './login.ts';
import { readProxyHeader } from './proxy-header.ts';
import type { ClientSocket } from './socket-writer.ts';

/**
 * What every front end with sessions lets an operator set, checked by `config` before. Lengths are in ms, sizes in
 * bytes.
 */
export interface SessionOptions {
  readonly host: string;
  /** 0: any free port; see `SessionServer.address`. */
  readonly port: number;
  /** The largest body of an element that a client sends. */
  readonly bodyLimit: number;
  /** PEM contents; null: plain TCP. */
  readonly tls: TlsMaterial | null;
  /** Proxies whose connections begin with a PROXY protocol header. */
  readonly trustedProxies: Networks;
  /** Connections kept at once; further ones are closed when they come. */
  readonly maxSockets: number;
  /** From the connection to the end of what the client has to send to log in. */
  readonly loginTimeoutMs: number;
  /** How long a client may take none of the bytes that wait for it. */
  readonly stallTimeoutMs: number;
  /** How long `stop` waits for sessions to end before it cuts their connections. */
  readonly drainMs: number;
  /** Whether each connection is logged when it has ended. */
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
  stallTimeoutMs: 90_000,
  drainMs: 10_000,
  logsAccess: false,
};

/** What a front end with sessions needs. */
export interface SessionParts<Options extends SessionOptions = SessionOptions> {
  readonly broker: Broker;
  readonly authenticator: Authenticator;
  readonly options: Options;
  readonly log: FrontEndLog;
  readonly clock: Clock;
  /** Of the program; clients are shown it. */
  readonly version: string;
}

/** What a server knows of a connection when it comes. */
export interface Arrival {
  /** Names it in the log. */
  readonly id: string;
  /** Of the client, even if a proxy is in front of it. */
  readonly address: string;
  readonly certificate: ClientCertificate;
  readonly counts: SessionCounts;
  /** Of the connections that are logged in. */
  readonly logins: UserLimit;
  readonly lineLimits: LineLimits;
}

/** Limits of the log lines that clients cause by frames of a few bytes. */
interface LineLimits {
  /** Frames without the right, by user and what was rejected. */
  readonly forbidden: LineLimit;
  /** Connections that end before their login, by network. */
  readonly beforeLogin: LineLimit;
}

/** Begins the session of a connection. */
type OpenSession = (socket: ClientSocket, arrival: Arrival) => ClientSession;

/** A front end whose clients keep a session: one listener, plain or TLS, and the connections that it took. */
export class SessionServer implements Service {
  readonly counts: SessionCounts = zeroCounts();
  readonly #protocol: string;
  readonly #parts: SessionParts;
  readonly #openSession: OpenSession;
  readonly #server: Server;
  /** Over TLS: does the handshakes of what `#server` takes. It listens nowhere itself. */
  readonly #tls: TlsServer | null;
  /** Raw sockets, those in a TLS handshake included. */
  readonly #sockets = new Set<ClientSocket>();
  /** Addresses of clients behind trusted proxies, by the address and port of the proxy's connection. */
  readonly #behindProxies = new Map<string, string>();
  readonly #sessions = new Set<ClientSession>();
  readonly #startedAt: string;
  readonly #lineLimits: LineLimits;
  readonly #excess: ExcessConnections;
  readonly #logins: UserLimit;
  #stopping: Promise<void> | null = null;

  /** @param protocol its name, for people */
  constructor(protocol: string, parts: SessionParts, openSession: OpenSession) {
    this.#protocol = protocol;
    this.#parts = parts;
    this.#openSession = openSession;
    this.#startedAt = parts.clock.now().toString(36);
    this.#lineLimits = {
      forbidden: new LineLimit(parts.clock, (detail, leftOut) => {
        const fields = { event: 'forbidden', protocol, detail, leftOut };
        parts.log.warn(fields, 'further frames without the right were rejected; their lines were left out');
      }),
      beforeLogin: new LineLimit(parts.clock, (network, leftOut) => {
        const fields = { protocol, network, leftOut };
        parts.log.info(fields, 'further connections ended before their login; their lines were left out');
      }),
    };
    const { tls, maxSockets } = parts.options;
    this.#excess = new ExcessConnections(protocol, maxSockets, parts);
    this.#logins = connectionLimit(protocol, maxSockets);
    // See `#admit`. Over TLS it waits for that: a handshake that a client ends would be kept until it times out.
    this.#server = createServer({ allowHalfOpen: tls === null });
    this.#server.on('connection', (socket: Socket) => this.#connected(socket));
    this.#tls =
      tls === null
        ? null
        : createTlsServer(
            {
              ...this.#contextOptions(tls),
              requestCert: tls.clientCa !== undefined,
              // A client without a certificate that is accepted may log in with a password.
              rejectUnauthorized: false,
              handshakeTimeout: TLS_HANDSHAKE_MS,
            },
            (socket) => this.#admit(socket),
          );
  }

  /** Where it listens. @throws Error before `start` has resolved */
  get address(): AddressInfo {
    return addressOf(this.#server, this.#protocol);
  }

  /** Resolves when it listens; rejects if the address cannot be had. */
  start(): Promise<void> {
    const { options, log } = this.#parts;
    const { host, port } = options;
    return listen(this.#server, { host, port }, this.#protocol, log);
  }

  /**
   * Accepts no further connection, and ends every session with `shutting-down` after what it asked for before; cuts
   * those that are left after `drainMs`. What clients hold returns to its queues, with no try counted.
   */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  /** Uses another certificate for connections from now on. @throws Error if it cannot be read */
  reloadTls(tls: TlsMaterial): void {
    this.#tls?.setSecureContext(this.#contextOptions(tls));
  }

  /** The sessions that are logged in. */
  describeSessions(): SessionInfo[] {
    return [...this.#sessions].flatMap((session) => session.describe() ?? []);
  }

  /**
   * Users were reloaded, or API tokens have ended: sessions end if their user is gone or may no longer read what they
   * read.
   * @param of only the sessions of these users; null: of all
   */
  renewUsers(renew: RenewUser, of: ReadonlySet<User> | null = null): void {
    for (const session of this.#sessions) session.renewUser(renew, of);
  }

  /** @throws QuaysideError if no further client is taken now */
  checkCapacity(): void {
    if (this.#stopping !== null) throw shuttingDown();
    if (!this.#hasMaxSockets) return;
    // The client is sent this error, so it is not logged as an excess connection is.
    throw new QuaysideError(
      'overloaded',
      `${this.#protocol} has ${this.#parts.options.maxSockets} connections, the most that are allowed.`,
    );
  }

  /** Takes a client whose connection came to another listener. `checkCapacity` has passed. */
  accept(socket: ClientSocket, address: string): void {
    this.#sockets.add(socket);
    socket.on('close', () => this.#sockets.delete(socket));
    this.#begin(socket, address);
  }

  /** Counted here, because the listener knows nothing of connections that `accept` added. */
  get #hasMaxSockets(): boolean {
    return this.#sockets.size >= this.#parts.options.maxSockets;
  }

  #contextOptions({ cert, key, clientCa }: TlsMaterial): SecureContextOptions {
    const options = { cert, key, ...TLS_VERSION };
    if (this.#parts.options.tls?.clientCa === undefined) return options;
    // Without `ca` those would be trusted that sign the world's websites. Without tickets no session is resumed, so
    // each connection has its certificate checked, and by the authorities of now.
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
      this.#behindProxies.delete(peer);
    });
    const { remoteAddress: proxy = '' } = socket;
    const { options, clock, log } = this.#parts;
    if (!options.trustedProxies.has(proxy)) {
      this.#handshake(socket);
      return;
    }
    readProxyHeader(socket, clock, (result) => {
      if ('error' in result) {
        // Health checks connect and send nothing.
        if (socket.bytesRead === 0 || this.#stopping !== null) return;
        log.warn(
          { proxy, problem: result.error },
          `${this.#protocol}: a trusted proxy sent no valid PROXY header`,
        );
        return;
      }
      if (result.address !== null) this.#behindProxies.set(peer, result.address);
      this.#handshake(socket);
    });
  }

  /** Everything before the protocol's own first byte is read. */
  #handshake(socket: Socket): void {
    if (this.#tls === null) this.#admit(socket);
    else this.#tls.emit('connection', socket);
  }

  #admit(socket: Socket): void {
    // Over TLS, or from a proxy, one may come late: its handshake began before the stop did.
    if (this.#stopping !== null) {
      socket.destroy();
      return;
    }
    // A client may close its sending side first; what it asked for is done and answered all the same.
    socket.allowHalfOpen = true;
    socket.setNoDelay(true);
    socket.setKeepAlive(true, TCP_KEEP_ALIVE_MS);
    this.#begin(socket, this.#behindProxies.get(peerOf(socket)) ?? socket.remoteAddress ?? '');
  }

  #begin(socket: ClientSocket, address: string): void {
    this.counts.connections += 1;
    const id = `${this.#startedAt}-${this.counts.connections.toString(36)}`;
    const session = this.#openSession(socket, {
      id,
      address,
      certificate: readClientCertificate(socket),
      counts: this.counts,
      logins: this.#logins,
      lineLimits: this.#lineLimits,
    });
    this.#sessions.add(session);
    const { clock, log, options } = this.#parts;
    const openedAt = clock.monotonic();
    void session.done.then(() => {
      this.#sessions.delete(session);
      const ms = Math.round(clock.monotonic() - openedAt);
      const fields = { event: 'access', protocol: this.#protocol, connection: id, address, ms };
      log[options.logsAccess ? 'info' : 'debug'](fields, 'a connection ended');
    });
  }

  async #stop(): Promise<void> {
    const { clock, options, log } = this.#parts;
    const late = Promise.withResolvers<void>();
    const cancelDeadline = clock.after(options.drainMs, () => {
      log.warn(
        { connections: this.#sessions.size },
        `${this.#protocol} sessions were cut: they took too long to end`,
      );
      for (const socket of this.#sockets) socket.destroy();
      late.resolve();
    });
    const closed = new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
    });
    const ended = [...this.#sessions].map(({ done }) => done);
    for (const session of this.#sessions) session.endByServer(shuttingDown());
    await Promise.race([Promise.all(ended), late.promise]);
    // Whatever is open still was never a session: a TLS handshake that has not ended.
    for (const socket of this.#sockets) socket.destroy();
    await closed;
    cancelDeadline();
    this.#lineLimits.forbidden.flush();
    this.#lineLimits.beforeLogin.flush();
    this.#excess.flush();
  }
}

/** Numbers of one front end for `/metrics`. Those up to `stalled` are current, the others count from the start. */
export type SessionCounts = ReturnType<typeof zeroCounts>;

export function zeroCounts() {
  return {
    /** Clients that are logged in. */
    sessions: 0,
    /** Consumers of all sessions. */
    subscriptions: 0,
    /** AMQP only: links in both directions, those of consumers included. */
    links: 0,
    /** Reserved elements that were sent and are not settled. */
    unacknowledged: 0,
    /** The windows of all subscriptions together. */
    window: 0,
    /** Bytes that the kernel does not have yet. */
    outgoingBytes: 0,
    /** Connections of which the kernel has not taken all of the last write. */
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
