import { QuaysideError } from '../model/errors.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';

/** Checks and dry runs in progress, at most: each may keep the one selector worker for a second. */
const MAX_OF_USER = 2;
const MAX_IN_ALL = 16;
/** Creates of one user that wait for their check, at most. */
const MAX_WAITING_OF_USER = 32;

/**
 * Bounds the checks and dry runs of selectors that are in progress, by user. They share the selector worker with the
 * exchanges, and hold what was sent until they end. Rejections are `overloaded`.
 */
export function createCheckLimit(): ConcurrencyLimit {
  return new ConcurrencyLimit({
    perKey: MAX_OF_USER,
    total: MAX_IN_ALL,
    maxWaiting: MAX_WAITING_OF_USER,
    rejection: () =>
      new QuaysideError(
        'overloaded',
        `Too many selectors are being checked or tried: at most ${MAX_OF_USER} requests of a user at once, and ${MAX_IN_ALL} in all.`,
        { retryAfterMs: 1000 },
      ),
  });
}
