import {
  type ConsoleSession,
  type ConsoleSessions,
  isEqual,
  type SessionOrigin,
} from '../access/console-sessions.ts';
import { QuaysideError } from '../model/errors.ts';
import { ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { ownString } from '../util/own-bytes.ts';
import { quote } from '../util/quote.ts';
import type { HttpCall } from './call.ts';
import { type RequestHead, rareHeader } from './head.ts';
import { METHODS, type Route } from './route.ts';

/**
 * Rejects requests that a browser sends on behalf of a page of another site (docs/protocols/http.md, "Requests").
 *
 * A browser attaches remembered Basic credentials by itself, and a GET pops: an image tag on a foreign page would empty
 * a queue. Programs send none of these headers and are not affected. Pages of allowed origins pass whatever their
 * `Sec-Fetch-Site`; their browser sends `Origin` whenever it lets them read the response.
 * @returns the allowed origin of the page, whose responses get CORS headers; null if it has none
 * @throws QuaysideError `forbidden-origin`
 */
export function checkPage(head: RequestHead, allowedOrigins: ReadonlySet<string>): string | null {
  const { fetchSite, purpose, oldPurpose, origin } = head;
  const isAllowed = origin !== null && allowedOrigins.has(origin.toLowerCase());
  if (!isAllowed && fetchSite !== null && fetchSite !== 'same-origin' && fetchSite !== 'none') {
    throw new QuaysideError(
      'forbidden-origin',
      `Sec-Fetch-Site is ${quote(fetchSite)}. A browser may send requests on behalf of this site's own pages only.`,
      { parameter: 'sec-fetch-site' },
    );
  }
  for (const [name, value] of [
    ['Sec-Purpose', purpose],
    ['Purpose', oldPurpose],
  ] as const) {
    if (!value?.toLowerCase().includes('prefetch')) continue;
    throw new QuaysideError(
      'forbidden-origin',
      `${name} ${quote(value)} is not allowed: a prefetch could take an element.`,
      { parameter: name.toLowerCase() },
    );
  }
  if (origin !== null && !isAllowed && !isOwnOrigin(origin, head.host)) {
    throw new QuaysideError(
      'forbidden-origin',
      `Origin ${quote(origin)} is not allowed. Allowed: this server's own, and those of http.allowedOrigins.`,
      { parameter: 'origin' },
    );
  }
  return isAllowed ? origin : null;
}

/** Ignores the scheme: behind a proxy that terminates TLS, browsers use another one than this server. */
function isOwnOrigin(origin: string, host: string | null): boolean {
  if (host === null) return false;
  const lower = origin.toLowerCase();
  const authority = host.toLowerCase();
  return lower === `http://${authority}` || lower === `https://${authority}`;
}

/**
 * Checks a request of a browser and stores its allowed origin in the call. Answers it if it is a CORS preflight:
 * browsers send preflights without credentials, so they are answered before authentication, in the same way for all
 * paths.
 * @returns whether the request has been answered
 * @throws QuaysideError `forbidden-origin`
 */
export function respondToPreflight(call: HttpCall, allowedOrigins: ReadonlySet<string>): boolean {
  const { request, path, front, head } = call;
  // Any site may link to the console's pages. Check the route, not the path, which can be spelled in many ways.
  if (front.router.find(request.method ?? '', path)?.route.isPage === true) return false;
  call.origin = checkPage(head, allowedOrigins);
  if (call.origin === null || request.method !== 'OPTIONS') return false;
  if (rareHeader(request.rawHeaders, 'access-control-request-method') === null) return false;
  const requestedHeaders = rareHeader(request.rawHeaders, 'access-control-request-headers') ?? '';
  request.discard();
  call.sendEmpty(204, [
    'access-control-allow-methods',
    METHODS.join(', '),
    'access-control-max-age',
    PREFLIGHT_MAX_AGE_S,
    ...(FIELD_NAMES.test(requestedHeaders) ? ['access-control-allow-headers', requestedHeaders] : []),
  ]);
  return true;
}

/** Headers of error responses; those of successful responses are declared in the route table. */
const EXPOSED_ERROR_HEADERS = ['allow', 'retry-after'];
/** Ends the name that stands for all element headers in the route table. */
const WILDCARD = '*';

/** The names of the response headers that a page may read in addition to element headers, separated by commas. */
export function exposedHeaders(routes: readonly Route[]): string {
  const names = routes.flatMap(({ responses }) =>
    responses.flatMap(({ headers = {} }) => Object.keys(headers)),
  );
  const fixed = names.filter((name) => !name.endsWith(WILDCARD));
  return [...new Set([...fixed, ...EXPOSED_ERROR_HEADERS])].join(', ');
}

/**
 * The headers that let a page of an allowed origin read the response (the Fetch standard, "CORS protocol").
 * @param exposed see {@link exposedHeaders}
 */
export function corsHeaders(
  origin: string,
  exposed: string,
  elementHeaders: readonly string[] = [],
): string[] {
  const elementNames = elementHeaders
    .filter((_, i) => i % 2 === 0)
    .map((name) => `, ${ELEMENT_HEADER_PREFIX}${name}`);
  return [
    'access-control-allow-origin',
    origin,
    'access-control-allow-credentials',
    'true',
    'access-control-expose-headers',
    exposed + elementNames.join(''),
    'vary',
    'origin',
  ];
}

/** How long a browser may keep the response to a preflight, in seconds. */
const PREFLIGHT_MAX_AGE_S = '600';
const FIELD_NAMES = /^[\w!#$%&'*+.^`|~-]+(?:[\t ]*,[\t ]*[\w!#$%&'*+.^`|~-]+)*$/;

export const SESSION_COOKIE = 'quayside_session';
const CSRF_HEADER = 'x-csrf-token';
const MAX_BROWSER_LENGTH = 256;

/** Where the console is served, with a slash at its end. */
const CONSOLE_PATH = '/console/';
export const SESSION_PATH = '/console/session';

/**
 * The name of the session cookie. Browsers accept the prefix `__Host-` only over TLS and from this host. Without it,
 * another host of the domain, or plain HTTP, could set the cookie and put a user into somebody else's session.
 */
function cookieName(call: HttpCall): string {
  return call.isSecure ? `__Host-${SESSION_COOKIE}` : SESSION_COOKIE;
}

/** The token in the cookie of a console session; null if the request has none. */
function sessionToken(call: HttpCall): string | null {
  const { cookie } = call.head;
  if (cookie === null) return null;
  const name = cookieName(call);
  for (const pair of cookie.split(';')) {
    const at = pair.indexOf('=');
    if (pair.slice(0, at).trim() === name) return pair.slice(at + 1).trim();
  }
  return null;
}

/**
 * The header that sets the session cookie; an empty token deletes it. Its path is `/`: the console calls routes outside
 * `/console/`, and this server does not know under which path browsers see it behind a proxy.
 */
export function cookieHeaders(call: HttpCall, token: string): string[] {
  const attributes = `Path=/; HttpOnly; SameSite=Strict${call.isSecure ? '; Secure' : ''}`;
  return ['set-cookie', `${cookieName(call)}=${token}; ${attributes}${token === '' ? '; Max-Age=0' : ''}`];
}

/**
 * Sets the console session of a call, and its user, by the cookie. A request with a CSRF token comes from the console,
 * even if its session has ended or another tab has removed the cookie. The console acts as its own user or as nobody,
 * never by Basic credentials, which the browser remembers and adds by itself.
 * @returns whether Basic credentials must be ignored
 */
export function useSession(call: HttpCall): boolean {
  const { consoleSessions } = call.front.parts;
  call.session = consoleSessions === undefined ? null : findSession(call, consoleSessions);
  call.login = call.session?.user ?? null;
  call.newCookie = call.session?.renewedToken ?? null;
  return call.session !== null || namesCsrfToken(call);
}

/**
 * The console session of a request, or null. Only the console's own pages have one: their `Sec-Fetch-Site` is
 * `same-origin`, or missing, because browsers omit it over plain HTTP to another machine.
 */
function findSession(call: HttpCall, sessions: ConsoleSessions): ConsoleSession | null {
  const { fetchSite } = call.head;
  if (call.origin !== null || (fetchSite !== 'same-origin' && fetchSite !== null)) return null;
  const token = sessionToken(call);
  return token === null ? null : sessions.find(token, () => originOf(call));
}

/** The address and the browser that a session is used from. The `User-Agent` is truncated. */
export function originOf({ address, request: { rawHeaders } }: HttpCall): SessionOrigin {
  const browser = rareHeader(rawHeaders, 'user-agent');
  return { address, browser: browser === null ? null : ownString(browser.slice(0, MAX_BROWSER_LENGTH)) };
}

/**
 * Checks the CSRF token of a request with a session, if the route requires it. Most reads do not: they change nothing,
 * pages of other origins cannot read the responses, and event streams and downloads cannot send the header.
 * @throws QuaysideError `forbidden-origin`
 */
export function checkCsrfToken(call: HttpCall, session: ConsoleSession, { csrf }: Route): void {
  if (csrf === 'none' || (csrf === 'writes' && call.isRead)) return;
  const given = call.head.csrfToken;
  if (given !== null && isEqual(given, session.csrfToken)) return;
  throw new QuaysideError(
    'forbidden-origin',
    `Header ${CSRF_HEADER} is ${given === null ? 'missing' : quote(given)}. It must be the csrfToken of GET ${SESSION_PATH}.`,
    { parameter: CSRF_HEADER },
  );
}

/** Pages of allowed origins may send CSRF tokens of their own, but have no cookie of this server. */
function namesCsrfToken(call: HttpCall): boolean {
  return call.head.csrfToken !== null && (call.origin === null || sessionToken(call) !== null);
}

/** Whether a request comes from the console, so that the browser must not show its own password dialog. */
export function isFromConsole(call: HttpCall): boolean {
  const { rawHeaders } = call.request;
  return (
    call.path.startsWith(CONSOLE_PATH) ||
    rareHeader(rawHeaders, CSRF_HEADER) !== null ||
    rareHeader(rawHeaders, 'x-requested-with') !== null ||
    rareHeader(rawHeaders, 'cookie')?.includes(`${SESSION_COOKIE}=`) === true
  );
}
