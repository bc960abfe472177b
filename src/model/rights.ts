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
  /** Whether the namespace is visible to the user. */
  maySee(namespace: string): boolean;
  /** Whether the user may see element bodies of the namespace. Errors thrown by selectors may quote them. */
  maySeeBodies(namespace: string): boolean;
}
