import type { CancelTimer, Clock } from './clock.ts';

/** One timer for work that is due at several moments: it fires at the earliest of them, and must then be set again. */
export class EarliestTimer {
  readonly #clock: Pick<Clock, 'monotonic' | 'after'>;
  readonly #run: () => void;
  #at = Number.POSITIVE_INFINITY;
  #cancel: CancelTimer | null = null;

  constructor(clock: Pick<Clock, 'monotonic' | 'after'>, run: () => void) {
    this.#clock = clock;
    this.#run = run;
  }

  /** Schedules the work in `delayMs`, or now if that is negative. Has no effect if it is already scheduled earlier. */
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
