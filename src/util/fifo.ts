/** Removed items are dropped from the array in blocks of at least this many. */
const BLOCK = 1024;

/** A first-in, first-out queue with removal in constant time; `shift` of a long array copies it. */
export class Fifo<T> {
  #all: (T | undefined)[] = [];
  #head = 0;

  get length(): number {
    return this.#all.length - this.#head;
  }

  get first(): T | undefined {
    return this.#all[this.#head];
  }

  push(one: T): void {
    this.#all.push(one);
  }

  /** Removes and returns the first item; undefined if the queue is empty. */
  shift(): T | undefined {
    const { first } = this;
    if (this.length === 0) return undefined;
    this.#all[this.#head] = undefined;
    this.#head += 1;
    if (this.length === 0) this.clear();
    else if (this.#head >= BLOCK && 2 * this.#head >= this.#all.length) {
      this.#all.splice(0, this.#head);
      this.#head = 0;
    }
    return first;
  }

  /** Removes and returns all items. */
  clear(): T[] {
    const all = this.#all.slice(this.#head) as T[];
    this.#all = [];
    this.#head = 0;
    return all;
  }
}
