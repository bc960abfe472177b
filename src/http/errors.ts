import { type ErrorCode, QuaysideError } from '../model/errors.ts';
import { quote } from '../util/quote.ts';
import { WEB_SOCKET_VERSION } from '../util/upgrade.ts';
import { isFromConsole } from './browser.ts';
import type { HttpCall } from './call.ts';
import { STATUS_CODES } from './node-http.ts';

/** How HTTP reports one error. */
interface HttpError {
  readonly status: number;
  /** Default for `Retry-After`, of errors that are temporary. */
  readonly retryAfterMs?: number;
  /** Set if the spec or docs/ require another reason phrase than the standard one. */
  readonly reason?: string;
  /** The response that the spec prescribes, byte for byte; without it, problem details (RFC 9457) are sent. */
  readonly specResponse?: SpecResponse;
}

interface SpecResponse {
  readonly contentType: string;
  readonly body: (error: QuaysideError) => string;
}

const HTML = 'text/html; charset=utf-8';

/** How HTTP reports each error code; docs/protocols/http.md lists the same. */
export const HTTP_ERRORS: Readonly<Record<ErrorCode, HttpError>> = {
  'malformed-request': { status: 400 },
  'headers-too-large': { status: 431 },
  'request-timeout': { status: 408 },
  'expectation-failed': { status: 417 },
  'invalid-parameter': { status: 400 },
  'invalid-name': { status: 400 },
  'invalid-header': { status: 400 },
  'invalid-body': { status: 400 },
  'body-too-large': { status: 413 },
  'not-supported': { status: 405 },
  'method-not-allowed': { status: 405 },
  'route-not-found': { status: 404 },
  'upgrade-required': { status: 426 },
  unauthorized: { status: 401 },
  'token-expired': { status: 401 },
  'too-many-attempts': { status: 429, retryAfterMs: 1000 },
  forbidden: { status: 403 },
  'forbidden-origin': { status: 403 },
  'namespace-not-found': { status: 404 },
  'element-not-found': { status: 404 },
  'not-reserved': { status: 404 },
  'lease-lost': { status: 409 },
  'token-required': { status: 409 },
  'element-reserved': { status: 409 },
  'idempotency-mismatch': { status: 422 },
  'exchange-not-found': {
    status: 404,
    specResponse: {
      contentType: HTML,
      body: ({ details }) => `no such exchange [${escapeHtml(String(details.extra?.id ?? ''))}]`,
    },
  },
  'exchange-exists': { status: 409 },
  'operation-not-found': { status: 404 },
  'token-not-found': { status: 404 },
  'queue-in-use': { status: 409 },
  'definition-conflict': { status: 409 },
  'precondition-failed': { status: 412 },
  'backup-conflict': { status: 409 },
  'pop-cancelled': {
    status: 410,
    reason: 'Queue Pop Cancelled',
    specResponse: { contentType: HTML, body: () => 'cancel' },
  },
  'pop-timeout': {
    status: 504,
    reason: 'Queue Pop Timeout',
    specResponse: {
      contentType: 'application/json',
      body: ({ details }) => JSON.stringify(details.extra ?? {}),
    },
  },
  'too-many-consumers': { status: 429, retryAfterMs: 1000 },
  'too-many-queues': { status: 507 },
  'namespace-full': { status: 507 },
  'queue-full': { status: 507 },
  'too-many-groups': { status: 507 },
  'too-many-exchanges': { status: 507 },
  'too-many-tokens': { status: 507 },
  'too-many-subscribers': { status: 429, retryAfterMs: 5000 },
  overloaded: { status: 503, retryAfterMs: 1000 },
  'shutting-down': { status: 503, retryAfterMs: 1000 },
  'storage-full': { status: 507 },
  'storage-unavailable': { status: 503, retryAfterMs: 1000 },
  'outcome-unknown': { status: 503 },
  internal: { status: 500 },
};

/** The error of a request that is not authenticated. */
export function unauthorized(call: HttpCall): QuaysideError {
  return new QuaysideError(
    'unauthorized',
    isFromConsole(call)
      ? 'There is no console session, or it has ended. Sign in.'
      : 'The request has no credentials. Send the name and password of a user (Basic), or an API token (Bearer).',
  );
}

export function routeNotFound({ path }: HttpCall): QuaysideError {
  return new QuaysideError(
    'route-not-found',
    `Path ${quote(path)} does not exist. GET /openapi.json lists those that do.`,
  );
}

/** The error of a request that is not a WebSocket handshake, at a path that serves nothing else. */
export function upgradeRequired({ path, request: { method } }: HttpCall): QuaysideError {
  const what =
    method === 'GET'
      ? 'without Upgrade: websocket or Connection: Upgrade. A proxy may have removed them'
      : `a ${method} and not a GET`;
  return new QuaysideError(
    'upgrade-required',
    `Path ${quote(path)} serves WebSocket only, but the request is ${what}.`,
  );
}

/** An error as a response, without the headers that all responses have. */
interface ErrorResponse {
  readonly status: number;
  readonly reason: string;
  readonly contentType: string;
  readonly body: string;
}

/**
 * Formats an error as the spec prescribes or else as problem details, which a client always gets if its `Accept` names
 * them.
 */
export function errorResponse(error: QuaysideError, accept: string | null): ErrorResponse {
  const { status, reason, specResponse } = HTTP_ERRORS[error.code];
  const standard = STATUS_CODES[status] ?? 'Error';
  const statusLine = { status, reason: reason ?? standard };
  if (specResponse !== undefined && !accept?.toLowerCase().includes(PROBLEM_JSON)) {
    return { ...statusLine, contentType: specResponse.contentType, body: specResponse.body(error) };
  }
  return { ...statusLine, contentType: PROBLEM_JSON, body: JSON.stringify(problem(error, status)) };
}

export const PROBLEM_JSON = 'application/problem+json';

/** The members of problem details. `type` is omitted: clients distinguish problems by `code`. */
function problem(error: QuaysideError, status: number): object {
  const { parameter, extra: facts } = error.details;
  return {
    ...facts,
    title: STATUS_CODES[status],
    status,
    code: error.code,
    detail: error.message,
    ...(parameter !== undefined && { parameter }),
  };
}

const HTML_ESCAPES: Readonly<Record<string, string>> = {
  '<': '&lt;',
  '>': '&gt;',
  '&': '&amp;',
  '"': '&quot;',
  "'": '&#39;',
};

function escapeHtml(text: string): string {
  return text.replace(/[<>&"']/g, (character) => HTML_ESCAPES[character] ?? character);
}

const CHALLENGE = 'Basic realm="Quayside", charset="UTF-8"';
/** A scheme that browsers do not know, so that they show no password dialog over the console's own form. */
const CONSOLE_CHALLENGE = 'Session realm="Quayside"';

/** The additional headers of an error: challenge, time to retry, allowed methods or protocol. */
export function errorHeaders(error: QuaysideError, call: HttpCall): string[] {
  const headers: string[] = [];
  const { status, retryAfterMs: defaultMs } = HTTP_ERRORS[error.code];
  if (status === 401) headers.push('www-authenticate', isFromConsole(call) ? CONSOLE_CHALLENGE : CHALLENGE);
  const retryAfterMs = error.details.retryAfterMs ?? defaultMs;
  if (retryAfterMs !== undefined) {
    headers.push('retry-after', String(Math.max(1, Math.ceil(retryAfterMs / 1000))));
  }
  // The rest of the request may never arrive, so the connection cannot be reused.
  if (error.code === 'request-timeout' && !call.front.isClosing) headers.push('connection', 'close');
  if (status === 405) headers.push('allow', allowedMethods(error, call));
  if (status === 426) headers.push(...UPGRADE_HEADERS);
  return headers;
}

const UPGRADE_HEADERS = [
  ...['connection', 'close, upgrade'],
  ...['upgrade', 'websocket'],
  ...['sec-websocket-version', WEB_SOCKET_VERSION],
];

/**
 * The methods for `Allow`. If the route exists but the queue does not support it (`not-supported`), only those of the
 * path's other routes.
 */
function allowedMethods(error: QuaysideError, { front, path, request }: HttpCall): string {
  const { router } = front;
  const methods = router.allowed(path);
  if (error.code !== 'not-supported') return methods.join(', ');
  const route = router.find(request.method ?? '', path)?.route;
  return methods.filter((method) => router.find(method, path)?.route !== route).join(', ');
}
