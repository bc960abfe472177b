import {
  ConnectionError,
  invalid,
  QuaysideError,
  type QuaysideErrorOptions,
  quoted,
  StoppedError,
  TimeoutError,
  textOf,
} from './errors.ts';
import { base64Of } from './lines.ts';
import type {
  CallOptions,
  ClientOptions,
  Credentials,
  RequestMethod,
  RetryOptions,
  StreamOptions,
  TokenCredentials,
} from './options.ts';
import { after, backoffMs, type CancelTimer, monotonic, sleep, unlessAborted } from './time.ts';

export interface ClientRequest<Body = string | Uint8Array> {
  readonly method: RequestMethod;
  /** From the server's root, with the query. */
  readonly path: string;
  readonly body?: Body | undefined;
  readonly contentType?: string | undefined;
  /** The same in all attempts; false: none. */
  readonly idempotencyKey?: string | false;
  /** Whether the request may be sent again after an attempt whose outcome is unknown. */
  readonly isRepeatable: boolean;
  /** How long the server may wait before it answers. */
  readonly waitMs?: number | undefined;
  readonly options?: CallOptions | undefined;
  /** Error codes that are returned as results of this request, not thrown. */
  readonly accepted?: readonly string[];
}

export interface ClientResponse {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  /** When its head arrived, by the monotonic clock; a long body arrives later. */
  readonly receivedAt: number;
  /** The code of an accepted error; null for a success. */
  readonly code: string | null;
  /** Whether an earlier attempt may have taken effect. */
  readonly isRepeat: boolean;
}

/** Time limit of the start of a response, and of its rest. Engines answer within 5 s; the rest is for slow networks. */
const RESPONSE_MS = 20_000;
/** The limits grow with the bodies: at least this many bytes per millisecond are expected. */
const BODY_BYTES_PER_MS = 64;

/** Transient errors: nothing was changed, and another attempt may succeed. An unreachable server may be restarting. */
const TRANSIENT = new Set([
  'overloaded',
  'request-timeout',
  'shutting-down',
  'storage-unavailable',
  'too-many-consumers',
  'connection-failed',
]);
/** Error codes after which the request may have been executed. */
const UNKNOWN = new Set(['outcome-unknown', 'internal']);
/**
 * Connection failures before anything was sent: codes and messages of Node, Bun and Deno. A port that `fetch` blocks is
 * "bad". The group is of TLS: the certificate is rejected, or the server does not speak TLS.
 */
const NOT_SENT =
  /REFUSED|NOTFOUND|EAI_AGAIN|CONNECT_TIMEOUT| connect E|bad port|(CERT|LEAF_SIGNATURE|WRONG_VERSION|\(Connect\): invalid peer)|\(Connect\)/;

/** Sends requests: adds credentials and deadlines, maps errors, and repeats a request as long as it may. */
export class Transport {
  readonly #base: string;
  readonly #authorization: () => Promise<string> | string | null;
  readonly #fetch: typeof fetch;
  readonly #retry: Readonly<Record<keyof RetryOptions, number>>;
  readonly #closed = new AbortController();
  #isClosed = false;
  /** Calls that `close` waits for. */
  readonly #calls = new Set<Promise<unknown>>();

  constructor(options: ClientOptions) {
    // Do not quote the value: it may be a URL with a password.
    if (typeof options === 'string') throw invalid('Give the url as { url }.');
    const url = serverUrl(options.url ?? environment('QUAYSIDE_URL') ?? 'http://127.0.0.1:3444');
    this.#authorization = authorizationOf(url, options.auth);
    this.#base = `${url.origin}${url.pathname}`.replace(/\/$/, '');
    // Browsers require that `fetch` is called on the window.
    this.#fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
    const { retry = {} } = options;
    const { attempts = 10, minMs = 100, maxMs = 5_000 } = retry || { attempts: 1 };
    this.#retry = { attempts, minMs, maxMs };
  }

  /** @throws StoppedError once the client is closed */
  checkOpen(): void {
    if (this.#isClosed) throw closedError();
  }

  /** Runs a call that `close` waits for. */
  during<T>(call: () => Promise<T>): Promise<T> {
    const running = call().finally(() => this.#calls.delete(running));
    this.#calls.add(running);
    return running;
  }

  /** Waits for the calls of {@link during}, then ends all others with {@link StoppedError}. */
  async close(): Promise<void> {
    this.#isClosed = true;
    while (this.#calls.size > 0) await Promise.allSettled(this.#calls);
    this.#closed.abort(closedError({ outcome: 'unknown' }));
  }

  /** @throws QuaysideError, or the reason of the caller's signal */
  async send(request: ClientRequest): Promise<ClientResponse> {
    const { options = {}, isRepeatable } = request;
    if (this.#closed.signal.aborted) throw closedError();
    const deadline = monotonic() + (options.timeoutMs ?? Number.POSITIVE_INFINITY);
    let isRepeat = false;
    for (let attempt = 1; ; attempt += 1) {
      try {
        return { ...(await this.#attempt(request, deadline)), isRepeat };
      } catch (error) {
        if (!(error instanceof QuaysideError) || error instanceof StoppedError) throw error;
        isRepeat ||= error.outcome === 'unknown';
        const mayRepeat = error.outcome === 'unknown' ? isRepeatable : TRANSIENT.has(error.code);
        const { attempts, minMs, maxMs } = this.#retry;
        const askedMs = Math.min(error.retryAfterMs ?? 0, maxMs);
        const delayMs = Math.max(askedMs, backoffMs(attempt, minMs, maxMs));
        const isLast = attempt >= attempts || monotonic() + delayMs >= deadline;
        // Throw the last attempt's error. If any attempt had an unknown outcome, the call has.
        if (!mayRepeat || isLast) throw Object.assign(error, isRepeat && { outcome: 'unknown' });
        await sleep(delayMs, this.#closed.signal, options.signal);
      }
    }
  }

  /** Returns a response to be streamed, for one that is too large for memory. Sends one attempt. */
  async stream(request: ClientRequest<StreamOptions['body']>): Promise<Response> {
    const { timeoutMs, signal = this.#closed.signal } = request.options ?? {};
    const timeout = new AbortController();
    if (timeoutMs !== undefined) abortAfter(timeout, timeoutMs, request);
    // Not `unlessAborted` alone: the response is read after this call returns.
    const ended = AbortSignal.any([this.#closed.signal, signal, timeout.signal]);
    return unlessAborted([ended], () =>
      this.#exchange(request, ended, async (response) => {
        if (!response.ok) throw problemOf(response, await response.text());
        return response;
      }),
    );
  }

  async #attempt(request: ClientRequest, deadline: number): Promise<Omit<ClientResponse, 'isRepeat'>> {
    const { waitMs = 0, accepted = [], body = '', options = {} } = request;
    const timeout = new AbortController();
    const limit = (startMs: number, bytes: number): CancelTimer => {
      const ms = startMs + RESPONSE_MS + bytes / BODY_BYTES_PER_MS;
      return abortAfter(timeout, Math.min(deadline - monotonic(), ms), request);
    };
    let cancel = limit(waitMs, body.length);
    try {
      return await unlessAborted([this.#closed.signal, options.signal, timeout.signal], (signal) =>
        this.#exchange(request, signal, async (response) => {
          const receivedAt = monotonic();
          const { status, headers } = response;
          cancel();
          cancel = limit(0, Number(headers.get('content-length')));
          const text = await response.text();
          const problem = response.ok ? null : problemOf(response, text);
          if (problem && !accepted.includes(problem.code)) throw problem;
          return { status, headers, text, receivedAt, code: problem?.code ?? null };
        }),
      );
    } finally {
      cancel();
    }
  }

  /** Sends a request once, and reads the response. @throws QuaysideError, or what the caller's `auth` throws */
  async #exchange<R>(
    request: ClientRequest<unknown>,
    signal: AbortSignal,
    read: (response: Response) => Promise<R>,
  ): Promise<R> {
    const init = await this.#init(request, signal);
    signal.throwIfAborted();
    try {
      return await read(await this.#fetch(`${this.#base}${request.path}`, init));
    } catch (error) {
      throw error instanceof QuaysideError ? error : connectionError(error, this.#base);
    }
  }

  async #init(
    { method, body, contentType = 'application/json', idempotencyKey }: ClientRequest<unknown>,
    signal: AbortSignal,
  ): Promise<RequestInit> {
    // Ask for problem details, also for errors that are plain text by default.
    const headers: Record<string, string> = { accept: 'application/x-ndjson, application/problem+json' };
    const authorization = (await this.#authorization())?.trim();
    // `fetch` would throw an error that quotes the credentials.
    if (/[^\t -~]/.test(authorization ?? ''))
      throw invalid('The Authorization header must be one line of ASCII.');
    if (authorization) headers.authorization = authorization;
    if (idempotencyKey) headers['idempotency-key'] = idempotencyKey;
    if (body !== undefined) headers['content-type'] = contentType;
    // A streamed body needs `duplex`.
    const init = { method, headers, body, signal, redirect: 'manual', duplex: 'half' } as const;
    return init as RequestInit;
  }
}

function closedError(options?: QuaysideErrorOptions): StoppedError {
  return new StoppedError('The client is closed.', options);
}

function abortAfter(
  timeout: AbortController,
  ms: number,
  { method, path }: ClientRequest<unknown>,
): CancelTimer {
  const message = `No response within ${Math.round(ms)} ms to ${method} ${path}.`;
  return after(ms, () => timeout.abort(new TimeoutError(message, { outcome: 'unknown' })));
}

function serverUrl(given: string | URL): URL {
  try {
    const url = new URL(given);
    if (/^https?:$/.test(url.protocol)) return url;
  } catch {
    // Rejected below, with a message that quotes the URL.
  }
  // Hide what precedes an @: it may contain a password.
  const shown = quoted(String(given).replace(/.*@/, '***@'));
  throw invalid(`The url is ${shown}. Allowed: such as "http://127.0.0.1:3444".`);
}

/** Returns an environment variable; undefined in a browser. */
function environment(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return process?.env?.[name] || undefined;
}

function authorizationOf(url: URL, auth: ClientOptions['auth']): () => Promise<string> | string | null {
  if (typeof auth === 'function') return auth;
  const { user, password, token }: Partial<Credentials & TokenCredentials> = auth ?? {};
  if (auth && !user && !token) throw invalid('auth has no user and no token.');
  const bearer = auth || url.username ? token : environment('QUAYSIDE_TOKEN');
  const name = user ?? (decoded(url.username) || environment('QUAYSIDE_USER'));
  const secret = password ?? (decoded(url.password) || environment('QUAYSIDE_PASSWORD') || '');
  const basic = `Basic ${base64Of(new TextEncoder().encode(`${name}:${secret}`))}`;
  return () => (bearer ? `Bearer ${bearer}` : name ? basic : null);
}

/** Decodes a part of a URL. A `%` that does not start an escape stays as it is. */
function decoded(part: string): string | null {
  return new URLSearchParams(`x=${part.replace(/[&+]/g, encodeURIComponent)}`).get('x');
}

/** A problem document of the server. */
interface Problem extends Readonly<Record<string, unknown>> {
  readonly code?: string;
  readonly detail?: string;
  readonly requestId?: string;
}

/** Converts an error response to an error. */
function problemOf(response: Response, text: string): QuaysideError {
  const { status, headers } = response;
  // A gateway may answer with other content types, or with problem documents without a code.
  const isProblem = headers.get('content-type')?.startsWith('application/problem+json');
  const details: Problem = isProblem ? JSON.parse(text) : {};
  const retryAfterMs = Number(headers.get('retry-after')) * 1000 || undefined;
  if (typeof details.code !== 'string') {
    // A proxy answers 502, 503 or 504 if it cannot reach the server, or times out.
    const message = `The server, or a proxy in front of it, answered ${status}.`;
    if (status >= 500) return new ConnectionError(message, { status, retryAfterMs, outcome: 'unknown' });
    // A proxy answers 429 if it limits requests, and 408 if it has not received the whole request. In both cases it has
    // not forwarded the request.
    const code = { 408: 'request-timeout', 429: 'overloaded' }[status] ?? 'unexpected-response';
    return new QuaysideError(code, message, { status, retryAfterMs });
  }
  const { code, detail, requestId } = details;
  return new QuaysideError(code, detail ?? `The server answered ${status}.`, {
    status,
    requestId,
    retryAfterMs,
    outcome: UNKNOWN.has(code) ? 'unknown' : 'nothing-changed',
    details,
  });
}

function connectionError(error: unknown, base: string): ConnectionError {
  const { code, message = '' } = causeOf(error);
  // Remove the URL, which is part of Deno's message: the queue's name may match the pattern.
  const [notSent, tls] = NOT_SENT.exec(`${code} ${message.replace(/http\S+/, '')}`) ?? [];
  const what = notSent ? 'The server cannot be reached' : 'The connection ended before the response';
  const failure = new ConnectionError(`${what} (${base}): ${message || textOf(error)}`, {
    cause: error,
    outcome: notSent ? 'nothing-changed' : 'unknown',
  });
  // Another attempt would fail, too.
  return Object.assign(failure, tls && { code: 'tls-failed' });
}

function causeOf(error: unknown): { code?: string; message?: string } {
  const { cause } = Object(error) as { cause?: Error & { errors?: readonly Error[] } };
  // A host with several addresses has an error for each. Bun's error has no cause.
  return cause?.errors?.[0] ?? cause ?? Object(error);
}
