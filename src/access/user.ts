import { missingRight, namespaceNotFound, QuaysideError } from '../model/errors.ts';
import type { Right, UserRights } from '../model/rights.ts';
import { quote } from '../util/quote.ts';

/** An authenticated user. A configuration has one object per user; a reload replaces it. */
export interface User extends UserRights {
  /** Has no list of rights, and therefore all rights, including those that are not bound to a namespace. */
  readonly isAdministrator: boolean;
  readonly token?: NonNullable<UserRights['token']> & {
    readonly owner: User | null;
    /** Whether the token has a list of rights of its own, which restricts those of its owner. */
    readonly isLimited: boolean;
  };
}

/**
 * @throws QuaysideError `forbidden`; `namespace-not-found` if the user may not see the namespace, which then looks like
 * an unknown one
 */
export function checkRight(user: User, right: Right, namespace: string): void {
  if (user.may(right, namespace)) return;
  throw user.maySee(namespace) ? missingRight(user, right, namespace) : namespaceNotFound(namespace);
}

/** @throws QuaysideError `forbidden` if the user may browse in the namespace, but not see bodies there */
export function checkBodies(user: User, namespace: string): void {
  if (user.maySeeBodies(namespace)) return;
  throw new QuaysideError(
    'forbidden',
    `User ${quote(user.name)} may not see bodies in namespace ${namespace} (maskBodies).`,
  );
}

/**
 * The error for a user whose login is no longer valid: the user was removed or has another password, or the API token
 * or console session has ended.
 */
export function loginLost(): QuaysideError {
  return new QuaysideError(
    'unauthorized',
    'This login is no longer valid: the user was removed or has another password, or the API token or console session has ended.',
  );
}

/** Verifies credentials. All front ends share one instance, so that its limits apply across protocols. */
export interface Authenticator {
  /**
   * The user of a recently accepted `Authorization` header, or null. Takes microseconds because it computes no password
   * hash; front ends call it first for each request.
   */
  recall(authorization: string): User | null;
  /**
   * Verifies a Basic or Bearer header. Password hashes are deliberately slow (argon2id), and few run at once; a success
   * is remembered for `recall`.
   * @param address the client's address, for the limits on failed logins
   * @throws QuaysideError `unauthorized`, `token-expired`, `too-many-attempts`, `overloaded`
   */
  login(authorization: string, address: string): Promise<User>;
  /**
   * The user of a client that logs in without a password, by a TLS client certificate or SASL ANONYMOUS, or null if
   * there is no such user. Counted and logged like a login with a password.
   * @param name null if the certificate is not valid for a login, which counts as a failed login
   */
  loginWithoutPassword(name: string | null, address: string): User | null;
  /**
   * The current object of a user after a reload; null if the user was removed or has another password, or if the API
   * token has ended.
   */
  renew(user: User): User | null;
}
