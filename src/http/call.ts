import { setImmediate as turn } from 'node:timers/promises';
import type { ConsoleSession } from '../access/console-sessions.ts';
import { checkRight, loginLost, type User } from '../access/user.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import type { Delivery } from '../model/element.ts';
import { namespaceNotFound, QuaysideError } from '../model/errors.ts';
import { atMember } from '../model/members.ts';
import type { Right } from '../model/rights.ts';
import type { Span } from '../tracing/tracer.ts';
import { quote } from '../util/quote.ts';
import { JOINED_BYTES } from '../util/sockets.ts';
import { cookieHeaders, corsHeaders } from './browser.ts';
import type { HttpConnection } from './connection.ts';
import { errorHeaders, errorResponse } from './errors.ts';
import { clientAddress, isForwardedSecure } from './forwarded.ts';
import type { Front } from './front.ts';
import { EMPTY_HEAD, type RequestHead } from './head.ts';
import type { HttpResponse } from './node-http.ts';
import type { HttpRequest } from './request.ts';
import type { Route, RouteMatch } from './route.ts';
import { linkInsert } from './traced-request.ts';
import { pushElementHeaders } from './written-elements.ts';

/** Characters or bytes of a long response that are built and written at a time. */
const PIECE_LENGTH = 65_536;
const MAX_LOGGED_PATH = 256;
const NO_PARAMS: RouteMatch['params'] = {};
/** The operation of requests without a route: not authenticated, or to a path that does not exist. */
export const UNMATCHED = 'unmatched';

/** One request and its response. The front end fills in its fields step by step, then passes it to the route. */
export class HttpCall {
  readonly front: Front;
  readonly request: HttpRequest;
  readonly response: HttpResponse;
  readonly connection: HttpConnection;
  /** Whether it is a GET or HEAD. A GET may still take an element, and both may occupy their user's turn to list. */
  readonly isRead: boolean;
  /** The path of the request target, still percent-encoded. */
  path = '';
  /** The query string, without its `?`. */
  search = '';
  /** The allowed origin of the page that sent the request; null if there is none. */
  origin: string | null = null;
  head: RequestHead = EMPTY_HEAD;
  /** The user who sent the request; null if it is not authenticated. */
  login: User | null = null;
  /** Null until a route has been found. */
  route: Route | null = null;
  /** The parameters of the path, percent-decoded. */
  params: RouteMatch['params'] = NO_PARAMS;
  /** The namespace of the path, which the user may see. Set only if the route's path has one. */
  namespace!: Namespace;
  /** The queue of the path. Set only if the route's path has one. */
  queue!: Queue;
  /** Additional fields of this request's audit log line. */
  auditFields: object | null = null;
  /** The console session of the request's cookie; null if there is none. */
  session: ConsoleSession | null = null;
  /**
   * The token that the response, also an error, sets as the console's cookie; '' deletes the cookie, null leaves it.
   */
  newCookie: string | null = null;
  /** The span of this request; null if there is no tracing. */
  span: Span | null = null;
  readonly #startedAt: number;

  constructor(front: Front, request: HttpRequest, response: HttpResponse) {
    this.front = front;
    this.#startedAt = front.parts.clock.monotonic();
    this.request = request;
    this.response = response;
    this.connection = front.connectionOf(request.socket);
    request.call = this;
    this.isRead = request.method === 'GET' || request.method === 'HEAD';
  }

  /** The authenticated user. Only for routes that require one. */
  get user(): User {
    if (this.login === null) throw new Error('This route must require a login: the call has no user.');
    return this.login;
  }

  /** Who sent what from where, as fields of log lines. Without the query, which may contain lease tokens. */
  get logFields(): object {
    const target = this.request.url ?? '';
    return {
      method: this.request.method,
      path: target.split('?', 1)[0]?.slice(0, MAX_LOGGED_PATH),
      user: this.login?.name ?? null,
      address: this.address,
    };
  }

  /**
   * The namespaces in which the user has a right, or only the one that the query names as `ns`.
   * @throws QuaysideError `namespace-not-found`, `forbidden`, for the named one
   */
  namespacesWith(right: Right, named: string | null): readonly Namespace[] {
    const { broker } = this.front.parts;
    if (named === null) return broker.namespaces().filter(({ name }) => this.user.may(right, name));
    return atMember('ns', () => {
      checkRight(this.user, right, named);
      return [broker.namespace(named)];
    });
  }

  /**
   * Reloads the user's rights during a long call, such as one whose body takes minutes to arrive, and checks again that
   * the call may create its queue: others may have been created since.
   * @throws QuaysideError `unauthorized`, `forbidden`, `namespace-not-found` if the user no longer exists or no longer
   * has access, or the console session has ended; `too-many-queues`
   */
  renewUser(): void {
    const { login, route } = this;
    if (login === null || route === null) return;
    if (this.session?.isOver() === true) throw this.sessionLost();
    const user = this.front.parts.authenticator.renew(login);
    if (user === null) throw loginLost();
    this.login = user;
    checkAccess(user, route, this.params.namespace);
    if (route.createsQueue) this.namespace.checkQueueLimit([this.queue.key.name]);
  }

  /**
   * The error for a call whose console session has ended. Does not renew the cookie: the browser may already have that
   * of a later session.
   */
  sessionLost(): QuaysideError {
    this.newCookie = null;
    return loginLost();
  }

  get protocol(): 'http' {
    return 'http';
  }

  /** Whether the client speaks TLS, to this server or to a trusted proxy. */
  get isSecure(): boolean {
    const { tls, trustedProxies } = this.front.parts.options;
    return tls !== null || isForwardedSecure(this.#peerAddress, this.request.rawHeaders, trustedProxies);
  }

  /** The client's address, as reported by trusted proxies; '' for a peer of a Unix socket. */
  get address(): string {
    const { trustedProxies } = this.front.parts.options;
    return clientAddress(this.#peerAddress, this.head, trustedProxies);
  }

  get #peerAddress(): string {
    return this.request.socket.remoteAddress ?? '';
  }

  /** A parameter of the path, percent-decoded. */
  param(name: string): string {
    return this.params[name] ?? '';
  }

  /** Whether the connection is closed. */
  get isGone(): boolean {
    return this.request.socket.destroyed;
  }

  /** Responds with `value` as JSON, with 200. */
  sendJson(value: unknown, headers?: readonly string[]): void {
    this.sendText(200, JSON.stringify(value), headers);
  }

  /**
   * Responds with a string, which is JSON if no other type is given.
   * @throws QuaysideError `overloaded` for reads; the response to a change is sent in any case
   */
  sendText(
    status: number,
    text: string,
    moreHeaders?: readonly string[],
    contentType = 'application/json',
  ): void {
    const length = Buffer.byteLength(text);
    if (this.isRead) this.front.limits.holdUnread(this, length);
    const headers = this.#headers(contentType, length);
    if (moreHeaders !== undefined) headers.push(...moreHeaders);
    // As many bytes as characters means ASCII, which is written faster as Latin-1.
    this.response.writeHead(status, headers).end(text, length === text.length ? 'latin1' : 'utf8');
    this.#recordDuration();
    this.#watchReader();
  }

  /**
   * Responds with a body that is built in pieces, JSON if no other type is given. Serves other requests between two
   * pieces, and waits for the client to read before it writes the next one. Resolves when everything is written or the
   * client has disconnected.
   * @param moreHeaders a function is called when all pieces are built
   * @param onWritten called once the kernel has the whole response; not called if the connection closes before
   */
  async sendPieces(
    pieces: Iterable<string | Buffer>,
    moreHeaders: readonly string[] | (() => readonly string[]) = [],
    contentType = 'application/json',
    onWritten?: (error?: Error | null) => void,
  ): Promise<void> {
    const built: (string | Buffer)[] = [];
    let length = 0;
    for (const piece of joinShortPieces(pieces)) {
      if (built.length > 0) await turn();
      if (this.isGone) return;
      length += Buffer.byteLength(piece);
      built.push(piece);
    }
    // The call may have failed while the pieces were built.
    if (this.isGone || this.response.headersSent) return;
    const more = typeof moreHeaders === 'function' ? moreHeaders() : moreHeaders;
    this.response.writeHead(200, [...this.#headers(contentType, length), ...more]);
    const last = built.pop() ?? '';
    for (const piece of built) {
      if (this.isGone) break;
      const wantsMore = this.response.write(piece);
      this.#watchReader();
      await (wantsMore ? turn() : this.#drained());
    }
    if (!this.isGone) {
      // As many bytes as characters means ASCII, which is written faster as Latin-1.
      const isAscii = built.length === 0 && typeof last === 'string' && length === last.length;
      this.response.end(last, isAscii ? 'latin1' : 'utf8', onWritten);
      this.#watchReader();
    }
    this.#recordDuration();
  }

  /** Starts a response of unknown length: `write` appends to it, and `response.end` ends it. */
  startStream(contentType: string, moreHeaders: readonly string[]): void {
    const headers = [...this.#headers(contentType, null), ...moreHeaders];
    if (!this.front.isClosing) headers.push('connection', 'close');
    // Closing the connection ends the body. Without chunked encoding, each write is a single system call.
    this.response.useChunkedEncodingByDefault = false;
    this.response.writeHead(200, headers);
    this.#recordDuration();
  }

  /**
   * Appends to a stream. Calls `onWritten` when the kernel has all of it. A client that reads nothing for
   * `requestTimeoutMs` is disconnected.
   */
  write(bytes: Buffer, onWritten: () => void): void {
    this.response.write(bytes, (error) => {
      if (error) return;
      const { socket } = this.response;
      if (socket !== null) socket.setTimeout(0);
      onWritten();
    });
    this.#watchReader();
  }

  /**
   * Responds with text of unknown length. Each piece is produced when the client has read enough of the earlier ones.
   * If the first one fails, this rejects and nothing is sent. After a later failure, `fail` cuts the response short, so
   * that the client sees that it is incomplete.
   */
  async sendStream(contentType: string, texts: AsyncIterable<string>): Promise<void> {
    for await (const text of texts) {
      if (this.isGone || this.response.writableEnded) return;
      if (!this.response.headersSent) this.response.writeHead(200, this.#headers(contentType, null));
      const wantsMore = this.response.write(text);
      this.#watchReader();
      if (!wantsMore) await this.#drained();
    }
    if (this.isGone) return;
    if (!this.response.headersSent) this.sendText(200, '', undefined, contentType);
    else {
      this.response.end();
      this.#recordDuration();
    }
  }

  /** Resolves when the client has read what was written, or has disconnected. */
  #drained(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.response.once('drain', resolve);
    this.response.once('close', resolve);
    return promise.finally(() => {
      this.response.off('drain', resolve);
      this.response.off('close', resolve);
    });
  }

  /** Responds without a body. */
  sendEmpty(status: number, moreHeaders?: readonly string[]): void {
    const headers = this.#headers(null, status === 204 || status === 304 ? null : 0);
    if (moreHeaders !== undefined) headers.push(...moreHeaders);
    this.response.writeHead(status, headers).end();
    this.#recordDuration();
  }

  /**
   * Responds with an element, byte for byte as it was inserted (spec 4.1, Get or reserve). Calls `onWritten` once the
   * kernel has the whole response, and not at all if the connection closes before.
   * @throws QuaysideError `overloaded`
   */
  sendElement(
    delivery: Delivery,
    onWritten: (error?: Error | null) => void,
    moreHeaders?: readonly string[],
  ): void {
    const { body } = delivery;
    this.front.limits.holdUnread(this, body.byteLength);
    if (this.span !== null) linkInsert(this.span, delivery);
    const headers = this.#headers(null, null, delivery.headers);
    pushElementHeaders(headers, delivery);
    if (moreHeaders !== undefined) headers.push(...moreHeaders);
    this.response.writeHead(200, headers);
    const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
    if (bytes.length > JOINED_BYTES) this.response.end(bytes, onWritten);
    else this.response.end(bytes.toString('latin1'), 'latin1', onWritten);
    this.#recordDuration();
    this.#watchReader();
  }

  /**
   * If the kernel has not accepted the whole response, disconnects a client that reads nothing for `requestTimeoutMs`.
   * When the response ends, Node's keep-alive timeout or `HttpResponse.assignSocket` replaces this timeout.
   */
  #watchReader(): void {
    const { socket } = this.response;
    if (socket === null) {
      // An earlier response still has the socket. Once this one gets it, Node writes everything it has buffered.
      this.response.once('socket', () => setImmediate(() => this.#watchReader()));
      return;
    }
    if (socket.writableLength === 0) return;
    socket.setTimeout(this.front.parts.options.requestTimeoutMs);
  }

  /**
   * Sets the route's constant header lines on the response. Returns its other headers, to which callers may append.
   * @param contentType null: there is no body, or the caller appends its type
   * @param length null: unknown, or the caller appends it
   * @param elementHeaders of the element in the response
   */
  #headers(contentType: string | null, length: number | null, elementHeaders?: readonly string[]): string[] {
    this.response.constantLines = this.route?.responseLines ?? this.front.inertLines;
    const headers: string[] = [];
    if (this.front.isClosing) headers.push('connection', 'close');
    if (this.origin !== null)
      headers.push(...corsHeaders(this.origin, this.front.exposedHeaders, elementHeaders));
    if (this.newCookie !== null) headers.push(...cookieHeaders(this, this.newCookie));
    if (contentType !== null) headers.push('content-type', contentType);
    if (length !== null) headers.push('content-length', String(length));
    return headers;
  }

  /**
   * Responds with an error, whatever was thrown. Harmless if the client has disconnected; a response in progress is cut
   * short.
   */
  fail(thrown: unknown): void {
    this.request.discard();
    const error = this.front.errorOf(thrown, this);
    if (this.response.headersSent) {
      // The status has been sent already. Closing the connection shows the client that the response is incomplete.
      this.request.socket.destroy();
      return;
    }
    const { status, reason, contentType, body } = errorResponse(error, this.head.accept);
    const headers = this.#headers(contentType, Buffer.byteLength(body));
    this.response.writeHead(status, reason, [...headers, ...errorHeaders(error, this)]).end(body);
    this.#recordDuration();
  }

  /** Records how long the request took until its response was written; the kernel may not have all of it yet. */
  #recordDuration(): void {
    const seconds = (this.front.parts.clock.monotonic() - this.#startedAt) / 1000;
    this.front.requestTimes.get(this.route?.id ?? UNMATCHED)?.observe(seconds);
  }
}

/**
 * @throws QuaysideError `forbidden`, `namespace-not-found` if the user may not use the route, in the namespace of its
 * path
 */
export function checkAccess(
  user: User | null,
  { access, right }: Route,
  namespace: string | undefined,
): void {
  if (access === 'administrator' && user?.isAdministrator !== true) throw administratorRequired(user);
  if (namespace === undefined) return;
  if (user !== null && right !== null) checkRight(user, right, namespace);
  else if (user?.maySee(namespace) !== true) throw namespaceNotFound(namespace);
}

function administratorRequired(user: User | null): QuaysideError {
  const { token } = user ?? {};
  return new QuaysideError(
    'forbidden',
    token?.owner?.isAdministrator === true
      ? `This needs all rights of an administrator, and token ${quote(token.name)} has only some. Use a token without a list of rights.`
      : 'This needs an administrator: a user without a list of rights.',
  );
}

/** Joins pieces that are too short for a write of their own. They are all strings, or all bytes. */
function* joinShortPieces(pieces: Iterable<string | Buffer>): Iterable<string | Buffer> {
  let text = '';
  let parts: Buffer[] = [];
  let length = 0;
  for (const piece of pieces) {
    if (typeof piece === 'string') text += piece;
    else parts.push(piece);
    length += piece.length;
    if (length < PIECE_LENGTH) continue;
    yield parts.length === 0 ? text : Buffer.concat(parts, length);
    [text, parts, length] = ['', [], 0];
  }
  if (length > 0) yield parts.length === 0 ? text : Buffer.concat(parts, length);
}
