import type { Authenticator, User } from '../access/user.ts';
import { QuaysideError } from '../model/errors.ts';
import { textOfBytes } from '../util/byte-text.ts';

/** A name and a password as bytes, one character for each. */
export interface Credentials {
  readonly login: string;
  readonly passcode: string;
}

/**
 * Checks a login as HTTP does, with the same limit on failures. It goes by way of Basic credentials, so that a
 * client that connects again is recognised without a hash: a thousand of them come back at once when a
 * node restarts.
 * @param need what is said where they cannot be a user's
 * @throws QuaysideError `unauthorized`, `too-many-attempts`, `overloaded`
 */
export async function authenticate(
  authenticator: Authenticator,
  { login, passcode }: Credentials,
  address: string,
  need: string,
): Promise<User> {
  // Basic credentials end the name at the first colon; no user's name has one.
  if (login === '' || login.includes(':') || textOfBytes(login) === null || textOfBytes(passcode) === null) {
    throw new QuaysideError('unauthorized', need);
  }
  const basic = `Basic ${Buffer.from(`${login}:${passcode}`, 'latin1').toString('base64')}`;
  return authenticator.recall(basic) ?? authenticator.loginBasic(basic, address);
}
