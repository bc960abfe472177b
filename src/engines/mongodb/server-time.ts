import type { Db } from 'mongodb';
import type { Clock } from '../../model/clock.ts';
import { MAX_TIME_MS, type Settings } from './settings.ts';

/** Over so short a time two clocks run alike. */
const RECENT_MS = 1000;
/** An answer that shows an earlier time than this before the estimate is of a clock that was set back. */
const SET_BACK_MS = 500;

/**
 * The time of the primary, by which leases and maturities go. What decides about an element asks the server in
 * the same call; `estimate` is only a hint about when to look.
 */
export class ServerTime {
  readonly #db: Db;
  readonly #clock: Clock;
  readonly #given: Settings['givenTime'];
  #seen = Number.NEGATIVE_INFINITY;
  #seenAt = 0;

  constructor(db: Db, clock: Clock, given: Settings['givenTime']) {
    this.#db = db;
    this.#clock = clock;
    this.#given = given;
  }

  /** The time as an aggregation expression, evaluated by whoever runs it. */
  get expression(): '$$NOW' | { readonly $literal: Date } {
    return this.#given === null ? '$$NOW' : { $literal: new Date(this.#given.now()) };
  }

  /** Asks the server. @throws what the driver throws */
  async read(): Promise<Date> {
    if (this.#given !== null) return new Date(this.#given.now());
    const { localTime } = await this.#db.command({ hello: 1, maxTimeMS: MAX_TIME_MS });
    this.saw(localTime as Date);
    return localTime as Date;
  }

  /**
   * The server's time, not later than it is there: an element that matures by it can be taken at once. Asks the
   * server where no answer of the last second has told it. @throws what the driver throws
   */
  async recent(): Promise<Date> {
    const isRecent = this.#given === null && this.#clock.monotonic() - this.#seenAt < RECENT_MS;
    return isRecent && Number.isFinite(this.#seen) ? new Date(Math.floor(this.estimate)) : this.read();
  }

  /** What was seen may be another server's clock. */
  forget(): void {
    this.#seen = Number.NEGATIVE_INFINITY;
  }

  /** An answer held the server's time. */
  saw(now: Date): void {
    // Every answer is a little late, so the latest time is the nearest; unless somebody has set the clock.
    const behindMs = this.estimate - now.getTime();
    if (behindMs > 0 && behindMs < SET_BACK_MS) return;
    this.#seen = now.getTime();
    this.#seenAt = this.#clock.monotonic();
  }

  /** About what the server's clock shows, ms; -Infinity while nothing is known. */
  get estimate(): number {
    return this.#given?.now() ?? this.#seen + this.#clock.monotonic() - this.#seenAt;
  }
}
