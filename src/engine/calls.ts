import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import type { SettleItem, SettleResult } from './storage.ts';

// What engines share for each call to their store: its deadline, the bound for all pending calls, the errors of the
// ports, and settlements in several steps.

/**
 * Every operation that needs an engine settles within this time, including any wait before the engine's call, if
 * necessary with an error. The rest of the 5 s that callers are promised is for the way to and from them.
 */
export const CALL_TIMEOUT_MS = 4_500;

/** A timer that fires later than this means that the process was suspended or very busy. */
const LATE_TIMER_MS = 500;

/**
 * Runs the callback of a timer. If the timer is late, replies may already be in the sockets. They are read first, so
 * that the results of that time are not lost, and a store that has replied does not count as silent.
 */
export function runTimer(lateMs: number, run: () => void): void {
  if (lateMs > LATE_TIMER_MS) setImmediate(run);
  else run();
}

/**
 * Bounds how long an operation may take, by default as long as a single call.
 * @param timeoutError called on a timeout; creates the error with which the result rejects
 */
export function inTime<T>(
  clock: Clock,
  value: Promise<T>,
  timeoutError: () => Error,
  timeoutMs = CALL_TIMEOUT_MS,
): Promise<T> {
  const timeout = Promise.withResolvers<never>();
  let isSettled = false;
  const expire = (): void => {
    if (!isSettled) timeout.reject(timeoutError());
  };
  const dueAt = clock.monotonic() + timeoutMs;
  const cancelTimer = clock.after(timeoutMs, () => runTimer(clock.monotonic() - dueAt, expire));
  return Promise.race([value, timeout.promise]).finally(() => {
    isSettled = true;
    cancelTimer();
  });
}

/** A call that settles once: with its result, with an error, or when its deadline has passed. */
export abstract class PendingCall {
  /** By the monotonic clock, ms. */
  readonly deadlineAt: number;
  /** Of its elements. */
  readonly bytes: number;
  isSettled = false;
  /** Neighbors among the pending calls, which alone set them. */
  previous: PendingCall | null = null;
  next: PendingCall | null = null;
  readonly #calls: PendingCalls;
  readonly #outcome = Promise.withResolvers<unknown>();

  /** @param deadlineAt comes from `calls.deadline` */
  constructor(calls: PendingCalls, deadlineAt: number, bytes = 0) {
    this.#calls = calls;
    this.deadlineAt = deadlineAt;
    this.bytes = bytes;
  }

  /** What the caller gets. */
  get outcome(): Promise<unknown> {
    return this.#outcome.promise;
  }

  resolve(result: unknown): void {
    if (this.#settle()) this.#outcome.resolve(result);
  }

  reject(error: unknown): void {
    if (this.#settle()) this.#outcome.reject(error);
  }

  /** Called when the deadline has passed and the call is not settled. */
  abstract expire(): void;

  #settle(): boolean {
    if (this.isSettled) return false;
    this.isSettled = true;
    this.#calls.remove(this);
    return true;
  }
}

/** Once a server is unreachable for this long, calls are rejected immediately: they would most likely time out. */
export const UNREACHABLE_MS = 2_000;
/** The most that all pending calls may hold together, in bytes: bounds the backlog for a server that does not reply. */
const MAX_PENDING_BYTES = 64 * 1024 * 1024;
/** The same bound while there is no connection, when most pending calls will fail anyway. */
const MAX_PENDING_BYTES_UNREACHABLE = 16 * 1024 * 1024;
/** Estimated memory of a call without its elements, in bytes. */
const CALL_BYTES = 500;

const NO_CONNECTION = new Error('There is no connection.');
const BACKLOG_FULL = new Error('Too many bytes wait for a reply.');

/** Whether a server has been unreachable for so long that calls to it are rejected immediately. */
export function isUnreachable(downMs: number): boolean {
  return downMs > UNREACHABLE_MS;
}

/**
 * The pending calls of an engine: each settles by its deadline, and their memory is bounded.
 *
 * They are in the order of their deadlines: nearly always the order in which they were made, since most have the same
 * timeout. One timer serves them all. It depends on nothing that a call waits for: whatever is stuck, each call
 * settles.
 *
 * A linked list, whose links are cleared on removal: a `Set` leaves tables behind that keep settled calls in memory
 * until the next full collection, which took a third more processor time per call.
 */
export class PendingCalls {
  readonly #clock: Clock;
  #first: PendingCall | null = null;
  #last: PendingCall | null = null;
  #bytes = 0;
  #cancelTimer: CancelTimer | null = null;
  /** When the timer fires; Infinity: there is none. */
  #timerAt = Number.POSITIVE_INFINITY;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** The deadline of a call that is made now, by the monotonic clock. */
  deadline(withinMs = CALL_TIMEOUT_MS): number {
    return this.#clock.monotonic() + withinMs;
  }

  /**
   * The `storage-unavailable` error with which a call is rejected now; null: it is accepted.
   * @param downMs for how long its server has been unreachable; 0 while it is reachable
   * @param problem why it is unreachable, if known
   */
  rejection(downMs: number, problem: Error | null = null): QuaysideError | null {
    if (isUnreachable(downMs)) {
      if (problem === null) return unavailable(NOT_REACHABLE, NO_CONNECTION);
      return unavailable(`The store is not reachable now: ${problem.message}; nothing was changed.`, problem);
    }
    if (this.#bytes < (downMs > 0 ? MAX_PENDING_BYTES_UNREACHABLE : MAX_PENDING_BYTES)) return null;
    return unavailable(
      'The store does not reply as fast as it is called; nothing was changed.',
      BACKLOG_FULL,
    );
  }

  add(call: PendingCall): void {
    const { deadlineAt, bytes } = call;
    let previous = this.#last;
    while (previous !== null && previous.deadlineAt > deadlineAt) previous = previous.previous;
    const next = previous === null ? this.#first : previous.next;
    call.previous = previous;
    call.next = next;
    if (previous === null) this.#first = call;
    else previous.next = call;
    if (next === null) this.#last = call;
    else next.previous = call;
    this.#bytes += CALL_BYTES + bytes;
    if (deadlineAt < this.#timerAt) this.#arm(call);
  }

  /** The call is settled. */
  remove(call: PendingCall): void {
    const { previous, next, bytes } = call;
    if (previous !== null) previous.next = next;
    else if (this.#first === call) this.#first = next;
    else return;
    if (next !== null) next.previous = previous;
    else this.#last = previous;
    call.previous = null;
    call.next = null;
    this.#bytes -= CALL_BYTES + bytes;
  }

  /** Expires all pending calls. */
  stop(): void {
    this.#cancelTimer?.();
    this.#timerAt = Number.POSITIVE_INFINITY;
    while (this.#first !== null) this.#expire(this.#first);
  }

  #arm({ deadlineAt }: PendingCall): void {
    const leftMs = Math.max(0, deadlineAt - this.#clock.monotonic());
    this.#cancelTimer?.();
    this.#timerAt = deadlineAt;
    this.#cancelTimer = this.#clock.after(leftMs, () => this.#onTimer());
  }

  /** Settled calls have left the queue, so the timer is armed at most once per timeout, not once per call. */
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

  #expire(call: PendingCall): void {
    this.remove(call);
    call.expire();
  }
}

export const NOT_REACHABLE = 'The store is not reachable now; nothing was changed.';

/** When a retry makes sense, ms: about as long as a reconnect, or an election, takes to be noticed. */
const RETRY_AFTER_MS = 1000;

/** The error of a call that the store rejected: nothing was changed. `isFull`: the store had no space left. */
export function refusedByStore(cause: Error, isFull: boolean): QuaysideError {
  if (isFull) return new QuaysideError('storage-full', 'The store is full; nothing was stored.', { cause });
  return unavailable('The store rejected the change; nothing was changed.', cause);
}

/** The error of an insert that would create more groups than the queue may have: nothing was stored. */
export function tooManyGroups(queue: string, maxGroups: number): QuaysideError {
  return new QuaysideError(
    'too-many-groups',
    `Queue ${queue} has ${maxGroups} consumer groups, its limit; raise maxGroups to add more.`,
  );
}

/** The error of a change that was sent and not answered. */
export function unknownOutcome(cause?: Error): QuaysideError {
  // Without `retryAfterMs`: clients that obey it would repeat a change that may have been made.
  const message = 'The store did not reply in time; the change may or may not have been made.';
  return new QuaysideError('outcome-unknown', message, { cause });
}

/**
 * The error of a change in several steps that failed after the first one. The error of the step says that nothing was
 * changed.
 */
export function partlyMade(cause: unknown): unknown {
  const isUnapplied =
    cause instanceof QuaysideError && (cause.code === 'storage-unavailable' || cause.code === 'storage-full');
  if (!isUnapplied) return cause;
  return new QuaysideError('outcome-unknown', 'Only a part of the change was certainly made.', { cause });
}

/** Waits for a step of a change that is not its first. */
export async function laterStep<T>(step: T): Promise<Awaited<T>> {
  try {
    return await step;
  } catch (error) {
    throw partlyMade(error);
  }
}

/**
 * Settles the items that follow those of the first step, and returns the results of all: one step for many items would
 * block the store for too long.
 * @param results of the first step, to which those of the others are added
 * @param step settles some of the items that it is given, from the first one on, and returns their results
 * @throws QuaysideError `outcome-unknown` if a step fails after another one changed something
 */
export async function settleRest(
  items: readonly SettleItem[],
  results: SettleResult[],
  step: (items: readonly SettleItem[]) => Promise<SettleResult[]>,
): Promise<SettleResult[]> {
  try {
    while (results.length < items.length) results.push(...(await step(items.slice(results.length))));
    return results;
  } catch (cause) {
    throw partialFailure(results, cause);
  }
}

/**
 * The error of a settlement of which a part failed.
 * @param results of the other parts
 */
export function partialFailure(results: readonly SettleResult[], cause: unknown): unknown {
  if (!results.some(({ outcome }) => outcome === 'done' || outcome === 'dead-lettered')) return cause;
  return new QuaysideError('outcome-unknown', 'Only some of the items were certainly settled.', { cause });
}

/** Whether a failed call may have been applied. */
export function isUnknownOutcome(error: unknown): boolean {
  return error instanceof QuaysideError && error.code === 'outcome-unknown';
}

/** Whether a failed call was certainly not applied. */
export function isUnapplied(error: unknown): boolean {
  return error instanceof QuaysideError && error.code !== 'outcome-unknown';
}

/** The error of a call that certainly changed nothing: it was not sent, or it only reads. */
export function unavailable(message: string, cause?: Error): QuaysideError {
  return new QuaysideError('storage-unavailable', message, { cause, retryAfterMs: RETRY_AFTER_MS });
}
