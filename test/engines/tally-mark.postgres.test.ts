import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { TallyMark } from '../../src/engines/postgres/tally-mark.ts';

const MINUTE_MS = 60_000;

describe('The number below which no row of a tally is left', () => {
  it('is not moved by one read, since rows with smaller numbers may be on their way', () => {
    const mark = new TallyMark();
    mark.read(500, 0);
    assert.equal(mark.from, 0);
    mark.read(700, MINUTE_MS - 1);
    assert.equal(mark.from, 0);
  });

  it('is what a read found, when a later one has seen nothing before it', () => {
    const mark = new TallyMark();
    mark.read(500, 0);
    mark.read(700, MINUTE_MS);
    assert.equal(mark.from, 500);
    mark.read(null, 2 * MINUTE_MS);
    assert.equal(mark.from, 700);
  });

  it('waits again where a smaller number came late', () => {
    const mark = new TallyMark();
    mark.read(500, 0);
    mark.read(490, MINUTE_MS);
    assert.equal(mark.from, 0);
    mark.read(510, 2 * MINUTE_MS);
    assert.equal(mark.from, 490);
  });

  it('stays where reads find nothing', () => {
    const mark = new TallyMark();
    mark.read(null, 0);
    mark.read(null, 2 * MINUTE_MS);
    assert.equal(mark.from, 0);
  });
});
