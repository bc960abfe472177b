import type { Counters, Stats } from '../engine/stats.ts';
import type { GroupName } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import {
  type QueueHistory,
  type QueueReading,
  QueueSeries,
  type RecentRates,
  type SeriesLimit,
} from './queue-series.ts';
import { type SumHistory, SumSeries } from './sum-series.ts';

/**
 * Which queues of a namespace changed since they were last read, by this node's own operations and by what other nodes
 * signal, and what was read of each in the last hour. `QueueWatch` reads them.
 */
export class Activity {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #limit: SeriesLimit;
  readonly #series = new Map<string, QueueSeries>();
  readonly #sum: SumSeries;
  /** Names, and when the first change since the last reading was noted. */
  readonly #changed = new Map<string, number>();
  #onChange: (() => void) | null = null;

  constructor(clock: Pick<Clock, 'monotonic'>, limit: SeriesLimit) {
    this.#clock = clock;
    this.#limit = limit;
    this.#sum = new SumSeries(clock.monotonic());
  }

  /** Something about a queue changed, or may have. On the path of every operation. */
  note(name: string): void {
    if (this.#changed.has(name)) return;
    this.#changed.set(name, this.#clock.monotonic());
    this.#onChange?.();
  }

  /** A queue is there that nobody knew before: it began with nothing in it. */
  noteNew(name: string): void {
    if (!this.#series.has(name)) {
      this.#series.set(name, new QueueSeries(this.#limit, this.#clock.monotonic(), true));
    }
    this.note(name);
  }

  /** Counters that note each queue they count for. */
  watched(stats: Stats): Stats {
    return new WatchedStats(stats, this);
  }

  /** Calls `onChange` when the first queue changed after each `takeChanged`; null: nobody follows. */
  follow(onChange: (() => void) | null): void {
    this.#onChange = onChange;
  }

  get hasChanged(): boolean {
    return this.#changed.size > 0;
  }

  /** Up to `max` queues that changed since they were last taken, and when; they stay noted. */
  changed(max: number): Map<string, number> {
    return new Map([...this.#changed].slice(0, max));
  }

  /** Up to `max` queues that changed, and when; they count as read from now on. */
  takeChanged(max: number): Map<string, number> {
    const taken = new Map<string, number>();
    for (const [name, at] of this.#changed) {
      if (taken.size === max) break;
      taken.set(name, at);
      this.#changed.delete(name);
    }
    return taken;
  }

  /** @param changedAt when the first of the changes was made that the reading has, if that is known */
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

  /** Null: the queue was never read. @param totals of the queue, read just now */
  rates(name: string, totals: Counters): RecentRates | null {
    const series = this.#series.get(name);
    if (series === undefined || series.last === null) return null;
    return series.rates(this.#clock.monotonic(), totals, this.#changed.get(name) ?? null);
  }

  /** The last hour of a queue. */
  history(name: string): QueueHistory {
    const now = this.#clock.monotonic();
    // One that was never read has a history of nulls.
    return (this.#series.get(name) ?? new QueueSeries(this.#limit, now, false)).history(now);
  }

  /** The last hour of all queues together. */
  sumHistory(): SumHistory {
    return this.#sum.history(this.#clock.monotonic());
  }

  /** Names that were read and are not in `known` any more; they are forgotten. */
  forgetUnknown(known: ReadonlySet<string>): string[] {
    const gone: string[] = [];
    for (const [name, series] of this.#series) {
      if (known.has(name)) continue;
      series.close();
      this.#sum.change(this.#clock.monotonic(), series.last, null);
      this.#series.delete(name);
      this.#changed.delete(name);
      gone.push(name);
    }
    return gone;
  }
}

class WatchedStats implements Stats {
  readonly #stats: Stats;
  readonly #activity: Activity;

  constructor(stats: Stats, activity: Activity) {
    this.#stats = stats;
    this.#activity = activity;
  }

  add(queue: QueueKey, group: GroupName, deltas: Partial<Counters>): void {
    this.#activity.note(queue.name);
    this.#stats.add(queue, group, deltas);
  }

  read(queue: QueueKey): Promise<ReadonlyMap<GroupName, Counters>> {
    return this.#stats.read(queue);
  }

  flush(): Promise<void> {
    return this.#stats.flush();
  }
}
