const EVERY_MS = 10;
/** Timers are this late even on an idle machine, ms. */
const USUAL_MS = 5;

/**
 * Measures how late the timers of this process ran in total: the delay that a busy machine adds to everything a process
 * waits for. Measured here and not in the program under test, whose own delays are not the machine's.
 */
export class Lateness {
  readonly #timer: NodeJS.Timeout;
  #dueAt = performance.now() + EVERY_MS;
  #totalMs = 0;

  constructor() {
    this.#timer = setInterval(() => {
      this.#totalMs = this.totalMs;
      this.#dueAt = performance.now() + EVERY_MS;
    }, EVERY_MS);
  }

  get totalMs(): number {
    return this.#totalMs + Math.max(0, performance.now() - this.#dueAt - USUAL_MS);
  }

  stop(): void {
    clearInterval(this.#timer);
  }
}
