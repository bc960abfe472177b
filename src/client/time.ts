/**
 * Time and randomness of the client, based on what Node, Deno, Bun and browsers have in common. Does not import the
 * server's clock, because the client is published without the rest of the source.
 */

/** Milliseconds from an arbitrary start; never goes back. */
export function monotonic(): number {
  return performance.now();
}

/** Wall time, milliseconds since 1970. */
export function wallTime(): number {
  return Date.now();
}

/** The longest delay of a timer; a longer one would fire immediately. */
const MAX_TIMER_MS = 2 ** 31 - 1;

export type CancelTimer = () => void;

/**
 * Calls `run` once, not before `delayMs`.
 * @param keepsAlive whether the timer keeps the program alive
 */
export function after(delayMs: number, run: () => void, keepsAlive = false): CancelTimer {
  const timer = setTimeout(run, Math.min(Math.max(0, delayMs), MAX_TIMER_MS));
  // In a browser, a timer is a number.
  if (!keepsAlive) (timer as { unref?: () => void }).unref?.();
  return () => clearTimeout(timer);
}

/** Resolves after `delayMs`. @throws the reason of the first of `signals` that is aborted */
export function sleep(delayMs: number, ...signals: AbortSignals): Promise<void> {
  return unlessAborted(
    signals,
    (signal) =>
      new Promise((resolve) => {
        signal.addEventListener('abort', after(delayMs, resolve, true));
      }),
  );
}

type AbortSignals = readonly (AbortSignal | undefined)[];

/**
 * Resolves or rejects as `run` does, and aborts its signal with the first of `signals`. Does not use `AbortSignal.any`,
 * whose signals stay in memory in Node 20 as long as the signals that they follow.
 * @throws the reason of the aborted signal, without waiting for `run`
 */
export function unlessAborted<T>(
  signals: AbortSignals,
  run: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  return new Promise((resolve, reject) => {
    // Remove the listeners from signals that are never aborted, even if `run` never ends after another one was.
    const end = (): void => {
      for (const signal of signals) signal?.removeEventListener('abort', onAbort);
    };
    const onAbort = (): void => {
      const first = signals.find((signal) => signal?.aborted);
      if (!first) return;
      end();
      controller.abort(first.reason);
      reject(first.reason);
    };
    for (const signal of signals) signal?.addEventListener('abort', onAbort);
    void run(controller.signal).then(resolve, reject).finally(end);
    // Handle a signal that is already aborted after `run` has started, so that `run` is notified, too.
    onAbort();
  });
}

type Schedule = (run: () => void) => void;

/** Calls `run` in the next turn of the event loop. Browsers have no `setImmediate`. */
export const nextTurn: Schedule =
  (globalThis as { setImmediate?: Schedule }).setImmediate ?? ((run) => void setTimeout(run));

/** From 0 to 1 (exclusive). Not for secrets. */
const random: () => number = Math.random;

/**
 * The delay after `failures` in a row: doubled after each, up to `maxMs`, minus up to half at random, so that the
 * clients of a server do not return at the same time.
 */
export function backoffMs(failures: number, firstMs: number, maxMs: number): number {
  return Math.min(maxMs, firstMs * 2 ** (failures - 1)) * (1 - random() / 2);
}

/** Returns 128 random bits, as decimal numbers. */
export function randomName(): string {
  return crypto.getRandomValues(new Uint32Array(4)).join('-');
}
