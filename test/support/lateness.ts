const EVERY_MS = 10;
/** A machine with nothing to do is that late, too. */
const USUAL_MS = 5;

/**
 * How late the timers of this process ran, in all: what a busy machine adds to whatever a process waits for. Measured
 * here and not in the program under test, whose own delays are none of the machine.
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
