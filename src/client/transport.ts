import {
  type CallOutcome,
  ConnectionError,
  invalid,
  QuaysideError,
  quoted,
  StoppedError,
  TimeoutError,
  textOf,
} from './errors.ts';
import { base64Of } from './lines.ts';
import type { CallOptions, ClientOptions, Credentials, RequestMethod, RetryOptions } from './options.ts';
import { after, type CancelTimer, monotonic, random, randomName, sleep, unlessAborted } from './time.ts';

export interface ClientRequest {
  readonly method: RequestMethod;
  /** From the server's root, with the query. */
  readonly path: string;
  readonly body?: string | Uint8Array | ReadableStream<Uint8Array> | undefined;
  readonly contentType?: string;
  /** Kept in all attempts; false: none. */
  readonly idempotencyKey?: string | false;
  /** Whether the request may be sent again after an attempt whose outcome is unknown. */
  readonly isRepeatable: boolean;
  /** How long the server may wait before it answers. */
  readonly waitMs?: number;
  readonly options?: CallOptions | undefined;
  /** Error codes that are results of this request, and not thrown. */
  readonly accepted?: readonly string[];
}

export interface ClientResponse {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  /** The code of an accepted error; null for a success. */
  readonly code: string | null;
  /** Whether an earlier attempt may have taken effect. */
  readonly isRepeat: boolean;
}

/** Engines answer within 5 s; this leaves room for a slow network. */
const ANSWER_MS = 20_000;

/** Errors that end by themselves: nothing was changed, and another attempt may succeed. A server that cannot be reached may be restarting. */
const TRANSIENT = new Set([
  'overloaded',
  'shutting-down',
  'storage-unavailable',
  'too-many-consumers',
  'connection-failed',
]);
/** Problems after which the request may have been executed. */
const UNKNOWN = new Set(['outcome-unknown', 'internal']);
/** Failures of a connection before anything was sent on it, as Node and Bun name them. */
const NOT_SENT = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
]);
/** The same in Deno, which has no code for them. */
const NOT_CONNECTED = 'client error (Connect)';

/** Sends requests: credentials, deadlines, errors, and attempts until a request has succeeded or may not be repeated. */
export class Transport {
  readonly #base: string;
  readonly #authorization: () => Promise<string | null>;
  readonly #fetch: typeof fetch;
  readonly #retry: Readonly<Record<keyof RetryOptions, number>>;
  readonly #closed = new AbortController();
  readonly #keyPrefix = randomName();
  #keys = 0;
  #isClosed = false;
  /** Calls that `close` waits for. */
  readonly #calls = new Set<Promise<unknown>>();

  constructor(options: ClientOptions) {
    // Its value may be a URL with a password.
    if (typeof options === 'string') throw invalid('Options are an object, such as { url }.');
    const url = serverUrl(options.url ?? environment('QUAYSIDE_URL') ?? 'http://127.0.0.1:3444');
    this.#authorization = authorizationOf(url, options.auth);
    this.#base = `${url.origin}${url.pathname}`.replace(/\/$/, '');
    // A browser's `fetch` must be called on its window.
    this.#fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
    const { attempts = 10, minMs = 100, maxMs = 5_000 } = options.retry || {};
    this.#retry = { attempts: options.retry === false ? 1 : attempts, minMs, maxMs };
  }

  /** An idempotency key that no other request has: random bits of this client, and a count. */
  nextKey(): string {
    this.#keys += 1;
    return `${this.#keyPrefix}-${this.#keys.toString(36)}`;
  }

  /** @throws StoppedError once the client is closed */
  checkOpen(): void {
    if (this.#isClosed) throw closedError();
  }

  /** A call that `close` waits for. */
  async during<T>(call: () => Promise<T>): Promise<T> {
    const running = call();
    this.#calls.add(running);
    try {
      return await running;
    } finally {
      this.#calls.delete(running);
    }
  }

  /** Waits for the calls of {@link during}, then ends all others with {@link StoppedError}. */
  async close(): Promise<void> {
    this.#isClosed = true;
    while (this.#calls.size > 0) await Promise.allSettled(this.#calls);
    this.#closed.abort(closedError('unknown'));
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
        const isStream = request.body instanceof ReadableStream;
        const delayMs = this.#delayAfter(attempt, error.retryAfterMs ?? 0);
        const isLast = attempt >= this.#retry.attempts || monotonic() + delayMs >= deadline;
        // The error of the last attempt, with what all of them together may have done.
        if (!mayRepeat || isStream || isLast) throw Object.assign(error, isRepeat && { outcome: 'unknown' });
        await sleep(delayMs, this.#signalOf(options.signal));
      }
    }
  }

  /** The response as it comes, for one that is too long for memory. One attempt. */
  async stream(request: ClientRequest): Promise<Response> {
    const { timeoutMs } = request.options ?? {};
    const timeout = new AbortController();
    if (timeoutMs !== undefined) abortAfter(timeout, timeoutMs, request);
    return this.#exchange(request, timeout.signal, async (response) => {
      if (!response.ok) throw problemOf(response, await response.text());
      return response;
    });
  }

  async #attempt(request: ClientRequest, deadline: number): Promise<Omit<ClientResponse, 'isRepeat'>> {
    const { waitMs = 0, accepted = [] } = request;
    const timeout = new AbortController();
    const cancel = abortAfter(timeout, Math.min(deadline - monotonic(), waitMs + ANSWER_MS), request);
    try {
      return await this.#exchange(request, timeout.signal, async (response) => {
        const text = await response.text();
        const { status, headers } = response;
        const problem = response.ok ? null : problemOf(response, text);
        if (problem !== null && !accepted.includes(problem.code)) throw problem;
        return { status, headers, text, code: problem?.code ?? null };
      });
    } finally {
      cancel();
    }
  }

  /** Sends a request once, and reads the response. @throws QuaysideError, a signal's reason, or what the caller's `auth` throws */
  async #exchange<R>(
    request: ClientRequest,
    timeout: AbortSignal,
    read: (response: Response) => Promise<R>,
  ): Promise<R> {
    const signal = this.#signalOf(request.options?.signal, timeout);
    signal.throwIfAborted();
    const init = await unlessAborted(signal, this.#init(request, signal));
    try {
      return await read(await this.#fetch(`${this.#base}${request.path}`, init));
    } catch (error) {
      if (error instanceof QuaysideError) throw error;
      // What `fetch` throws for an aborted signal differs between platforms; the signal has the reason.
      signal.throwIfAborted();
      throw connectionError(error, this.#base);
    }
  }

  async #init(
    { method, body, contentType = 'application/json', idempotencyKey }: ClientRequest,
    signal: AbortSignal,
  ): Promise<RequestInit> {
    // Problem details also for the answers that are plain text otherwise.
    const headers: Record<string, string> = { accept: 'application/x-ndjson, application/problem+json' };
    const authorization = await this.#authorization();
    if (authorization !== null) headers.authorization = authorization;
    if (idempotencyKey) headers['idempotency-key'] = idempotencyKey;
    if (body !== undefined) headers['content-type'] = contentType;
    // A body that is a stream needs `duplex`.
    const init = { method, headers, body, signal, redirect: 'manual', duplex: 'half' } as const;
    return init as RequestInit;
  }

  /** Doubling, with up to half of it taken off by chance, so that clients of one server do not return together. */
  #delayAfter(attempt: number, retryAfterMs: number): number {
    const { minMs, maxMs } = this.#retry;
    const delayMs = Math.min(maxMs, minMs * 2 ** (attempt - 1));
    return Math.max(Math.min(retryAfterMs, maxMs), delayMs * (1 - random() / 2));
  }

  /** Aborted with the first of these, or when the client is closed. */
  #signalOf(caller = this.#closed.signal, timeout = caller): AbortSignal {
    return AbortSignal.any([this.#closed.signal, caller, timeout]);
  }
}

function closedError(outcome?: CallOutcome): StoppedError {
  return new StoppedError('The client is closed.', { outcome });
}

function abortAfter(timeout: AbortController, ms: number, { method, path }: ClientRequest): CancelTimer {
  const message = `No response within ${Math.round(ms)} ms to ${method} ${path}.`;
  return after(ms, () => timeout.abort(new TimeoutError(message, { outcome: 'unknown' })));
}

function serverUrl(given: string | URL): URL {
  try {
    const url = new URL(given);
    if (/^https?:$/.test(url.protocol)) return url;
  } catch {
    // Rejected below, by a message that names it.
  }
  // What stands before an @ may be a password.
  const shown = quoted(String(given).replace(/.*@/, '***@'));
  throw invalid(`The url ${shown} names no server. Allowed: one such as "http://127.0.0.1:3444".`);
}

/** A variable of the environment; a browser has none. */
export function environment(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return process?.env?.[name] || undefined;
}

function authorizationOf(url: URL, auth: ClientOptions['auth']): () => Promise<string | null> {
  if (typeof auth === 'function') return async () => auth();
  const isGiven = auth !== undefined || url.username !== '';
  const token = auth && 'token' in auth ? auth.token : isGiven ? undefined : environment('QUAYSIDE_TOKEN');
  if (token !== undefined) return async () => `Bearer ${token}`;
  const own = auth as Credentials | undefined;
  if (own && !own.user) throw invalid('auth has no user, and no token.');
  const user = own?.user ?? (decodeURIComponent(url.username) || environment('QUAYSIDE_USER'));
  const password = own?.password ?? (decodeURIComponent(url.password) || environment('QUAYSIDE_PASSWORD'));
  const pair = new TextEncoder().encode(`${user}:${password ?? ''}`);
  return async () => (user === undefined ? null : `Basic ${base64Of(pair)}`);
}

/** What the server answered in place of a success. */
function problemOf(response: Response, text: string): QuaysideError {
  const { status } = response;
  const details = objectIn(text);
  const retryAfterMs = Number(response.headers.get('retry-after')) * 1000 || undefined;
  if (typeof details.code !== 'string') {
    // A proxy answers 502, 503 or 504 for a server that it cannot reach, or that answered too late.
    const message = `The server, or a proxy in front of it, answered ${status} without an error code.`;
    if (status >= 500) return new ConnectionError(message, { status, retryAfterMs, outcome: 'unknown' });
    // So does one that limits requests, by 429; it has passed nothing on.
    return new QuaysideError(status === 429 ? 'overloaded' : 'unexpected-response', message, {
      status,
      retryAfterMs,
    });
  }
  const { code, detail, requestId } = details;
  return new QuaysideError(code, String(detail ?? `The server answered ${status}.`), {
    status,
    requestId: typeof requestId === 'string' ? requestId : undefined,
    retryAfterMs,
    outcome: UNKNOWN.has(code) ? 'unknown' : 'nothing-changed',
    details,
  });
}

function objectIn(text: string): Record<string, unknown> {
  try {
    // What is no object becomes one without members.
    return Object(JSON.parse(text));
  } catch {
    return {};
  }
}

function connectionError(error: unknown, base: string): ConnectionError {
  const { code = '', message } = causeOf(error);
  const isSent = !NOT_SENT.has(code) && !message?.includes(NOT_CONNECTED);
  const reason = message || textOf(error);
  const what = isSent
    ? 'The connection ended before the response had arrived'
    : 'The server cannot be reached';
  return new ConnectionError(`${what} (${base}): ${reason}`, {
    cause: error,
    outcome: isSent ? 'unknown' : 'nothing-changed',
  });
}

function causeOf(error: unknown): { code?: string; message?: string } {
  if (!(error instanceof Error)) return {};
  const { cause } = error as { cause?: Error & { errors?: readonly Error[] } };
  // One error for each address of a name with several. Bun's error is the cause itself.
  return cause?.errors?.[0] ?? cause ?? error;
}
