import type { CancelTimer, Clock } from '../../src/util/clock.ts';

interface Timer {
  readonly run: () => void;
}

/** A clock that stands still until a test advances it. Timers run inside `advance`, in the order of their moments. */
export class FakeClock implements Clock {
  /**
   * Difference between wall and monotonic time. Stored instead of both times, so that rounding of fractions cannot
   * change it.
   */
  #offset: number;
  #monotonic = 0;
  /**
   * Timers by moment; those of one moment in the order in which they were set: thousands of calls may have the same
   * deadline.
   */
  readonly #timers = new Map<number, Set<Timer>>();
  #pending = 0;

  /** @param now ms since 1970; the default is an arbitrary moment in 2026 */
  constructor(now = Date.UTC(2026, 0, 1)) {
    this.#offset = now;
  }

  /** Whole milliseconds, as the contract requires: timers may fall due between two. */
  now(): number {
    return Math.floor(this.#monotonic + this.#offset);
  }

  monotonic(): number {
    return this.#monotonic;
  }

  after(delayMs: number, run: () => void): CancelTimer {
    const at = this.#monotonic + Math.max(0, delayMs);
    const timer = { run };
    const sameMoment = this.#timers.get(at) ?? new Set();
    this.#timers.set(at, sameMoment.add(timer));
    this.#pending += 1;
    return () => {
      this.#remove(at, timer);
    };
  }

  /** Timers that have neither run nor been cancelled. */
  get pending(): number {
    return this.#pending;
  }

  /** Lets time pass and runs the timers that fall due, including those that such timers set. */
  advance(ms: number): void {
    const end = this.#monotonic + ms;
    for (let at = this.#firstMoment(); at <= end; at = this.#firstMoment()) {
      for (const timer of this.#timers.get(at) ?? []) {
        this.#remove(at, timer);
        this.#monotonic = at;
        timer.run();
      }
    }
    this.#monotonic = end;
  }

  /** Sets the wall clock, forwards or back, as an operator may. No timer runs and none is delayed. */
  setWallTime(now: number): void {
    this.#offset = now - this.#monotonic;
  }

  #remove(at: number, timer: Timer): void {
    const sameMoment = this.#timers.get(at);
    if (!sameMoment?.delete(timer)) return;
    this.#pending -= 1;
    if (sameMoment.size === 0) this.#timers.delete(at);
  }

  /** Infinity if no timer is set. */
  #firstMoment(): number {
    let first = Infinity;
    for (const at of this.#timers.keys()) if (at < first) first = at;
    return first;
  }
}

/**
 * The clock of a node that is suspended for a minute when its next timers fall due: it reads the replies of that minute
 * afterwards.
 */
export class SuspendedClock extends FakeClock {
  #suspendedMs = 0;

  override monotonic(): number {
    return super.monotonic() + this.#suspendedMs;
  }

  /** @param dueMs when the timers that should be late are due */
  suspend(dueMs = 5_000): void {
    this.#suspendedMs = 60_000;
    this.advance(dueMs);
  }
}

/** Returns a clock that runs at the same speed, with a wall time that differs by `skewMs`. */
export function skewed(clock: Clock, skewMs: number): Clock {
  return {
    now: () => clock.now() + skewMs,
    monotonic: () => clock.monotonic(),
    after: (delayMs, run) => clock.after(delayMs, run),
  };
}

/** By which factor the timeouts of test engines are extended. */
const PATIENCE = 8;

/**
 * Returns a clock for the timeouts of test engines on servers that work: on a busy machine, a call of some MiB, or ten
 * thousand rows, may take longer than the service waits for it. Timeouts have their own tests, whose clocks are
 * advanced by the test.
 */
export function patient(clock: Clock): Clock {
  return {
    now: () => clock.now(),
    monotonic: () => clock.monotonic() / PATIENCE,
    after: (delayMs, run) => clock.after(PATIENCE * delayMs, run),
  };
}
