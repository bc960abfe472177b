/**
 * Time as a dependency. The program uses {@link systemClock}; tests use a clock that they advance themselves. All code
 * that waits, or records or compares moments, uses its clock, never `Date` or `setTimeout`.
 */
export interface Clock {
  /** Wall time, whole milliseconds since 1970-01-01 UTC. May jump when an operator sets the clock. */
  now(): number;
  /** Milliseconds since an arbitrary start; never decreases. For measuring durations. */
  monotonic(): number;
  /**
   * Calls `run` once, after at least `delayMs`, and returns a function that cancels the call. Delays may exceed the
   * 2^31 ms that a Node timer can hold: they are split. A pending timer does not keep the process alive.
   */
  after(delayMs: number, run: () => void): CancelTimer;
}

export type CancelTimer = () => void;

/** The longest delay that `setTimeout` accepts; a longer one would fire immediately. */
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1;

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  after(delayMs, run) {
    let remainingMs = Math.max(0, delayMs);
    let timer: NodeJS.Timeout;
    const arm = (): void => {
      const step = Math.min(remainingMs, LONGEST_TIMEOUT_MS);
      remainingMs -= step;
      timer = setTimeout(remainingMs > 0 ? arm : run, step);
      timer.unref();
    };
    arm();
    return () => clearTimeout(timer);
  },
};

/** The nearest millisecond. */
export function toMs(seconds: number): number {
  return Math.round(seconds * 1000);
}

/** The earlier of two moments; null is no moment. */
export function earlier(a: number | null, b: number | null): number | null {
  if (a === null) return b;
  return b === null ? a : Math.min(a, b);
}
