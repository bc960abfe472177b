import { type Decoded, type Element, ReceivedBase } from './element.ts';
import { checkNoOthers, LeaseLostError, QuaysideError, roundedMs } from './errors.ts';
import type { TakenLine } from './lines.ts';
import type { CallOptions, RollbackOptions } from './options.ts';
import { after, type CancelTimer, monotonic } from './time.ts';
import type { QueueWire, Receipt, SettleAction, SettleRequest } from './wire.ts';

/** Where an element is after a failed try. `unknown`: the response to the first attempt of a rollback was lost. */
export type FailedState = 'waiting' | 'dead-lettered' | 'unknown';

/** An element under a lease. If it is disposed of before it is settled, it is rolled back. */
export interface Reservation<T> extends Element<T>, AsyncDisposable {
  /** When the lease ends, by the server's clock. */
  readonly leaseUntil: Date;
  /** The token of this reservation, for a program that settles it in another way. */
  readonly token: string;
  /** Aborted when the reservation ends: `LeaseLostError`; in a worker also `StoppedError` or `TimeoutError`. */
  readonly signal: AbortSignal;
  /** Finishes the element. @throws LeaseLostError if the reservation is over */
  commit(options?: CallOptions): Promise<void>;
  /** Returns the element to the queue with one more failed try, or dead-letters it if that was the last one. */
  rollback(options?: RollbackOptions): Promise<FailedState>;
  /** Returns the element unprocessed to its place in the queue, without counting a try. */
  release(options?: CallOptions): Promise<void>;
  /** Moves the element to the dead-letter queue; without one it is rolled back, with the queue's retry delay. */
  bury(reason: string, options?: CallOptions): Promise<FailedState>;
  /** Renews the lease for `leaseMs`, by default the queue's lease. Returns its new end, by the server's clock. */
  extend(leaseMs?: number, options?: CallOptions): Promise<Date>;
}

/** What a reservation needs in addition to its element. */
export interface LeaseContext {
  readonly wire: QueueWire;
  readonly group: string | undefined;
  /** The requested length of the lease; undefined: the queue's. */
  readonly leaseMs: number | undefined;
  /** When the response was sent, by the clock of the lease, and when it arrived, by the monotonic clock. */
  readonly sentAt: number;
  readonly receivedAt: number;
}

/** An action that ends a reservation. */
type Settlement = Exclude<SettleAction, { action: 'extend' }>;

export class HeldReservation<T> extends ReceivedBase<T> implements Reservation<T> {
  declare leaseUntil: Date;
  readonly #wire: QueueWire;
  readonly #receipt: Receipt;
  #state: 'held' | 'settling' | 'settled' | 'lost' = 'held';
  /** Action of a settlement with an unknown outcome. If it is repeated, the first attempt may have been applied. */
  #unknown: string | undefined;
  /** End of the lease, by the monotonic clock of this process. */
  #endsAt: number;
  /** Created when the signal is first read: most reservations do not need it. */
  #controller: AbortController | null = null;
  #cancelTimer: CancelTimer | undefined;

  constructor(line: TakenLine, decoded: Decoded, context: LeaseContext) {
    super(line, decoded);
    const { wire, group, leaseMs, sentAt, receivedAt } = context;
    this.#wire = wire;
    this.#receipt = { id: line.id, token: line.lease ?? '', group };
    this.leaseUntil = new Date(line.leaseUntil ?? 0);
    this.#endsAt = receivedAt + (leaseMs ?? this.leaseUntil.getTime() - sentAt);
  }

  /** Whether the reservation is neither settled nor lost. */
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
    this.#controller ??= new AbortController();
    // At each read: while the program computes, no timer fires.
    this.#armTimer();
    return this.#controller.signal;
  }

  async commit(options?: CallOptions): Promise<void> {
    await this.#settle({ action: 'commit' }, options);
  }

  async rollback({ delayMs, reason, ...options }: RollbackOptions = {}): Promise<FailedState> {
    const delay = roundedMs('delayMs', delayMs);
    return this.#settle({ action: 'rollback', delay, reason }, options);
  }

  async release(options?: CallOptions): Promise<void> {
    await this.#settle({ action: 'release' }, options);
  }

  async bury(reason: string, options?: CallOptions): Promise<FailedState> {
    return this.#settle({ action: 'bury', reason }, options);
  }

  async extend(leaseMs?: number, options?: CallOptions): Promise<Date> {
    if (!this.isHeld) throw this.#endedError();
    const lease = roundedMs('leaseMs', leaseMs, 1);
    const { outcome, until } = await this.#wire.settle(
      { action: 'extend', receipt: this.#receipt, lease },
      options,
    );
    if (until === undefined) {
      // A concurrent settlement may have been first: then the reservation is settled, not lost.
      throw this.#state === 'held' ? this.#lose(outcome) : this.#endedError();
    }
    const end = new Date(until);
    // Only the server knows the length of the queue's lease.
    if (leaseMs === undefined) this.#endsAt += end.getTime() - this.leaseUntil.getTime();
    else this.#endsAt = monotonic() + leaseMs;
    this.leaseUntil = end;
    this.#armTimer();
    return this.leaseUntil;
  }

  /** Aborts the signal. The reservation stays valid. */
  abort(reason: Error): void {
    this.#controller ??= new AbortController();
    this.#controller.abort(reason);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#state !== 'held') return;
    try {
      await this.rollback();
    } catch (error) {
      // If the lease is lost, the element is already available to others, as the rollback intended.
      if (this.isHeld) throw error;
    }
  }

  /** @returns where the element is, if the settlement is a rollback or a burial */
  async #settle(
    settlement: Settlement,
    { signal, timeoutMs, ...others }: CallOptions = {},
  ): Promise<FailedState> {
    checkNoOthers(others);
    const { action } = settlement;
    if (this.#state !== 'held') throw this.#endedError();
    this.#state = 'settling';
    const item: SettleRequest = { ...settlement, receipt: this.#receipt };
    try {
      const { outcome, isRepeat } = await this.#wire.settle(item, { signal, timeoutMs });
      const isDone = outcome === 'done' || outcome === 'dead-lettered';
      // The outcome that a repeated settlement has if its first attempt was applied. After a commit or a burial, the
      // element is gone. After a rollback or a release, it may be anywhere.
      const returnsElement = action === 'rollback' || action === 'release';
      const mayBeOfFirst = returnsElement ? outcome !== 'token-required' : outcome === 'not-found';
      if (!isDone && !(mayBeOfFirst && (isRepeat || action === this.#unknown))) throw this.#lose(outcome);
      this.#state = 'settled';
      this.#cancelTimer?.();
      if (outcome === 'done') return 'waiting';
      return isDone || !returnsElement ? 'dead-lettered' : 'unknown';
    } catch (error) {
      // The caller may try the same or another settlement.
      if (this.#state === 'settling') {
        this.#state = 'held';
        // Other errors without an outcome may come from a call that was never sent, such as from the `auth` function.
        const isGivenUp = item.isSent && error === signal?.reason;
        if (isGivenUp || (error as QuaysideError | null)?.outcome === 'unknown') this.#unknown = action;
      }
      throw error;
    }
  }

  /** Aborts the signal when the lease ends, if the signal is used. */
  #armTimer(): void {
    this.#cancelTimer?.();
    if (!this.#controller || !this.isHeld) return;
    // A timer may be shorter than the lease. A commit in flight may still succeed: the server accepts it until another
    // consumer reserves the element.
    if (this.leaseLeftMs > 0) this.#cancelTimer = after(this.leaseLeftMs, () => this.#armTimer());
    else this.#controller.abort(this.#lostError());
  }

  #lose(outcome: string): QuaysideError {
    this.#state = 'lost';
    this.#cancelTimer?.();
    const error = this.#lostError(outcome);
    this.abort(error);
    return error;
  }

  #lostError(outcome = 'lease-lost'): LeaseLostError {
    return new LeaseLostError(`Element ${this.id} is not held (${outcome}).`, {
      details: { outcome },
    });
  }

  #endedError(): QuaysideError {
    if (this.#state === 'lost') return this.#lostError();
    return new QuaysideError('already-settled', `Element ${this.id} is already settled.`);
  }
}
