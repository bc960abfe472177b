/** Keys of different users are different keys. A user name has no colon, so the two parts stay apart. */
export function userKey(user: string, key: string): string {
  return `${user}:${key}`;
}

/** The key as its user gave it. */
export function keyOfUser(dedupKey: string): string {
  return dedupKey.slice(dedupKey.indexOf(':') + 1);
}
