import { serialAfter } from './serial.ts';

const INITIAL_LENGTH = 16;

/**
 * Assigns the ids of a session's deliveries, and finds the unsettled ones by id, in a ring buffer that grows with their
 * span. The caller limits the span.
 */
export class UnsettledDeliveries<Delivery> {
  /** The id of the next delivery. */
  nextId: number;
  /** All deliveries before this id are settled. */
  oldestId: number;
  /** By id modulo the ring's length, a power of two. */
  #ring: (Delivery | undefined)[] = Array<undefined>(INITIAL_LENGTH).fill(undefined);

  constructor(firstId: number) {
    this.nextId = firstId;
    this.oldestId = firstId;
  }

  /** How many ids there are from that of the oldest unsettled delivery to that of the newest delivery. */
  get span(): number {
    return (this.nextId - this.oldestId) >>> 0;
  }

  /** Adds a delivery and returns its id. @param delivery undefined if it is settled already */
  add(delivery: Delivery | undefined): number {
    const id = this.nextId;
    this.nextId = serialAfter(id);
    // A settled delivery takes a place, too: a disposition of its id must not find an older delivery there.
    while (this.span > this.#ring.length) this.#grow();
    this.#ring[id & (this.#ring.length - 1)] = delivery;
    if (delivery === undefined) this.#advanceOldest();
    return id;
  }

  /** The unsettled delivery with this id, or undefined. */
  get(id: number): Delivery | undefined {
    if ((id - this.oldestId) >>> 0 >= this.span) return undefined;
    return this.#ring[id & (this.#ring.length - 1)];
  }

  /** Removes an unsettled delivery. */
  delete(id: number): void {
    this.#ring[id & (this.#ring.length - 1)] = undefined;
    this.#advanceOldest();
  }

  #grow(): void {
    const { length } = this.#ring;
    const ring = Array<Delivery | undefined>(2 * length).fill(undefined);
    for (let i = 0; i < length; i++) {
      const id = this.oldestId + i;
      ring[id & (ring.length - 1)] = this.#ring[id & (length - 1)];
    }
    this.#ring = ring;
  }

  #advanceOldest(): void {
    while (
      this.oldestId !== this.nextId &&
      this.#ring[this.oldestId & (this.#ring.length - 1)] === undefined
    ) {
      this.oldestId = serialAfter(this.oldestId);
    }
  }
}
