import type { Consumer } from './consumer.ts';

/** A doubly linked list: append, and remove from anywhere, in constant time. */
export class ConsumerList {
  #first: Consumer | null = null;
  #last: Consumer | null = null;
  #size = 0;

  get first(): Consumer | null {
    return this.#first;
  }

  get size(): number {
    return this.#size;
  }

  append(consumer: Consumer): void {
    consumer.previous = this.#last;
    consumer.next = null;
    if (this.#last === null) this.#first = consumer;
    else this.#last.next = consumer;
    this.#last = consumer;
    this.#size += 1;
  }

  /** The consumer must be in this list. */
  remove(consumer: Consumer): void {
    if (consumer.previous === null) this.#first = consumer.next;
    else consumer.previous.next = consumer.next;
    if (consumer.next === null) this.#last = consumer.previous;
    else consumer.next.previous = consumer.previous;
    consumer.previous = null;
    consumer.next = null;
    this.#size -= 1;
  }

  *[Symbol.iterator](): Iterator<Consumer> {
    let consumer = this.#first;
    while (consumer !== null) {
      // The caller may remove the consumer during the `yield`.
      const { next } = consumer;
      yield consumer;
      consumer = next;
    }
  }
}
