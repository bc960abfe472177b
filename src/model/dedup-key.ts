/** Keys of different users are different keys. A user name has no colon, so the two parts stay apart. */
export function userKey(user: string, key: string): string {
  return `${user}:${key}`;
}

/** The key of a whole request; none is the key of an element, since no user name is empty. */
export function requestKey(user: string, key: string): string {
  return `:${userKey(user, key)}`;
}

/** The key of an element or a request as its user gave it. */
export function keyOfUser(dedupKey: string): string {
  return dedupKey.slice(dedupKey.indexOf(':', 1) + 1);
}
