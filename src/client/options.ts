import type { TracingApi } from './tracing.ts';

/** What every call takes. */
export interface CallOptions {
  /** Ends the call. What was sent already may still take effect. */
  readonly signal?: AbortSignal | undefined;
  /** How long the call may take, with all of its attempts. Not given: as long as its attempts take. */
  readonly timeoutMs?: number | undefined;
}

export interface RetryOptions {
  /** How often a call is sent at most; 10 if not given. */
  readonly attempts?: number;
  /** The delay after the first attempt, doubled after each further one; 100 if not given. */
  readonly minMs?: number;
  /** The longest delay; 5000 if not given. */
  readonly maxMs?: number;
}

export interface Credentials {
  readonly user: string;
  readonly password: string;
}

/** An API token. */
export interface TokenCredentials {
  readonly token: string;
}

export interface ClientOptions {
  /** Where the server is, such as `http://127.0.0.1:3444`. May have a path, and `user:password@`. */
  readonly url?: string | URL;
  /** Name and password, an API token, or a function that returns the value of the `Authorization` header. */
  readonly auth?: Credentials | TokenCredentials | (() => Promise<string>);
  readonly fetch?: typeof fetch;
  readonly retry?: false | RetryOptions;
  /** The module `@opentelemetry/api`, for spans of inserts and of handlers. */
  readonly tracing?: TracingApi;
}

export interface InsertOptions extends CallOptions {
  /** How long the element is held back. */
  readonly delayMs?: number;
  /** The moment before which the element is held back; overrides `delayMs`. */
  readonly at?: Date;
  /** After how long the element expires. */
  readonly ttlMs?: number;
  readonly headers?: Readonly<Record<string, string>>;
  /** On a stream: the groups that consume it. */
  readonly groups?: readonly string[];
  /**
   * Two inserts with one key and the same content store one element. If none is given, the request has a random one, so that its
   * repetition stores nothing twice; `false`: none, and an insert with an unknown outcome fails.
   */
  readonly idempotencyKey?: string | false;
}

export interface TakeOptions extends CallOptions {
  /** How long to wait for the first element; 0 if not given. */
  readonly waitMs?: number;
  /** On a stream: the group to read as. */
  readonly group?: string | undefined;
  /** The consumer's name in the server's lists. */
  readonly consumer?: string;
}

export interface ReserveOptions extends TakeOptions {
  /** How long the reservation lasts; that of the queue if not given. */
  readonly leaseMs?: number;
}

export interface RollbackOptions extends CallOptions {
  /** After how long the element is delivered again. Not given: the queue's retry delay, or at once. */
  readonly delayMs?: number;
  /** Why the try failed; kept with the element. */
  readonly reason?: string;
}

export type RequestMethod = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** Of a request that has no method of its own. */
export interface RequestOptions extends CallOptions {
  readonly body?: string | Uint8Array | ReadableStream<Uint8Array>;
  /** `application/json` if not given. */
  readonly contentType?: string;
  /** Whether the request may be sent again if the outcome is unknown. */
  readonly isRepeatable?: boolean;
}

export interface RawResponse {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}
