import type { Server, ServerOptions, ServerResponse } from 'node:http';
import { createServer as createTlsServer, type Server as TlsServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { User } from '../access/user.ts';
import { malformedRequest, QuaysideError } from '../model/errors.ts';
import { didYouMean } from '../util/did-you-mean.ts';
import type { Histogram } from '../util/histogram.ts';
import { ExcessConnections } from '../util/line-limit.ts';
import { quote } from '../util/quote.ts';
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
import { errorResponse } from './errors.ts';
import { Front } from './front.ts';
import { createServer, HttpResponse } from './node-http.ts';
import type { HttpOptions, HttpParts } from './options.ts';
import { HttpRequest, requestTimeout } from './request.ts';
import { headerLines, METHODS, type Method, type Route, type Router } from './route.ts';
import { routeTable } from './routes/table.ts';

/**
 * Maximum size of request line and headers together: enough for the names and element headers that the limits allow.
 */
const HEAD_BYTES = 16_384;
/** How often Node checks for requests that take too long to arrive. */
const TIMEOUT_CHECK_MS = 1_000;

/** The HTTP front end: one listener, plain or TLS, and its connections. */
export class HttpServer implements Service {
  readonly #parts: HttpParts;
  readonly #front: Front;
  readonly #server:
    | Server<typeof HttpRequest, typeof HttpResponse>
    | TlsServer<typeof HttpRequest, typeof HttpResponse>;
  readonly #sockets = new Set<Socket>();
  /** With TLS: connections without a request so far, including those in a handshake, by peer. */
  readonly #unused = new Map<string, Socket>();
  readonly #excess: ExcessConnections;
  #stopping: Promise<void> | null = null;

  constructor(parts: HttpParts, table: readonly Route[] = routeTable(parts)) {
    this.#parts = parts;
    this.#front = new Front(parts, table);
    this.#excess = new ExcessConnections('HTTP', parts.options.maxSockets, parts);
    this.#server = makeServer(parts.options, (request) => this.#front.isUpgrade(request));
    this.#listenTo(this.#server);
  }

  /** Where it listens. @throws Error before `start` has resolved */
  get address(): AddressInfo {
    return addressOf(this.#server, 'HTTP');
  }

  /** How long requests took, by operation. */
  get requestTimes(): ReadonlyMap<string, Histogram> {
    return this.#front.requestTimes;
  }

  /** Resolves when it listens; rejects if the address is not available. */
  start(): Promise<void> {
    const { options, log } = this.#parts;
    const { host, port } = options;
    return listen(this.#server, host.startsWith('/') ? { path: host } : { host, port }, 'HTTP', log);
  }

  /**
   * Makes each further response close its connection. Call this before draining the broker, which ends blocked gets.
   */
  drain(): void {
    this.#front.close();
  }

  /**
   * Accepts no further connections, waits for the responses in progress (each with `Connection: close`), and closes the
   * remaining connections after `drainMs`. Drain the broker first, which ends blocked gets.
   */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  /** Uses another certificate for new connections. @throws Error if it cannot be read */
  reloadTls(tls: TlsMaterial): void {
    if ('setSecureContext' in this.#server) this.#server.setSecureContext({ ...tls, ...TLS_VERSION });
  }

  /**
   * Call this after users were reloaded or API tokens have ended. Ends waiting calls whose user no longer exists or may
   * no longer read there.
   * @param users only the calls of these users; null: of all
   */
  renewUsers(users: ReadonlySet<User> | null = null): void {
    this.#front.renewUsers(users);
  }

  #listenTo(server: Server<typeof HttpRequest, typeof HttpResponse>): void {
    const front = this.#front;
    const { handle } = front;
    server.on('request', handle);
    // With these two, this code decides when to send `100 Continue` and how to respond to other expectations.
    server.on('checkContinue', handle);
    server.on('checkExpectation', handle);
    server.on('clientError', (error, socket) => respondToUnreadable(error, socket, front));
    server.on('connect', (_request, socket) => rejectTunnel(socket, front));
    server.on('upgrade', (request, socket, head) => front.upgrade(request, socket as Socket, head));
    server.on('drop', () => this.#excess.note());
    server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.on('close', () => this.#sockets.delete(socket));
    });
    const { tls } = this.#parts.options;
    server.on(tls === null ? 'connection' : 'secureConnection', (socket: Socket) => {
      // Node reads the address of a peer at its first use, and remembers it. A closed connection has none any more.
      void socket.remoteAddress;
      front.connectionOf(socket);
    });
    if (tls !== null) this.#watchUnused(server);
  }

  /** With TLS, `bytesRead` does not show whether a request has begun: the handshake counts as well. */
  #watchUnused(server: Server<typeof HttpRequest, typeof HttpResponse>): void {
    server.on('connection', (socket) => {
      const peer = peerOf(socket);
      this.#unused.set(peer, socket);
      socket.on('close', () => this.#unused.delete(peer));
    });
    const markUsed = ({ socket }: HttpRequest): void => {
      this.#unused.delete(peerOf(socket));
    };
    server.prependListener('request', markUsed);
    server.prependListener('checkContinue', markUsed);
    server.prependListener('checkExpectation', markUsed);
    server.prependListener('upgrade', markUsed);
  }

  #stop(): Promise<void> {
    this.drain();
    const { promise, resolve } = Promise.withResolvers<void>();
    const { clock, options, log } = this.#parts;
    const cancelDeadline = clock.after(options.drainMs, () => {
      log.warn({ connections: this.#sockets.size }, 'connections were closed: their responses took too long');
      for (const socket of this.#sockets) socket.destroy();
    });
    this.#server.close(() => {
      cancelDeadline();
      this.#front.flushLog();
      this.#excess.flush();
      resolve();
    });
    // Node closes idle connections by itself, but not those on which no request has begun yet.
    for (const socket of this.#sockets) if (socket.bytesRead === 0) socket.destroy();
    for (const socket of this.#unused.values()) socket.destroy();
    return promise;
  }
}

function makeServer(
  options: HttpOptions,
  isUpgrade: (request: HttpRequest) => boolean,
): Server<typeof HttpRequest, typeof HttpResponse> | TlsServer<typeof HttpRequest, typeof HttpResponse> {
  const settings: ServerOptions<typeof HttpRequest, typeof HttpResponse> = {
    IncomingMessage: HttpRequest,
    ServerResponse: HttpResponse,
    shouldUpgradeCallback: isUpgrade,
    // This code rejects a missing `Host`; Node's own response would have no body with the error.
    requireHostHeader: false,
    insecureHTTPParser: false,
    maxHeaderSize: HEAD_BYTES,
    headersTimeout: options.headersTimeoutMs,
    requestTimeout: options.requestTimeoutMs,
    keepAliveTimeout: options.keepAliveTimeoutMs,
    connectionsCheckingInterval: TIMEOUT_CHECK_MS,
    keepAlive: true,
    keepAliveInitialDelay: TCP_KEEP_ALIVE_MS,
  };
  const server =
    options.tls === null
      ? createServer(settings)
      : createTlsServer({
          ...settings,
          ...options.tls,
          ...TLS_VERSION,
          handshakeTimeout: TLS_HANDSHAKE_MS,
          allowHalfOpen: true,
        });
  // Otherwise Node closes a connection whose client has closed its half, although a request waits for its response.
  (server as unknown as { httpAllowHalfOpen: boolean }).httpAllowHalfOpen = true;
  server.maxConnections = options.maxSockets;
  // No limit: a header that Node drops could be the second of two that contradict each other.
  server.maxHeadersCount = 0;
  return server;
}

// Bytes that Node's parser rejects never become a request. They are answered here, directly on the connection, which is
// then closed: it is unknown where the next request would begin.

const TIMED_OUT = 'ERR_HTTP_REQUEST_TIMEOUT';

interface ParserError extends Error {
  readonly code?: string;
  /** The parser's message. */
  readonly reason?: string;
  readonly rawPacket?: Buffer;
  /** How many bytes of the packet were parsed. */
  readonly bytesParsed?: number;
}

/** Responds to bytes that are not a request, or to a request that did not arrive in time. */
function respondToUnreadable(thrown: Error, socket: Duplex, front: Front): void {
  const error = thrown as ParserError;
  if (error.code === TIMED_OUT && front.connectionOf(socket).hasOwnTimeLimit) return;
  // Any other error is a broken connection or a failed TLS handshake: the client could not read a response.
  const isProtocolError = error.code?.startsWith('HPE_') || error.code === TIMED_OUT;
  if (!isProtocolError) {
    socket.destroy();
    return;
  }
  const connection = front.connectionOf(socket);
  if (!connection.isUnreadable) {
    connection.markUnreadable();
    endInTurn(socket, rejectionFor(error, front.router), front.inertLines);
  }
}

/**
 * Responds after the earlier requests of the connection, which are processed: a request that was stored must not get
 * this error as its response.
 */
function endInTurn(socket: Duplex, error: QuaysideError, lines: string): void {
  // Internal to Node: the first pending response of this connection; null if there is none.
  const { _httpMessage: first } = socket as Duplex & { _httpMessage?: ServerResponse | null };
  if (first?.req.complete) first.once('finish', () => endInTurn(socket, error, lines));
  // If that response belongs to the unreadable request, and nothing of it was written, this error is sent instead.
  else if (socket.writable && !first?.headersSent) sendAndClose(socket, error, lines);
  else socket.destroy();
}

/** Rejects CONNECT, which requests a tunnel; Node passes on the bare connection. */
function rejectTunnel(socket: Duplex, front: Front): void {
  // Node has released this socket, and no longer handles its errors.
  socket.on('error', () => socket.destroy());
  front.connectionOf(socket).handOver();
  front.connectionOf(socket).markUnreadable();
  endInTurn(socket, unknownMethod('CONNECT', METHODS), front.inertLines);
}

function rejectionFor(
  { code, reason, rawPacket, bytesParsed = 0 }: ParserError,
  router: Router,
): QuaysideError {
  switch (code) {
    case 'HPE_HEADER_OVERFLOW':
      return new QuaysideError(
        'headers-too-large',
        'The request line and the headers have more than 16 KiB together, the limit.',
      );
    case 'HPE_CHUNK_EXTENSIONS_OVERFLOW':
      return new QuaysideError('body-too-large', 'The chunk extensions have more than 16 KiB, the limit.');
    case TIMED_OUT:
      return requestTimeout();
    case 'HPE_INVALID_METHOD':
      if (bytesParsed > LONGEST_METHOD)
        return trailingBytes(rawPacket?.toString('latin1', bytesParsed) ?? '');
      return notHttp(rawPacket?.toString('latin1', 0, 2048) ?? '', router);
    default:
      return malformedRequest(
        PARSER_ERRORS.get(code ?? '') ?? `The request is not well-formed HTTP: ${reason ?? code}.`,
      );
  }
}

const ALLOWED_VERSIONS = 'Allowed: HTTP/1.1 and HTTP/1.0.';

/** Messages for errors whose reason in Node does not say what is wrong or allowed. */
const PARSER_ERRORS: ReadonlyMap<string, string> = new Map([
  ['HPE_INVALID_EOF_STATE', 'The client closed its sending side before the end of the request.'],
  ['HPE_INVALID_VERSION', `The version of HTTP in the request line is not supported. ${ALLOWED_VERSIONS}`],
  ['HPE_PAUSED_H2_UPGRADE', `HTTP/2 is not supported. ${ALLOWED_VERSIONS}`],
]);

/** The error for a method that Node does not know, or for something that is not HTTP at all. */
function notHttp(packet: string, router: Router): QuaysideError {
  const [, method, path = ''] =
    /^([\w!#$%&'*+.^`|~-]{1,64}) (\/[^\s?]*)(?:\?\S*)? HTTP\/1\.[01]\r?\n/.exec(packet) ?? [];
  if (method !== undefined) {
    const allowed = router.allowed(path);
    return unknownMethod(method, allowed.length === 0 ? METHODS : allowed);
  }
  const [line = ''] = packet.split(/\r?\n/, 1);
  const hint = packet.startsWith(TLS_HANDSHAKE)
    ? ' This looks like TLS, and the port expects plain HTTP.'
    : '';
  return malformedRequest(
    `${quote(line)} is not an HTTP request line. Expected: METHOD /path HTTP/1.1.${hint}`,
  );
}

/** If the parser got further than the longest method, a whole request precedes the bytes that it rejected. */
const LONGEST_METHOD = 16;

/** @param rest the bytes that were not parsed, from within what should be a method */
function trailingBytes(rest: string): QuaysideError {
  return malformedRequest(
    `The bytes behind a complete request, near ${quote(rest)}, are not an HTTP request line. Check its Content-Length, which counts bytes.`,
  );
}

const TLS_HANDSHAKE = '\u0016\u0003';

class UnknownMethodError extends QuaysideError {
  readonly allowed: readonly Method[];

  constructor(message: string, allowed: readonly Method[]) {
    super('method-not-allowed', message);
    this.allowed = allowed;
  }
}

/** @param allowed the methods of the path; if it does not exist, those of all paths */
function unknownMethod(method: string, allowed: readonly Method[]): QuaysideError {
  const hint = didYouMean(method, allowed);
  return new UnknownMethodError(
    `Method ${quote(method)} is not supported.${hint || ` Allowed: ${allowed.join(', ')}.`}`,
    allowed,
  );
}

function sendAndClose(socket: Duplex, error: QuaysideError, lines: string): void {
  const { status, reason, contentType, body } = errorResponse(error, null);
  const headers = ['content-type', contentType, 'content-length', String(Buffer.byteLength(body))];
  if (error instanceof UnknownMethodError) headers.push('allow', error.allowed.join(', '));
  headers.push('date', new Date().toUTCString(), 'connection', 'close');
  const head = `HTTP/1.1 ${status} ${reason}\r\n${lines}${headerLines(headers)}\r\n`;
  socket.end(head + body, () => socket.destroy());
}
