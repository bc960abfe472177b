import { signal } from '@preact/signals';
import { after, SILENCE_MS, timeRequest } from './timers.ts';

/** The interface of the server is next to the console, whatever path a proxy puts in front of both. */
export const BASE = new URL('../', new URL('./', location.href.split(/[?#]/, 1)[0] ?? location.href));

/** What changes something proves with it that it comes from this page. */
let csrfToken: string | null = null;

export function setCsrfToken(token: string | null): void {
  csrfToken = token;
}

/** The headers of each request, also of one that is not sent by {@link call}. */
export function ownHeaders(): Readonly<Record<string, string>> {
  // A response without the header that makes a browser ask for a password itself.
  const own = { accept: 'application/problem+json, */*', 'x-requested-with': 'fetch' };
  return csrfToken === null ? own : { ...own, 'x-csrf-token': csrfToken };
}

/** Increases when a request is answered with 401: the session has ended. */
export const rejected = signal(0);
/**
 * Increases when a request is answered that the user has not the right for it: the page offered what is not allowed any
 * more.
 */
export const forbidden = signal(0);

/** Reads the session again. @returns whether it is another one of the same user */
type RenewSession = () => Promise<boolean>;

let renewSession: RenewSession = () => Promise.resolve(false);

export function onStaleToken(renew: RenewSession): void {
  renewSession = renew;
}

/** An error that the server answered, or that kept a request from it. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  /** 0: there was no response. */
  readonly status: number;
  readonly code: string;
  readonly details: Readonly<Record<string, unknown>>;
  /** Whether the server itself says what is wrong: a proxy may respond in its place. */
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

/**
 * Whether the same request may succeed later: the server could not be reached or could not serve it, or the user must
 * sign in first.
 */
export function isTemporary(error: unknown): boolean {
  return error instanceof ApiError && (error.status === 0 || error.status === 401 || error.status >= 500);
}

/** Whether a request may have changed something although there was no success. */
export function mayHaveHappened(error: unknown): boolean {
  if (!(error instanceof ApiError)) return false;
  const { isOfServer, code, status } = error;
  if (isOfServer) return code === 'outcome-unknown' || code === 'internal';
  // With 4xx a proxy has not passed it on; with 5xx the server may have had it.
  return status === 0 || status >= 500;
}

interface ApiRequest {
  readonly method?: string;
  readonly query?: Readonly<Record<string, string | number | null | undefined>>;
  readonly json?: unknown;
  readonly body?: BodyInit;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

/** A path of the interface, each part encoded. */
export function path(...parts: readonly string[]): string {
  return parts.map(encodeURIComponent).join('/');
}

/**
 * A part of a path that is a step, which browsers remove from paths: the request would be another one, and might take
 * an element.
 */
export function stepIn(where: string): string | undefined {
  return where.split('/').find((part) => part === '.' || part === '..');
}

/**
 * The address of a path of the interface.
 * @throws ApiError if a part is a step
 */
export function urlOf(where: string): URL {
  const step = stepIn(where);
  if (step === undefined) return new URL(where, BASE);
  const message = `The console cannot reach what is named "${step}": browsers remove such steps from paths.`;
  throw new ApiError(400, 'invalid-name', message);
}

/** @throws ApiError if the response is no success, or if there is none */
export function call(where: string, request: ApiRequest = {}): Promise<Response> {
  return withFreshToken(() => send(where, request));
}

/**
 * Sends once more if another tab has signed in again: the browser's cookie is of that session, the token of the one
 * before. Nothing was changed.
 */
export async function withFreshToken<T>(request: () => Promise<T>): Promise<T> {
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
  const sent = new Headers({ ...headers, ...ownHeaders() });
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
  throw apiError(response.status, response.statusText, text, {
    // Of a session before this one: that it has ended says nothing of this one.
    isOfSession: csrfToken === ownToken,
    isOfServer: response.headers.get('content-type')?.startsWith('application/problem+json') === true,
  });
}

interface ErrorOrigin {
  /** Whether the request was sent in the session of now. */
  readonly isOfSession?: boolean;
  readonly isOfServer?: boolean;
}

/** The error of a response that is no success. */
export function apiError(
  status: number,
  statusText: string,
  text: string,
  { isOfSession = true, isOfServer = false }: ErrorOrigin = {},
): ApiError {
  if (status === 401 && isOfSession) rejected.value += 1;
  try {
    const { code, message, error, detail, title, ...details } = JSON.parse(text) as Record<string, unknown>;
    const said = [message, detail, title, error].find((one) => typeof one === 'string');
    if (code === 'forbidden') forbidden.value += 1;
    return new ApiError(status, String(code ?? status), String(said ?? statusText), details, isOfServer);
  } catch {
    return new ApiError(status, String(status), `${status} ${statusText} ${text.slice(0, 200)}`.trim());
  }
}

function unreachable(): ApiError {
  return new ApiError(
    0,
    'unreachable',
    'The server did not answer. Is it running, and is the network there?',
  );
}

/**
 * Sends a request whose response has a body, and reads as much of it as `use` takes. If its connection breaks, or
 * nothing comes for {@link SILENCE_MS}, that is as if the server had not answered.
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
    return await use(headers, piecesOf(body, signal, listen));
  } finally {
    cancel();
  }
}

async function* piecesOf(
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
    // What is not taken is not sent.
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
        'What came is no response of the server. Something in between answered instead, or cut it off.';
      throw new ApiError(0, 'unreadable', message);
    }
  });
}

/** What an error tells a person: its message, and what may be done about it. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
