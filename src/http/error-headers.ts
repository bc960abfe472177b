import type { QuaysideError } from '../model/errors.ts';
import type { Call } from './call.ts';
import { httpError } from './errors.ts';

const CHALLENGE = 'Basic realm="Quayside", charset="UTF-8"';

/** The headers that some errors carry: a challenge, when to come again, what the path allows. */
export function errorHeaders(error: QuaysideError, call: Call): string[] {
  const headers: string[] = [];
  if (error.code === 'unauthorized') headers.push('www-authenticate', CHALLENGE);
  const { status, retryAfterMs: usual } = httpError(error.code);
  const retryAfterMs = error.details.retryAfterMs ?? usual;
  if (retryAfterMs !== undefined) {
    headers.push('retry-after', String(Math.max(1, Math.ceil(retryAfterMs / 1000))));
  }
  if (status === 405) headers.push('allow', allowed(error, call));
  return headers;
}

/** If the route exists but this queue cannot do it (`not-supported`), the methods of the path's other routes. */
function allowed(error: QuaysideError, { front, path, request }: Call): string {
  const { router } = front;
  const methods = router.allowed(path);
  if (error.code !== 'not-supported') return methods.join(', ');
  const route = router.find(request.method ?? '', path)?.route;
  return methods.filter((method) => router.find(method, path)?.route !== route).join(', ');
}
