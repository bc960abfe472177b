interface BackoffBounds {
  readonly minMs: number;
  readonly maxMs: number;
}

/** For work that needs an engine: few attempts while it is unavailable, and a short wait once it is back. */
const ENGINE_BOUNDS: BackoffBounds = { minMs: 100, maxMs: 5_000 };

/** Exponential backoff with jitter: the delay doubles after each consecutive failure, up to a bound. */
export class Backoff {
  readonly #random: () => number;
  readonly #bounds: BackoffBounds;
  #ms = 0;

  constructor(random: () => number, bounds = ENGINE_BOUNDS) {
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
   * Milliseconds until the next attempt, 0 if the last one succeeded. Jitter of ± half keeps callers that failed at the
   * same
   * moment from retrying together.
   */
  delayMs(): number {
    return this.#ms * (0.5 + this.#random());
  }

  /** Call after a successful attempt. */
  reset(): void {
    this.#ms = 0;
  }
}
