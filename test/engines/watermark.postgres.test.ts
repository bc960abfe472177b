import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  CounterWatermark,
  type Place,
  type ProbeResult,
  Watermark,
} from '../../src/engines/postgres/watermark.ts';

const FRONT = { dueAt: Number.MIN_SAFE_INTEGER, seq: 0 };
const NOW = 1_000_000;
const MINUTE_MS = 60_000;

/** The result of a probe that stepped over many dead entries. */
function costly(first: Place | null, costMs = 10): ProbeResult {
  return { first, now: NOW, pendingMs: 0, costMs, pages: 1000 };
}

/** Runs the probe that the watermark requests at `nowMs`. */
function probe(watermark: Watermark, nowMs: number, found: ProbeResult | null): void {
  watermark.onTaken(1000);
  const from = watermark.probeFrom(nowMs);
  assert.notEqual(from, null, 'a probe is due');
  if (from !== null) watermark.startProbe(from, nowMs)(found);
}

describe('The low watermark of waiting deliveries', () => {
  it('stays at the front while reading from the front is cheap', () => {
    const watermark = new Watermark();
    probe(watermark, 0, {
      first: { dueAt: NOW - 50_000, seq: 7 },
      now: NOW,
      pendingMs: 0,
      costMs: 50,
      pages: 3,
    });
    assert.deepEqual(watermark.place, FRONT);
    assert.equal(watermark.isSet, false);
  });

  it('moves to the first waiting delivery if reading from the front is costly', () => {
    const watermark = new Watermark();
    probe(watermark, 0, costly({ dueAt: NOW - 50_000, seq: 7 }));
    assert.deepEqual(watermark.place, { dueAt: NOW - 50_000, seq: 7 });
  });

  it('stays a little behind the present, as other nodes may be storing deliveries', () => {
    for (const first of [{ dueAt: NOW, seq: 7 }, null]) {
      const watermark = new Watermark();
      probe(watermark, 0, costly(first));
      assert.ok(watermark.isSet && watermark.place.dueAt < NOW);
    }
  });

  it('stays behind the start of the oldest pending batch', () => {
    const watermark = new Watermark();
    probe(watermark, 0, { ...costly({ dueAt: NOW - 1000, seq: 7 }), pendingMs: 3000 });
    assert.ok(watermark.isSet && watermark.place.dueAt < NOW - 3000);
  });

  it('is an integer, since the server compares it with a column', () => {
    for (const first of [{ dueAt: NOW, seq: 7 }, null]) {
      const watermark = new Watermark();
      probe(watermark, 0, { ...costly(first), pendingMs: 0.4373 });
      assert.ok(watermark.isSet && Number.isInteger(watermark.place.dueAt), `${watermark.place.dueAt}`);
    }
  });

  it('is lowered immediately by a delivery that this node stores before it', () => {
    const watermark = new Watermark();
    probe(watermark, 0, costly({ dueAt: NOW - 50_000, seq: 7 }));
    watermark.lower(NOW - 40_000);
    assert.equal(watermark.place.dueAt, NOW - 50_000);
    watermark.lower(NOW - 90_000);
    assert.deepEqual(watermark.place, { dueAt: NOW - 90_000, seq: 0 });
    watermark.lower(Number.NEGATIVE_INFINITY);
    assert.deepEqual(watermark.place, FRONT);
  });

  it('is not raised by a probe over a delivery that was stored while it ran', () => {
    const watermark = new Watermark();
    watermark.onTaken(1000);
    const from = watermark.probeFrom(0);
    assert.deepEqual(from, FRONT);
    const done = watermark.startProbe(from ?? FRONT, 0);
    watermark.lower(NOW - 90_000);
    done(costly({ dueAt: NOW - 50_000, seq: 7 }));
    assert.deepEqual(watermark.place, { dueAt: NOW - 90_000, seq: 0 });
  });

  it('is at the front while a delivery of unknown maturity is being returned, and at its maturity afterwards', () => {
    const watermark = new Watermark();
    probe(watermark, 0, costly({ dueAt: NOW - 50_000, seq: 7 }));
    watermark.startReturn();
    assert.deepEqual(watermark.place, FRONT);
    watermark.endReturn();
    watermark.lower(NOW - 60_000);
    assert.deepEqual(watermark.place, { dueAt: NOW - 60_000, seq: 0 });
  });

  it('is not raised over a delivery that is being returned while a probe runs', () => {
    const watermark = new Watermark();
    watermark.onTaken(1000);
    const done = watermark.startProbe(watermark.probeFrom(0) ?? FRONT, 0);
    watermark.startReturn();
    done(costly({ dueAt: NOW - 50_000, seq: 7 }));
    assert.deepEqual(watermark.place, FRONT);
    watermark.endReturn();
    watermark.lower(NOW - 60_000);
    assert.deepEqual(watermark.place, { dueAt: NOW - 60_000, seq: 0 });
  });

  it('is at the front until the next probe if the outcome of a return is unknown', () => {
    const watermark = new Watermark();
    probe(watermark, 0, costly({ dueAt: NOW - 50_000, seq: 7 }));
    watermark.startReturn();
    watermark.onReturnFailed();
    assert.deepEqual(watermark.place, FRONT);
    probe(watermark, 1000, costly({ dueAt: NOW - 40_000, seq: 8 }));
    assert.deepEqual(watermark.place, { dueAt: NOW - 40_000, seq: 8 });
  });

  it('is probed from the front again after a pause of twenty times the cost of that probe', () => {
    const watermark = new Watermark();
    probe(watermark, 0, costly({ dueAt: NOW - 50_000, seq: 7 }, 100));
    watermark.onTaken(1000);
    assert.deepEqual(watermark.probeFrom(1000), { dueAt: NOW - 50_000, seq: 7 });
    assert.deepEqual(watermark.probeFrom(2000), FRONT);
    assert.equal(watermark.fullProbeInMs(1500), 500);
  });

  it('is not probed for a queue from which little is taken', () => {
    const watermark = new Watermark();
    watermark.onTaken(10);
    assert.equal(watermark.probeFrom(10_000), null);
  });

  it('is probed again only after a longer pause if a probe failed', () => {
    const watermark = new Watermark();
    probe(watermark, 0, null);
    watermark.onTaken(1000);
    assert.equal(watermark.probeFrom(300), null);
    assert.deepEqual(watermark.probeFrom(10_000), FRONT);
  });
});

describe('The low watermark of the counter rows', () => {
  it('is not moved by one read, since rows with smaller numbers may not be committed yet', () => {
    const watermark = new CounterWatermark();
    watermark.onRead(500, 0);
    assert.equal(watermark.from, 0);
    watermark.onRead(700, MINUTE_MS - 1);
    assert.equal(watermark.from, 0);
  });

  it('moves to the first row of a read once a read a minute later has found no earlier row', () => {
    const watermark = new CounterWatermark();
    watermark.onRead(500, 0);
    watermark.onRead(700, MINUTE_MS);
    assert.equal(watermark.from, 500);
    watermark.onRead(null, 2 * MINUTE_MS);
    assert.equal(watermark.from, 700);
  });

  it('moves only after a read that started a minute after the first one ended, if reads are slow', () => {
    const watermark = new CounterWatermark();
    watermark.onRead(500, 0);
    watermark.onRead(700, MINUTE_MS, MINUTE_MS - 1);
    assert.equal(watermark.from, 0);
    watermark.onRead(700, MINUTE_MS + 1, MINUTE_MS);
    assert.equal(watermark.from, 500);
  });

  it('waits another minute if a row with a smaller number was committed late', () => {
    const watermark = new CounterWatermark();
    watermark.onRead(500, 0);
    watermark.onRead(490, MINUTE_MS);
    assert.equal(watermark.from, 0);
    watermark.onRead(510, 2 * MINUTE_MS);
    assert.equal(watermark.from, 490);
  });

  it('stays if reads find no rows', () => {
    const watermark = new CounterWatermark();
    watermark.onRead(null, 0);
    watermark.onRead(null, 2 * MINUTE_MS);
    assert.equal(watermark.from, 0);
  });
});
