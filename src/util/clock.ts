/**
 * Time as a parameter. The program gets {@link systemClock}; tests get one that they move by hand.
 * Everything below that waits, stamps or compares moments asks its clock, never `Date` or `setTimeout`.
 */
export interface Clock {
  /** Wall time, whole milliseconds since 1970-01-01 UTC. May jump when an operator sets the clock. */
  now(): number;
  /** Milliseconds from an arbitrary start; never goes back. Lengths are measured with this one. */
  monotonic(): number;
  /**
   * Calls `run` once, `delayMs` from now at the earliest, and returns a function that prevents it.
   * Any length is allowed: lengths past the 2^31 ms that a Node timer can hold are split.
   * A pending timer never keeps the process alive.
   */
  after(delayMs: number, run: () => void): CancelTimer;
}

export type CancelTimer = () => void;

/** The longest delay that `setTimeout` takes; a longer one would fire at once. */
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1;

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  after(delayMs, run) {
    let left = Math.max(0, delayMs);
    let timer: NodeJS.Timeout;
    const arm = (): void => {
      const step = Math.min(left, LONGEST_TIMEOUT_MS);
      left -= step;
      timer = setTimeout(left > 0 ? arm : run, step);
      timer.unref();
    };
    arm();
    return () => clearTimeout(timer);
  },
};
