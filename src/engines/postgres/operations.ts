import type { AffectedQueues } from '../../engine/affected-queues.ts';
import type { GroupName } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Clock } from '../../util/clock.ts';
import type { Ids } from './content.ts';
import type { Expirer } from './expire.ts';
import type { GroupUse, RegisteredQueue, Registry } from './registry.ts';
import type { Parameter, Row, Statement } from './statement.ts';
import type { Prober } from './watermark.ts';

/**
 * The result of an item that another node changed at the same moment, or that exceeded the bounds of its statement: it
 * is repeated in the next batch.
 */
export const RETRY = Symbol('retry');

/** Describes items that share a statement, whatever their queues. */
export interface Operation<I, R> {
  readonly statement: Statement;
  /** Whether it changes anything: then the outcome is unknown without a reply. */
  readonly changes: boolean;
  /** Whether it stores elements: a full disk is then `storage-full`. */
  readonly stores?: boolean;
  /** Whether its statement locks elements of streams, since it may finish one, or restore a delivery of one. */
  readonly locksElements?: boolean;
  /** For an operation whose calls run in their own batch: a statement that locks something before it. */
  readonly lock?: Statement;
  /** Items with a common key share no statement, since it can change a row only once, unless they are alike. */
  keysOf?(item: I): readonly string[];
  isAlike?(item: I, other: I): boolean;
  /** Whether each item needs its own statement. */
  readonly isSingle?: boolean;
  /** The operation for repeating an item with the result {@link RETRY}; not given: this one. */
  readonly retryWith?: Operation<I, R>;
  /**
   * Returns the parameters of the statement for some items, and a function that reads its rows.
   * @param leftMs time until the first of their calls times out
   */
  prepare(items: readonly I[], leftMs: number): Prepared<R>;
}

export interface Prepared<R> {
  readonly values: readonly Parameter[];
  readonly read: (rows: readonly Row[]) => readonly (R | typeof RETRY)[];
  /** For a call with its own batch: decides by the rows whether to commit. Not given: commits. */
  readonly mayCommit?: (rows: readonly Row[]) => boolean;
}

/** A unit of work of a call: most calls have one item, a settlement one per delivery. */
export interface Item<I, R> {
  readonly operation: Operation<I, R>;
  readonly item: I;
  readonly queues: readonly RegisteredQueue[];
}

/** The size of a call, for the limits of a batch and of groups. */
export interface CallSize {
  /** Bytes sent. */
  readonly bytes: number;
  readonly rows: number;
  /** How many bytes may be returned by a statement that no other call shares. */
  readonly returnedBytes?: number;
  /** The groups for which it stores something. */
  readonly uses?: readonly GroupUse[];
  /** The call runs in its own batch. */
  readonly isAlone?: boolean;
}

/**
 * The most bytes that a statement returns, however many deliveries were requested: a thousand bodies of a megabyte
 * would be two gigabytes of text on the wire. Also bounds what the calls of a batch may return together from statements
 * of their own.
 */
export const MAX_RETURNED_BYTES = 16 * 1024 * 1024;

/** Dependencies of the operations. */
export interface Context {
  readonly ids: Ids;
  readonly registry: Registry;
  readonly clock: DatabaseClock;
  readonly expirer: Expirer;
  readonly prober: Prober;
  /** How long dedup keys are remembered, ms, as an SQL expression. */
  readonly dedupWindow: string;
  readonly affected: AffectedQueues;
  /** Called when elements of a group became dead letters. @param to the name of the dead-letter queue */
  readonly onDeadLetters: (queue: QueueKey, group: GroupName, to: string, count: number) => void;
}

/**
 * An estimate of the database's clock: the last reading, advanced by this process's clock. It is a hint that never
 * falls behind that reading; statements that decide about elements use the database's clock itself.
 */
export class DatabaseClock {
  readonly #clock: Clock;
  #reading = Number.NEGATIVE_INFINITY;
  #readAt = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  update(now: number): void {
    this.#reading = now;
    this.#readAt = this.#clock.monotonic();
  }

  /** The estimated time, ms since 1970; -Infinity before the first reading. */
  get now(): number {
    return this.#reading + this.#clock.monotonic() - this.#readAt;
  }

  /** This process's monotonic clock, ms. */
  monotonic(): number {
    return this.#clock.monotonic();
  }

  /** Whether less than `withinMs` have passed since a past reading; false if the clock was set back since. */
  isWithin(moment: number, withinMs: number): boolean {
    const age = this.now - moment;
    return age >= 0 && age < withinMs;
  }
}
