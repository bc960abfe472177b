import type { TracingApi } from './tracing.ts';

/** Options of every call. */
export interface CallOptions {
  /** Aborts the call. A request that was already sent may still take effect. */
  readonly signal?: AbortSignal | undefined;
  /** Time limit of the call in milliseconds, including all attempts. Default: none; each attempt has a limit. */
  readonly timeoutMs?: number | undefined;
}

export interface RetryOptions {
  /** Maximum attempts of a call. Default: 10. */
  readonly attempts?: number | undefined;
  /** The delay after the first attempt, doubled after each further one, in milliseconds. Default: 100. */
  readonly minMs?: number | undefined;
  /** The longest delay, in milliseconds. Default: 5000. */
  readonly maxMs?: number | undefined;
}

/** Name and password of a user. */
export interface Credentials {
  readonly user: string;
  readonly password: string;
}

/** An API token. */
export interface TokenCredentials {
  readonly token: string;
}

export interface ClientOptions {
  /** URL of the server. May have a path, and `user:password@`. Default: `QUAYSIDE_URL`, or `http://127.0.0.1:3444`. */
  readonly url?: string | URL | undefined;
  /**
   * Name and password, an API token, or a function that returns the value of the `Authorization` header and is called
   * for each request. Default: `QUAYSIDE_TOKEN`, or `QUAYSIDE_USER` and `QUAYSIDE_PASSWORD`.
   */
  readonly auth?: Credentials | TokenCredentials | (() => string | Promise<string>) | undefined;
  /** Sends the requests. Default: the global `fetch`. */
  readonly fetch?: typeof fetch | undefined;
  /** How calls are repeated after transient errors. `false`: each is sent once. */
  readonly retry?: false | RetryOptions | undefined;
  /** The module `@opentelemetry/api`, for spans of inserts and of handlers. */
  readonly tracing?: TracingApi | undefined;
}

export interface InsertOptions extends CallOptions {
  /** After how many milliseconds the element becomes ready. */
  readonly delayMs?: number | undefined;
  /** When the element becomes ready; overrides `delayMs`. */
  readonly at?: Date | undefined;
  /** After how many milliseconds the element expires. Default: the queue's time to live, or never. */
  readonly ttlMs?: number | undefined;
  /** Element headers, without their HTTP prefix `x-ks-hdr-`. Consumers receive the names in lower case. */
  readonly headers?: Readonly<Record<string, string>> | undefined;
  /** On a stream: the groups that consume the element. Default: those of the namespace. */
  readonly groups?: readonly string[] | undefined;
  /**
   * Two inserts with the same key and content store one element. Default: a random key for the request, so that it can
   * be repeated safely. `false`: no key; the insert is not repeated after an unknown outcome.
   */
  readonly idempotencyKey?: string | false | undefined;
}

export interface TakeOptions extends CallOptions {
  /** How long to wait for the first element, in milliseconds. Default: 0. `Infinity`: until there is one. */
  readonly waitMs?: number | undefined;
  /** On a stream: the consumer group. Default: the first one of the namespace. */
  readonly group?: string | undefined;
  /** The consumer's name in the server's lists, its `tid`. */
  readonly consumer?: string | undefined;
}

export interface ReserveOptions extends TakeOptions {
  /** Length of the lease in milliseconds. Default: the queue's lease, which is 120 s unless configured. */
  readonly leaseMs?: number | undefined;
}

export interface RollbackOptions extends CallOptions {
  /** After how many milliseconds the element is delivered again. Default: the queue's retry delay, or 0. */
  readonly delayMs?: number | undefined;
  /** Why the try failed, up to 1 KiB; stored with the element. */
  readonly reason?: string | undefined;
}

export type RequestMethod = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** Options of a request for which the client has no method. */
export interface RequestOptions extends CallOptions {
  readonly body?: string | Uint8Array | undefined;
  /** Default: `application/json`. */
  readonly contentType?: string | undefined;
  /** Whether to repeat the request after an unknown outcome. Default: true for a GET, unless it takes an element. */
  readonly isRepeatable?: boolean | undefined;
  /** How long the server may wait before it responds, such as `to` of a take. Default: 0. */
  readonly waitMs?: number | undefined;
}

/** Options of a request whose response or body is streamed. */
export interface StreamOptions extends Omit<RequestOptions, 'body' | 'isRepeatable' | 'waitMs'> {
  readonly body?: string | Uint8Array | ReadableStream<Uint8Array> | undefined;
}

export interface RawResponse {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}
