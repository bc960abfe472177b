interface BackoffBounds {
  readonly minMs: number;
  readonly maxMs: number;
}

/** For work that needs an engine: few enough tries while it is unavailable, and none waits long once it is back. */
const OF_ENGINES: BackoffBounds = { minMs: 100, maxMs: 5_000 };

/**
 * How long work that failed waits until it is tried again: twice as long after each failure in a row, up to a bound.
 */
export class Backoff {
  readonly #random: () => number;
  readonly #bounds: BackoffBounds;
  #ms = 0;

  constructor(random: () => number, bounds = OF_ENGINES) {
    this.#random = random;
    this.#bounds = bounds;
  }

  /** Whether the last attempt failed. */
  get isActive(): boolean {
    return this.#ms > 0;
  }

  noteFailure(): void {
    this.#ms = Math.min(Math.max(this.#ms * 2, this.#bounds.minMs), this.#bounds.maxMs);
  }

  /**
   * ± half, so that many that failed at the same moment are not all tried again at the same moment; 0 after no failure.
   */
  delayMs(): number {
    return this.#ms * (0.5 + this.#random());
  }

  /** It worked. */
  reset(): void {
    this.#ms = 0;
  }
}
