/**
 * Time and randomness of the client, from what Node, Deno, Bun and browsers have in common. The server's clock stays out of here:
 * the client is loaded without the rest of the source.
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

/** Calls `run` once, at the earliest after `delayMs`. @param keepsAlive whether a program that has nothing else to do waits for it */
export function after(delayMs: number, run: () => void, keepsAlive = false): CancelTimer {
  const timer = setTimeout(run, Math.min(Math.max(0, delayMs), MAX_TIMER_MS));
  // In a browser, a timer is a number.
  if (!keepsAlive) (timer as { unref?: () => void }).unref?.();
  return () => clearTimeout(timer);
}

/** Resolves after `delayMs`. @throws the reason of `signal` once that is aborted */
export async function sleep(delayMs: number, signal: AbortSignal): Promise<void> {
  let cancel: CancelTimer | undefined;
  const slept = new Promise<void>((resolve) => {
    cancel = after(delayMs, resolve, true);
  });
  await unlessAborted(signal, slept).finally(cancel);
}

/** Resolves or rejects as `promise` does. @throws the reason of `signal` once that is aborted, however long `promise` takes */
export function unlessAborted<T>(signal: AbortSignal, promise: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(signal.reason);
    // A signal that is never aborted must not keep its listeners.
    void promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', onAbort));
    if (signal.aborted) onAbort();
    else signal.addEventListener('abort', onAbort);
  });
}

type Schedule = (run: () => void) => void;

/** Calls `run` when everything that is ready to run now has run. Browsers have no `setImmediate`. */
export const nextTurn: Schedule =
  (globalThis as { setImmediate?: Schedule }).setImmediate ?? ((run) => void setTimeout(run));

/** From 0 up to, not including, 1. */
export function random(): number {
  const [value = 0] = crypto.getRandomValues(new Uint32Array(1));
  return value / 2 ** 32;
}

/** 128 random bits as letters and digits. */
export function randomName(): string {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (bits) => bits.toString(36)).join('');
}
