import {
  checkedMs,
  invalid,
  LeaseLostError,
  QuaysideError,
  quoted,
  roundedMs,
  StoppedError,
  TimeoutError,
  textOf,
} from './errors.ts';
import { CONSOLE, type Logger } from './logger.ts';
import { Queue, type QueueContext, reserveHeld } from './queue.ts';
import type { HeldReservation, Reservation } from './reservation.ts';
import { after, backoffMs, type CancelTimer, monotonic, randomName, sleep } from './time.ts';

export interface WorkerOptions {
  /** How many handlers run concurrently. Default: 1. */
  readonly concurrency?: number | undefined;
  /** On a stream: the consumer group. Default: the first one of the namespace. */
  readonly group?: string | undefined;
  /** Length of a lease in milliseconds; it is renewed while the handler runs. Default: 30 seconds. */
  readonly leaseMs?: number | undefined;
  /** After this many milliseconds a handler is aborted, and its element is rolled back. Default: never. */
  readonly handlerTimeoutMs?: number | undefined;
  /**
   * Returns after how many milliseconds a failed element is delivered again. If not given, or if it throws: after the
   * queue's retry delay, or immediately if the queue has none.
   */
  readonly backoff?: ((tries: number, error: unknown) => number) | undefined;
  /** Stops the worker when it is aborted. */
  readonly signal?: AbortSignal | undefined;
  /** Receives errors if there is no listener of `error`, and errors that listeners throw. Default: the console. */
  readonly logger?: Logger | undefined;
}

export type WorkerEvents<T> = {
  /** The handler is about to start. */
  taken: [job: Reservation<T>];
  /** The handler returned, and the commit is stored. `ms` is how long both took. */
  committed: [job: Reservation<T>, ms: number];
  /** The handler threw or timed out, and the element is back in its queue. No `delayMs`: the queue's retry delay. */
  rolledBack: [job: Reservation<T>, error: unknown, delayMs: number | undefined];
  /** The element is in the dead-letter queue: the handler threw `Bury`, or the last try failed. */
  buried: [job: Reservation<T>, error: unknown];
  /** The lease ended before the element was settled: it is neither committed nor rolled back. */
  leaseLost: [job: Reservation<T>];
  /** A take returned no elements. */
  idle: [];
  /** Something failed; the worker continues. Without a listener, errors are logged. */
  error: [error: QuaysideError];
  /** `stop` has finished. */
  stopped: [];
};

export interface WorkerResult {
  /** Handlers that ended while `stop` was waiting. */
  readonly finished: number;
  /** Elements released because their handlers had not started, or rolled back at the end of the grace period. */
  readonly returned: number;
}

/** Thrown by a handler to roll back the element, and have it delivered again after `delayMs`. */
export class RetryLater extends Error {
  readonly delayMs: number;

  constructor(delayMs: number, options?: ErrorOptions) {
    super(`retry after ${delayMs} ms`, options);
    this.name = 'RetryLater';
    this.delayMs = delayMs;
  }
}

/** Thrown by a handler to move the element to the dead-letter queue, whatever its tries. */
export class Bury extends Error {
  constructor(reason: string, options?: ErrorOptions) {
    super(reason, options);
    this.name = 'Bury';
  }
}

const EVENTS: readonly (keyof WorkerEvents<unknown>)[] = [
  'taken',
  'committed',
  'rolledBack',
  'buried',
  'leaseLost',
  'idle',
  'error',
  'stopped',
];
const LEASE_MS = 30_000;
const GRACE_MS = 30_000;
/** How long a take waits for an element: proxies close connections that are silent for a minute. */
const POLL_MS = 25_000;
/** A take without a response fails after this long, and is repeated. */
const TAKE_TIMEOUT_MS = 45_000;
/** Time limit of one attempt to settle, so that `stop` ends soon after its grace period, also if the network is cut. */
const SETTLE = { timeoutMs: 30_000 };
const STOPPED = 'The worker was stopped.';
/** Maximum elements of one take. */
const MAX_TAKE = 1_000;
/** A cancel that arrives before the take that it should end has no effect, so it is repeated at this interval. */
const CANCEL_AGAIN_MS = 100;
const CANCEL_TIMEOUT_MS = 2_000;
/** The delay after a take or a settlement has failed. */
const failedPollMs = (failures: number): number => backoffMs(failures, 200, 5_000);

/** A running handler, and the state of its settlement. */
interface Job<T> {
  readonly reservation: HeldReservation<T>;
  readonly startedAt: number;
  /** Whether the settlement is decided. The handler may still be running. */
  isDecided: boolean;
  cancelTimeout: CancelTimer;
}

/**
 * Takes elements under leases and runs a handler for each. If the handler returns, the element is committed; if it
 * throws, the element is rolled back; if the lease was lost, neither, because another worker may have the element. A
 * handler that ignores its signal counts toward `concurrency` until it ends.
 */
export class Worker<T> implements AsyncDisposable {
  readonly #context: QueueContext;
  readonly #handler: (job: Reservation<T>) => unknown;
  readonly #options: WorkerOptions;
  readonly #leaseMs: number;
  /** The consumer name of this worker's takes, by which they can be cancelled without losing elements. */
  readonly #consumer = `worker-${randomName()}`;
  readonly #listeners = new Map(EVENTS.map((event) => [event, new Set<(...args: never[]) => void>()]));
  readonly #jobs = new Set<Job<T>>();
  readonly #settling = new Set<Promise<void>>();
  #concurrency: number;
  #isPaused = false;
  #isStopping = false;
  #taking: Promise<void> | null = null;
  #polling: AbortController | null = null;
  #stopping: Promise<WorkerResult> | null = null;
  #cancelRenewal: CancelTimer = () => {};
  readonly #onAbort = (): void => void this.stop();
  /** Called when a handler, take or settlement ends, or when the worker is resumed, resized or stopped. */
  #onChange: (() => void) | null = null;
  #finished = 0;
  #returned = 0;

  constructor(
    queue: Queue<T, never>,
    handler: (job: Reservation<T>) => unknown,
    options: WorkerOptions = {},
  ) {
    // JavaScript callers may pass the queue's name, which other libraries expect.
    if (!(queue instanceof Queue))
      throw invalid(`The queue is ${quoted(queue)}. Allowed: client.queue("N/orders").`);
    this.#context = Queue.contextOf(queue);
    // A call of a generator function runs nothing of it, so each job would be committed undone.
    if (typeof handler !== 'function' || /Gen/.test(handler.constructor.name))
      throw invalid(`The handler is ${quoted(handler)}. Allowed: a function, but no generator.`);
    this.#handler = handler;
    this.#options = options;
    this.#leaseMs = checkedMs('leaseMs', options.leaseMs ?? LEASE_MS, 1);
    roundedMs('handlerTimeoutMs', options.handlerTimeoutMs, 1);
    this.#concurrency = checkedConcurrency(options.concurrency ?? 1);
  }

  /** How many handlers run concurrently; may be changed while the worker runs. */
  get concurrency(): number {
    return this.#concurrency;
  }

  set concurrency(concurrency: number) {
    this.#concurrency = checkedConcurrency(concurrency);
    this.#onChange?.();
  }

  /** Adds a listener. Disposing of the result removes it. */
  on<E extends keyof WorkerEvents<T>>(event: E, listener: (...args: WorkerEvents<T>[E]) => void): Disposable {
    const listeners = this.#listeners.get(event);
    // JavaScript callers may misspell it, or give an event of another library, such as `failed`.
    if (!listeners) throw invalid(`The event is ${quoted(event)}. Allowed: ${EVENTS.join(', ')}.`);
    const added = listener as (...args: never[]) => void;
    listeners.add(added);
    return { [Symbol.dispose]: () => void listeners.delete(added) };
  }

  /** Starts to take elements. A stopped worker cannot be started again. */
  start(): this {
    if (this.#isStopping || this.#taking !== null) return this;
    const { signal } = this.#options;
    if (signal?.aborted) void this.stop();
    else signal?.addEventListener('abort', this.#onAbort);
    if (!this.#isStopping) this.#taking = this.#takeLoop();
    this.#scheduleRenewal();
    return this;
  }

  /** Stops taking elements until `resume`. Resolves when no take is in flight; handlers continue. */
  async pause(): Promise<void> {
    this.#isPaused = true;
    await this.#endPoll();
  }

  /** Ends a `pause`. */
  resume(): void {
    this.#isPaused = false;
    this.#onChange?.();
  }

  /**
   * Stops taking elements and waits for the handlers, at most `graceMs` (default: 30 seconds). Handlers that are still
   * running are then aborted, and their elements rolled back. Elements that arrive after the call are released. If it
   * is called several times, the shortest `graceMs` counts.
   */
  stop({ graceMs = GRACE_MS }: { graceMs?: number } = {}): Promise<WorkerResult> {
    this.#stopping ??= this.#stop();
    return this.#stopping.finally(after(graceMs, () => this.#abortAll()));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  async #stop(): Promise<WorkerResult> {
    this.#isStopping = true;
    this.#options.signal?.removeEventListener('abort', this.#onAbort);
    this.#onChange?.();
    await this.#endPoll();
    await this.#taking;
    while ([...this.#jobs].some(({ isDecided }) => !isDecided)) await this.#nextChange();
    this.#cancelRenewal();
    await Promise.all(this.#settling);
    this.#emit('stopped');
    return { finished: this.#finished, returned: this.#returned };
  }

  async #takeLoop(): Promise<void> {
    let failures = 0;
    while (!this.#isStopping) {
      const free = this.#isPaused ? 0 : this.#concurrency - this.#jobs.size;
      // Handlers may be faster than their settlements, so these are bounded, too.
      if (free <= 0 || this.#settling.size >= 2 * this.#concurrency) {
        await this.#nextChange();
        continue;
      }
      try {
        const taken = await this.#take(Math.min(free, MAX_TAKE));
        failures = 0;
        for (const reservation of taken) {
          if (this.#isStopping) this.#returnJob(reservation, () => reservation.release(SETTLE));
          else void this.#run(reservation);
        }
        if (taken.length === 0 && !this.#isStopping) this.#emit('idle');
      } catch (error) {
        if (this.#isStopping || this.#isPaused) continue;
        failures += 1;
        this.#report(error);
        if (error instanceof StoppedError) void this.stop();
        // A listener may have stopped the worker.
        if (this.#isStopping) continue;
        await this.#nextChangeWithin(failedPollMs(failures));
      }
    }
  }

  async #take(count: number): Promise<HeldReservation<T>[]> {
    const polling = new AbortController();
    this.#polling = polling;
    try {
      return await reserveHeld<T>(this.#context, count, {
        waitMs: POLL_MS,
        leaseMs: this.#leaseMs,
        consumer: this.#consumer,
        group: this.#options.group,
        signal: polling.signal,
        timeoutMs: TAKE_TIMEOUT_MS,
      });
    } catch (error) {
      // Aborted by `#endPoll`. Do not check `#isPaused`: the worker may have been resumed since.
      if (polling.signal.aborted) return [];
      throw error;
    } finally {
      this.#polling = null;
      this.#onChange?.();
    }
  }

  /** Ends the take in flight, if any. It is cancelled at the server, whose response still has what it took. */
  async #endPoll(): Promise<void> {
    // End only this take: if the worker is resumed, the next one must continue.
    const polling = this.#polling;
    while (polling !== null && this.#polling === polling) {
      try {
        await this.#context.wire.cancel(this.#consumer, { timeoutMs: CANCEL_TIMEOUT_MS });
      } catch {
        // The server is unreachable. If the take got elements, their leases will expire.
        polling.abort(new StoppedError(STOPPED));
      }
      if (this.#polling === polling) await this.#nextChangeWithin(CANCEL_AGAIN_MS);
    }
  }

  async #run(reservation: HeldReservation<T>): Promise<void> {
    const { handlerTimeoutMs, group } = this.#options;
    const job: Job<T> = { reservation, startedAt: monotonic(), isDecided: false, cancelTimeout: () => {} };
    this.#jobs.add(job);
    if (handlerTimeoutMs !== undefined) {
      job.cancelTimeout = after(handlerTimeoutMs, () => {
        const error = new TimeoutError(
          `The handler of ${reservation.id} took more than ${handlerTimeoutMs} ms.`,
        );
        reservation.abort(error);
        this.#decide(job, () => this.#fail(reservation, error));
      });
    }
    this.#emit('taken', reservation);
    const { tracing, name } = this.#context;
    try {
      await tracing.process(name, group, reservation, async () => {
        // Throws if the body could not be decoded.
        void reservation.data;
        await this.#handler(reservation);
      });
      this.#decide(job, () => this.#commit(job));
    } catch (error) {
      this.#decide(job, () => this.#fail(reservation, error));
    } finally {
      job.cancelTimeout();
      this.#jobs.delete(job);
      this.#onChange?.();
    }
  }

  /** Settles a job, unless a timeout or the end of the grace period has already done so. */
  #decide(job: Job<T>, settle: () => Promise<void>): void {
    if (job.isDecided) return;
    job.isDecided = true;
    if (this.#isStopping) this.#finished += 1;
    this.#settle(job.reservation, settle);
  }

  #settle(reservation: HeldReservation<T>, settle: () => Promise<void>): void {
    const attempt = (failures: number): Promise<void> =>
      settle().catch(async (error: unknown) => {
        if (error instanceof LeaseLostError) this.#emit('leaseLost', reservation);
        // The handler may have settled its element itself.
        else if ((error as QuaysideError | null)?.code !== 'already-settled') {
          this.#report(error);
          // The handler has ended: without its commit, its work would be done twice.
          if (this.#isStopping || reservation.leaseLeftMs <= 0) return;
          await sleep(failedPollMs(failures));
          await attempt(failures + 1);
        }
      });
    const settling = attempt(1).finally(() => {
      this.#settling.delete(settling);
      this.#onChange?.();
    });
    this.#settling.add(settling);
  }

  async #commit({ reservation, startedAt }: Job<T>): Promise<void> {
    await reservation.commit(SETTLE);
    this.#emit('committed', reservation, monotonic() - startedAt);
  }

  async #fail(reservation: HeldReservation<T>, error: unknown): Promise<void> {
    const reason = textOf(error);
    const isBurial = error instanceof Bury;
    const delayMs = isBurial ? undefined : this.#delayOf(reservation, error);
    const state = isBurial
      ? await reservation.bury(reason, SETTLE)
      : await reservation.rollback({ ...SETTLE, reason, delayMs });
    if (state === 'dead-lettered') this.#emit('buried', reservation, error);
    else this.#emit('rolledBack', reservation, error, delayMs);
  }

  /** Undefined: the queue's retry delay, also if `backoff` throws: otherwise the element would stay reserved. */
  #delayOf({ tries }: HeldReservation<T>, error: unknown): number | undefined {
    try {
      const delayMs = error instanceof RetryLater ? error.delayMs : this.#options.backoff?.(tries, error);
      return roundedMs('The retry delay', delayMs && Math.max(0, delayMs));
    } catch (failure) {
      this.#report(failure);
      return undefined;
    }
  }

  #returnJob(reservation: HeldReservation<T>, settle: () => Promise<void>): void {
    this.#returned += 1;
    this.#settle(reservation, settle);
  }

  #abortAll(): void {
    for (const job of this.#jobs) {
      if (job.isDecided) continue;
      job.isDecided = true;
      const { reservation } = job;
      // Roll back, not release: the handler may have done part of its work, so this counts as a try.
      this.#returnJob(reservation, async () => {
        await reservation.rollback({ ...SETTLE, delayMs: 0, reason: STOPPED });
      });
      reservation.abort(new StoppedError(STOPPED));
    }
  }

  /** Uses one timer for all jobs, so that their renewals share a request. */
  #scheduleRenewal(): void {
    const renew = (): void => {
      this.#scheduleRenewal();
      for (const { reservation, isDecided } of this.#jobs) {
        if (isDecided || !reservation.isHeld || reservation.leaseLeftMs > (this.#leaseMs * 2) / 3) continue;
        // A lost lease aborts the handler through the reservation's signal.
        reservation.extend(this.#leaseMs, SETTLE).catch((error: unknown) => {
          if (reservation.isHeld) this.#report(error);
        });
      }
    };
    // The timer keeps the program alive while its worker runs. The time limits of handlers and the grace period do not.
    this.#cancelRenewal = after(this.#leaseMs / 3, renew, true);
  }

  #nextChange(): Promise<void> {
    return new Promise((resolve) => {
      const previous = this.#onChange;
      this.#onChange = () => {
        this.#onChange = null;
        previous?.();
        resolve();
      };
    });
  }

  async #nextChangeWithin(delayMs: number): Promise<void> {
    const timer = new AbortController();
    await Promise.race([this.#nextChange(), sleep(delayMs, timer.signal).catch(() => {})]);
    timer.abort();
  }

  #report(error: unknown): void {
    const reported =
      error instanceof QuaysideError ? error : new QuaysideError('failed', textOf(error), { cause: error });
    if (this.#listeners.get('error')?.size) this.#emit('error', reported);
    else this.#log(`The worker of ${this.#context.name} failed, and continues:`, reported);
  }

  /** A logger that throws must end neither the worker nor the program. */
  #log(message: string, error: unknown): void {
    try {
      (this.#options.logger ?? CONSOLE).error(message, error);
    } catch {
      CONSOLE.error(message, error);
    }
  }

  #emit<E extends keyof WorkerEvents<T>>(event: E, ...args: WorkerEvents<T>[E]): void {
    for (const listener of this.#listeners.get(event) as Set<(...given: WorkerEvents<T>[E]) => void>) {
      // Listeners may be asynchronous.
      const called = async (): Promise<void> => listener(...args);
      called().catch((error: unknown) => this.#log(`A listener of "${event}" threw:`, error));
    }
  }
}

function checkedConcurrency(concurrency: number): number {
  if (Number.isInteger(concurrency) && concurrency > 0) return concurrency;
  throw invalid(`concurrency is ${quoted(concurrency)}. Allowed: a whole number from 1.`);
}
