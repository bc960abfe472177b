import type { CancelTimer, Clock } from '../../model/clock.ts';

/** How far the watched thread has come; any difference is a sign of life. */
export interface Pulse {
  /** Which request is at its head; null: none, and then there is nothing to watch. */
  readonly head: { readonly limitMs: number } | null;
  readonly steps: number;
}

/** How often the pulse is felt, as a part of the shortest limit. */
const LOOKS = 10;

/**
 * Reports a thread that has shown no sign of life for longer than its head request may take. It judges by
 * what the thread wrote to shared memory, not by messages: a main thread that was itself busy for a second
 * finds its thread's answers waiting and must not take them for silence.
 */
export class Watchdog {
  readonly #clock: Clock;
  readonly #everyMs: number;
  readonly #feel: () => Pulse;
  readonly #report: () => void;
  #seen: Pulse = { head: null, steps: 0 };
  #seenAt = 0;
  #cancel: CancelTimer | null = null;

  constructor(clock: Clock, limitMs: number, feel: () => Pulse, report: () => void) {
    this.#clock = clock;
    this.#everyMs = limitMs / LOOKS;
    this.#feel = feel;
    this.#report = report;
  }

  /** To be called whenever the head changes: time counts from here, and looking goes on while there is one. */
  look(): void {
    const now = this.#clock.monotonic();
    const pulse = this.#feel();
    if (pulse.head !== this.#seen.head || pulse.steps !== this.#seen.steps) {
      this.#seen = pulse;
      this.#seenAt = now;
    }
    if (pulse.head === null) return;
    if (now - this.#seenAt >= pulse.head.limitMs) {
      this.stop();
      this.#report();
      return;
    }
    this.#cancel ??= this.#clock.after(this.#everyMs, () => {
      this.#cancel = null;
      this.look();
    });
  }

  /** Stops looking until the next {@link look}. */
  stop(): void {
    this.#cancel?.();
    this.#cancel = null;
    this.#seen = { head: null, steps: 0 };
  }
}
