import { QuaysideError } from '../model/errors.ts';
import { quote } from '../model/quote.ts';
import type { Head } from './head.ts';

/**
 * Refuses what a browser sends on behalf of a page that is not ours (decisions, "Requests in general").
 *
 * A browser adds remembered Basic credentials by itself, and a GET pops: an image tag on a stranger's page
 * would empty a queue. Programs send none of these headers and pass.
 * @throws QuaysideError `forbidden-origin`
 */
export function refuseForeignPage(head: Head, allowedOrigins: ReadonlySet<string>): void {
  const { fetchSite, purpose, origin } = head;
  if (fetchSite !== null && fetchSite !== 'same-origin' && fetchSite !== 'none') {
    throw new QuaysideError(
      'forbidden-origin',
      `Sec-Fetch-Site is ${quote(fetchSite)}. A browser may send requests on behalf of this site's own pages only.`,
      {
        parameter: 'sec-fetch-site',
      },
    );
  }
  if (purpose?.toLowerCase().includes('prefetch')) {
    throw new QuaysideError(
      'forbidden-origin',
      `Sec-Purpose is ${quote(purpose)}. A prefetch could take an element.`,
      { parameter: 'sec-purpose' },
    );
  }
  if (origin !== null && !allowedOrigins.has(origin.toLowerCase()) && !isOwnOrigin(origin, head.host)) {
    throw new QuaysideError(
      'forbidden-origin',
      `Origin ${quote(origin)} is not allowed. Allowed: this server's own, and those of http.allowedOrigins.`,
      {
        parameter: 'origin',
      },
    );
  }
}

/** The scheme is left out of the comparison: behind a proxy that ends TLS it is not ours. */
function isOwnOrigin(origin: string, host: string | null): boolean {
  if (host === null) return false;
  const lower = origin.toLowerCase();
  const authority = host.toLowerCase();
  return lower === `http://${authority}` || lower === `https://${authority}`;
}
