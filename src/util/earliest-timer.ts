import type { CancelTimer, Clock } from './clock.ts';

/**
 * One timer for work that is wanted at several moments: it runs at the earliest of them, and is then to be set again.
 */
export class EarliestTimer {
  readonly #clock: Pick<Clock, 'monotonic' | 'after'>;
  readonly #run: () => void;
  #at = Number.POSITIVE_INFINITY;
  #cancel: CancelTimer | null = null;

  constructor(clock: Pick<Clock, 'monotonic' | 'after'>, run: () => void) {
    this.#clock = clock;
    this.#run = run;
  }

  /** The work is wanted in `delayMs`, or now if that is below 0. Changes nothing if it runs earlier anyway. */
  within(delayMs: number): void {
    const at = this.#clock.monotonic() + delayMs;
    if (at >= this.#at) return;
    this.cancel();
    this.#at = at;
    this.#cancel = this.#clock.after(Math.max(0, delayMs), () => {
      this.cancel();
      this.#run();
    });
  }

  cancel(): void {
    this.#cancel?.();
    this.#cancel = null;
    this.#at = Number.POSITIVE_INFINITY;
  }
}
