import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Mark, type Place, type Probed } from '../../src/engines/postgres/mark.ts';

const FRONT = { dueAt: Number.MIN_SAFE_INTEGER, seq: 0 };
const NOW = 1_000_000;

/** What a look finds that has had to step over very much. */
function costly(first: Place | null, costMs = 10): Probed {
  return { first, now: NOW, costMs, pages: 1000 };
}

/** Probes from where the mark wants it at `nowMs`. */
function probe(mark: Mark, nowMs: number, found: Probed | null): void {
  mark.took(1000);
  const from = mark.probeFrom(nowMs);
  assert.notEqual(from, null, 'a probe is due');
  if (from !== null) mark.probing(from, nowMs)(found);
}

describe('The mark before which nothing waits', () => {
  it('stays at the front while looking from there is cheap', () => {
    const mark = new Mark();
    probe(mark, 0, { first: { dueAt: NOW - 5000, seq: 7 }, now: NOW, costMs: 50, pages: 3 });
    assert.deepEqual(mark.place, FRONT);
    assert.equal(mark.isSet, false);
  });

  it('moves to the first that waits where looking from the front is costly', () => {
    const mark = new Mark();
    probe(mark, 0, costly({ dueAt: NOW - 5000, seq: 7 }));
    assert.deepEqual(mark.place, { dueAt: NOW - 5000, seq: 7 });
  });

  it('stays a little behind the present, for what other nodes are just storing', () => {
    for (const first of [{ dueAt: NOW, seq: 7 }, null]) {
      const mark = new Mark();
      probe(mark, 0, costly(first));
      assert.ok(mark.isSet && mark.place.dueAt < NOW);
    }
  });

  it('is lowered at once by what this node stores before it', () => {
    const mark = new Mark();
    probe(mark, 0, costly({ dueAt: NOW - 5000, seq: 7 }));
    mark.lower(NOW - 4000);
    assert.equal(mark.place.dueAt, NOW - 5000);
    mark.lower(NOW - 9000);
    assert.deepEqual(mark.place, { dueAt: NOW - 9000, seq: 0 });
    mark.lower(Number.NEGATIVE_INFINITY);
    assert.deepEqual(mark.place, FRONT);
  });

  it('is not raised by a probe that may have looked before something was stored', () => {
    const mark = new Mark();
    mark.took(1000);
    const from = mark.probeFrom(0);
    assert.deepEqual(from, FRONT);
    const done = mark.probing(from ?? FRONT, 0);
    mark.lower(NOW - 9000);
    done(costly({ dueAt: NOW - 5000, seq: 7 }));
    assert.deepEqual(mark.place, FRONT);
  });

  it('is looked past from the front again after a pause of twenty times what that costs', () => {
    const mark = new Mark();
    probe(mark, 0, costly({ dueAt: NOW - 5000, seq: 7 }, 100));
    mark.took(1000);
    assert.deepEqual(mark.probeFrom(1000), { dueAt: NOW - 5000, seq: 7 });
    assert.deepEqual(mark.probeFrom(2000), FRONT);
    assert.equal(mark.fullProbeInMs(1500), 500);
  });

  it('is not probed for a queue that hardly moves', () => {
    const mark = new Mark();
    mark.took(10);
    assert.equal(mark.probeFrom(10_000), null);
  });

  it('waits longer after a probe that failed', () => {
    const mark = new Mark();
    probe(mark, 0, null);
    mark.took(1000);
    assert.equal(mark.probeFrom(300), null);
    assert.deepEqual(mark.probeFrom(10_000), FRONT);
  });
});
