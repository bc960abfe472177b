import { Fifo } from '../util/fifo.ts';

/**
 * The order in which clients continue whose frames have taken long. One does so in each turn of the event loop: if all
 * did, everything else would wait as many times longer as there are such clients.
 */
export class FrameTurns {
  readonly #waiting = new Fifo<() => void>();

  /** Calls `proceed` when other clients have been served. */
  wait(proceed: () => void): void {
    this.#waiting.push(proceed);
    if (this.#waiting.length === 1) setImmediate(this.#next);
  }

  readonly #next = (): void => {
    const proceed = this.#waiting.shift();
    // Before `proceed`, which may wait again.
    if (this.#waiting.length > 0) setImmediate(this.#next);
    proceed?.();
  };
}
