import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { bodyLimit } from '../access/body-limit.ts';
import { connectionLimit } from '../access/connection-limit.ts';
import { addressBlock } from '../access/networks.ts';
import type { User } from '../access/user.ts';
import { malformedRequest, overloaded, QuaysideError, shuttingDown } from '../model/errors.ts';
import { checkName } from '../model/names.ts';
import { Histogram } from '../util/histogram.ts';
import { InputTurns } from '../util/input-turns.ts';
import { LineLimit } from '../util/line-limit.ts';
import { ownString } from '../util/own-bytes.ts';
import { quote } from '../util/quote.ts';
import type { UserLimit } from '../util/user-limit.ts';
import { checkCsrfToken, checkPage, exposedHeaders, respondToPreflight, useSession } from './browser.ts';
import { checkAccess, HttpCall, UNMATCHED } from './call.ts';
import { HttpConnection, type InputLoad } from './connection.ts';
import { routeNotFound, unauthorized, upgradeRequired } from './errors.ts';
import { type RequestHead, rareHeader, readHead } from './head.ts';
import { RequestLimits } from './limits.ts';
import { HttpResponse } from './node-http.ts';
import { NodeLists } from './node-lists.ts';
import type { HttpParts } from './options.ts';
import type { HttpRequest } from './request.ts';
import { constantLines, INERT_HEADERS, type Route, type RouteMatch, Router } from './route.ts';
import { traceRequest, withinSpan } from './traced-request.ts';

const HSTS = constantLines({ 'strict-transport-security': 'max-age=31536000' });

/** Upper bounds in seconds. The largest ones are for blocked gets. */
const REQUEST_TIME_BUCKETS_S = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10, 60];

/** Not allowed in a request target: `#`, and everything that clients must percent-encode by the RFC. */
const INVALID_TARGET_CHARACTER = /[^\x21\x22\x24-\x7e]/;
/** The scheme and the host of a request target in absolute form. */
const ABSOLUTE_FORM = /^https?:\/\/[^/?]*/i;

/** Pipelined reads that may wait on one connection for earlier responses; further ones are rejected. */
const MAX_WAITING_READS = 100;

/**
 * Requests that one turn of the event loop handles on a connection on which nobody has logged in. Without this limit,
 * the 64 KiB of pipelined requests that a turn may parse took 50 ms, and those of 100 connections 5 s.
 */
const MAX_ANONYMOUS_REQUESTS = 10;

/** How long the parsers of connections do not read by themselves after a client had to wait, ms. */
const HIGH_LOAD_MS = 2_000;

/** The property of a socket that has its `HttpConnection`. */
const CONNECTION = Symbol('connection');

/**
 * Authenticates each request, checks it and passes it to its route. One instance serves all connections of a server.
 */
export class Front {
  readonly parts: HttpParts;
  readonly router: Router;
  /** Seconds from the head of a request until its response was written, by operation. */
  readonly requestTimes: ReadonlyMap<string, Histogram>;
  readonly nodeLists: NodeLists;
  readonly limits: RequestLimits;
  /** The constant header lines of responses without a route. */
  readonly inertLines: string;
  /** The names of response headers that pages of allowed origins may read, separated by commas. */
  readonly exposedHeaders: string;
  readonly #origins: ReadonlySet<string>;
  readonly #startedAt: string;
  /** Requests in this turn of the event loop, by connection on which nobody has logged in. */
  readonly #anonymousRequests = new Map<HttpConnection, number>();
  /** Open connections. */
  readonly #connections = new Set<HttpConnection>();
  readonly #connectionLimit: UserLimit;
  readonly #foreignPageLines: LineLimit;
  readonly #load: InputLoad;
  /** Set once the server stops: each later response closes its connection. */
  isClosing = false;
  #failures = 0;

  /** @param table of routes */
  constructor(parts: HttpParts, table: readonly Route[]) {
    this.parts = parts;
    this.#load = this.#observeLoad(parts.inputTurns ?? new InputTurns());
    this.limits = new RequestLimits(parts.bodies ?? bodyLimit(parts.clock));
    this.nodeLists = new NodeLists(parts);
    this.#connectionLimit = connectionLimit('HTTP', parts.options.maxSockets);
    const secured = (lines: string) => (parts.options.tls === null ? lines : lines + HSTS);
    const routes = table.map((route) => ({ ...route, responseLines: secured(route.responseLines) }));
    this.router = new Router(routes);
    const operations = [...routes.map(({ id }) => id), UNMATCHED];
    this.requestTimes = new Map(operations.map((id) => [id, new Histogram(REQUEST_TIME_BUCKETS_S)]));
    this.inertLines = secured(constantLines(INERT_HEADERS));
    this.exposedHeaders = exposedHeaders(routes);
    this.#origins = new Set(parts.options.allowedOrigins.map((origin) => origin.toLowerCase()));
    this.#foreignPageLines = new LineLimit(parts.clock, (network, leftOut) => {
      const fields = { event: 'forbidden', network, leftOut };
      parts.log.warn(fields, 'further requests of foreign pages were rejected; their lines were left out');
    });
    this.#startedAt = parts.clock.now().toString(36);
  }

  close(): void {
    this.isClosing = true;
    // Event streams do not end by themselves.
    this.parts.events.drain();
  }

  #observeLoad(turns: InputTurns): InputLoad {
    const { clock } = this.parts;
    const connections = this.#connections;
    let notedAt = Number.NEGATIVE_INFINITY;
    return {
      turns,
      clock,
      get isHigh() {
        return clock.monotonic() - notedAt < HIGH_LOAD_MS;
      },
      note() {
        if (!this.isHigh) for (const connection of connections) connection.meter();
        notedAt = clock.monotonic();
      },
    };
  }

  /** The connection of a socket; a new one at its first request. */
  connectionOf(socket: Duplex & { [CONNECTION]?: HttpConnection }): HttpConnection {
    const known = socket[CONNECTION];
    if (known !== undefined) return known;
    const connection = new HttpConnection(socket, this.#load);
    if (this.#load.isHigh) connection.meter();
    socket[CONNECTION] = connection;
    this.#connections.add(connection);
    socket.once('close', () => {
      this.#connections.delete(connection);
      this.#connectionLimit.exit(connection.countedFor);
    });
    return connection;
  }

  /**
   * Ends waiting calls whose user no longer exists or may no longer read there.
   * @param affected only the calls of these users; null: of all
   */
  renewUsers(affected: ReadonlySet<User> | null): void {
    for (const { waitingCall } of this.#connections) waitingCall?.renewUser?.(affected);
  }

  /** Writes the pending counts of log lines that were left out. Call after the last request. */
  flushLog(): void {
    this.#foreignPageLines.flush();
  }

  /** Handles a request. Never throws; the response may be sent later. */
  readonly handle = (request: HttpRequest, response: HttpResponse): void => {
    const call = new HttpCall(this, request, response);
    if (this.parts.options.logsAccess) this.#logAccess(call);
    call.connection.startInTurn(() => {
      if (call.connection.countedFor === null && this.#isExcessive(call)) return;
      const { tracer } = this.parts;
      if (tracer === undefined) this.#admit(call);
      else traceRequest(call, tracer, () => this.#admit(call));
    });
  };

  /**
   * Counts a request on a connection on which nobody has logged in. Beyond the limit, rejects it, parses nothing that
   * arrived behind it, and closes the connection after the response.
   */
  #isExcessive(call: HttpCall): boolean {
    const { connection, response } = call;
    if (this.#anonymousRequests.size === 0) setImmediate(() => this.#anonymousRequests.clear());
    const count = (this.#anonymousRequests.get(connection) ?? 0) + 1;
    this.#anonymousRequests.set(connection, count);
    if (count <= MAX_ANONYMOUS_REQUESTS) return false;
    const error = overloaded(
      `More than ${MAX_ANONYMOUS_REQUESTS} requests arrived together on this connection, the limit before a login. Read the response to the first one, then send the others.`,
    );
    connection.stopParsing(error);
    response.shouldKeepAlive = false;
    call.fail(error);
    return true;
  }

  /**
   * Starts a pipelined GET, HEAD or take of many once the earlier responses on its connection are sent. Otherwise a
   * client that does not read would take an element with each request, and a listing behind a blocked get would occupy
   * its user's turn to list.
   */
  inTurn(call: HttpCall, start: () => void): void {
    if (call.response.socket !== null) {
      start();
      return;
    }
    const { connection } = call;
    if (connection.waitingReads >= MAX_WAITING_READS) {
      call.fail(
        overloaded(
          `${MAX_WAITING_READS} pipelined GETs, HEADs and takes wait on this connection, the limit. Read their responses first.`,
        ),
      );
      return;
    }
    connection.waitingReads += 1;
    call.response.once('socket', () => {
      connection.waitingReads -= 1;
      // Node is still assigning the socket, and would mistake a response that is written now for a buffered one.
      queueMicrotask(() => connection.startInTurn(() => withinSpan(call, start)));
    });
  }

  /** Whether a request to upgrade its connection goes to {@link upgrade}; others are handled like any request. */
  isUpgrade({ method, url = '', rawHeaders }: HttpRequest): boolean {
    const [path = ''] = url.replace(ABSOLUTE_FORM, '').split('?', 1);
    if (method !== 'GET' || this.parts.upgrades?.has(path) !== true) return false;
    return rareHeader(rawHeaders, 'upgrade')?.toLowerCase() === 'websocket';
  }

  /**
   * Hands a connection over to the protocol of the path. Browsers send such requests on behalf of any page, so the
   * rules for pages apply.
   */
  upgrade(request: HttpRequest, socket: Socket, head: Buffer): void {
    // Node does not handle errors of a socket that it hands over, and clients may reset the connection.
    socket.on('error', () => socket.destroy());
    this.connectionOf(socket).handOver();
    // Responses to earlier requests on this connection would be written between the frames.
    if ((socket as Socket & { _httpMessage?: ServerResponse | null })._httpMessage) {
      socket.destroy();
      return;
    }
    const response = new HttpResponse(request);
    response.assignSocket(socket);
    response.shouldKeepAlive = false;
    response.once('finish', () => socket.destroySoon());
    const call = new HttpCall(this, request, response);
    try {
      call.head = readHead(request.rawHeaders, request.httpVersionMinor === 0);
      call.origin = checkPage(call.head, this.#origins);
      splitTarget(call, request.url ?? '');
      const upgrade = this.parts.upgrades?.get(call.path);
      if (upgrade === undefined) throw this.#noRoute(call);
      if (this.isClosing) throw shuttingDown();
      checkNoBody(call.head);
      const { address } = call;
      const onAccepted = (): void => response.detachSocket(socket);
      const onLogin = (user: string): void => this.#countConnection(call, user);
      upgrade({ rawHeaders: request.rawHeaders, address, socket, head, onAccepted, onLogin });
    } catch (error) {
      call.fail(error);
    }
  }

  /** The error to respond with, whatever was thrown. Logs an internal error under an id that the response names. */
  errorOf(thrown: unknown, call: HttpCall): QuaysideError {
    if (thrown instanceof QuaysideError && thrown.code !== 'internal') {
      if (thrown.code === 'forbidden') this.#logForbidden(thrown, call);
      else if (thrown.code === 'forbidden-origin') this.#logForeignPage(thrown, call);
      else if (!ENDED_WAITS.has(thrown.code)) this.#logRejected(thrown, call);
      return thrown;
    }
    this.#failures += 1;
    const requestId = `${this.#startedAt}-${this.#failures.toString(36)}`;
    const { method } = call.request;
    this.parts.log.error({ err: thrown, requestId, method, path: truncated(call.path) }, 'a request failed');
    return new QuaysideError('internal', 'The server failed; its log says why, under this request id.', {
      extra: { requestId },
    });
  }

  #logAccess(call: HttpCall): void {
    const { clock, log } = this.parts;
    const startedAt = clock.monotonic();
    const { response } = call;
    response.once('close', () => {
      const ms = Math.round(clock.monotonic() - startedAt);
      // A client that disconnected before its response began has seen no status.
      const status = response.headersSent ? response.statusCode : null;
      log.info({ event: 'access', ...call.logFields, status, ms }, 'a request ended');
    });
  }

  /** Omits the message, which quotes what the client sent. */
  #logRejected({ code, details: { parameter } }: QuaysideError, call: HttpCall): void {
    const { log } = this.parts;
    if (!log.isLevelEnabled('debug')) return;
    log.debug({ event: 'rejected', code, parameter, ...call.logFields }, 'a request was rejected');
  }

  #logForbidden({ message }: QuaysideError, { user, route, params, address }: HttpCall): void {
    const by = { user: user.name, address, action: route?.id };
    const fields = { ...truncatedParams(params), event: 'forbidden', ...by, detail: message };
    this.parts.log.warn(fields, 'a request without the right was rejected');
  }

  /** Bounds lines and fields: these requests need no login, so anybody can send any number of them. */
  #logForeignPage({ message }: QuaysideError, call: HttpCall): void {
    const { log } = this.parts;
    const isWarned = this.#foreignPageLines.admit(addressBlock(call.address));
    if (!isWarned && !log.isLevelEnabled('debug')) return;
    const { origin, fetchSite, purpose, oldPurpose } = call.head;
    const sent = {
      origin: truncated(origin),
      fetchSite: truncated(fetchSite),
      purpose: truncated(purpose ?? oldPurpose),
    };
    const fields = { event: 'forbidden', ...call.logFields, ...sent, detail: message };
    log[isWarned ? 'warn' : 'debug'](fields, 'a request of a foreign page was rejected');
  }

  /** Authenticates before routing, so that anonymous callers cannot probe paths. */
  #admit(call: HttpCall): void {
    const { request, response } = call;
    // Node assigns the socket to a response once the earlier responses on the connection are sent.
    const isPipelined = response.socket === null && call.isRead;
    if (isPipelined) {
      this.inTurn(call, () => this.#admit(call));
      return;
    }
    try {
      if (request.httpVersionMajor !== 1) throw unsupportedVersion(request);
      const head = readHead(request.rawHeaders, request.httpVersionMinor === 0);
      call.head = head;
      splitTarget(call, request.url ?? '');
      const { authorization } = head;
      // Programs send none of these headers.
      const isOfBrowser = (head.origin ?? head.fetchSite ?? head.purpose ?? head.oldPurpose) !== null;
      if (isOfBrowser && respondToPreflight(call, this.#origins)) return;
      const isBySession = (head.cookie ?? head.csrfToken) !== null && useSession(call);
      if (!isBySession && authorization !== null) {
        call.login = this.parts.authenticator.recall(authorization);
        if (call.login === null) {
          void this.#logIn(call, authorization);
          return;
        }
      }
      this.#dispatch(call);
    } catch (error) {
      call.fail(error);
    }
  }

  async #logIn(call: HttpCall, authorization: string): Promise<void> {
    try {
      call.login = await this.parts.authenticator.login(authorization, call.address);
      if (!call.isGone) this.#dispatch(call);
    } catch (error) {
      call.fail(error);
    }
  }

  /** Finds the route, checks access, sets the namespace and the queue of the path, and calls the handler. */
  #dispatch(call: HttpCall): void {
    const user = call.login;
    if (user !== null && call.connection.countedFor === null) this.#countConnection(call, user.name);
    const match = this.router.find(call.request.method ?? '', call.path);
    if (match === null && this.parts.upgrades?.has(call.path) === true) throw upgradeRequired(call);
    if (user === null && match?.route.access !== 'open') throw unauthorized(call);
    if (match === null) throw this.#noRoute(call);
    const { route, params } = match;
    const { namespace, queue } = params;
    call.route = route;
    call.params = params;
    if (call.session !== null) checkCsrfToken(call, call.session, route);
    if (route.body === 'discard') call.request.discard();
    if (namespace !== undefined) call.namespace = this.parts.broker.namespace(namespace);
    checkAccess(user, route, namespace);
    if (queue !== undefined) {
      checkName('queue', queue);
      call.queue = route.createsQueue ? call.namespace.queue(queue) : call.namespace.visit(queue);
    }
    const handling = route.handle(call, route.query.read(call.search));
    if (handling !== undefined) handling.catch((error: unknown) => call.fail(error));
    if (route.isAudited) this.#audit(call, handling);
  }

  /**
   * Counts a connection for the user of its first authenticated request; a proxy's connections carry many users.
   * @throws QuaysideError `overloaded`
   */
  #countConnection({ connection, response, isGone }: HttpCall, user: string): void {
    if (isGone) return;
    try {
      this.#connectionLimit.enter(user);
    } catch (error) {
      response.shouldKeepAlive = false;
      throw error;
    }
    connection.countedFor = user;
  }

  /** Logs an audited operation once it has succeeded (docs/operate/log-events.md). */
  #audit(call: HttpCall, handling: Promise<void> | void): void {
    const auditIfComplete = (): void => {
      // If the client disconnected before the end of its JSON body, nothing was done.
      if (call.route?.body !== 'json' || call.request.complete) this.audit(call);
    };
    if (handling === undefined) auditIfComplete();
    else handling.then(auditIfComplete, () => {});
  }

  /**
   * Logs an operation of a user and adds it to this node's audit trail.
   * @param user defaults to the call's; given for a sign-in or sign-out
   */
  audit(call: HttpCall, { name: user }: User = call.user): void {
    const { clock, log } = this.parts;
    const { address } = call;
    const params = truncatedParams(call.params);
    const action = call.route?.id ?? UNMATCHED;
    const { namespace = null, queue = null, ...rest } = params;
    log.info({ ...params, event: 'admin', action, user, ...call.auditFields }, 'an operator acted');
    const at = new Date(clock.now()).toISOString();
    this.nodeLists.addAuditLine({
      at,
      user,
      action,
      address,
      namespace,
      queue,
      details: { ...rest, ...call.auditFields },
    });
  }

  #noRoute(call: HttpCall): QuaysideError {
    const { path, request } = call;
    if (!isWellEncoded(path)) {
      return malformedRequest(`Path ${quote(path)} is not percent-encoded UTF-8.`);
    }
    const methods = this.router.allowed(path);
    const [allowed] = methods;
    // Else the empty name would count as an id, and the error would list the methods of an element.
    const shorter = path.endsWith('/') ? path.slice(0, -1) : path;
    if (shorter !== path && this.router.find(request.method ?? '', shorter) !== null) {
      return new QuaysideError(
        'route-not-found',
        `Path ${quote(path)} ends with an empty name. Did you mean ${quote(shorter)}?`,
      );
    }
    if (allowed === undefined) return routeNotFound(call);
    // The pattern shows what the server took the path for: a misspelled last part counts as an element's id.
    const pattern = this.router.find(allowed, path)?.route.path;
    return new QuaysideError(
      'method-not-allowed',
      `Method ${request.method} is not allowed for ${pattern}. Allowed: ${methods.join(', ')}.`,
    );
  }
}

/** Node also accepts HTTP/0.9, which has no headers, and HTTP/2.0, and would respond as if they were HTTP/1.1. */
function unsupportedVersion({ httpVersion }: HttpRequest): QuaysideError {
  return malformedRequest(`HTTP/${httpVersion} is not supported. Allowed: HTTP/1.1 and HTTP/1.0.`);
}

/** @throws QuaysideError `malformed-request` for an upgrade request with a body, which would be read as frames */
function checkNoBody({ contentLength, isChunked }: RequestHead): void {
  if (contentLength <= 0 && !isChunked) return;
  const header = isChunked ? 'Transfer-Encoding' : `Content-Length: ${contentLength}`;
  throw malformedRequest(
    `A request to upgrade to WebSocket has no body, but this one has ${header}. Send frames after the response.`,
  );
}

/**
 * Splits the request target into path and query. Ignores the host of an absolute form, so that it cannot contradict
 * what a proxy in front of this server saw.
 * @throws QuaysideError `malformed-request`
 */
function splitTarget(call: HttpCall, target: string): void {
  const [bad] = INVALID_TARGET_CHARACTER.exec(target) ?? [];
  if (bad !== undefined) {
    throw malformedRequest(
      `The request target ${quote(target)} has ${quote(bad)}, which must be percent-encoded.`,
    );
  }
  const originForm = target.replace(ABSOLUTE_FORM, '');
  const queryAt = originForm.indexOf('?');
  call.path = queryAt === -1 ? originForm : originForm.slice(0, queryAt);
  if (queryAt !== -1) call.search = originForm.slice(queryAt + 1);
  if (!call.path.startsWith('/')) {
    throw malformedRequest(`The request target ${quote(target)} has no path. It must start with /.`);
  }
}

/** The codes of a blocked get that ends without an element, which is not a rejection. */
const ENDED_WAITS: ReadonlySet<string> = new Set(['pop-timeout', 'pop-cancelled']);

/** Truncates client input for log lines and the audit trail; the copy does not retain the original. */
function truncated(text: string | null): string | null {
  return text === null ? null : ownString(text.length <= 256 ? text : `${text.slice(0, 256)}…`);
}

function truncatedParams(params: RouteMatch['params']): Record<string, string | null> {
  return Object.fromEntries(Object.entries(params).map(([name, value]) => [name, truncated(value ?? null)]));
}

/** Whether a path is percent-encoded UTF-8. If it is not, the finder does not find its route. */
function isWellEncoded(path: string): boolean {
  try {
    decodeURIComponent(path);
    return true;
  } catch {
    return false;
  }
}
