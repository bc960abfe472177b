/** The part of the limit that every user may have in flight, whatever others have. */
const GUARANTEED = 1 / 4;

interface WaitingBatch {
  readonly owner: string;
  readonly bytes: number;
  readonly enter: () => void;
}

/** A batch that is in flight. */
export interface BatchInFlight {
  /** Counts bytes that selectors added to it, without waiting for capacity: others wait longer then. */
  grow(bytes: number): void;
  /** Its elements are settled. */
  leave(): void;
}

/**
 * Bounds the bytes that the exchanges of a node have in flight together, and shares them among the users in whose names
 * they run: each may have half of what others leave, and a user who has none always enters. So what one user's slow
 * selectors hold never keeps another's exchanges waiting. A batch of more than a quarter of the limit, which is a
 * single large element with many copies, is not counted: there is one at a time on the node.
 */
export class InFlightLimit {
  readonly #bytes: number;
  /** Of a larger batch there is one at a time. */
  readonly #maxCounted: number;
  /** By owner; without those who have none. */
  readonly #byOwner = new Map<string, number>();
  #all = 0;
  #hasLarge = false;
  readonly #waiting: WaitingBatch[] = [];

  constructor(bytes: number) {
    this.#bytes = bytes;
    this.#maxCounted = bytes * GUARANTEED;
  }

  /** Resolves when there is capacity, in order for each owner. */
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

  /** Counts a batch in if there is room for it. */
  #admits(owner: string, bytes: number): boolean {
    if (bytes > this.#maxCounted) {
      if (this.#hasLarge) return false;
      this.#hasLarge = true;
      return true;
    }
    const own = this.#byOwner.get(owner) ?? 0;
    const hasRoom = own === 0 || own + bytes <= (this.#bytes - (this.#all - own)) / 2;
    if (hasRoom) this.#count(owner, bytes);
    return hasRoom;
  }

  #count(owner: string, bytes: number): void {
    this.#all += bytes;
    const own = (this.#byOwner.get(owner) ?? 0) + bytes;
    if (own > 0) this.#byOwner.set(owner, own);
    else this.#byOwner.delete(owner);
  }
}
