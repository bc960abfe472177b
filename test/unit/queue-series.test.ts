import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type QueueReading, QueueSeries, SeriesLimit } from '../../src/broker/activity.ts';
import { zeroCounters } from '../../src/engine/stats.ts';

const SECOND = 1_000;
const MINUTE = 60 * SECOND;

function reading(put: number, get = 0, more: Partial<QueueReading> = {}): QueueReading {
  return {
    counts: { ready: put - get, scheduled: 0, reserved: 0, nextMatureAt: null },
    totals: { ...zeroCounters(), put, get },
    oldestReadyMs: null,
    ...more,
  };
}

/** A series with a reading every ten seconds until `end`; `putBy` returns the number of inserts until then. */
function seriesWith(putBy: (at: number) => number, end: number, isNew = false): QueueSeries {
  const series = new QueueSeries(new SeriesLimit(), 0, isNew);
  for (let at = 0; at <= end; at += 10 * SECOND) series.note(at, reading(putBy(at)), null);
  return series;
}

describe('The series of a queue', () => {
  it('returns the rates of the last minute and of the last five minutes', () => {
    // 2 a second for four minutes, then 10 a second.
    const putBy = (at: number): number => (at <= 4 * MINUTE ? at / 500 : 480 + (at - 4 * MINUTE) / 100);
    const end = 5 * MINUTE;
    const rates = seriesWith(putBy, end).rates(end, reading(putBy(end)).totals, null);
    assert.deepEqual(rates['1m'], { insert: 10, take: 0, settle: 0 });
    assert.deepEqual(rates['5m'], { insert: (4 * 120 + 600) / 300, take: 0, settle: 0 });
  });

  it('counts pops and reserves as takes, and commits and rollbacks as settlements', () => {
    const series = new QueueSeries(new SeriesLimit(), 0, true);
    const totals = { put: 0, get: 6, reserve: 12, commit: 18, rollback: 24, deadletter: 1 };
    assert.deepEqual(series.rates(MINUTE, totals, 0)['1m'], { insert: 0, take: 0.3, settle: 0.7 });
  });

  it('treats a new queue as empty before, so that a burst is not extrapolated to a rate', () => {
    const series = new QueueSeries(new SeriesLimit(), 0, true);
    series.note(SECOND, reading(60), 0);
    assert.equal(series.rates(2 * SECOND, reading(60).totals, null)['1m'].insert, 1);
  });

  it('computes the rate over the observed time if that is shorter than the window', () => {
    const series = seriesWith((at) => at / 100, 20 * SECOND);
    assert.equal(series.rates(20 * SECOND, reading(200).totals, null)['1m'].insert, 10);
  });

  it('attributes a change after an idle period to the time when it was noted', () => {
    const series = new QueueSeries(new SeriesLimit(), 0, false);
    series.note(0, reading(5), null);
    const at = 30 * MINUTE;
    assert.equal(series.rates(at, reading(65).totals, at - SECOND)['1m'].insert, 1);
    series.note(at, reading(65), at - SECOND);
    assert.equal(series.rates(at, reading(65).totals, null)['1m'].insert, 1);
    assert.equal(series.rates(at + 2 * MINUTE, reading(65).totals, null)['1m'].insert, 0);
  });

  it('has no negative rate after takes were undone, and continues past 2^32', () => {
    const series = new QueueSeries(new SeriesLimit(), 0, false);
    series.note(0, reading(2 ** 32 - 30, 100), null);
    series.note(10 * SECOND, reading(2 ** 32 + 20, 90), null);
    const { insert, take } = series.rates(10 * SECOND, reading(2 ** 32 + 20, 90).totals, null)['1m'];
    assert.deepEqual([insert, take], [5, 0]);
  });

  it('returns the last hour by minute, with null before the first reading', () => {
    const start = 100 * MINUTE;
    const series = new QueueSeries(new SeriesLimit(), start, false);
    for (let second = 0; second <= 300; second += 10) {
      const put = second <= 180 ? second * 2 : 360;
      const more = { oldestReadyMs: second === 0 ? null : 4 * SECOND };
      series.note(start + second * SECOND, reading(put, 0, more), null);
    }
    const history = series.history(start + 10 * MINUTE + SECOND);
    for (const column of Object.values(history)) assert.equal(column.length, 60);
    assert.deepEqual(history.size.slice(48, 51), [null, 100, 220]);
    assert.deepEqual(history.size.slice(51), [340, 360, 360, 360, 360, 360, 360, 360, 360]);
    assert.deepEqual(
      history.insert.slice(49, 54),
      [null, 2, 2, 20 / 60, 0].map((n) => n && Math.round(n * 1e3) / 1e3),
    );
    assert.equal(history.oldestReadyAge.at(-1), 4);
    assert.equal(history.oldestReadyAge[48], null);
  });

  it('of a new queue starts with its first minute, and is null before', () => {
    const start = 100 * MINUTE + SECOND;
    const series = new QueueSeries(new SeriesLimit(), start, true);
    const early = series.history(start + SECOND);
    assert.deepEqual([early.size.at(-2), early.size.at(-1)], [null, 0]);
    for (let second = 1; second <= 301; second += 10) {
      series.note(start + second * SECOND, reading(60, 12), null);
      const history = series.history(start + second * SECOND);
      const first = 59 - Math.floor((second + 1) / 60);
      assert.deepEqual(history.size.slice(first - 1, first + 1), [null, 48], `${second} s`);
      assert.deepEqual([history.insert[first - 1], history.take[first - 1]], [null, null], `${second} s`);
      if (second < 60) continue;
      const rates = [history.insert[first] ?? 0, history.take[first] ?? 0].map((rate) =>
        Math.round(rate * 50),
      );
      assert.deepEqual(
        rates,
        [60, 12].map((count) => Math.round((count * 50) / 52)),
        `${second} s`,
      );
      assert.equal(history.insert[first + 1], 0, `${second} s`);
    }
  });

  it('of an idle queue repeats its values since the first reading', () => {
    const series = new QueueSeries(new SeriesLimit(), 0, false);
    series.note(200 * MINUTE, reading(7), null);
    series.note(230 * MINUTE, reading(7), null);
    const { size, insert } = series.history(230 * MINUTE + SECOND);
    assert.deepEqual([size[28], size[29], size[59], insert[59]], [null, 7, 7, 0]);
  });

  it('keeps samples of at most as many queues as the limit allows, and drops those of a queue that is idle for an hour', () => {
    const limit = new SeriesLimit(1);
    const [first, second] = [new QueueSeries(limit, 0, true), new QueueSeries(limit, 0, true)];
    first.note(SECOND, reading(1), null);
    assert.equal(limit.take(), false);
    second.note(SECOND, reading(60), null);
    assert.equal(second.last?.totals.put, 60, 'it still has its last reading');
    first.note(2 * 60 * MINUTE, reading(1), null);
    assert.equal(limit.take(), true);
  });
});
