import type { Clock } from '../../util/clock.ts';

/** The wall clock was set if it differs from the monotonic one by more than this; less is noise. */
const SET_BACK_MS = 1000;
/** How fast the lead over the wall clock shrinks, in ms per ms: one hour in a hundred. */
const SLEW_RATE = 0.01;

/**
 * The engine's time. It is that of the wall clock, but if that is set back while the engine runs, time continues from
 * where it was: otherwise ready elements, stamped with the later time, would be withheld, and leases would last longer,
 * by the difference. Time then runs 1 % slower than the wall clock until the two agree. If the wall clock is set
 * forward, as after the machine slept, time follows it.
 */
export class SteadyTime {
  readonly #clock: Clock;
  #wall: number;
  #monotonic: number;
  #last: number;
  /** Milliseconds by which this time is ahead of the wall clock. */
  #aheadMs = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#wall = clock.now();
    this.#monotonic = clock.monotonic();
    this.#last = this.#wall;
  }

  /** Whole milliseconds since 1970; never decreases. */
  now(): number {
    const wall = this.#clock.now();
    const monotonic = this.#clock.monotonic();
    const elapsedMs = monotonic - this.#monotonic;
    const jumpMs = wall - this.#wall - elapsedMs;
    if (jumpMs < -SET_BACK_MS || (jumpMs > SET_BACK_MS && this.#aheadMs > 0)) this.#aheadMs -= jumpMs;
    this.#aheadMs = Math.max(0, this.#aheadMs - elapsedMs * SLEW_RATE);
    this.#wall = wall;
    this.#monotonic = monotonic;
    this.#last = Math.max(this.#last, Math.floor(wall + this.#aheadMs));
    return this.#last;
  }

  /** Milliseconds by which this time was ahead of the wall clock at the last call of `now`. */
  get aheadMs(): number {
    return Math.floor(this.#aheadMs);
  }

  /** Converts a moment of the wall clock to this time. */
  fromWall(moment: number): number {
    return moment + this.aheadMs;
  }
}
