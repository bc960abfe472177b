import {
  checkedMs,
  invalid,
  LeaseLostError,
  QuaysideError,
  quoted,
  StoppedError,
  TimeoutError,
  textOf,
} from './errors.ts';
import { CONSOLE, type Logger } from './logger.ts';
import { Queue, type QueueContext, reserveHeld } from './queue.ts';
import type { HeldReservation, Reservation } from './reservation.ts';
import { after, type CancelTimer, monotonic, random, randomName, sleep } from './time.ts';
import { Bury, RetryLater } from './worker-errors.ts';

export interface WorkerOptions {
  /** How many handlers run at once; 1 if not given. */
  readonly concurrency?: number | undefined;
  /** On a stream: the group to read as. */
  readonly group?: string | undefined;
  /** How long a lease is, in milliseconds; it is renewed while the handler runs. 30 seconds if not given. */
  readonly leaseMs?: number | undefined;
  /** After this many milliseconds a handler is aborted, and the element rolled back. Not given: never. */
  readonly handlerTimeoutMs?: number | undefined;
  /**
   * After how many milliseconds a failed element is delivered again. Not given, or it throws: the queue's retry delay,
   * or at once.
   */
  readonly backoff?: ((tries: number, error: unknown) => number) | undefined;
  /** Stops the worker when it is aborted. */
  readonly signal?: AbortSignal | undefined;
  /** Gets errors that no listener of `error` takes, and those of listeners; the console if not given. */
  readonly logger?: Logger | undefined;
}

export type WorkerEvents<T> = {
  /** The handler is about to start. */
  taken: [job: Reservation<T>];
  /** The handler returned, and the commit is stored. `ms` is how long both took. */
  committed: [job: Reservation<T>, ms: number];
  /**
   * The handler threw, or took too long, and the rollback is stored. No `delayMs`: the queue's retry delay, or at once.
   */
  rolledBack: [job: Reservation<T>, error: unknown, delayMs: number | undefined];
  /** The handler threw `Bury`, and the burial is stored. */
  buried: [job: Reservation<T>, error: unknown];
  /** The lease ended before the element was settled: it is neither committed nor rolled back. */
  leaseLost: [job: Reservation<T>];
  /** A request for elements returned none. */
  idle: [];
  /** The worker continues. Without a listener, errors are logged. */
  error: [error: QuaysideError];
  /** `stop` is done. */
  stopped: [];
};

export interface WorkerResult {
  /** Handlers that ended between `stop` and its end. */
  readonly finished: number;
  /**
   * Elements that were released, since their handlers had not started, or rolled back when the grace period was over.
   */
  readonly returned: number;
}

const LEASE_MS = 30_000;
const GRACE_MS = 30_000;
/** How long a request waits for an element; proxies cut connections that are silent for a minute. */
const POLL_MS = 25_000;
/** A server that answers nothing is reported after this long, and asked again. */
const TAKE_TIMEOUT_MS = 45_000;
/** The most that one request takes. */
const MAX_TAKE = 1_000;
/** A cancel that overtakes the request that it is for has no effect, so it is repeated. */
const CANCEL_AGAIN_MS = 100;
const CANCEL_TIMEOUT_MS = 2_000;
/** Delays after requests that failed, doubling from the first to the last. */
const FAILED_POLL_MS = { first: 200, last: 5_000 };

/** A handler that runs, and how far its element is settled. */
interface Job<T> {
  readonly reservation: HeldReservation<T>;
  readonly startedAt: number;
  /** Whether the settlement is decided, though the handler may still run. */
  isDecided: boolean;
  cancelTimeout: CancelTimer;
}

/**
 * Takes elements under leases and runs a handler for each. The handler returns: commit. It throws: rollback. The lease
 * was lost: neither, since another worker has the element. A handler that ignores its signal keeps its place until it
 * ends.
 */
export class Worker<T> implements AsyncDisposable {
  readonly #context: QueueContext;
  readonly #handler: (job: Reservation<T>) => unknown;
  readonly #options: WorkerOptions;
  readonly #leaseMs: number;
  /** Names this worker's requests, so that they can be cancelled without losing what they took. */
  readonly #consumer = `worker-${randomName()}`;
  readonly #listeners = new Map<keyof WorkerEvents<T>, Set<(...args: never[]) => void>>();
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
  /** Called when a place is free, or the worker is resumed or stopped. */
  #onChange: (() => void) | null = null;
  #finished = 0;
  #returned = 0;

  constructor(
    queue: Queue<T, never>,
    handler: (job: Reservation<T>) => unknown,
    options: WorkerOptions = {},
  ) {
    this.#context = Queue.contextOf(queue);
    if (typeof handler !== 'function')
      throw invalid(`The handler is ${quoted(handler)}. Allowed: a function.`);
    this.#handler = handler;
    this.#options = options;
    this.#leaseMs = checkedMs('leaseMs', options.leaseMs ?? LEASE_MS, 1);
    if (options.handlerTimeoutMs !== undefined) checkedMs('handlerTimeoutMs', options.handlerTimeoutMs, 1);
    this.#concurrency = checkedConcurrency(options.concurrency ?? 1);
  }

  /** How many handlers run at once; may be changed while the worker runs. */
  get concurrency(): number {
    return this.#concurrency;
  }

  set concurrency(concurrency: number) {
    this.#concurrency = checkedConcurrency(concurrency);
    this.#onChange?.();
  }

  /** Subscribes; disposing of the result unsubscribes. */
  on<E extends keyof WorkerEvents<T>>(event: E, listener: (...args: WorkerEvents<T>[E]) => void): Disposable {
    const listeners = this.#listeners.get(event) ?? new Set();
    this.#listeners.set(event, listeners);
    const added = listener as (...args: never[]) => void;
    listeners.add(added);
    return { [Symbol.dispose]: () => void listeners.delete(added) };
  }

  /** Begins to take elements. A worker that was stopped cannot be started again. */
  start(): this {
    if (this.#isStopping || this.#taking !== null) return this;
    const { signal } = this.#options;
    if (signal?.aborted) void this.stop();
    else signal?.addEventListener('abort', this.#onAbort);
    if (!this.#isStopping) this.#taking = this.#takeLoop();
    this.#scheduleRenewal();
    return this;
  }

  /** Takes no more elements, until `resume`. Resolves when no request for elements is in flight; handlers continue. */
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
   * Takes no more elements and waits for the handlers, at most `graceMs` (30 seconds): those that still run are then
   * aborted, and their elements rolled back. Elements that arrive in the meantime are released.
   */
  stop({ graceMs = GRACE_MS }: { graceMs?: number } = {}): Promise<WorkerResult> {
    this.#stopping ??= this.#stop(graceMs);
    return this.#stopping;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  async #stop(graceMs: number): Promise<WorkerResult> {
    this.#isStopping = true;
    this.#options.signal?.removeEventListener('abort', this.#onAbort);
    this.#onChange?.();
    const cancelGrace = after(graceMs, () => this.#abortAll());
    await this.#endPoll();
    await this.#taking;
    while (this.#jobs.size > 0 && [...this.#jobs].some(({ isDecided }) => !isDecided)) await this.#change();
    cancelGrace();
    this.#cancelRenewal();
    await Promise.all(this.#settling);
    this.#emit('stopped');
    return { finished: this.#finished, returned: this.#returned };
  }

  async #takeLoop(): Promise<void> {
    let failures = 0;
    while (!this.#isStopping) {
      const free = this.#isPaused ? 0 : this.#concurrency - this.#jobs.size;
      // Handlers may be faster than settlements: those are bounded as well.
      if (free <= 0 || this.#settling.size >= 2 * this.#concurrency) {
        await this.#change();
        continue;
      }
      try {
        const taken = await this.#take(Math.min(free, MAX_TAKE));
        failures = 0;
        for (const reservation of taken) {
          if (this.#isStopping) this.#return(reservation, () => reservation.release());
          else void this.#run(reservation);
        }
        if (taken.length === 0 && !this.#isStopping) this.#emit('idle');
      } catch (error) {
        if (this.#isStopping || this.#isPaused) continue;
        failures += 1;
        this.#report(error);
        if (error instanceof StoppedError) void this.stop();
        // Also by a listener.
        if (this.#isStopping) continue;
        const { first, last } = FAILED_POLL_MS;
        await this.#changeWithin(Math.min(last, first * 2 ** (failures - 1)) * (1 - random() / 2));
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
      // By `pause`, which `resume` may have ended since.
      if (polling.signal.aborted) return [];
      throw error;
    } finally {
      this.#polling = null;
      this.#onChange?.();
    }
  }

  /** Ends the request for elements, if one is in flight. The server answers it, so nothing that it took is lost. */
  async #endPoll(): Promise<void> {
    // Only this one: if the worker is resumed, the next one is to stay.
    const polling = this.#polling;
    while (polling !== null && this.#polling === polling) {
      try {
        await this.#context.wire.cancel(this.#consumer, { timeoutMs: CANCEL_TIMEOUT_MS });
      } catch {
        // The server is out of reach: the lease of what it took will end.
        polling.abort(new StoppedError('The worker takes no more elements.'));
      }
      if (this.#polling === polling) await this.#changeWithin(CANCEL_AGAIN_MS);
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
        // Throws if the body did not decode.
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

  /** Settles a job, unless that is decided already: by a timeout, or by the end of the grace period. */
  #decide(job: Job<T>, settle: () => Promise<void>): void {
    if (job.isDecided) return;
    job.isDecided = true;
    if (this.#isStopping) this.#finished += 1;
    this.#settle(job.reservation, settle);
  }

  #settle(reservation: HeldReservation<T>, settle: () => Promise<void>): void {
    const settling = settle()
      .catch((error: unknown) => {
        if (error instanceof LeaseLostError) this.#emit('leaseLost', reservation);
        // The handler may settle its element itself.
        else if ((error as QuaysideError | null)?.code !== 'already-settled') this.#report(error);
      })
      .finally(() => {
        this.#settling.delete(settling);
        this.#onChange?.();
      });
    this.#settling.add(settling);
  }

  async #commit({ reservation, startedAt }: Job<T>): Promise<void> {
    await reservation.commit();
    this.#emit('committed', reservation, monotonic() - startedAt);
  }

  async #fail(reservation: HeldReservation<T>, error: unknown): Promise<void> {
    const reason = textOf(error);
    if (error instanceof Bury) {
      await reservation.bury(reason);
      this.#emit('buried', reservation, error);
      return;
    }
    const delayMs = this.#delayOf(reservation, error);
    await reservation.rollback({ reason, ...(delayMs !== undefined && { delayMs }) });
    this.#emit('rolledBack', reservation, error, delayMs);
  }

  /** Undefined: the queue's retry delay, also if `backoff` fails, or else the element would stay reserved. */
  #delayOf({ tries }: HeldReservation<T>, error: unknown): number | undefined {
    try {
      const delayMs = error instanceof RetryLater ? error.delayMs : this.#options.backoff?.(tries, error);
      return delayMs === undefined ? delayMs : checkedMs('The retry delay', Math.max(0, delayMs));
    } catch (failure) {
      this.#report(failure);
      return undefined;
    }
  }

  #return(reservation: HeldReservation<T>, settle: () => Promise<void>): void {
    this.#returned += 1;
    this.#settle(reservation, settle);
  }

  #abortAll(): void {
    for (const job of this.#jobs) {
      if (job.isDecided) continue;
      job.isDecided = true;
      const { reservation } = job;
      // Its handler may have done a part of its work: that was a try.
      this.#return(reservation, () => reservation.rollback({ delayMs: 0, reason: 'the worker was stopped' }));
      reservation.abort(new StoppedError('The worker was stopped, and its grace period is over.'));
    }
  }

  /** One timer for all jobs; their renewals travel in one request. */
  #scheduleRenewal(): void {
    const renew = (): void => {
      this.#scheduleRenewal();
      for (const { reservation, isDecided } of this.#jobs) {
        if (isDecided || !reservation.isHeld || reservation.leaseLeftMs > (this.#leaseMs * 2) / 3) continue;
        // A lost lease aborts the handler through the reservation's signal.
        reservation.extend(this.#leaseMs).catch((error: unknown) => {
          if (reservation.isHeld) this.#report(error);
        });
      }
    };
    // A program stays alive while its worker runs, also if all that its handlers wait for is their time limit or the
    // grace period.
    this.#cancelRenewal = after(this.#leaseMs / 3, renew, true);
  }

  #change(): Promise<void> {
    return new Promise((resolve) => {
      const previous = this.#onChange;
      this.#onChange = () => {
        this.#onChange = null;
        previous?.();
        resolve();
      };
    });
  }

  async #changeWithin(delayMs: number): Promise<void> {
    const timer = new AbortController();
    await Promise.race([this.#change(), sleep(delayMs, timer.signal).catch(() => {})]);
    timer.abort();
  }

  #report(error: unknown): void {
    const reported =
      error instanceof QuaysideError ? error : new QuaysideError('failed', textOf(error), { cause: error });
    if ((this.#listeners.get('error')?.size ?? 0) > 0) this.#emit('error', reported);
    else this.#log(`The worker of ${this.#context.name} failed, and continues:`, reported);
  }

  /** A logger that fails as well must end neither the worker nor its program. */
  #log(message: string, error: unknown): void {
    try {
      (this.#options.logger ?? CONSOLE).error(message, error);
    } catch {
      CONSOLE.error(message, error);
    }
  }

  #emit<E extends keyof WorkerEvents<T>>(event: E, ...args: WorkerEvents<T>[E]): void {
    for (const listener of this.#listeners.get(event) ?? []) {
      // It may be asynchronous as well.
      const called = async (): Promise<void> => (listener as (...given: WorkerEvents<T>[E]) => void)(...args);
      called().catch((error: unknown) => this.#log(`A listener of "${event}" threw:`, error));
    }
  }
}

function checkedConcurrency(concurrency: number): number {
  if (Number.isInteger(concurrency) && concurrency > 0) return concurrency;
  throw new RangeError(
    `concurrency is ${typeof concurrency === 'number' ? concurrency : quoted(concurrency)}. Allowed: a whole number from 1.`,
  );
}
