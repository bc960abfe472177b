/** What the console knows of time: the one place that asks the browser for it. */

export function now(): number {
  return Date.now();
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
