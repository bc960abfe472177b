import type { CancelTimer, Clock } from '../../src/util/clock.ts';

interface Timer {
  readonly run: () => void;
}

/** A clock that stands still until a test moves it. Timers run inside `advance`, in the order of their moments. */
export class FakeClock implements Clock {
  /** From monotonic to wall time; kept, rather than both times, so that fractions cannot add up to another one. */
  #offset: number;
  #monotonic = 0;
  /**
   * By moment, those of one moment in the order in which they were set: thousands of calls may have the same deadline.
   */
  readonly #timers = new Map<number, Set<Timer>>();
  #pending = 0;

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

  /** Lets time pass and runs what falls due, timers that those timers set included. */
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
 * The clock of a node that is suspended for a minute when its timers are next due: it reads the replies of that time
 * later.
 */
export class SuspendedClock extends FakeClock {
  #suspendedMs = 0;

  override monotonic(): number {
    return super.monotonic() + this.#suspendedMs;
  }

  /** @param dueMs after which the timers are due whose lateness matters */
  suspend(dueMs = 5_000): void {
    this.#suspendedMs = 60_000;
    this.advance(dueMs);
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

/** How many times as long as it would an engine of a test waits for a server. */
const PATIENCE = 8;

/**
 * The clock by which engines of tests wait for servers that are there: a busy machine may take longer for a call of
 * some MiB, or ten thousand rows, than the service waits for it. Time-outs have tests of their own, with clocks that
 * these move.
 */
export function patient(clock: Clock): Clock {
  return {
    now: () => clock.now(),
    monotonic: () => clock.monotonic() / PATIENCE,
    after: (delayMs, run) => clock.after(PATIENCE * delayMs, run),
  };
}
