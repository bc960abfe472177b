import type { Authenticator, User } from '../access/user.ts';
import { QuaysideError } from '../model/errors.ts';
import { textOfBytes } from '../util/byte-text.ts';
import { quote } from '../util/quote.ts';
import type { ClientCertificate } from './client-certificate.ts';

/** A name and a password as bytes, one character for each. */
export interface Credentials {
  readonly login: string;
  readonly passcode: string;
}

/**
 * Checks a login as HTTP does, with the same limits on failures. It is checked as Basic credentials, so that a
 * client that reconnects is recognised without a hash: a thousand of them reconnect at once when a node restarts.
 * @param need the message of the error if they cannot be those of a user
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
  return authenticator.recall(basic) ?? authenticator.login(basic, address);
}

/**
 * Logs a client in as the user whom its certificate names.
 * @throws QuaysideError `unauthorized` if it has none that counts, or there is no such user
 */
export function loginCertified(
  authenticator: Authenticator,
  certificate: ClientCertificate,
  address: string,
): User {
  const user = authenticator.loginWithoutPassword(certificate.name, address);
  if (user !== null) return user;
  if (certificate.name === null) {
    throw new QuaysideError('unauthorized', `A login by client certificate failed: ${certificate.error}.`);
  }
  throw new QuaysideError(
    'unauthorized',
    `There is no user ${quote(certificate.name)}, whom the client's certificate names.`,
  );
}
