import type { CancelTimer, Clock } from '../util/clock.ts';

/** A call that has to settle in time. */
export abstract class Expiring {
  /** By the monotonic clock. */
  abstract readonly deadlineAt: number;
  /** Its neighbours in the queue, which alone sets them. */
  previous: Expiring | null = null;
  next: Expiring | null = null;

  /** Its deadline has passed and it is not settled. */
  abstract expire(): void;
}

/**
 * Calls that all have the same time to settle, so that they expire in the order in which they were added. One
 * timer serves them all. It depends on nothing that a call waits for: whatever is stuck, each call settles.
 *
 * A linked list, whose links are cleared on removal: a `Set` leaves tables behind that keep settled calls in memory
 * until the next full collection, which took a third more processor time per call.
 */
export class DeadlineQueue {
  readonly timeoutMs: number;
  readonly #clock: Clock;
  #first: Expiring | null = null;
  #last: Expiring | null = null;
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
    call.previous = this.#last;
    if (this.#last === null) this.#first = call;
    else this.#last.next = call;
    this.#last = call;
    if (this.#cancelTimer === null) this.#arm(call);
  }

  /** The call is settled. */
  remove(call: Expiring): void {
    const { previous, next } = call;
    if (previous !== null) previous.next = next;
    else if (this.#first === call) this.#first = next;
    else return;
    if (next !== null) next.previous = previous;
    else this.#last = previous;
    call.previous = null;
    call.next = null;
  }

  /** Expires what is left. */
  stop(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    while (this.#first !== null) this.#expire(this.#first);
  }

  #arm({ deadlineAt }: Expiring): void {
    const leftMs = Math.max(0, deadlineAt - this.#clock.monotonic());
    this.#cancelTimer = this.#clock.after(leftMs, () => this.#onTimer());
  }

  /** Settled calls are gone, so the timer is armed once per timeout at most, not once per call. */
  #onTimer(): void {
    this.#cancelTimer = null;
    const now = this.#clock.monotonic();
    while (this.#first !== null && this.#first.deadlineAt <= now) this.#expire(this.#first);
    if (this.#first !== null) this.#arm(this.#first);
  }

  #expire(call: Expiring): void {
    this.remove(call);
    call.expire();
  }
}
