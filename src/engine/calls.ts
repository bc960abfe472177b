import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';

// What an engine does with each call to its store: it settles in time, it is bounded with all others, and it fails in
// the words of the ports.

/**
 * What needs an engine settles within this time, a wait before the engine's call included: with an error if need be.
 * The rest of the 5 s that callers are promised is for the way to them.
 */
export const CALL_TIMEOUT_MS = 4_500;

/** If a timer is later than this, the process was suspended or very busy. */
const LATE_TIMER_MS = 500;

/**
 * Runs what a timer was set for. If it is late, replies that have come since are in the sockets: they are read first,
 * so that what a store did in that time is not lost, and no store that has replied counts as silent.
 */
export function runTimer(lateMs: number, run: () => void): void {
  if (lateMs > LATE_TIMER_MS) setImmediate(run);
  else run();
}

/**
 * What takes several calls, one after the other, has the time of one for all of them.
 * @param late makes the error with which it rejects if that is over
 */
export function inTime<T>(clock: Clock, value: Promise<T>, late: () => Error): Promise<T> {
  const expired = Promise.withResolvers<never>();
  const cancelTimer = clock.after(CALL_TIMEOUT_MS, () => expired.reject(late()));
  return Promise.race([value, expired.promise]).finally(cancelTimer);
}

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
 * Calls in the order in which they expire: nearly always that in which they were made, since all have the same time.
 * One timer serves them all. It depends on nothing that a call waits for: whatever is stuck, each call settles.
 *
 * A linked list, whose links are cleared on removal: a `Set` leaves tables behind that keep settled calls in memory
 * until the next full collection, which took a third more processor time per call.
 */
export class DeadlineQueue {
  readonly #clock: Clock;
  #first: Expiring | null = null;
  #last: Expiring | null = null;
  #cancelTimer: CancelTimer | null = null;
  /** When the timer ends; Infinity: there is none. */
  #timerAt = Number.POSITIVE_INFINITY;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** The deadline of a call that is made now. */
  deadline(withinMs = CALL_TIMEOUT_MS): number {
    return this.#clock.monotonic() + withinMs;
  }

  /** `call.deadlineAt` comes from `deadline`. */
  add(call: Expiring): void {
    const { deadlineAt } = call;
    let previous = this.#last;
    while (previous !== null && previous.deadlineAt > deadlineAt) previous = previous.previous;
    const next = previous === null ? this.#first : previous.next;
    call.previous = previous;
    call.next = next;
    if (previous === null) this.#first = call;
    else previous.next = call;
    if (next === null) this.#last = call;
    else next.previous = call;
    if (deadlineAt < this.#timerAt) this.#arm(call);
  }

  /** Calls a function when the time is over. Returns a function that ends the wait. */
  start(onExpired: () => void): () => void {
    const wait = new Wait(this.deadline(), onExpired);
    this.add(wait);
    return () => this.remove(wait);
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
    this.#timerAt = Number.POSITIVE_INFINITY;
    while (this.#first !== null) this.#expire(this.#first);
  }

  #arm({ deadlineAt }: Expiring): void {
    const leftMs = Math.max(0, deadlineAt - this.#clock.monotonic());
    this.#cancelTimer?.();
    this.#timerAt = deadlineAt;
    this.#cancelTimer = this.#clock.after(leftMs, () => this.#onTimer());
  }

  /** Settled calls are gone, so the timer is armed once per timeout at most, not once per call. */
  #onTimer(): void {
    const lateMs = this.#clock.monotonic() - this.#timerAt;
    this.#timerAt = Number.POSITIVE_INFINITY;
    runTimer(lateMs, () => this.#expireDue());
  }

  #expireDue(): void {
    const now = this.#clock.monotonic();
    while (this.#first !== null && this.#first.deadlineAt <= now) this.#expire(this.#first);
    if (this.#first !== null) this.#arm(this.#first);
  }

  #expire(call: Expiring): void {
    this.remove(call);
    call.expire();
  }
}

class Wait extends Expiring {
  readonly deadlineAt: number;
  readonly expire: () => void;

  constructor(deadlineAt: number, expire: () => void) {
    super();
    this.deadlineAt = deadlineAt;
    this.expire = expire;
  }
}

/** Once a server is unreachable for this long, a call to it is rejected at once: it would most likely wait in vain. */
export const UNREACHABLE_MS = 2_000;
/** What unsettled calls may hold together: a server that does not reply gets no more than this. */
const MAX_BYTES = 64 * 1024 * 1024;
/** And while there is no connection: most of what gathers then is in vain. */
const MAX_BYTES_UNREACHABLE = 16 * 1024 * 1024;
/** What a call holds in addition to its elements. */
const CALL_BYTES = 500;

const NO_CONNECTION = new Error('There is no connection.');
const TOO_MUCH = new Error('Too much waits for a reply.');

/** Whether calls to a server that has been unreachable for so long are in vain. */
export function isUnreachable(downMs: number): boolean {
  return downMs > UNREACHABLE_MS;
}

/** The bytes of memory that the unsettled calls of this node hold, and whether one more call may join them. */
export class PendingLimit {
  #bytes = 0;

  /**
   * Why a call is rejected now, as `storage-unavailable`; null: it may join.
   * @param downMs for how long its server has been unreachable; 0 while it is reachable
   * @param problem why it is unreachable, if that is known
   */
  rejection(downMs: number, problem: Error | null = null): QuaysideError | null {
    if (isUnreachable(downMs)) {
      if (problem === null) return unavailable(NOT_REACHABLE, NO_CONNECTION);
      return unavailable(`The store is not reachable now: ${problem.message}; nothing was changed.`, problem);
    }
    if (this.#bytes < (downMs > 0 ? MAX_BYTES_UNREACHABLE : MAX_BYTES)) return null;
    return unavailable('The store does not reply as fast as it is called; nothing was changed.', TOO_MUCH);
  }

  add(bytes: number): void {
    this.#bytes += CALL_BYTES + bytes;
  }

  /** The call is settled. */
  remove(bytes: number): void {
    this.#bytes -= CALL_BYTES + bytes;
  }
}

export const NOT_REACHABLE = 'The store is not reachable now; nothing was changed.';

/** When asking again makes sense, ms: about as long as a reconnect, or an election, takes to be noticed. */
const RETRY_AFTER_MS = 1000;

/** A call that the store refused: nothing of it happened. `isFull`: it had no space for what the call stores. */
export function refusedByStore(cause: Error, isFull: boolean): QuaysideError {
  if (isFull) return new QuaysideError('storage-full', 'The store is full; nothing was stored.', { cause });
  return unavailable('The store refused the change; nothing was changed.', cause);
}

/** An insert would make more groups than the queue may have: nothing of it was stored. */
export function tooManyGroups(queue: string, maxGroups: number): QuaysideError {
  return new QuaysideError(
    'too-many-groups',
    `Queue ${queue} has ${maxGroups} consumer groups, its limit; raise maxGroups to add more.`,
  );
}

/** A change that was sent and not answered. */
export function unknownOutcome(cause: Error): QuaysideError {
  // Without `retryAfterMs`: programs that follow it would repeat what may have been done.
  const message = 'The store did not answer in time; the change was made or it was not.';
  return new QuaysideError('outcome-unknown', message, { cause });
}

/** Whether what failed may have been done all the same. */
export function isUnknownOutcome(error: unknown): boolean {
  return error instanceof QuaysideError && error.code === 'outcome-unknown';
}

/** Nothing was sent, or only a question. */
export function unavailable(message: string, cause: Error): QuaysideError {
  return new QuaysideError('storage-unavailable', message, { cause, retryAfterMs: RETRY_AFTER_MS });
}
