import { overloaded } from '../model/errors.ts';
import { UserLimit } from '../util/user-limit.ts';

/** Shares of `maxSockets`: the maximum for all logged-in users together, and the guarantee for each user. */
const SHARE = 0.9;
const GUARANTEED_SHARE = 0.01;

/**
 * Limits the connections of a front end per logged-in user. The limit is below `maxSockets`, so that a user without a
 * connection can always open one, even if another user holds the maximum.
 */
export function connectionLimit(protocol: string, maxSockets: number): UserLimit {
  const maxLoggedIn = Math.ceil(SHARE * maxSockets);
  return new UserLimit(
    { total: maxLoggedIn, perUser: maxLoggedIn, guaranteed: GUARANTEED_SHARE * maxSockets },
    () =>
      overloaded(
        `Too many ${protocol} connections: users may have ${maxLoggedIn} of the ${maxSockets}. Close some, or raise maxSockets.`,
      ),
  );
}
