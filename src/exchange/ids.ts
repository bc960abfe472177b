/** In no name that a client may send. */
const MARK = '\u001f';

/**
 * Ids of exchanges are unique on the whole server, and one whose source namespace a user may not see must not show by
 * being taken. So if a user creates an exchange with such an id, it is stored under a key of its own, made of the id and the
 * namespace of its source. For most exchanges id and key are the same.
 */
export function scopedKey(id: string, namespace: string): string {
  return id + MARK + namespace;
}

/** The id that the creator of an exchange gave. */
export function idOf(key: string): string {
  const end = key.indexOf(MARK);
  return end < 0 ? key : key.slice(0, end);
}

/**
 * The keys by the ids that somebody who sees all of them knows them by: the given ids and, for the second exchange of
 * an id, `<id>@<namespace of its source>`.
 * @param keys sorted
 */
export function idsOf(keys: readonly string[]): Map<string, string> {
  const byId = new Map<string, string>();
  for (const key of keys) {
    let id = idOf(key);
    if (byId.has(id)) id = `${id}@${key.slice(id.length + MARK.length)}`;
    while (byId.has(id)) id += '@';
    byId.set(id, key);
  }
  return byId;
}
