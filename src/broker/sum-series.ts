import { COUNTER_NAMES, zeroCounters } from '../engine/stats.ts';
import { type QueueHistory, type QueueReading, QueueSeries, SeriesLimit } from './queue-series.ts';

/** The last hour of several queues together. An age has no sum. */
export type SumHistory = Omit<QueueHistory, 'oldestReadyAge'>;

const COLUMNS = ['size', 'schedSize', 'resvSize', 'insert', 'take', 'settle'] as const;

/**
 * The last hour of all queues of a namespace together: each reading of a queue changes it by what is new, since adding up 10,000
 * histories would take seconds.
 */
export class SumSeries {
  readonly #series: QueueSeries;
  readonly #counts = { ready: 0, scheduled: 0, reserved: 0 };
  #totals = zeroCounters();

  constructor(at: number) {
    this.#series = new QueueSeries(new SeriesLimit(1), at, false);
    this.#note(at);
  }

  /**
   * What is known of one queue has changed.
   * @param before null: nothing was known of it, and what its counters say happened at any time
   * @param reading null: the queue is gone
   */
  change(at: number, before: QueueReading | null, reading: QueueReading | null): void {
    const counts = this.#counts;
    counts.ready += (reading?.counts.ready ?? 0) - (before?.counts.ready ?? 0);
    counts.scheduled += (reading?.counts.scheduled ?? 0) - (before?.counts.scheduled ?? 0);
    counts.reserved += (reading?.counts.reserved ?? 0) - (before?.counts.reserved ?? 0);
    if (before !== null && reading !== null) {
      const totals = { ...this.#totals };
      // Counters start again with a queue that was deleted.
      for (const name of COUNTER_NAMES)
        totals[name] += Math.max(0, reading.totals[name] - before.totals[name]);
      this.#totals = totals;
    }
    this.#note(at);
  }

  #note(at: number): void {
    const counts = { ...this.#counts, nextMatureAt: null };
    this.#series.note(at, { counts, totals: this.#totals, oldestReadyMs: null }, null);
  }

  history(at: number): SumHistory {
    const { oldestReadyAge: _, ...columns } = this.#series.history(at);
    return columns;
  }
}

/** Several histories of the same hour as one; null where none of them knows anything. */
export function sumOfHistories(histories: readonly SumHistory[], length: number): SumHistory {
  const sum = (name: keyof SumHistory): (number | null)[] =>
    Array.from({ length }, (_, i) => {
      const known = histories.map((history) => history[name][i] ?? null).filter((value) => value !== null);
      return known.length === 0 ? null : known.reduce((total, value) => total + value, 0);
    });
  return Object.fromEntries(COLUMNS.map((name) => [name, sum(name)])) as unknown as SumHistory;
}
