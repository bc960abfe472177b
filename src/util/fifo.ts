/** Removed items are dropped from the array in blocks of at least this many. */
const BLOCK = 1024;

/** A first-in, first-out queue with removal in constant time; `shift` of a long array copies it. */
export class Fifo<T> {
  #items: (T | undefined)[] = [];
  #head = 0;

  get length(): number {
    return this.#items.length - this.#head;
  }

  get first(): T | undefined {
    return this.#items[this.#head];
  }

  push(item: T): void {
    this.#items.push(item);
  }

  /** Removes and returns the first item; undefined if the queue is empty. */
  shift(): T | undefined {
    const { first } = this;
    if (this.length === 0) return undefined;
    this.#items[this.#head] = undefined;
    this.#head += 1;
    if (this.length === 0) this.clear();
    else if (this.#head >= BLOCK && 2 * this.#head >= this.#items.length) {
      this.#items.splice(0, this.#head);
      this.#head = 0;
    }
    return first;
  }

  /** Removes and returns all items. */
  clear(): T[] {
    const items = this.#items.slice(this.#head) as T[];
    this.#items = [];
    this.#head = 0;
    return items;
  }
}
