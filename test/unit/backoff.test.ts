import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Backoff } from '../../src/util/backoff.ts';

describe('A back-off', () => {
  it('doubles with each failure up to a maximum, and restarts after a success', () => {
    const backoff = new Backoff(() => 0.5);
    const afterFailure = (): number => {
      backoff.noteFailure();
      return backoff.delayMs();
    };
    assert.ok(!backoff.isActive);
    assert.equal(backoff.delayMs(), 0);
    assert.deepEqual(Array.from({ length: 8 }, afterFailure), [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    assert.ok(backoff.isActive);
    backoff.reset();
    assert.ok(!backoff.isActive);
    assert.equal(afterFailure(), 100);
  });

  it('has a jitter of half in both directions, and configurable bounds', () => {
    let drawn = 0;
    const backoff = new Backoff(() => drawn, { minMs: 50, maxMs: 60 });
    backoff.noteFailure();
    assert.equal(backoff.delayMs(), 25);
    drawn = 1;
    assert.equal(backoff.delayMs(), 75);
    backoff.noteFailure();
    assert.equal(backoff.delayMs(), 90);
  });
});
