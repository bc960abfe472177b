import { signal } from '@preact/signals';

/** Clock and timers of the console. No other file uses those of the browser. */

/**
 * A connection that is silent for longer is dead: the computer slept, or a router dropped the connection, which the
 * browser may not notice for minutes. The server sends each event stream something every 15 s, and answers other
 * requests within seconds.
 */
export const SILENCE_MS = 45_000;

/** Offset of the server's clock to the browser's. */
let offsetMs = 0;

/** The time by the server's clock, ms since 1970, as in its responses. The browser's clock may be hours off. */
export function now(): number {
  return Date.now() + offsetMs;
}

/** The time by the browser's clock, to measure durations: {@link now} jumps when a response corrects the offset. */
export function browserNow(): number {
  return Date.now();
}

/**
 * The time for relative times. It advances with each refresh, and with each response: otherwise, what was just read
 * would be shown as in the future while refreshing is paused.
 */
export const clock = signal(now());

/** Call this when a request is sent. @returns a function that takes the `Date` header of its response */
export function timeRequest(): (date: string | null) => void {
  const sentAt = Date.now();
  return (date) => {
    const second = Date.parse(date ?? '');
    // The server answered within this second, after the request was sent. Keep an offset that agrees with that.
    if (!Number.isNaN(second))
      offsetMs = Math.min(Math.max(offsetMs, second - Date.now()), second + 999 - sentAt);
    clock.value = now();
  };
}

/** Calls `call` once after `ms`. @returns a function that cancels it */
export function after(ms: number, call: () => void): () => void {
  const timer = setTimeout(call, ms);
  return () => clearTimeout(timer);
}

/** Calls `call` every `ms`. @returns a function that ends it */
export function every(ms: number, call: () => void): () => void {
  const timer = setInterval(call, ms);
  return () => clearInterval(timer);
}

/** Calls `call` once, before the browser paints the next frame. */
export function nextFrame(call: () => void): void {
  requestAnimationFrame(call);
}
