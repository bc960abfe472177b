import type { Clock } from '../../util/clock.ts';

/**
 * The database's clock as last seen, carried on by this process's own. Only a hint, never behind what was
 * seen: whatever decides about an element asks the database.
 */
export class DatabaseClock {
  readonly #clock: Clock;
  #seen = Number.NEGATIVE_INFINITY;
  #seenAt = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  see(now: number): void {
    this.#seen = now;
    this.#seenAt = this.#clock.monotonic();
  }

  /** About what the database's clock shows now; -Infinity where nothing was seen yet. */
  get now(): number {
    return this.#seen + this.#clock.monotonic() - this.#seenAt;
  }
}
