import type {
  DeliveryRef,
  ExtendItem,
  ExtendOutcome,
  RemoveOutcome,
  RollbackItem,
  SettleOutcome,
  TakeOptions,
  TakeResult,
} from '../../engine/storage.ts';
import { NOT_REACHABLE, unavailable, unknownOutcome } from '../../engine/store-failures.ts';
import type { ElementId, NewElement } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { queueText } from './documents.ts';
import { Lost, Refused, refusedError } from './errors.ts';

export interface InsertArgs {
  readonly kind: 'insert';
  readonly queue: QueueKey;
  readonly elements: readonly NewElement[];
}

export interface TakeArgs extends TakeOptions {
  readonly kind: 'take';
  readonly queue: QueueKey;
}

/** What a settling call wants of one delivery. */
export type SettleItem =
  | (DeliveryRef & { readonly verb: 'commit' })
  | (RollbackItem & { readonly verb: 'rollback' })
  | (ExtendItem & { readonly verb: 'extend' })
  | (DeliveryRef & { readonly verb: 'remove' });

/** How it ended: the port's outcomes, with the end of a lease that was extended, ms. */
export type Settled = SettleOutcome | RemoveOutcome | { readonly until: number };

export interface SettleArgs {
  readonly kind: 'settle';
  readonly queue: QueueKey;
  readonly items: readonly SettleItem[];
}

/** A call that travels with no other: a question, or a change that concerns several queues or takes long. */
export interface LoneArgs<R> {
  readonly kind: 'question' | 'alone';
  readonly queues: readonly QueueKey[];
  readonly run: (call: Sending) => Promise<R>;
}

/** The side of a call that those see who carry it out. */
export interface Sending {
  /**
   * To be called right before something may change: from here on a lost answer leaves it open whether it did.
   * @throws Lost where the caller has been told meanwhile that nothing happened
   */
  begin(): void;
  /** Nothing changed after all. */
  undone(): void;
  /** A long call shows that it goes on: it has the time of a new one from here. */
  goOn(): void;
}

type Args = InsertArgs | TakeArgs | SettleArgs | LoneArgs<unknown>;

export interface CallEnd<R> {
  readonly answerBy: number;
  readonly bytes: number;
  readonly renew: () => number;
  readonly resolve: (result: R) => void;
  readonly reject: (error: Error) => void;
  /** The call was answered, or given up. */
  readonly onSettled: () => void;
}

/**
 * One call of the Storage port on its way.
 *
 * States: waiting -> under way -> settled; each of the first two -> settled where its time is over.
 */
export class Call<A extends Args = Args, R = unknown> implements Sending {
  readonly args: A;
  readonly queues: readonly string[];
  readonly bytes: number;
  /** The order in which calls were made. */
  readonly order: number;
  /** From here on a lost answer leaves it open whether something changed. */
  isSent = false;
  /** `monotonic` ms at which the caller must have its answer. */
  answerBy: number;
  isSettled = false;
  readonly #end: CallEnd<R>;

  constructor(args: A, order: number, end: CallEnd<R>) {
    this.args = args;
    this.order = order;
    this.queues = ('queues' in args ? args.queues : [args.queue]).map(queueText);
    this.bytes = end.bytes;
    this.answerBy = end.answerBy;
    this.#end = end;
  }

  begin(): void {
    if (this.isSettled) throw new Lost('The caller was told that nothing happened.');
    this.isSent = true;
  }

  undone(): void {
    this.isSent = false;
  }

  goOn(): void {
    this.answerBy = this.#end.renew();
  }

  succeed(result: R): void {
    if (this.#settle()) this.#end.resolve(result);
  }

  fail(error: Error): void {
    if (this.#settle()) this.#end.reject(error);
  }

  /** Fails as the port says, by what has been sent of the call. */
  failBy(fault: Lost | Refused): void {
    const { kind } = this.args;
    if (fault instanceof Refused) this.fail(refusedError(fault, kind === 'insert' || kind === 'alone'));
    else if (this.isSent) this.fail(unknownOutcome(fault));
    else this.fail(unavailable(NOT_REACHABLE, fault));
  }

  #settle(): boolean {
    if (this.isSettled) return false;
    this.isSettled = true;
    this.#end.onSettled();
    return true;
  }
}

export type InsertCall = Call<InsertArgs, ElementId[]>;
export type TakeCall = Call<TakeArgs, TakeResult>;
export type SettleCall = Call<SettleArgs, Settled[]>;

/** What a settled delivery is called by the port's `extend`. */
export function extendOutcome(settled: Settled): ExtendOutcome {
  if (typeof settled === 'object') return { outcome: 'done', until: settled.until };
  // An extension ends in no other way.
  return { outcome: settled as Exclude<SettleOutcome, 'done' | 'dead-lettered'> };
}
