import type { Counters } from '../engine/stats.ts';
import type { RecentRates } from '../model/records.ts';
import type { Clock } from '../util/clock.ts';
import {
  type HistoryColumns,
  type QueueReading,
  QueueSeries,
  type SeriesLimit,
  type SumColumns,
  SumSeries,
} from './queue-series.ts';

/**
 * Tracks which queues of a namespace changed since they were last read, by an operation of this node or a signal from
 * another one, and keeps what was read in the last hour. `QueueWatch` reads.
 */
export class Activity {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #limit: SeriesLimit;
  readonly #series = new Map<string, QueueSeries>();
  readonly #sum: SumSeries;
  /** Changed queues: name to the monotonic time of the first change since the last reading. */
  readonly #changed = new Map<string, number>();
  #onChange: (() => void) | null = null;

  constructor(clock: Pick<Clock, 'monotonic'>, limit: SeriesLimit) {
    this.#clock = clock;
    this.#limit = limit;
    this.#sum = new SumSeries(clock.monotonic());
  }

  /** Notes that a queue changed, or may have changed. Called by every operation, so it must be cheap. */
  note(name: string): void {
    if (this.#changed.has(name)) return;
    this.#changed.set(name, this.#clock.monotonic());
    this.#onChange?.();
  }

  /** Notes that a queue was created, so that its history starts as empty, not as unknown. */
  noteNew(name: string): void {
    if (!this.#series.has(name)) {
      this.#series.set(name, new QueueSeries(this.#limit, this.#clock.monotonic(), true));
    }
    this.note(name);
  }

  /**
   * Forgets a queue that was dropped, or whose creation failed. If it was read before, it counts as changed, so that
   * followers are notified.
   */
  forget(name: string): void {
    if (this.#series.get(name)?.wasRead === true) this.note(name);
    else {
      this.#series.delete(name);
      this.#changed.delete(name);
    }
  }

  /** Sets the callback for the first change of each queue since its last reading; null: there is no follower. */
  follow(onChange: (() => void) | null): void {
    this.#onChange = onChange;
  }

  /** Whether there are queues to be read. */
  get hasChanged(): boolean {
    return this.#changed.size > 0;
  }

  /** Up to `max` changed queues with the time of their first change. They still count as changed. */
  changed(max: number): Map<string, number> {
    const first = new Map<string, number>();
    for (const [name, at] of this.#changed) {
      if (first.size === max) break;
      first.set(name, at);
    }
    return first;
  }

  /** Removes and returns up to `max` changed queues with the time of their first change. The caller reads them. */
  takeChanged(max: number): Map<string, number> {
    const taken = this.changed(max);
    for (const name of taken.keys()) this.#changed.delete(name);
    return taken;
  }

  /** @param changedAt when the first change since the last reading was made; null if unknown */
  noteReading(name: string, reading: QueueReading, changedAt: number | null): void {
    let series = this.#series.get(name);
    const now = this.#clock.monotonic();
    if (series === undefined) {
      series = new QueueSeries(this.#limit, now, false);
      this.#series.set(name, series);
    }
    this.#sum.change(now, series.last, reading);
    series.note(now, reading, changedAt);
  }

  /** The last reading of a queue; null: none yet. */
  last(name: string): QueueReading | null {
    return this.#series.get(name)?.last ?? null;
  }

  /** Rates of a queue; null if it was never read. @param totals counters of the queue, read just now */
  rates(name: string, totals: Counters): RecentRates | null {
    const series = this.#series.get(name);
    if (series === undefined || series.last === null) return null;
    return series.rates(this.#clock.monotonic(), totals, this.#changed.get(name) ?? null);
  }

  /** The last hour of a queue. */
  history(name: string): HistoryColumns {
    const now = this.#clock.monotonic();
    // A queue that was never read has a history of nulls.
    return (this.#series.get(name) ?? new QueueSeries(this.#limit, now, false)).history(now);
  }

  /** The last hour of all queues together. */
  sumHistory(): SumColumns {
    return this.#sum.history(this.#clock.monotonic());
  }

  /** Forgets the queues, or those of these names, that are no longer in `known`. Returns their names. */
  forgetUnknown(known: ReadonlySet<string>, names: Iterable<string> = this.#series.keys()): string[] {
    const gone: string[] = [];
    for (const name of names) {
      const series = this.#series.get(name);
      if (series === undefined || known.has(name)) continue;
      series.close();
      this.#sum.change(this.#clock.monotonic(), series.last, null);
      this.#series.delete(name);
      this.#changed.delete(name);
      gone.push(name);
    }
    return gone;
  }
}
