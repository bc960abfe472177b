import { type PeerCertificate, TLSSocket } from 'node:tls';
import type { Authenticator, User } from '../access/user.ts';
import { QuaysideError } from '../model/errors.ts';
import { fromByteString } from '../util/byte-string.ts';
import { quote } from '../util/quote.ts';

/** User name and password, with one character per byte. */
export interface Credentials {
  readonly login: string;
  readonly passcode: string;
}

/**
 * Checks a login as HTTP does, with the same limits on failures. It is converted to Basic credentials, for which the
 * authenticator recognizes a recent login without computing a password hash: when a node restarts, a thousand clients
 * reconnect together.
 * @param message the error message if the credentials cannot belong to any user
 * @throws QuaysideError `unauthorized`, `too-many-attempts`, `overloaded`
 */
export async function authenticate(
  authenticator: Authenticator,
  { login, passcode }: Credentials,
  address: string,
  message: string,
): Promise<User> {
  // Basic credentials end the name at the first colon; no user's name has one.
  if (
    login === '' ||
    login.includes(':') ||
    fromByteString(login) === null ||
    fromByteString(passcode) === null
  ) {
    throw new QuaysideError('unauthorized', message);
  }
  const basic = `Basic ${Buffer.from(`${login}:${passcode}`, 'latin1').toString('base64')}`;
  return authenticator.recall(basic) ?? authenticator.login(basic, address);
}

/**
 * Logs a client in as the user whom its certificate names.
 * @throws QuaysideError `unauthorized` if no certificate was accepted, or there is no such user
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

/** The name of the user whom an accepted client certificate names; or why there is none. */
export type ClientCertificate =
  | { readonly name: string }
  /** `isSent`: whether the client sent a certificate. */
  | { readonly name: null; readonly error: string; readonly isSent: boolean };

/**
 * Reads the client's certificate after the handshake. It is accepted if an authority of the listener signed it and it
 * is valid now; its common name is the user's name.
 */
export function readClientCertificate(socket: object): ClientCertificate {
  if (!(socket instanceof TLSSocket))
    return missing('it requires a TLS connection to the listener of its protocol');
  const { authorized, authorizationError } = socket;
  // `authorized` alone is true for a session that was resumed without a certificate.
  const { subject } = (socket.getPeerCertificate() ?? {}) as Partial<PeerCertificate>;
  if (subject === undefined)
    return missing('the client sent no certificate, or was not asked for one (tls.clientCa)');
  if (!authorized) return rejected(`the client's certificate was not accepted (${authorizationError})`);
  const name: unknown = subject.CN;
  if (typeof name !== 'string')
    return rejected("the subject of the client's certificate must have exactly one common name (CN)");
  return { name };
}

function missing(error: string): ClientCertificate {
  return { name: null, error, isSent: false };
}

function rejected(error: string): ClientCertificate {
  return { name: null, error, isSent: true };
}
