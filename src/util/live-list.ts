/** What may be in one {@link LiveList} at a time. */
export interface LiveItem {
  /** Its place, for the list alone; -1: it is in none. */
  place: number;
}

/**
 * What comes and goes with each request: added and removed in constant time, in no order.
 *
 * Not a Set: V8 gives a Set a new table after so many additions, and the old table keeps the requests that it had last
 * until old objects are collected. A pop over HTTP copied 3.5 KB into the old generation that way (ADR 6).
 */
export class LiveList<T extends LiveItem> {
  readonly #items: T[] = [];

  add(item: T): void {
    item.place = this.#items.length;
    this.#items.push(item);
  }

  /** Harmless if it is not in the list. */
  remove(item: T): void {
    const { place } = item;
    if (place === -1) return;
    item.place = -1;
    const last = this.#items.pop();
    if (last === undefined || last === item) return;
    last.place = place;
    this.#items[place] = last;
  }

  /** Those that are in it now. */
  items(): readonly T[] {
    return [...this.#items];
  }
}
