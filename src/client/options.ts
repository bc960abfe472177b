import type { TracingApi } from './tracing.ts';

/** What every call takes. */
export interface CallOptions {
  /** Ends the call. What was sent already may still take effect. */
  readonly signal?: AbortSignal | undefined;
  /** How long the call may take in milliseconds, with all of its attempts. Not given: as long as its attempts take. */
  readonly timeoutMs?: number | undefined;
}

export interface RetryOptions {
  /** How often a call is sent at most; 10 if not given. */
  readonly attempts?: number | undefined;
  /** The delay after the first attempt, doubled after each further one; 100 if not given. */
  readonly minMs?: number | undefined;
  /** The longest delay; 5000 if not given. */
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
  /**
   * Where the server is, such as `http://127.0.0.1:3444`, which is the default if `QUAYSIDE_URL` is not set. May have a
   * path, and `user:password@`.
   */
  readonly url?: string | URL | undefined;
  /**
   * Name and password, an API token, or a function that returns the value of the `Authorization` header; it is called
   * for each request. Not given: `QUAYSIDE_TOKEN`, or `QUAYSIDE_USER` and `QUAYSIDE_PASSWORD`.
   */
  readonly auth?: Credentials | TokenCredentials | (() => string | Promise<string>) | undefined;
  /** Sends the requests; the global `fetch` if not given. */
  readonly fetch?: typeof fetch | undefined;
  /** How calls are repeated that fail for a transient reason. `false`: each is sent once. */
  readonly retry?: false | RetryOptions | undefined;
  /** The module `@opentelemetry/api`, for spans of inserts and of handlers. */
  readonly tracing?: TracingApi | undefined;
}

export interface InsertOptions extends CallOptions {
  /** How long the element is held back, in milliseconds. */
  readonly delayMs?: number | undefined;
  /** The moment before which the element is held back; overrides `delayMs`. */
  readonly at?: Date | undefined;
  /** After how many milliseconds the element expires. Not given: as the queue's options say, or never. */
  readonly ttlMs?: number | undefined;
  /**
   * Element headers, without the prefix `x-ks-hdr-` that they have over HTTP. Consumers get their names in lower case.
   */
  readonly headers?: Readonly<Record<string, string>> | undefined;
  /** On a stream: the groups that consume it. Not given: those of the namespace. */
  readonly groups?: readonly string[] | undefined;
  /**
   * Two inserts with one key and the same content store one element. If none is given, the request has a random one, so
   * that its repetition stores nothing twice; `false`: none, and an insert with an unknown outcome fails.
   */
  readonly idempotencyKey?: string | false | undefined;
}

export interface TakeOptions extends CallOptions {
  /** How long to wait for the first element, in milliseconds; 0 if not given. `Infinity`: until there is one. */
  readonly waitMs?: number | undefined;
  /** On a stream: the group to read as. Not given: the first one of the namespace. */
  readonly group?: string | undefined;
  /** The consumer's name in the server's lists, its `tid`. */
  readonly consumer?: string | undefined;
}

export interface ReserveOptions extends TakeOptions {
  /**
   * How long the reservation lasts, in milliseconds; as long as the queue's lease if not given, which is 120 s unless
   * configured.
   */
  readonly leaseMs?: number | undefined;
}

export interface RollbackOptions extends CallOptions {
  /** After how many milliseconds the element is delivered again. Not given: the queue's retry delay, or at once. */
  readonly delayMs?: number | undefined;
  /** Why the try failed, up to 1 KiB; stored with the element. */
  readonly reason?: string | undefined;
}

export type RequestMethod = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** Of a request that has no method of its own. */
export interface RequestOptions extends CallOptions {
  readonly body?: string | Uint8Array | undefined;
  /** `application/json` if not given. */
  readonly contentType?: string | undefined;
  /**
   * Whether the request may be sent again if the outcome is unknown. Not given: true for a GET, unless it takes an
   * element.
   */
  readonly isRepeatable?: boolean | undefined;
}

/** Of a request whose response is read piece by piece, or whose body is sent so. */
export interface StreamOptions extends Omit<RequestOptions, 'body' | 'isRepeatable'> {
  readonly body?: string | Uint8Array | ReadableStream<Uint8Array> | undefined;
}

export interface RawResponse {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}
