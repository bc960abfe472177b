import type { GroupName } from '../../model/element.ts';
import type { LeaseTokens } from '../../model/lease-token.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Clock } from '../../util/clock.ts';
import type { Ids } from './content.ts';
import type { Expirer } from './expire.ts';
import type { GroupUse, RegisteredQueue, Registry } from './registry.ts';
import type { Parameter, Row, Statement } from './statement.ts';
import type { Prober } from './watermark.ts';

/**
 * Returned for an item that another node changed at the same moment, or for which a statement had no room: it is placed
 * into the next batch again.
 */
export const RETRY = Symbol('retry');

/** A kind of items that share a statement, whatever their queues. */
export interface Operation<I, R> {
  readonly statement: Statement;
  /** Whether it changes anything: then a missing reply leaves it open whether it did. */
  readonly changes: boolean;
  /** Whether it stores elements: a full disk is then an error of its own. */
  readonly stores?: boolean;
  /** Whether its statement locks elements of streams: it may finish one, or restore a delivery of one. */
  readonly locksElements?: boolean;
  /** Two items with a key in common share no statement, which changes a row once, unless they are alike. */
  keysOf?(item: I): readonly string[];
  isAlike?(item: I, other: I): boolean;
  /** Whether each item has a statement of its own. */
  readonly isSingle?: boolean;
  /** By what an item is done again if another node changed its delivery at the same moment; not given: by this one. */
  readonly onRace?: Operation<I, R>;
  /**
   * The parameters of the statement for some items, and what reads its rows: one result per item.
   * @param leftMs until the first of their calls fails
   */
  prepare(items: readonly I[], leftMs: number): Prepared<R>;
}

export interface Prepared<R> {
  readonly values: readonly Parameter[];
  readonly read: (rows: readonly Row[]) => readonly (R | typeof RETRY)[];
  /** Of a call with a batch to itself: whether it is committed, by its rows. Not given: it is. */
  readonly mayCommit?: (rows: readonly Row[]) => boolean;
}

/** What a call asks for: most have one item, a settlement one per delivery. */
export interface Item<I, R> {
  readonly operation: Operation<I, R>;
  readonly item: I;
  readonly queues: readonly RegisteredQueue[];
}

/** What bounds a batch, and what a call stores. */
export interface CallSize {
  /** Sent. */
  readonly bytes: number;
  readonly rows: number;
  /** What may be returned by a statement that no other call shares, bytes. */
  readonly returned?: number;
  /** Groups for which it stores something. */
  readonly uses?: readonly GroupUse[];
  /** It has a batch to itself. */
  readonly isAlone?: boolean;
}

/**
 * A statement returns no more bytes than this, however many deliveries were asked for: a thousand bodies of a megabyte
 * would be two gigabytes of text on the wire. What calls of a batch may return by statements of their own is bounded by
 * as much.
 */
export const MAX_RETURNED_BYTES = 16 * 1024 * 1024;

/** What operations share. */
export interface Context {
  readonly ids: Ids;
  readonly tokens: LeaseTokens;
  readonly registry: Registry;
  readonly clock: DatabaseClock;
  readonly expirer: Expirer;
  readonly prober: Prober;
  /** How long a dedup key is remembered, ms, as SQL. */
  readonly dedupWindow: string;
  /** Milliseconds from an arbitrary start. */
  readonly monotonic: () => number;
  /** A queue gained eligible elements. */
  readonly onAffected: (queue: QueueKey) => void;
  /** Elements of a group became dead letters. @param to the name of the queue they went to */
  readonly onDied: (queue: QueueKey, group: GroupName, to: string, count: number) => void;
}

/**
 * The database's clock as last seen, carried on by this process's own. Only a hint, never behind what was
 * seen: whatever decides about an element asks the database.
 */
export class DatabaseClock {
  readonly #clock: Clock;
  #seen = Number.NEGATIVE_INFINITY;
  #seenAt = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  see(now: number): void {
    this.#seen = now;
    this.#seenAt = this.#clock.monotonic();
  }

  /** About what the database's clock shows now; -Infinity where nothing was seen yet. */
  get now(): number {
    return this.#seen + this.#clock.monotonic() - this.#seenAt;
  }

  /** Whether a moment that it showed is less than that long ago. If it was set back, nothing is known. */
  isWithin(moment: number, withinMs: number): boolean {
    const age = this.now - moment;
    return age >= 0 && age < withinMs;
  }
}
