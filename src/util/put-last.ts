/** Puts an entry last in a map of a bounded size: the first one, which was put longest ago, makes room. */
export function putLast<K, V>(map: Map<K, V>, key: K, value: V, max: number): void {
  map.delete(key);
  map.set(key, value);
  if (map.size <= max) return;
  for (const first of map.keys()) {
    map.delete(first);
    return;
  }
}
