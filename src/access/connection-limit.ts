import { QuaysideError } from '../model/errors.ts';
import { UserLimit } from '../util/user-limit.ts';

/** What one user may have of the connections of a front end, and what each user may have whatever others have. */
const SHARE = 0.9;
const GUARANTEED_SHARE = 0.01;

/**
 * Counts the connections of a front end by the users that logged in on them. Logged in are fewer than may be connected,
 * so that a user who has no connection gets one, whatever another has.
 */
export function connectionLimit(protocol: string, maxSockets: number): UserLimit {
  const maxLoggedIn = Math.ceil(SHARE * maxSockets);
  return new UserLimit(
    { total: maxLoggedIn, perUser: maxLoggedIn, guaranteed: GUARANTEED_SHARE * maxSockets },
    () =>
      new QuaysideError(
        'overloaded',
        `Too many ${protocol} connections: users may have ${maxLoggedIn} of the ${maxSockets}. Close some, or raise maxSockets.`,
        { retryAfterMs: 1000 },
      ),
  );
}
