import { ConcurrencyLimit } from '../util/concurrency-limit.ts';

/** Batches with a larger share of the limit are not counted. */
const MAX_COUNTED = 1 / 4;
/** The share of the limit that the batches of one user may have. */
const MAX_PER_OWNER = 1 / 2;

/** A batch in flight. */
export interface BatchInFlight {
  /** Counts bytes that selectors added to the batch. Does not wait for capacity; other batches wait longer then. */
  grow(bytes: number): void;
  /** Ends the batch: its elements are settled. */
  leave(): void;
}

/**
 * Bounds the bytes that a node's exchanges have in flight together, and shares them among the exchanges' owners. A user
 * may have half of them, and a user without batches can always enter, so one user's slow selectors never make another
 * user's exchanges wait. A batch above a quarter of the limit (one large element with many copies) is not counted; the
 * node runs one of these at a time.
 */
export class InFlightLimit {
  readonly #maxCounted: number;
  readonly #counted: ConcurrencyLimit;
  readonly #large = new ConcurrencyLimit({ perKey: 1, total: 1 });

  constructor(bytes: number) {
    this.#maxCounted = bytes * MAX_COUNTED;
    // One byte is guaranteed: it admits the first batch of each user.
    this.#counted = new ConcurrencyLimit({
      perKey: bytes * MAX_PER_OWNER,
      total: bytes,
      guaranteed: 1,
      isExact: true,
    });
  }

  /** Resolves when there is capacity. Counted batches of one owner enter in order. */
  async enter(owner: string, bytes: number): Promise<BatchInFlight> {
    const isLarge = bytes > this.#maxCounted;
    const end = await (isLarge ? this.#large.enter(owner) : this.#counted.enter(owner, { size: bytes }));
    const ends = [end];
    return {
      grow: (more) => {
        ends.push(this.#counted.add(owner, more));
      },
      leave: () => {
        for (const each of ends) each();
      },
    };
  }
}
