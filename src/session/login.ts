import { type PeerCertificate, TLSSocket } from 'node:tls';
import type { Authenticator, User } from '../access/user.ts';
import { QuaysideError } from '../model/errors.ts';
import { textOfBytes } from '../util/byte-text.ts';
import { quote } from '../util/quote.ts';

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

/** What a client proved by a certificate of its own: the name of a user; or why it proved nothing. */
export type ClientCertificate =
  | { readonly name: string }
  /** `isSent`: whether there is a certificate. */
  | { readonly name: null; readonly error: string; readonly isSent: boolean };

/**
 * Reads the certificate of a client whose handshake is done. It counts if an authority of the listener signed it and it
 * is valid now; the user is its common name.
 */
export function readClientCertificate(socket: object): ClientCertificate {
  if (!(socket instanceof TLSSocket))
    return none('it needs a TLS connection to the listener of its protocol');
  const { authorized, authorizationError } = socket;
  // `authorized` alone is true for a session that was resumed without a certificate.
  const { subject } = (socket.getPeerCertificate() ?? {}) as Partial<PeerCertificate>;
  if (subject === undefined) return none('the client sent none, or was not asked for one (tls.clientCa)');
  if (!authorized) return failed(`the client's was not accepted (${authorizationError})`);
  const name: unknown = subject.CN;
  if (typeof name !== 'string')
    return failed("the subject of the client's does not have one common name (CN)");
  return { name };
}

function none(error: string): ClientCertificate {
  return { name: null, error, isSent: false };
}

function failed(error: string): ClientCertificate {
  return { name: null, error, isSent: true };
}
