import { type PeerCertificate, TLSSocket } from 'node:tls';

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
