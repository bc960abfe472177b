import { signal } from '@preact/signals';
import { after, SILENCE_MS, timeRequest } from './timers.ts';

/** The root of the server's HTTP interface, relative to the console: a proxy may add a prefix to both. */
export const BASE = new URL('../', new URL('./', location.href.split(/[?#]/, 1)[0] ?? location.href));

/** Sent with requests that change something, to prove that they come from this page. */
let csrfToken: string | null = null;

export function setCsrfToken(token: string | null): void {
  csrfToken = token;
}

/** The headers of every request. */
function commonHeaders(): Readonly<Record<string, string>> {
  // With `x-requested-with`, the server sends a challenge for which browsers do not open their own login dialog.
  const headers = { accept: 'application/problem+json, */*', 'x-requested-with': 'fetch' };
  return csrfToken === null ? headers : { ...headers, 'x-csrf-token': csrfToken };
}

/** Increases when a request is answered with 401: the session has ended. */
export const rejected = signal(0);
/** Increases when a request is rejected for a missing right: the page offered something that is no longer allowed. */
export const forbidden = signal(0);

/** Reads the session again. @returns whether the same user has a new session */
type RenewSession = () => Promise<boolean>;

let renewSession: RenewSession = () => Promise.resolve(false);

export function onStaleToken(renew: RenewSession): void {
  renewSession = renew;
}

/** An error response, or an error that prevented a response. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  /** 0: there was no response. */
  readonly status: number;
  readonly code: string;
  readonly details: Readonly<Record<string, unknown>>;
  /** Whether the error comes from the server itself, not from a proxy. */
  readonly isOfServer: boolean;

  constructor(
    status: number,
    code: string,
    message: string,
    details: Readonly<Record<string, unknown>> = {},
    isOfServer = false,
  ) {
    super(message);
    this.status = status;
    this.code = code;
    this.details = details;
    this.isOfServer = isOfServer;
  }
}

/** Whether the request may succeed later: the server is unreachable or failed, or the user must sign in again. */
export function isTemporary(error: unknown): boolean {
  return error instanceof ApiError && (error.status === 0 || error.status === 401 || error.status >= 500);
}

/** Whether a failed request may have changed something. */
export function mayHaveChanged(error: unknown): boolean {
  if (!(error instanceof ApiError)) return false;
  const { isOfServer, code, status } = error;
  if (isOfServer) return code === 'outcome-unknown' || code === 'internal';
  // A proxy that answers 4xx has not forwarded the request; with 5xx it may have.
  return status === 0 || status >= 500;
}

export type RequestQuery = Readonly<Record<string, string | number | null | undefined>>;

interface ApiRequest {
  readonly method?: string;
  readonly query?: RequestQuery;
  readonly json?: unknown;
  readonly body?: BodyInit;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

/** Returns a path of the HTTP interface, with each segment encoded. */
export function path(...parts: readonly string[]): string {
  return parts.map(encodeURIComponent).join('/');
}

export interface QueueNamed {
  readonly ns: string;
  readonly queue: string;
}

/** Returns the path of a queue, or of a part of it. */
export function queuePath({ ns, queue }: QueueNamed, ...parts: readonly string[]): string {
  return path('q', ns, queue, ...parts);
}

/**
 * Returns a path segment that is `.` or `..`, if any. Browsers resolve these, so that another request would be sent,
 * which might take an element.
 */
export function dotSegmentIn(where: string): string | undefined {
  return where.split('/').find((part) => part === '.' || part === '..');
}

/**
 * Returns the URL of a path of the HTTP interface.
 * @throws ApiError `invalid-name` if a segment is `.` or `..`
 */
export function urlOf(where: string): URL {
  const step = dotSegmentIn(where);
  if (step === undefined) return new URL(where, BASE);
  const message = `The console cannot request the name "${step}": browsers remove it from paths.`;
  throw new ApiError(400, 'invalid-name', message);
}

/** @throws ApiError for an error response, or if there is no response */
export function call(where: string, request: ApiRequest = {}): Promise<Response> {
  return withFreshToken(() => send(where, request));
}

/**
 * Repeats a request once if another tab has signed in again: the browser's cookie then belongs to that session, but the
 * CSRF token to the previous one. The rejected request changed nothing.
 */
async function withFreshToken<T>(request: () => Promise<T>): Promise<T> {
  try {
    return await request();
  } catch (error) {
    if (!isStaleToken(error) || !(await renewSession())) throw error;
    return request();
  }
}

function isStaleToken(error: unknown): boolean {
  return (
    error instanceof ApiError &&
    error.code === 'forbidden-origin' &&
    error.details.parameter === 'x-csrf-token'
  );
}

async function send(where: string, request: ApiRequest): Promise<Response> {
  const { method = 'GET', query = {}, json, body, headers = {}, signal } = request;
  const url = urlOf(where);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== '') url.searchParams.set(name, String(value));
  }
  const sent = new Headers({ ...headers, ...commonHeaders() });
  if (json !== undefined) sent.set('content-type', 'application/json');
  const noteDate = timeRequest();
  const ownToken = csrfToken;
  const response = await fetch(url, {
    method,
    headers: sent,
    body: json === undefined ? (body ?? null) : JSON.stringify(json),
    signal: signal ?? null,
    cache: 'no-store',
    redirect: 'error',
  }).catch(() => {
    throw signal?.aborted === true ? signal.reason : unreachable();
  });
  noteDate(response.headers.get('date'));
  if (response.ok) return response;
  const text = await response.text().catch(() => '');
  const contentType = response.headers.get('content-type');
  throw apiError({ status: response.status, statusText: response.statusText, text, contentType, ownToken });
}

interface UploadOptions {
  readonly signal: AbortSignal;
  readonly onProgress: (sentBytes: number) => void;
}

/**
 * Sends a file of NDJSON. Uses `XMLHttpRequest`, because `fetch` does not report upload progress.
 * @returns the body of the response
 * @throws ApiError as `call`, and if `signal` is aborted
 */
export function upload(where: string, file: Blob, options: UploadOptions): Promise<string> {
  return withFreshToken(() => sendFile(where, file, options));
}

async function sendFile(where: string, file: Blob, { signal, onProgress }: UploadOptions): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const request = new XMLHttpRequest();
  request.open('POST', urlOf(where));
  request.setRequestHeader('content-type', 'application/x-ndjson');
  for (const [name, value] of Object.entries(commonHeaders())) request.setRequestHeader(name, value);
  const ownToken = csrfToken;
  request.upload.addEventListener('progress', ({ loaded }) => onProgress(loaded));
  request.addEventListener('load', () => {
    const { status, statusText, responseText: text } = request;
    const contentType = request.getResponseHeader('content-type');
    if (status === 200) resolve(text);
    else reject(apiError({ status, statusText, text, contentType, ownToken }));
  });
  request.addEventListener('error', () => {
    reject(new ApiError(0, 'unreachable', 'The server closed the connection, or did not respond.'));
  });
  request.addEventListener('abort', () => {
    reject(new ApiError(0, 'cancelled', 'The import was cancelled. Elements that had arrived are stored.'));
  });
  signal.addEventListener('abort', () => request.abort(), { once: true });
  request.send(file);
  return promise;
}

interface FailedResponse {
  readonly status: number;
  readonly statusText: string;
  readonly text: string;
  readonly contentType: string | null;
  /** The CSRF token that was sent. */
  readonly ownToken: string | null;
}

/** Creates the error of an error response, and notes an ended session or a missing right. */
function apiError({ status, statusText, text, contentType, ownToken }: FailedResponse): ApiError {
  // A 401 for the previous session says nothing about the present one.
  if (status === 401 && ownToken === csrfToken) rejected.value += 1;
  const isOfServer = contentType?.startsWith('application/problem+json') === true;
  try {
    const { code, message, error, detail, title, ...details } = JSON.parse(text) as Record<string, unknown>;
    const reported = [message, detail, title, error].find((one) => typeof one === 'string');
    if (code === 'forbidden') forbidden.value += 1;
    return new ApiError(status, String(code ?? status), String(reported ?? statusText), details, isOfServer);
  } catch {
    return new ApiError(status, String(status), `${status} ${statusText} ${text.slice(0, 200)}`.trim());
  }
}

function unreachable(): ApiError {
  return new ApiError(
    0,
    'unreachable',
    'The server did not respond. Check that it is running, and check the network.',
  );
}

/**
 * Sends a request and reads as much of the response body as `use` consumes. If the connection breaks, or is silent for
 * {@link SILENCE_MS}, the server counts as unreachable.
 * @throws ApiError as `call`
 */
export async function read<T>(
  where: string,
  request: ApiRequest,
  use: (headers: Headers, body: AsyncIterable<Uint8Array>) => Promise<T>,
): Promise<T> {
  const silence = new AbortController();
  const signal = AbortSignal.any([silence.signal, ...(request.signal === undefined ? [] : [request.signal])]);
  let cancel = (): void => {};
  const listen = (): void => {
    cancel();
    cancel = after(SILENCE_MS, () => silence.abort(unreachable()));
  };
  listen();
  try {
    const { headers, body } = await call(where, { ...request, signal });
    return await use(headers, chunksOf(body, signal, listen));
  } finally {
    cancel();
  }
}

async function* chunksOf(
  body: ReadableStream<Uint8Array> | null,
  signal: AbortSignal,
  onPiece: () => void,
): AsyncGenerator<Uint8Array> {
  if (body === null) return;
  const reader = body.getReader();
  try {
    for (;;) {
      onPiece();
      const { done, value } = await reader.read().catch(() => {
        throw signal.aborted ? signal.reason : unreachable();
      });
      if (done) return;
      yield value;
    }
  } finally {
    // Stop the transfer of the rest.
    reader.cancel().catch(() => {});
  }
}

export function get<T>(where: string, request: ApiRequest = {}): Promise<T> {
  return read(where, request, async (_, body) => {
    const decoder = new TextDecoder();
    let text = '';
    for await (const piece of body) text += decoder.decode(piece, { stream: true });
    try {
      return JSON.parse(text + decoder.decode()) as T;
    } catch {
      const message =
        'The response is not from the server. A proxy may have answered instead, or cut it off.';
      throw new ApiError(0, 'unreadable', message);
    }
  });
}

/** The message of any thrown value. That of a search does not name the parameter of its selector. */
export function messageOf(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).replace(
    /^where(\.selector)?, line/,
    'Line',
  );
}
