import type { Clock } from '../model/clock.ts';
import type { ErrorCode } from '../model/errors.ts';
import { QuaysideError } from '../model/errors.ts';

/** What a front end can ask of a queue, as metrics name it. */
export const OPERATIONS = [
  'insert',
  'get',
  'reserve',
  'commit',
  'rollback',
  'extend',
  'remove',
  'pause',
  'resume',
  'cancel',
] as const;
export type Operation = (typeof OPERATIONS)[number];

export type Outcome = 'ok' | ErrorCode;

/** What a take is: a reserve for so long, or a get. */
export function takeOperation(leaseMs: number | null): Operation {
  return leaseMs === null ? 'get' : 'reserve';
}

/** Upper bounds of the storage time histogram, in seconds. */
export const STORAGE_TIME_BUCKETS_S = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5] as const;

/** A histogram as plain numbers: `counts[i]` is the number of observations between two bounds, up to the i-th. */
export interface StorageTime {
  readonly counts: readonly number[];
  readonly sumS: number;
  readonly count: number;
}

/** What became of one kind of operation. */
interface Tally {
  ok: number;
  readonly refused: Map<ErrorCode, number>;
  readonly storage: { readonly counts: number[]; sumS: number; count: number };
}

/**
 * Counts what the broker did. Plain increments on the request path; the metrics page reads the numbers when
 * it is asked for.
 */
export class Meter {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #tallies = Object.fromEntries(OPERATIONS.map((name) => [name, emptyTally()])) as Record<
    Operation,
    Tally
  >;

  constructor(clock: Pick<Clock, 'monotonic'>) {
    this.#clock = clock;
  }

  count(operation: Operation, outcome: Outcome, times = 1): void {
    const tally = this.#tallies[operation];
    if (outcome === 'ok') tally.ok += times;
    else tally.refused.set(outcome, (tally.refused.get(outcome) ?? 0) + times);
  }

  /** Counts an operation that ended in an error. */
  countError(operation: Operation, error: unknown): void {
    this.count(operation, error instanceof QuaysideError ? error.code : 'internal');
  }

  /**
   * Waits for a storage verb, and then does `done`, if given, with what it answered. The verb's time and, for a failure,
   * its outcome are counted. One promise, not an async function: this is on every request's path.
   */
  observe<T>(operation: Operation, verb: Promise<T>): Promise<T>;
  observe<T, R>(operation: Operation, verb: Promise<T>, done: (answer: T) => R): Promise<R>;
  observe<T>(
    operation: Operation,
    verb: Promise<T>,
    done: (answer: T) => unknown = (answer) => answer,
  ): Promise<unknown> {
    const startedAt = this.#clock.monotonic();
    return verb.then(
      (answer) => {
        this.observeSince(operation, startedAt);
        return done(answer);
      },
      (error: unknown) => {
        this.observeSince(operation, startedAt);
        this.countError(operation, error);
        throw error;
      },
    );
  }

  /** The time of a storage verb that was asked at `startedAt`, of `monotonic`, and has answered. */
  observeSince(operation: Operation, startedAt: number): void {
    const seconds = (this.#clock.monotonic() - startedAt) / 1000;
    const { storage } = this.#tallies[operation];
    storage.sumS += seconds;
    storage.count += 1;
    let bucket = 0;
    while (seconds > (STORAGE_TIME_BUCKETS_S[bucket] ?? Number.POSITIVE_INFINITY)) bucket += 1;
    if (bucket < storage.counts.length) storage.counts[bucket] = (storage.counts[bucket] ?? 0) + 1;
  }

  operations(): ReadonlyMap<Operation, ReadonlyMap<Outcome, number>> {
    return new Map(
      OPERATIONS.map((operation) => {
        const { ok, refused } = this.#tallies[operation];
        return [operation, new Map<Outcome, number>([['ok', ok], ...refused])];
      }),
    );
  }

  /** Of the operations that asked an engine at least once. */
  storageTimes(): ReadonlyMap<Operation, StorageTime> {
    const asked = OPERATIONS.filter((operation) => this.#tallies[operation].storage.count > 0);
    return new Map(asked.map((operation) => [operation, this.#tallies[operation].storage]));
  }
}

function emptyTally(): Tally {
  const counts = STORAGE_TIME_BUCKETS_S.map(() => 0);
  return { ok: 0, refused: new Map(), storage: { counts, sumS: 0, count: 0 } };
}
