import type { CancelTimer, Clock } from '../../src/util/clock.ts';

interface Timer {
  readonly at: number;
  readonly run: () => void;
}

/** A clock that stands still until a test moves it. Timers run inside `advance`, in the order of their moments. */
export class FakeClock implements Clock {
  /** From monotonic to wall time; kept, rather than both times, so that fractions cannot add up to another one. */
  #offset: number;
  #monotonic = 0;
  readonly #timers = new Set<Timer>();

  /** @param now ms since 1970; the default is an arbitrary moment in 2026 */
  constructor(now = Date.UTC(2026, 0, 1)) {
    this.#offset = now;
  }

  /** Whole milliseconds, as the contract has it: timers may fall due between two. */
  now(): number {
    return Math.floor(this.#monotonic + this.#offset);
  }

  monotonic(): number {
    return this.#monotonic;
  }

  after(delayMs: number, run: () => void): CancelTimer {
    const timer = { at: this.#monotonic + Math.max(0, delayMs), run };
    this.#timers.add(timer);
    return () => {
      this.#timers.delete(timer);
    };
  }

  /** Timers that have neither run nor been cancelled. */
  get pending(): number {
    return this.#timers.size;
  }

  /** Lets time pass and runs what falls due, timers that those timers set included. */
  advance(ms: number): void {
    const end = this.#monotonic + ms;
    for (let next = this.#next(end); next !== undefined; next = this.#next(end)) {
      this.#timers.delete(next);
      this.#monotonic = next.at;
      next.run();
    }
    this.#monotonic = end;
  }

  /** Sets the wall clock, forwards or back, as an operator may. No timer runs and none is delayed. */
  setWallTime(now: number): void {
    this.#offset = now - this.#monotonic;
  }

  #next(end: number): Timer | undefined {
    let first: Timer | undefined;
    for (const timer of this.#timers) {
      if (timer.at <= end && (first === undefined || timer.at < first.at)) first = timer;
    }
    return first;
  }
}

/** The same passing of time under a wall clock that shows another time, by `skewMs`. */
export function skewed(clock: Clock, skewMs: number): Clock {
  return {
    now: () => clock.now() + skewMs,
    monotonic: () => clock.monotonic(),
    after: (delayMs, run) => clock.after(delayMs, run),
  };
}
