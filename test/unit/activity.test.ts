import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Activity, SeriesLimit } from '../../src/broker/activity.ts';

describe('The activity of queues', () => {
  it('takes some of many changed queues without a loop over all', () => {
    const activity = new Activity({ monotonic: () => 0 }, new SeriesLimit());
    const count = 100_000;
    for (let i = 0; i < count; i += 1) activity.note(`q${i}`);
    const someMs = timeOf(() => {
      for (let i = 0; i < 100; i += 1) assert.equal(activity.takeChanged(10).size, 10);
    });
    const allMs = timeOf(() => assert.equal(activity.takeChanged(count).size, count - 1000));
    assert.ok(someMs < allMs, `100 times 10: ${someMs} ms, the others: ${allMs} ms`);
  });
});

function timeOf(work: () => void): number {
  const startedAt = performance.now();
  work();
  return performance.now() - startedAt;
}
