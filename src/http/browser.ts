import { QuaysideError } from '../model/errors.ts';
import { ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { quote } from '../util/quote.ts';
import { type RequestHead, rareHeader } from './head.ts';
import type { HttpRequest } from './request.ts';
import { METHODS } from './route.ts';

/**
 * Rejects what a browser sends on behalf of a page of another site (decisions, "Requests in general").
 *
 * A browser adds remembered Basic credentials by itself, and a GET pops: an image tag on a foreign page
 * would empty a queue. Programs send none of these headers and pass. A page of an allowed origin names it in
 * `Origin` whenever it may read the response, and passes whatever its site.
 * @returns the allowed origin that the page is of, or null: its responses get CORS headers
 * @throws QuaysideError `forbidden-origin`
 */
export function checkPage(head: RequestHead, allowedOrigins: ReadonlySet<string>): string | null {
  const { fetchSite, purpose, origin } = head;
  const isAllowed = origin !== null && allowedOrigins.has(origin.toLowerCase());
  if (!isAllowed && fetchSite !== null && fetchSite !== 'same-origin' && fetchSite !== 'none') {
    throw new QuaysideError(
      'forbidden-origin',
      `Sec-Fetch-Site is ${quote(fetchSite)}. A browser may send requests on behalf of this site's own pages only.`,
      { parameter: 'sec-fetch-site' },
    );
  }
  if (purpose?.toLowerCase().includes('prefetch')) {
    throw new QuaysideError(
      'forbidden-origin',
      `Sec-Purpose is ${quote(purpose)}. A prefetch could take an element.`,
      { parameter: 'sec-purpose' },
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

/** The scheme is left out of the comparison: behind a proxy that ends TLS it is not ours. */
function isOwnOrigin(origin: string, host: string | null): boolean {
  if (host === null) return false;
  const lower = origin.toLowerCase();
  const authority = host.toLowerCase();
  return lower === `http://${authority}` || lower === `https://${authority}`;
}

/** The response headers that a page may read in addition to element headers. */
const EXPOSED =
  'x-ks-id, x-ks-tries, x-ks-mature, x-ks-lease, x-ks-lease-until, x-ks-state, x-ks-inserted, x-ks-repeated, x-ks-loops, content-encoding, link, allow, retry-after';

/** What lets a page of an allowed origin read the response (the Fetch standard, "CORS protocol"). */
export function corsHeaders(origin: string, elementHeaders: readonly string[] = []): string[] {
  const own = elementHeaders.filter((_, i) => i % 2 === 0).map((name) => `, ${ELEMENT_HEADER_PREFIX}${name}`);
  return [
    'access-control-allow-origin',
    origin,
    'access-control-allow-credentials',
    'true',
    'access-control-expose-headers',
    EXPOSED + own.join(''),
    'vary',
    'origin',
  ];
}

/** How long a browser may keep the response to a preflight, in seconds. */
const PREFLIGHT_AGE = '600';
const FIELD_NAMES = /^[\w!#$%&'*+.^`|~-]+(?:[\t ]*,[\t ]*[\w!#$%&'*+.^`|~-]+)*$/;

/**
 * Further headers of the response to a preflight, or null if the request is none. It comes without credentials, so it
 * is answered before they are checked, and in the same way for all paths.
 */
export function preflightHeaders({ method, rawHeaders }: HttpRequest): string[] | null {
  if (method !== 'OPTIONS') return null;
  if (rareHeader(rawHeaders, 'access-control-request-method') === null) return null;
  const asked = rareHeader(rawHeaders, 'access-control-request-headers') ?? '';
  return [
    'access-control-allow-methods',
    METHODS.join(', '),
    'access-control-max-age',
    PREFLIGHT_AGE,
    ...(FIELD_NAMES.test(asked) ? ['access-control-allow-headers', asked] : []),
  ];
}
