import type { Clock } from './clock.ts';

/** A wait that can be ended early. There is at most one wait at a time. */
export class Pause {
  readonly #clock: Clock;
  #end: (() => void) | null = null;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** @param ms not given: until {@link end} */
  wait(ms?: number): Promise<void> {
    return new Promise((resolve) => {
      const cancel = ms === undefined ? null : this.#clock.after(ms, () => this.end());
      this.#end = () => {
        cancel?.();
        resolve();
      };
    });
  }

  /** Ends the current wait, if there is one. */
  end(): void {
    this.#end?.();
    this.#end = null;
  }
}
