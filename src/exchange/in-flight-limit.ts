/** The share of the limit that every user may have in flight, even if others use the rest. */
const GUARANTEED = 1 / 4;

interface WaitingBatch {
  readonly owner: string;
  readonly bytes: number;
  readonly enter: () => void;
}

/** A batch in flight. */
export interface BatchInFlight {
  /** Counts bytes that selectors added to the batch. Does not wait for capacity; other batches wait longer then. */
  grow(bytes: number): void;
  /** Ends the batch: its elements are settled. */
  leave(): void;
}

/**
 * Bounds the bytes that a node's exchanges have in flight together, and shares them among the exchanges' owners. A user
 * may have half of what other users leave, and a user without batches can always enter, so one user's slow selectors
 * never make another user's exchanges wait. A batch above a quarter of the limit (one large element with many copies)
 * is not counted; the node runs one of these at a time.
 */
export class InFlightLimit {
  readonly #bytes: number;
  /** Larger batches are not counted, and run one at a time. */
  readonly #maxCounted: number;
  /** Bytes in flight by owner, without owners that have none. */
  readonly #byOwner = new Map<string, number>();
  #total = 0;
  #hasLarge = false;
  readonly #waiting: WaitingBatch[] = [];

  constructor(bytes: number) {
    this.#bytes = bytes;
    this.#maxCounted = bytes * GUARANTEED;
  }

  /** Resolves when there is capacity. Batches of one owner enter in order. */
  async enter(owner: string, bytes: number): Promise<BatchInFlight> {
    const isBehind = this.#waiting.length > 0 && this.#waiting.some((waiting) => waiting.owner === owner);
    if (isBehind || !this.#admits(owner, bytes)) {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#waiting.push({ owner, bytes, enter: resolve });
      await promise;
    }
    const isLarge = bytes > this.#maxCounted;
    let counted = isLarge ? 0 : bytes;
    return {
      grow: (more) => {
        counted += more;
        this.#count(owner, more);
      },
      leave: () => {
        if (isLarge) this.#hasLarge = false;
        this.#count(owner, -counted);
        this.#admitWaiting();
      },
    };
  }

  #admitWaiting(): void {
    if (this.#waiting.length === 0) return;
    const blocked = new Set<string>();
    for (const waiting of [...this.#waiting]) {
      if (!blocked.has(waiting.owner) && this.#admits(waiting.owner, waiting.bytes)) {
        this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
        waiting.enter();
      } else blocked.add(waiting.owner);
    }
  }

  /** Counts a batch as in flight if there is capacity for it. */
  #admits(owner: string, bytes: number): boolean {
    if (bytes > this.#maxCounted) {
      if (this.#hasLarge) return false;
      this.#hasLarge = true;
      return true;
    }
    const ownerBytes = this.#byOwner.get(owner) ?? 0;
    const fits = ownerBytes === 0 || ownerBytes + bytes <= (this.#bytes - (this.#total - ownerBytes)) / 2;
    if (fits) this.#count(owner, bytes);
    return fits;
  }

  #count(owner: string, bytes: number): void {
    this.#total += bytes;
    const ownerBytes = (this.#byOwner.get(owner) ?? 0) + bytes;
    if (ownerBytes > 0) this.#byOwner.set(owner, ownerBytes);
    else this.#byOwner.delete(owner);
  }
}
