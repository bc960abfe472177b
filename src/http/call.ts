import { setImmediate as turn } from 'node:timers/promises';
import type { ConsoleSession } from '../access/console-sessions.ts';
import { checkRight, loginLost, type Right, type User } from '../access/user.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import type { Delivery } from '../model/element.ts';
import { namespaceNotFound, QuaysideError } from '../model/errors.ts';
import type { Span } from '../tracing/tracer.ts';
import { quote } from '../util/quote.ts';
import { JOINED_BYTES } from '../util/sockets.ts';
import { cookieHeaders, corsHeaders } from './browser.ts';
import { errorHeaders, errorResponse } from './errors.ts';
import type { Front } from './front.ts';
import { clientAddress, isForwardedSecure, type RequestHead, UNREAD } from './head.ts';
import type { HttpRequest } from './request.ts';
import type { HttpResponse } from './response.ts';
import type { Route, RouteMatch } from './route.ts';
import { linkInsert } from './traced-request.ts';
import { pushElementHeaders } from './written-elements.ts';

/** Characters, or bytes, of a long response that are made and written at once. */
const PIECE_LENGTH = 65_536;
const MAX_LOGGED_PATH = 256;
const NO_MORE_HEADERS: readonly string[] = [];
const NO_PARAMS: RouteMatch['params'] = {};
/** The operation of requests that no route took: without a login, or to a path that does not exist. */
export const UNMATCHED = 'unmatched';
/** What reads: a GET may take an element, and both may hold their user's turn to list. */
export const READ_METHODS: ReadonlySet<string | undefined> = new Set(['GET', 'HEAD']);

/** One request on its way to its response. The front fills it in, step by step; then it is the route's. */
export class HttpCall {
  readonly front: Front;
  readonly request: HttpRequest;
  readonly response: HttpResponse;
  /** The target without its query, as it came. */
  path = '';
  /** What follows the `?`. */
  search = '';
  /** The allowed origin whose page sent it; null if none did. */
  origin: string | null = null;
  head: RequestHead = UNREAD;
  /** The user who sent it; null if it is not authenticated. */
  login: User | null = null;
  /** Null if none took the request. */
  route: Route | null = null;
  /** The parameters of the path, percent-decoded. */
  params: RouteMatch['params'] = NO_PARAMS;
  /** The namespace of the path, which the user may see. Only of a route whose path has one. */
  namespace!: Namespace;
  /** The queue of the path. Only of a route whose path has one. */
  queue!: Queue;
  /** Further fields of the audit log line of this request. */
  audited: object | null = null;
  /** The console session whose cookie came with it; null if none did. */
  session: ConsoleSession | null = null;
  /** What the response sets as the cookie of the console, also if it is an error; '' removes it, null leaves it. */
  newCookie: string | null = null;
  /** The span of this request; null if there is no tracing. */
  span: Span | null = null;
  readonly #startedAt: number;
  #peer: string | null = null;

  constructor(front: Front, request: HttpRequest, response: HttpResponse) {
    this.front = front;
    this.#startedAt = front.parts.clock.monotonic();
    this.request = request;
    this.response = response;
  }

  /** The authenticated user. Only for routes that need one. */
  get user(): User {
    if (this.login === null) throw new Error('A call was asked for its user, and has none.');
    return this.login;
  }

  /** What log lines say of it: who asked for what, and from where. Without the query, which may hold lease tokens. */
  get logged(): object {
    const target = this.request.url ?? '';
    return {
      method: this.request.method,
      path: target.split('?', 1)[0]?.slice(0, MAX_LOGGED_PATH),
      user: this.login?.name ?? null,
      address: this.address,
    };
  }

  /**
   * The namespaces in which the user has a right; if one is named, that one alone.
   * @throws QuaysideError `namespace-not-found`, `forbidden`, for the named one
   */
  namespacesWith(right: Right, named: string | null): readonly Namespace[] {
    const { broker } = this.front.parts;
    if (named === null) return broker.namespaces().filter(({ name }) => this.user.may(right, name));
    checkRight(this.user, right, named);
    return [broker.namespace(named)];
  }

  /**
   * Reads the rights of the user again, for a call that lasts, such as one whose body takes minutes to arrive.
   * @throws QuaysideError `unauthorized`, `forbidden`, `namespace-not-found` if the user is gone, or may not do it any
   * more, or the console session has ended
   */
  renewUser(): void {
    const { login, route } = this;
    if (login === null || route === null) return;
    if (this.session?.isOver() === true) throw this.sessionLost();
    const user = this.front.parts.renewUser(login);
    if (user === null) throw loginLost();
    this.login = user;
    checkAccess(user, route, this.params.namespace);
  }

  /**
   * The error for a call whose console session has ended. It renews no cookie: the browser may have that of a later
   * session by now.
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

  /** The client's, as far as trusted proxies say it; '' for a peer of a Unix socket. */
  get address(): string {
    const { trustedProxies } = this.front.parts.options;
    return clientAddress(this.#peerAddress, this.head, trustedProxies);
  }

  /** Node forgets the address of a socket that is closed before it was read; reading it costs a system call. */
  keepAddress(): void {
    this.#peer = this.request.socket.remoteAddress ?? '';
  }

  get #peerAddress(): string {
    return this.#peer ?? this.request.socket.remoteAddress ?? '';
  }

  /** A parameter of the path, percent-decoded. */
  param(name: string): string {
    return this.params[name] ?? '';
  }

  /** Whether the connection is lost already. */
  get isGone(): boolean {
    return this.request.socket.destroyed;
  }

  /** Answers `value` as JSON, with 200. */
  value(value: unknown, headers?: readonly string[]): void {
    this.text(200, JSON.stringify(value), headers);
  }

  /**
   * Answers a text, which is JSON if no other type is given.
   * @throws QuaysideError `overloaded`, of what reads: what has changed something is answered in any case
   */
  text(status: number, text: string, more?: readonly string[], contentType = 'application/json'): void {
    const length = Buffer.byteLength(text);
    if (READ_METHODS.has(this.request.method)) this.front.holdUnread(this, length);
    const headers = this.#headers();
    headers.push('content-type', contentType, 'content-length', String(length));
    if (more !== undefined) headers.push(...more);
    // As many bytes as characters: it is ASCII, and Latin-1 is written faster.
    this.response.writeHead(status, headers).end(text, length === text.length ? 'latin1' : 'utf8');
    this.#observe();
    this.#watchReader();
  }

  /**
   * Answers what is made in pieces, which is JSON if no other type is given. Between two of them other requests are
   * served, and the next one waits for the client to read. Resolves when all of it is written, or the client has
   * disconnected.
   * @param written called once the kernel has all of it, and not at all if the connection ends before
   */
  async pieces(
    pieces: Iterable<string | Buffer>,
    more: readonly string[] = [],
    contentType = 'application/json',
    written?: (error?: Error | null) => void,
  ): Promise<void> {
    const made: (string | Buffer)[] = [];
    let length = 0;
    for (const piece of joined(pieces)) {
      if (made.length > 0) await turn();
      if (this.isGone) return;
      length += Buffer.byteLength(piece);
      made.push(piece);
    }
    // It may have failed in the meantime.
    if (this.isGone || this.response.headersSent) return;
    const headers = this.#headers();
    headers.push('content-type', contentType, 'content-length', String(length), ...more);
    this.response.writeHead(200, headers);
    const last = made.pop() ?? '';
    for (const piece of made) {
      if (this.isGone) break;
      const wantsMore = this.response.write(piece);
      this.#watchReader();
      await (wantsMore ? turn() : this.#drained());
    }
    if (!this.isGone) {
      // As many bytes as characters: it is ASCII, and Latin-1 is written faster.
      const isAscii = made.length === 0 && typeof last === 'string' && length === last.length;
      this.response.end(last, isAscii ? 'latin1' : 'utf8', written);
      this.#watchReader();
    }
    this.#observe();
  }

  /** Begins a response of any length: `write` adds to it, and its end is `response.end`. */
  beginStream(contentType: string): void {
    const headers = this.#headers();
    headers.push('content-type', contentType);
    if (!this.front.isClosing) headers.push('connection', 'close');
    // The end of the connection is the end of the body: without chunks, a write is one call of the kernel.
    this.response.useChunkedEncodingByDefault = false;
    this.response.writeHead(200, headers);
    this.#observe();
  }

  /**
   * Adds to a stream. Calls `taken` when the kernel has all of it: a client that takes nothing for as long as a request
   * may take is cut off.
   */
  write(bytes: Buffer, taken: () => void): void {
    this.response.write(bytes, (error) => {
      if (error) return;
      const { socket } = this.response;
      if (socket !== null) socket.setTimeout(0);
      taken();
    });
    this.#watchReader();
  }

  /**
   * Answers text whose length is known at its end only. The next piece is made when the client has read enough of those
   * before. If making the first one fails, this rejects and nothing is answered; later, the response is cut short, and
   * the client sees that it is not whole.
   */
  async stream(contentType: string, texts: AsyncIterable<string>): Promise<void> {
    for await (const text of texts) {
      if (this.isGone || this.response.writableEnded) return;
      if (!this.response.headersSent) {
        const headers = this.#headers();
        headers.push('content-type', contentType);
        this.response.writeHead(200, headers);
      }
      const wantsMore = this.response.write(text);
      this.#watchReader();
      if (!wantsMore) await this.#drained();
    }
    if (this.isGone) return;
    if (!this.response.headersSent) {
      this.text(200, '', undefined, contentType);
      return;
    }
    this.response.end();
    this.#observe();
  }

  /** Resolves when the client has read, or has disconnected. */
  #drained(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.response.once('drain', resolve);
    this.response.once('close', resolve);
    return promise.finally(() => {
      this.response.off('drain', resolve);
      this.response.off('close', resolve);
    });
  }

  /** Answers without a body. */
  empty(status: number, more?: readonly string[]): void {
    const headers = this.#headers();
    if (status !== 204 && status !== 304) headers.push('content-length', '0');
    if (more !== undefined) headers.push(...more);
    this.response.writeHead(status, headers).end();
    this.#observe();
  }

  /**
   * Answers an element, byte for byte as it was inserted (spec 4.1, Get or reserve). `written` is called once
   * the kernel has all of it, and not at all if the connection ends before.
   * @throws QuaysideError `overloaded`
   */
  element(
    delivery: Delivery,
    written: (error?: Error | null) => void,
    more: readonly string[] = NO_MORE_HEADERS,
  ): void {
    const { body } = delivery;
    this.front.holdUnread(this, body.byteLength);
    if (this.span !== null) linkInsert(this.span, delivery);
    const headers = this.#headers(delivery.headers);
    pushElementHeaders(headers, delivery);
    if (more.length > 0) headers.push(...more);
    this.response.writeHead(200, headers);
    const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
    if (bytes.length > JOINED_BYTES) this.response.end(bytes, written);
    else this.response.end(bytes.toString('latin1'), 'latin1', written);
    this.#observe();
    this.#watchReader();
  }

  /**
   * If the kernel did not take all of the response at once, the client has to continue reading it: one that does
   * not, for as long as a request may take, is cut off. Node ends this watch with the response.
   */
  #watchReader(): void {
    const { socket } = this.response;
    if (socket === null) {
      // Behind another response on its connection: when its turn comes, all that it holds is written at once.
      this.response.once('socket', () => setImmediate(() => this.#watchReader()));
      return;
    }
    if (socket.writableLength === 0) return;
    socket.setTimeout(this.front.parts.options.requestTimeoutMs);
  }

  /** Gives the response the lines of its route, and returns the headers that it has in addition, to be added to. */
  #headers(elementHeaders?: readonly string[]): string[] {
    this.response.constantLines = this.route?.responseLines ?? this.front.inertLines;
    const headers: string[] = [];
    if (this.front.isClosing) headers.push('connection', 'close');
    if (this.origin !== null)
      headers.push(...corsHeaders(this.origin, this.front.exposedHeaders, elementHeaders));
    if (this.newCookie !== null) headers.push(...cookieHeaders(this, this.newCookie));
    return headers;
  }

  /** Answers an error, whatever was thrown. Harmless if the client has disconnected or a response has begun. */
  fail(thrown: unknown): void {
    this.request.discard();
    const error = this.front.errorOf(thrown, this);
    if (this.response.headersSent) {
      // Half a response cannot be taken back; cutting it short shows the client that it is not whole.
      this.request.socket.destroy();
      return;
    }
    const { status, reason, contentType, body } = errorResponse(error, this.head.accept);
    const headers = this.#headers();
    headers.push('content-type', contentType, 'content-length', String(Buffer.byteLength(body)));
    headers.push(...errorHeaders(error, this));
    this.response.writeHead(status, reason, headers).end(body);
    this.#observe();
  }

  /** The response is written, whether or not the kernel has all of it yet. */
  #observe(): void {
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
  if (access === 'administrator' && user?.isAdministrator !== true) throw noAdministrator(user);
  if (namespace === undefined) return;
  if (user === null || !user.maySee(namespace)) throw namespaceNotFound(namespace);
  if (right !== null) checkRight(user, right, namespace);
}

function noAdministrator(user: User | null): QuaysideError {
  const { token } = user ?? {};
  return new QuaysideError(
    'forbidden',
    token?.owner?.isAdministrator === true
      ? `This needs all rights of an administrator, and token ${quote(token.name)} has only some. Use a token without a list of rights.`
      : 'This needs an administrator: a user without a list of rights.',
  );
}

/** Joins what is too short for a write of its own; all are texts, or all are bytes. */
function* joined(pieces: Iterable<string | Buffer>): Iterable<string | Buffer> {
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
