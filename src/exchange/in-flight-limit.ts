import { ConcurrencyLimit } from '../util/concurrency-limit.ts';

/** Batches with a larger share of the limit are not counted. */
const MAX_COUNTED = 1 / 4;
/** The share of the limit that the batches of one exchange may have. */
const MAX_PER_EXCHANGE = 1 / 4;
/** The share of the limit that the batches of one user may have. */
const MAX_PER_OWNER = 1 / 2;
/** The share of the limit that each exchange may have in addition, whatever others have: small elements never wait. */
const GUARANTEED = 1 / 1024;

/** The exchange of a batch. */
export interface BatchOwner {
  readonly key: string;
  /** The user who owns the exchange. */
  readonly owner: string;
}

/** A batch in flight. */
export interface BatchInFlight {
  /** The bytes with which it entered. */
  readonly bytes: number;
  /** Counts bytes that were added to the batch. Does not wait for capacity; other batches wait longer then. */
  grow(bytes: number): void;
  /** Ends the batch: its elements are settled. */
  leave(): void;
}

/**
 * Bounds the bytes that a node's exchanges have in flight together, and shares them among the exchanges' owners, and
 * among the exchanges of each owner. A user may have half of them, and a user without batches can always enter, so one
 * user's slow selectors never make another user's exchanges wait. An exchange may have a quarter. A batch above a
 * quarter of the limit (one large element with many copies) is not counted; the node runs one of these at a time.
 */
export class InFlightLimit {
  readonly #maxCounted: number;
  readonly #small: ConcurrencyLimit;
  readonly #byExchange: ConcurrencyLimit;
  readonly #byOwner: ConcurrencyLimit;
  readonly #large = new ConcurrencyLimit({ perKey: 1, total: 1 });

  constructor(bytes: number) {
    this.#maxCounted = bytes * MAX_COUNTED;
    this.#small = new ConcurrencyLimit({ perKey: bytes * GUARANTEED, isExact: true });
    this.#byExchange = new ConcurrencyLimit({ perKey: bytes * MAX_PER_EXCHANGE, isExact: true });
    // One byte is guaranteed: it admits the first batch of each user.
    this.#byOwner = new ConcurrencyLimit({
      perKey: bytes * MAX_PER_OWNER,
      total: bytes,
      guaranteed: 1,
      isExact: true,
    });
  }

  /** Resolves when there is capacity. Counted batches of one exchange enter in order. */
  async enter(exchange: BatchOwner, bytes: number): Promise<BatchInFlight> {
    const entered = this.tryEnter(exchange, bytes);
    if (entered !== null) return entered;
    const { key, owner } = exchange;
    if (bytes > this.#maxCounted) return this.#batch(exchange, bytes, [await this.#large.enter(owner)]);
    // First its own share: what waits for that of the user is bounded, so another exchange has its turn soon.
    const ends = [await this.#byExchange.enter(key, { size: bytes })];
    ends.push(await this.#byOwner.enter(owner, { size: bytes }));
    return this.#batch(exchange, bytes, ends);
  }

  /** Like `enter`, but returns null instead of waiting. */
  tryEnter(exchange: BatchOwner, bytes: number): BatchInFlight | null {
    const { key, owner } = exchange;
    const small = this.#small.tryEnter(key, { size: bytes });
    if (small !== null) return this.#batch(exchange, bytes, [small]);
    if (bytes > this.#maxCounted) {
      const end = this.#large.tryEnter(owner);
      return end === null ? null : this.#batch(exchange, bytes, [end]);
    }
    const end = this.#byExchange.tryEnter(key, { size: bytes });
    if (end === null) return null;
    const endOfOwner = this.#byOwner.tryEnter(owner, { size: bytes });
    if (endOfOwner !== null) return this.#batch(exchange, bytes, [end, endOfOwner]);
    end();
    return null;
  }

  #batch({ key, owner }: BatchOwner, bytes: number, ends: readonly (() => void)[]): BatchInFlight {
    let added = 0;
    const resize = [this.#byExchange.track(key), this.#byOwner.track(owner)];
    return {
      bytes,
      grow: (more) => {
        added += more;
        for (const to of resize) to(added);
      },
      leave: () => {
        for (const end of ends) end();
        for (const to of resize) to(0);
      },
    };
  }
}
