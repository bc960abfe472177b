import type { CancelTimer, Clock } from '../model/clock.ts';

/** A call that has to settle in time. */
export interface Expiring {
  /** By the monotonic clock. */
  readonly deadlineAt: number;
  /** Its deadline has passed and it is not settled. */
  expire(): void;
}

/**
 * Calls that all have the same time to settle, so that they expire in the order in which they were added. One
 * timer serves them all. It depends on nothing that a call waits for: whatever is stuck, each call settles.
 */
export class DeadlineQueue {
  readonly timeoutMs: number;
  readonly #clock: Clock;
  readonly #pending = new Set<Expiring>();
  #cancelTimer: CancelTimer | null = null;

  constructor(clock: Clock, timeoutMs: number) {
    this.#clock = clock;
    this.timeoutMs = timeoutMs;
  }

  /** The deadline of a call that is made now. */
  next(): number {
    return this.#clock.monotonic() + this.timeoutMs;
  }

  /** `call.deadlineAt` comes from `next`. */
  add(call: Expiring): void {
    this.#pending.add(call);
    if (this.#cancelTimer === null) this.#arm(call);
  }

  /** The call is settled. */
  remove(call: Expiring): void {
    this.#pending.delete(call);
  }

  /** Expires what is left. */
  stop(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    for (const call of this.#pending) this.#expire(call);
  }

  #arm({ deadlineAt }: Expiring): void {
    const leftMs = Math.max(0, deadlineAt - this.#clock.monotonic());
    this.#cancelTimer = this.#clock.after(leftMs, () => this.#onTimer());
  }

  /** Settled calls are gone, so the timer is armed once per timeout at most, not once per call. */
  #onTimer(): void {
    this.#cancelTimer = null;
    const now = this.#clock.monotonic();
    for (const call of this.#pending) {
      if (call.deadlineAt > now) {
        this.#arm(call);
        return;
      }
      this.#expire(call);
    }
  }

  #expire(call: Expiring): void {
    this.#pending.delete(call);
    call.expire();
  }
}
