import { missingRight, namespaceNotFound, QuaysideError } from '../model/errors.ts';

/**
 * What a user may do in a namespace (docs/operate/security.md, "Users and rights").
 * - `read`: get, reserve, commit, rollback, extend, status
 * - `write`: insert
 * - `manage`: pause, resume, remove, consumers, cancel
 * - `browse`: look at elements without taking them; implied by `read`
 * - `exchange`: create and control exchanges that read from the namespace; a selector is code
 */
export const RIGHTS = ['read', 'write', 'manage', 'browse', 'exchange'] as const;
export type Right = (typeof RIGHTS)[number];

/** Somebody who proved who they are. One object per user for the life of the configuration. */
export interface User {
  readonly name: string;
  /** Without a list of rights, and so with all of them, also those that belong to no namespace. */
  readonly isAdministrator: boolean;
  /** The one decision about rights, for every protocol. */
  may(right: Right, namespace: string): boolean;
  /** True with any right there; a namespace that one may not see is answered as unknown. */
  maySee(namespace: string): boolean;
  /**
   * Whether browsing there shows the user bodies: always with `read`, which could take them; with `browse` alone unless
   * the user's `maskBodies` is set. Decides only what is shown; the right itself is `may('browse', …)`.
   */
  maySeeBodies(namespace: string): boolean;
  /** The API token with which the user logged in; not given: none. */
  readonly token?: {
    readonly name: string;
    readonly owner: User | null;
    /** Whether it has a list of rights, and so not all that its owner has. */
    readonly isLimited: boolean;
  };
}

/**
 * Why a user may not do something in a namespace; null if they may. One that the user may not see is answered
 * like one that is not there.
 */
export function refusal(user: User, right: Right, namespace: string): QuaysideError | null {
  return user.may(right, namespace) ? null : rejection(user, right, namespace);
}

/** @throws QuaysideError `forbidden`, or `namespace-not-found` if the user may not see it */
export function checkRight(user: User, right: Right, namespace: string): void {
  if (!user.may(right, namespace)) throw rejection(user, right, namespace);
}

function rejection(user: User, right: Right, namespace: string): QuaysideError {
  return user.maySee(namespace) ? missingRight(user, right, namespace) : namespaceNotFound(namespace);
}

/**
 * The error for a user who logged in and is gone by now, or has another password; or whose API token, or session of the
 * console, has ended.
 */
export function loginLost(): QuaysideError {
  return new QuaysideError(
    'unauthorized',
    'This user is gone, or has another password, or the API token or the session of the console has ended.',
  );
}

/**
 * Who a user is after a reload of the users; null if the name is gone or has another password, or the API token has
 * ended.
 */
export type RenewUser = (user: User) => User | null;

/** Checks credentials; one for all front ends, so that its limits count every door. */
export interface Authenticator {
  /**
   * The user of an `Authorization` header that was accepted lately, or null. Microseconds, no hash of a
   * password: front ends ask this first, on every request.
   */
  recall(authorization: string): User | null;
  /**
   * Checks a Basic or Bearer header. A password is slow on purpose (argon2id), bounded in how many run at once;
   * a success is remembered for `recall`. `address` is the client's, for the limits on failures.
   * @throws QuaysideError `unauthorized`, `token-expired`, `too-many-attempts`, `overloaded`
   */
  login(authorization: string, address: string): Promise<User>;
  /**
   * The user as whom a client acts that needs no password: its certificate names the user, or SASL ANONYMOUS is served.
   * Null if there is no such user. Counted and logged like a login by password.
   * @param name null: the certificate does not count, which is a failed login
   */
  loginWithoutPassword(name: string | null, address: string): User | null;
}
