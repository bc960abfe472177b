import { type Decoded, type Element, ReceivedBase } from './element.ts';
import { LeaseLostError, QuaysideError, roundedMs } from './errors.ts';
import type { TakenLine } from './lines.ts';
import type { CallOptions, RollbackOptions } from './options.ts';
import { after, type CancelTimer, monotonic, wallTime } from './time.ts';
import type { QueueWire, Receipt, SettleAction, SettleRequest } from './wire.ts';

/** An element under a lease. If it is disposed of before it is settled, it is rolled back. */
export interface Reservation<T> extends Element<T>, AsyncDisposable {
  /** When the lease ends, by the server's clock. */
  readonly leaseUntil: Date;
  /** Names this reservation, for a program that settles it by another way. */
  readonly token: string;
  /** Aborted when the reservation is over: `LeaseLostError`, and in a worker also `StoppedError` and `TimeoutError`. */
  readonly signal: AbortSignal;
  /** Finishes the element. @throws LeaseLostError if the reservation is over */
  commit(options?: CallOptions): Promise<void>;
  /**
   * Returns the element to the queue with one more failed try, or moves it to the dead-letter queue if that was its
   * last.
   */
  rollback(options?: RollbackOptions): Promise<void>;
  /** Returns the element unprocessed to its place in the queue: no try is counted. */
  release(options?: CallOptions): Promise<void>;
  /** Moves the element to the dead-letter queue; without one it is rolled back. */
  bury(reason: string, options?: CallOptions): Promise<void>;
  /** Renews the lease, for `leaseMs` or as long as the queue's, and returns its new end, by the server's clock. */
  extend(leaseMs?: number, options?: CallOptions): Promise<Date>;
}

/** How a lease of a response is expressed in the time of this process. */
export interface LeaseContext {
  readonly wire: QueueWire;
  readonly group: string | undefined;
  /** The length of the lease that was asked for; undefined: the queue's. */
  readonly leaseMs: number | undefined;
  /** The server's time when it answered, if it said so. */
  readonly serverTime: number | null;
}

/** What ends a reservation. */
type Settlement = Exclude<SettleAction, { action: 'extend' }>;

export class HeldReservation<T> extends ReceivedBase<T> implements Reservation<T> {
  declare leaseUntil: Date;
  readonly #wire: QueueWire;
  readonly #receipt: Receipt;
  #state: 'held' | 'settling' | 'settled' | 'lost' = 'held';
  /** Of a settlement that failed with an unknown outcome: if it is repeated, the first one may have been applied. */
  #unknown: string | undefined;
  /** By the clock of this process, which may differ from the server's. */
  #endsAt: number;
  /** Made when somebody asks for the signal: most reservations are settled without. */
  #controller: AbortController | null = null;
  #cancelTimer: CancelTimer | undefined;

  constructor(line: TakenLine, decoded: Decoded, { wire, group, leaseMs, serverTime }: LeaseContext) {
    super(line, decoded);
    this.#wire = wire;
    this.#receipt = { id: line.id, token: line.lease ?? '', ...(group !== undefined && { group }) };
    this.leaseUntil = new Date(line.leaseUntil ?? 0);
    this.#endsAt = localEnd(this.leaseUntil, leaseMs, serverTime);
  }

  /** Whether it is neither settled nor lost. */
  get isHeld(): boolean {
    return this.#state === 'held' || this.#state === 'settling';
  }

  /** Milliseconds until the lease ends. */
  get leaseLeftMs(): number {
    return this.#endsAt - monotonic();
  }

  get token(): string {
    return this.#receipt.token;
  }

  get signal(): AbortSignal {
    if (this.#controller === null) {
      this.#controller = new AbortController();
      this.#armTimer();
    }
    return this.#controller.signal;
  }

  async commit(options?: CallOptions): Promise<void> {
    await this.#settle({ action: 'commit' }, options);
  }

  async rollback({ delayMs, reason, ...options }: RollbackOptions = {}): Promise<void> {
    const delay = roundedMs('delayMs', delayMs);
    await this.#settle({ action: 'rollback', delay, reason }, options);
  }

  async release(options?: CallOptions): Promise<void> {
    await this.#settle({ action: 'release' }, options);
  }

  async bury(reason: string, options?: CallOptions): Promise<void> {
    await this.#settle({ action: 'bury', reason }, options);
  }

  async extend(leaseMs?: number, options?: CallOptions): Promise<Date> {
    if (!this.isHeld) throw this.#overError();
    const lease = roundedMs('leaseMs', leaseMs, 1);
    const { outcome, until, serverTime } = await this.#wire.settle(
      { action: 'extend', receipt: this.#receipt, lease },
      options,
    );
    if (outcome !== 'done' || until === undefined) {
      // A settlement that was sent at the same time may have been first: then the reservation is over, and not lost.
      throw this.#state === 'held' ? this.#lose(outcome) : this.#overError();
    }
    this.leaseUntil = new Date(until);
    this.#endsAt = localEnd(this.leaseUntil, leaseMs, serverTime);
    this.#armTimer();
    return this.leaseUntil;
  }

  /** Aborts the signal; the reservation itself stays. */
  abort(reason: Error): void {
    this.#controller ??= new AbortController();
    this.#controller.abort(reason);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#state !== 'held') return;
    try {
      await this.rollback();
    } catch (error) {
      // Somebody else has it, which is what the rollback was for.
      if (this.isHeld) throw error;
    }
  }

  async #settle(settlement: Settlement, options: CallOptions | undefined): Promise<void> {
    const { action } = settlement;
    if (this.#state !== 'held') throw this.#overError();
    this.#state = 'settling';
    const item: SettleRequest = { ...settlement, receipt: this.#receipt };
    try {
      const { outcome, isRepeat } = await this.#wire.settle(item, options);
      const isDone = outcome === 'done' || outcome === 'dead-lettered';
      // What its first attempt may have caused. A caller that gave an element back does not know where it is; after a
      // commit, or a burial, it is gone.
      const isKept = action === 'rollback' || action === 'release';
      const isOfFirst = isKept ? outcome !== 'token-required' : outcome === 'not-found';
      if (!isDone && !(isOfFirst && (isRepeat || action === this.#unknown))) throw this.#lose(outcome);
      this.#state = 'settled';
      this.#cancelTimer?.();
    } catch (error) {
      // The same settlement, or another one, may be tried again.
      if (this.#state === 'settling') {
        this.#state = 'held';
        // Any other error may be of a call that was never sent, such as that of a function for credentials.
        const isGivenUp = item.isSent && error === options?.signal?.reason;
        if (isGivenUp || (error as QuaysideError | null)?.outcome === 'unknown') this.#unknown = action;
      }
      throw error;
    }
  }

  /** For the signal, if somebody has asked for it. */
  #armTimer(): void {
    this.#cancelTimer?.();
    if (this.#controller === null || !this.isHeld) return;
    this.#cancelTimer = after(this.leaseLeftMs, () => {
      // A commit in flight may still succeed: the server takes it as long as nobody else reserved the element.
      if (this.isHeld) this.#controller?.abort(this.#lostError());
    });
  }

  #lose(outcome: string): QuaysideError {
    this.#state = 'lost';
    this.#cancelTimer?.();
    const error = this.#lostError(outcome);
    this.abort(error);
    return error;
  }

  #lostError(outcome = 'lease-lost'): LeaseLostError {
    const message = `Element ${this.id} is not held: its lease ended at ${this.leaseUntil.toISOString()}, or it was settled elsewhere (${outcome}).`;
    return new LeaseLostError(message, { details: { outcome } });
  }

  #overError(): QuaysideError {
    if (this.#state === 'lost') return this.#lostError();
    return new QuaysideError('already-settled', `Element ${this.id} is already settled.`);
  }
}

/**
 * When a lease that has just begun ends by the clock of this process. Its length is known, or follows from the server's
 * `Date`, which has whole seconds: half of one is the mean of what is left out.
 */
function localEnd(until: Date, leaseMs: number | undefined, serverTime: number | null): number {
  const serverNow = serverTime === null ? wallTime() : serverTime + 500;
  return monotonic() + (leaseMs ?? Math.max(0, until.getTime() - serverNow));
}
