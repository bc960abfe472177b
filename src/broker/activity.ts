import { COUNTER_NAMES, type Counters, zeroCounters } from '../engine/stats.ts';
import { type GroupCounts, NO_COUNTS } from '../engine/storage.ts';
import type { QueueHistory, Rates, RecentRates } from '../model/records.ts';
import type { Clock } from '../util/clock.ts';

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

/** The counts and counters of a queue, read at one moment. */
export interface QueueReading {
  readonly counts: GroupCounts;
  /** The sum over all groups. */
  readonly totals: Counters;
  /** How long the oldest ready element has been ready; null if no element is ready. */
  readonly oldestReadyMs: number | null;
}

/** The columns of a history. */
type HistoryColumns = Omit<QueueHistory, 'from' | 'intervalMs'>;

/** The length of a history interval, and the number of intervals. */
export const INTERVAL_MS = 60_000;
const INTERVALS = 60;

const WINDOWS = { '1m': 60_000, '5m': 300_000 } as const;
export const NO_RATES: Rates = Object.freeze({ insert: 0, take: 0, settle: 0 });

/** Moments are stored in tenths of a second, so that 32 bits hold 13 years. */
const UNIT_MS = 100;
/** Samples are 10 s apart, and as many as rates over five minutes need. */
const SPACING = 10_000 / UNIT_MS;
const SAMPLES = 33;
/** Values per sample: `at`, and the inserts, takes and settlements counted until then. */
const SAMPLE_LENGTH = 4;
/** Values per minute: those of a sample; ready, scheduled, reserved elements; age of the oldest ready one, seconds. */
const SLOT_LENGTH = 8;
const NO_AGE = 2 ** 32 - 1;
const HOUR_MS = INTERVAL_MS * INTERVALS;
const MINUTE = INTERVAL_MS / UNIT_MS;

/** How long ago the first interval of a history began, ms. @param at now, by the monotonic clock */
export function historyLengthMs(at: number): number {
  return (INTERVALS - 1) * INTERVAL_MS + ((at + 2 * HOUR_MS) % INTERVAL_MS);
}

/** Bounds the queues with samples on a node: each needs 2.5 KB while it changes, and for an hour afterwards. */
export class SeriesLimit {
  #left: number;

  constructor(max = 10_000) {
    this.#left = max;
  }

  take(): boolean {
    if (this.#left === 0) return false;
    this.#left -= 1;
    return true;
  }

  release(): void {
    this.#left += 1;
  }
}

/** Samples in two rings of 32-bit numbers. Counters are stored modulo 2^32: only their differences are used. */
interface Rings {
  readonly samples: Uint32Array;
  /** How many samples were ever stored. */
  count: number;
  /** The last reading of each minute. */
  readonly slots: Uint32Array;
}

/**
 * The samples of one queue in the last hour. An unchanged queue keeps only its last reading. A changing queue has a
 * ring of samples, for rates, and a ring of minutes, for charts. All times are monotonic.
 */
export class QueueSeries {
  readonly #limit: SeriesLimit;
  #rings: Rings | null = null;
  /** The last reading; null: none yet. */
  last: QueueReading | null;
  #lastAt: number;
  /** When `last` got its present value. */
  #sameSince: number;
  /** The minute in which the queue was created; null: it existed before. */
  readonly #firstMinute: number | null;

  /** @param isNew whether the queue was created, empty, at `at` */
  constructor(limit: SeriesLimit, at: number, isNew: boolean) {
    this.#limit = limit;
    this.last = isNew ? NOTHING : null;
    this.#lastAt = at;
    this.#sameSince = isNew ? at - HOUR_MS : at;
    this.#firstMinute = isNew ? minuteOf(toUnits(at)) : null;
  }

  get wasRead(): boolean {
    return this.last !== null && this.last !== NOTHING;
  }

  /** @param changedAt when the first change since the last reading was made; null if unknown */
  note(at: number, reading: QueueReading, changedAt: number | null): void {
    const before = this.last;
    const isSame = before !== null && isEqual(before, reading);
    if (!isSame && before !== null) {
      this.#rings ??= this.#allocate(before);
      if (changedAt !== null && changedAt > this.#lastAt) this.#store(changedAt, before);
    }
    if (before === null) this.#sameSince = at;
    this.last = reading;
    this.#lastAt = at;
    if (this.#rings === null) return;
    if (isSame && at - this.#sameSince > HOUR_MS) this.close();
    else this.#store(at, reading);
    if (!isSame) this.#sameSince = at;
  }

  /** Frees the rings: the queue is gone, or has not changed for an hour. */
  close(): void {
    if (this.#rings === null) return;
    this.#rings = null;
    this.#limit.release();
  }

  /** @param totals counters, read just now. @param changedAt as in `note` */
  rates(at: number, totals: Counters, changedAt: number | null): RecentRates {
    const now = pointOf(toUnits(at), totals);
    const points = this.#points(changedAt);
    return { '1m': ratesOver(WINDOWS['1m'], points, now), '5m': ratesOver(WINDOWS['5m'], points, now) };
  }

  /** The last {@link INTERVALS} minutes of the monotonic clock; the last one contains `at` and is incomplete. */
  history(at: number): HistoryColumns {
    const now = minuteOf(toUnits(at));
    const rows = Array.from({ length: INTERVALS + 1 }, (_, i) => this.#rowOf(now - INTERVALS + i, at));
    const shown = rows.slice(1);
    const column = (read: (row: MinuteOfQueue) => number | null) =>
      shown.map((row) => (row === null ? null : read(row)));
    const rate = (name: keyof Rates) =>
      shown.map((row, i) => {
        const earlier = rows[i] ?? this.#beginOf(now - INTERVALS + 1 + i);
        return row === null || earlier === null ? null : ratesBetween(earlier, row)[name];
      });
    return {
      size: column(({ size }) => size),
      schedSize: column(({ sched }) => sched),
      resvSize: column(({ resv }) => resv),
      oldestReadyAge: column(({ age }) => (age === NO_AGE ? null : age)),
      insert: rate('insert'),
      take: rate('take'),
      settle: rate('settle'),
    };
  }

  #allocate(before: QueueReading): Rings | null {
    if (!this.#limit.take()) return null;
    this.#rings = {
      samples: new Uint32Array(SAMPLES * SAMPLE_LENGTH),
      count: 0,
      slots: new Uint32Array((INTERVALS + 1) * SLOT_LENGTH),
    };
    const since = Math.max(this.#sameSince, this.#lastAt - HOUR_MS);
    this.#store(since, before);
    if (since < this.#lastAt) this.#store(this.#lastAt, before);
    return this.#rings;
  }

  #store(atMs: number, { counts, totals, oldestReadyMs }: QueueReading): void {
    const rings = this.#rings;
    if (rings === null) return;
    const at = toUnits(atMs);
    const values = [at, totals.put, totals.get + totals.reserve, totals.commit + totals.rollback];
    const { samples, count } = rings;
    // Overwrite the newest sample until it is `SPACING` later than the one before it.
    const earlier = count < 2 ? null : samples[sampleAt(count - 2)];
    const isClose = earlier !== null && earlier !== undefined && at - earlier < SPACING;
    if (!isClose) rings.count += 1;
    samples.set(values, sampleAt(rings.count - 1));
    const age = oldestReadyMs === null ? NO_AGE : Math.round(oldestReadyMs / 1000);
    rings.slots.set([...values, counts.ready, counts.scheduled, counts.reserved, age], slotOf(minuteOf(at)));
  }

  /** The known values of the counters, newest first. */
  #points(changedAt: number | null): Point[] {
    const rings = this.#rings;
    const last = this.last;
    if (last === null) return [];
    const points: Point[] = [];
    if (changedAt !== null && changedAt > this.#lastAt) points.push(pointOf(toUnits(changedAt), last.totals));
    if (rings === null) {
      const same = [this.#lastAt, this.#sameSince].map((at) => pointOf(toUnits(at), last.totals));
      return [...points, ...same];
    }
    for (let i = rings.count - 1; i >= Math.max(0, rings.count - SAMPLES); i -= 1) {
      const at = sampleAt(i);
      const [time = 0, insert = 0, take = 0, settle = 0] = rings.samples.subarray(at, at + SAMPLE_LENGTH);
      points.push({ at: time, insert, take, settle });
    }
    return points;
  }

  /** Zero counters if the queue was created in that minute, else null. */
  #beginOf(minute: number): Point | null {
    return minute === this.#firstMinute ? pointOf(minute * MINUTE, NOTHING.totals) : null;
  }

  /** The last reading in a minute. If there is none: the one before, which was valid until the end of the minute. */
  #rowOf(minute: number, now: number): MinuteOfQueue | null {
    const last = this.last;
    if (last === null || (this.#firstMinute !== null && minute < this.#firstMinute)) return null;
    const end = Math.min((minute + 1) * MINUTE, toUnits(now));
    if (this.#rings === null || end > toUnits(this.#lastAt) + MINUTE) {
      return end > toUnits(Math.min(this.#sameSince, this.#lastAt)) ? { ...rowOf(last), at: end } : null;
    }
    const { slots } = this.#rings;
    for (let back = 0; back <= INTERVALS; back += 1) {
      const slot = slots.subarray(slotOf(minute - back), slotOf(minute - back) + SLOT_LENGTH);
      const [at = 0, insert = 0, take = 0, settle = 0, size = 0, sched = 0, resv = 0, age = NO_AGE] = slot;
      if (at === 0 || minuteOf(at) !== minute - back) continue;
      return { at: back === 0 ? at : end, insert, take, settle, size, sched, resv, age };
    }
    return null;
  }
}

interface Point extends Rates {
  /** In units of {@link UNIT_MS}. */
  readonly at: number;
}

interface MinuteOfQueue extends Point {
  readonly size: number;
  readonly sched: number;
  readonly resv: number;
  /** Seconds, or {@link NO_AGE}. */
  readonly age: number;
}

const NOTHING: QueueReading = {
  counts: NO_COUNTS,
  totals: { put: 0, get: 0, reserve: 0, commit: 0, rollback: 0, deadletter: 0 },
  oldestReadyMs: null,
};

/** Adds two hours to keep values positive: the history of a new queue begins up to an hour before the clock's start. */
function toUnits(ms: number): number {
  return Math.floor((ms + 2 * HOUR_MS) / UNIT_MS);
}

function sampleAt(index: number): number {
  return (index % SAMPLES) * SAMPLE_LENGTH;
}

function minuteOf(at: number): number {
  return Math.floor(at / MINUTE);
}

function slotOf(minute: number): number {
  return (minute % (INTERVALS + 1)) * SLOT_LENGTH;
}

function pointOf(at: number, { put, get, reserve, commit, rollback }: Counters): Point {
  return { at, insert: put, take: get + reserve, settle: commit + rollback };
}

function rowOf({
  counts: { ready, scheduled, reserved },
  totals,
  oldestReadyMs,
}: QueueReading): MinuteOfQueue {
  const age = oldestReadyMs === null ? NO_AGE : Math.round(oldestReadyMs / 1000);
  return { ...pointOf(0, totals), size: ready, sched: scheduled, resv: reserved, age };
}

/** The counters at a moment between two points, interpolated linearly. */
function between(earlier: Point, later: Point, at: number): Point {
  const part = later.at === earlier.at ? 0 : (at - earlier.at) / (later.at - earlier.at);
  return {
    at,
    insert: earlier.insert + part * grown(earlier.insert, later.insert),
    take: earlier.take + part * grown(earlier.take, later.take),
    settle: earlier.settle + part * grown(earlier.settle, later.settle),
  };
}

/** @param points known values, newest first */
function ratesOver(windowMs: number, points: readonly Point[], now: Point): Rates {
  const from = now.at - windowMs / UNIT_MS;
  let later = now;
  for (const earlier of points) {
    if (earlier.at <= from) return ratesBetween(between(earlier, later, from), now);
    later = earlier;
  }
  return ratesBetween(later, now);
}

function ratesBetween(earlier: Point, now: Point): Rates {
  const ms = (now.at - earlier.at) * UNIT_MS;
  if (ms < 1000) return NO_RATES;
  return {
    insert: perSecond(grown(earlier.insert, now.insert), ms),
    take: perSecond(grown(earlier.take, now.take), ms),
    settle: perSecond(grown(earlier.settle, now.settle), ms),
  };
}

/** The difference of two counters modulo 2^32. It is negative if takes were undone, or the queue was dropped. */
function grown(before: number, now: number): number {
  const whole = Math.floor(before);
  return ((now - whole) | 0) - (before - whole);
}

function perSecond(count: number, ms: number): number {
  return Math.max(0, Math.round((count / ms) * 1e6) / 1e3);
}

function isEqual(a: QueueReading, b: QueueReading): boolean {
  return (
    a.counts.ready === b.counts.ready &&
    a.counts.scheduled === b.counts.scheduled &&
    a.counts.reserved === b.counts.reserved &&
    a.counts.nextMatureAt === b.counts.nextMatureAt &&
    Object.entries(a.totals).every(([name, value]) => b.totals[name as keyof Counters] === value)
  );
}

/** The last hour of several queues together. Ages cannot be added. */
type SumColumns = Omit<HistoryColumns, 'oldestReadyAge'>;

const COLUMNS = ['size', 'schedSize', 'resvSize', 'insert', 'take', 'settle'] as const;

/**
 * The last hour of all queues of a namespace together. Each reading of a queue updates the sums by its difference:
 * adding up 10,000 histories would take seconds.
 */
class SumSeries {
  readonly #series: QueueSeries;
  readonly #counts = { ready: 0, scheduled: 0, reserved: 0 };
  #totals = zeroCounters();

  constructor(at: number) {
    this.#series = new QueueSeries(new SeriesLimit(1), at, false);
    this.#note(at);
  }

  /**
   * Updates the sums with a new reading of one queue.
   * @param before null: the queue was not read before. Its counters are not added, as their time is unknown
   * @param reading null: the queue is gone
   */
  change(at: number, before: QueueReading | null, reading: QueueReading | null): void {
    const counts = this.#counts;
    counts.ready += (reading?.counts.ready ?? 0) - (before?.counts.ready ?? 0);
    counts.scheduled += (reading?.counts.scheduled ?? 0) - (before?.counts.scheduled ?? 0);
    counts.reserved += (reading?.counts.reserved ?? 0) - (before?.counts.reserved ?? 0);
    if (before !== null && reading !== null) {
      const totals = { ...this.#totals };
      // Counters restart at 0 if a queue was deleted and created again.
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

  history(at: number): SumColumns {
    const { oldestReadyAge: _, ...columns } = this.#series.history(at);
    return columns;
  }
}

/** Adds several histories of the same hour; a value is null if it is null in all of them. */
export function sumOfHistories(histories: readonly SumColumns[]): SumColumns {
  const sum = (name: keyof SumColumns): (number | null)[] =>
    Array.from({ length: INTERVALS }, (_, i) => {
      const known = histories.map((history) => history[name][i] ?? null).filter((value) => value !== null);
      return known.length === 0 ? null : known.reduce((total, value) => total + value, 0);
    });
  return Object.fromEntries(COLUMNS.map((name) => [name, sum(name)])) as unknown as SumColumns;
}
