/** What the console knows of time: the one place that asks the browser for it. */

/**
 * A connection on which nothing comes for longer is dead: the computer slept, or something on the way has dropped it,
 * and the browser may not notice for many minutes. The server sends each follower of its events something every 15 s,
 * and answers what pages read within seconds.
 */
export const SILENCE_MS = 45_000;

/** What is added to the clock of the browser, so that it agrees with that of the server. */
let offsetMs = 0;

/** By the clock of the server, whose moments the pages show: that of the browser may be wrong by hours. */
export function now(): number {
  return Date.now() + offsetMs;
}

/**
 * By the clock of the browser alone, to measure how long something takes: {@link now} is corrected by responses, and a
 * correction in between would count as time, or hide time that has passed.
 */
export function browserNow(): number {
  return Date.now();
}

/** Call it when a request is sent. @returns takes the `Date` of its response */
export function timeRequest(): (date: string | null) => void {
  const sentAt = Date.now();
  return (date) => {
    const second = Date.parse(date ?? '');
    if (Number.isNaN(second)) return;
    // The server answered within this second, after the request was sent and before now. An offset that agrees with
    // that stays.
    offsetMs = Math.min(Math.max(offsetMs, second - Date.now()), second + 999 - sentAt);
  };
}

/** Calls once, later. @returns what prevents it */
export function after(ms: number, call: () => void): () => void {
  const timer = setTimeout(call, ms);
  return () => clearTimeout(timer);
}

/** Calls again and again. @returns what ends it */
export function every(ms: number, call: () => void): () => void {
  const timer = setInterval(call, ms);
  return () => clearInterval(timer);
}

/** Calls once, before the browser draws next. */
export function nextFrame(call: () => void): void {
  requestAnimationFrame(call);
}
