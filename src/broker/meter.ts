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

/** Upper bounds of the storage time histogram, in seconds. */
export const STORAGE_TIME_BUCKETS_S = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5] as const;

/** A histogram as plain numbers: `counts[i]` is the number of observations up to the i-th bound. */
export interface StorageTime {
  readonly counts: number[];
  sumS: number;
  count: number;
}

/**
 * Counts what the broker did. Plain increments on the request path; the metrics page reads the numbers when
 * it is asked for.
 */
export class Meter {
  readonly #operations = new Map<Operation, Map<Outcome, number>>(
    OPERATIONS.map((operation) => [operation, new Map<Outcome, number>([['ok', 0]])]),
  );
  readonly #storageTimes = new Map<string, StorageTime>();

  count(operation: Operation, outcome: Outcome, times = 1): void {
    const outcomes = this.#operations.get(operation);
    outcomes?.set(outcome, (outcomes.get(outcome) ?? 0) + times);
  }

  /** Waits for a storage verb; its time and, for a failure, its outcome are counted. */
  async observe<T>(operation: Operation, verb: Promise<T>): Promise<T> {
    const startedAt = performance.now();
    try {
      return await verb;
    } catch (error) {
      this.count(operation, error instanceof QuaysideError ? error.code : 'internal');
      throw error;
    } finally {
      this.#observeTime(operation, (performance.now() - startedAt) / 1000);
    }
  }

  operations(): ReadonlyMap<Operation, ReadonlyMap<Outcome, number>> {
    return this.#operations;
  }

  storageTimes(): ReadonlyMap<string, StorageTime> {
    return this.#storageTimes;
  }

  #observeTime(operation: Operation, seconds: number): void {
    let time = this.#storageTimes.get(operation);
    if (time === undefined) {
      time = { counts: STORAGE_TIME_BUCKETS_S.map(() => 0), sumS: 0, count: 0 };
      this.#storageTimes.set(operation, time);
    }
    time.sumS += seconds;
    time.count += 1;
    for (const [i, bound] of STORAGE_TIME_BUCKETS_S.entries()) {
      if (seconds <= bound) {
        time.counts[i] = (time.counts[i] ?? 0) + 1;
        break;
      }
    }
  }
}
