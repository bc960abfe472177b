/**
 * Time and randomness of the client, from what Node, Deno, Bun and browsers have in common. The server's clock stays
 * out of here: the client is loaded without the rest of the source.
 */

/** Milliseconds from an arbitrary start; never goes back. */
export function monotonic(): number {
  return performance.now();
}

/** Wall time, milliseconds since 1970. */
export function wallTime(): number {
  return Date.now();
}

/** The longest delay that a timer takes; a longer one would fire at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;

export type CancelTimer = () => void;

/**
 * Calls `run` once, at the earliest after `delayMs`.
 * @param keepsAlive whether a program that has nothing else to do waits for it
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
 * Resolves or rejects as `run` does, whose signal is aborted with the first of `signals`. In Node 20, those of
 * `AbortSignal.any` stay in memory for as long as the signals that they follow.
 * @throws the reason of that signal, however long `run` takes
 */
export function unlessAborted<T>(
  signals: AbortSignals,
  run: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  return new Promise((resolve, reject) => {
    // A signal that is never aborted must not keep its listeners, also if `run` never ends after another one was.
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
    // After `run` has begun, which so learns of it in any case.
    onAbort();
  });
}

type Schedule = (run: () => void) => void;

/** Calls `run` when everything that is ready to run now has run. Browsers have no `setImmediate`. */
export const nextTurn: Schedule =
  (globalThis as { setImmediate?: Schedule }).setImmediate ?? ((run) => void setTimeout(run));

/** From 0 up to, not including, 1; for delays, which anybody may guess. */
export const random: () => number = Math.random;

/** 128 random bits as digits. */
export function randomName(): string {
  return crypto.getRandomValues(new Uint32Array(4)).join('-');
}
