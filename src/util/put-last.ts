/** Sets an entry of a map and makes it the most recent. Beyond `max` entries, the least recent one is evicted. */
export function putLast<K, V>(map: Map<K, V>, key: K, value: V, max: number): void {
  map.delete(key);
  map.set(key, value);
  if (map.size <= max) return;
  for (const first of map.keys()) {
    map.delete(first);
    return;
  }
}
