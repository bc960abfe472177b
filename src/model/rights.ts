/**
 * What a user may do in a namespace (docs/operate/security.md, "Users and rights").
 * - `read`: get, reserve, commit, rollback, extend, status
 * - `write`: insert
 * - `manage`: pause, resume, remove, consumers, cancel
 * - `browse`: view elements without taking them; implied by `read`
 * - `exchange`: create and control exchanges that read from the namespace; separate because a selector is code
 */
export const RIGHTS = ['read', 'write', 'manage', 'browse', 'exchange'] as const;
export type Right = (typeof RIGHTS)[number];

/** A user, as far as rights go. */
export interface UserRights {
  readonly name: string;
  may(right: Right, namespace: string): boolean;
  /** Whether the user has any right in the namespace; otherwise it is reported as unknown. */
  maySee(namespace: string): boolean;
  /**
   * Whether browsing shows bodies to the user: always with `read`, which could take them anyway; with `browse` alone,
   * unless `maskBodies` is set. Errors thrown by selectors may quote bodies.
   */
  maySeeBodies(namespace: string): boolean;
  /** The API token with which the user logged in; absent after a login with a password. */
  readonly token?: {
    readonly name: string;
    /** The currently configured owner; null if there is none, or the token was revoked or has expired. */
    readonly owner: UserRights | null;
  };
}
