import type { Clock } from '../../util/clock.ts';

/** A clock that is behind what it should show by more than this was set back; less is how it is read. */
const SET_BACK_MS = 1000;
/** How fast time falls back to the clock, per ms: one hour in a hundred. */
const SLEW = 0.01;

/**
 * The time by which the engine stores and hands out. It is the wall clock's, but if that is set back during a run,
 * time continues from where it was: else what is ready, stamped by the later time, would be withheld, and leases would
 * run longer, by as much as the clock was set back. It follows a clock that is set forwards, as it must after a sleep
 * of the machine, and while it is ahead it runs a hundredth slower until the two agree.
 */
export class SteadyTime {
  readonly #clock: Clock;
  #wall: number;
  #monotonic: number;
  #last: number;
  /** How far this time is ahead of the wall clock. */
  #ahead = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#wall = clock.now();
    this.#monotonic = clock.monotonic();
    this.#last = this.#wall;
  }

  /** Whole milliseconds since 1970; never goes back. */
  now(): number {
    const wall = this.#clock.now();
    const monotonic = this.#clock.monotonic();
    const passed = monotonic - this.#monotonic;
    const setBy = wall - this.#wall - passed;
    if (setBy < -SET_BACK_MS || (setBy > SET_BACK_MS && this.#ahead > 0)) this.#ahead -= setBy;
    this.#ahead = Math.max(0, this.#ahead - passed * SLEW);
    this.#wall = wall;
    this.#monotonic = monotonic;
    this.#last = Math.max(this.#last, Math.floor(wall + this.#ahead));
    return this.#last;
  }

  /** By how much this time is ahead of the wall clock, as of the last `now`. */
  get aheadMs(): number {
    return Math.floor(this.#ahead);
  }

  /** A moment of the wall clock as it is now, by this time. */
  fromWall(moment: number): number {
    return moment + this.aheadMs;
  }
}
