import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { CALL_TIMEOUT_MS, DeadlineQueue, Expiring } from '../../src/engine/calls.ts';
import { FakeClock } from '../support/clock.ts';

class Call extends Expiring {
  readonly deadlineAt: number;
  readonly expire: () => void;

  constructor(deadlineAt: number, expire: () => void) {
    super();
    this.deadlineAt = deadlineAt;
    this.expire = expire;
  }
}

describe('A queue of deadlines', () => {
  const clock = new FakeClock();
  const deadlines = new DeadlineQueue(clock);
  const expired: string[] = [];

  const add = (name: string, deadlineAt = deadlines.deadline()): Expiring => {
    const call = new Call(deadlineAt, () => expired.push(name));
    deadlines.add(call);
    return call;
  };

  it('expires calls in order when their time has passed, except settled ones', () => {
    const settled = add('settled');
    add('first');
    clock.advance(1_000);
    add('second');
    deadlines.remove(settled);
    clock.advance(CALL_TIMEOUT_MS - 1_001);
    assert.deepEqual(expired.splice(0), []);
    clock.advance(1);
    assert.deepEqual(expired.splice(0), ['first']);
    clock.advance(1_000);
    assert.deepEqual(expired.splice(0), ['second']);
    assert.equal(clock.pending, 0);
  });

  it('expires a call at the deadline that it had before it was added, ahead of calls that were made later', () => {
    const early = deadlines.deadline();
    clock.advance(1_000);
    add('last');
    add('second', early + 500);
    add('first', early);
    deadlines.remove(add('settled', early + 200));
    clock.advance(CALL_TIMEOUT_MS - 1_000);
    assert.deepEqual(expired.splice(0), ['first']);
    clock.advance(500);
    assert.deepEqual(expired.splice(0), ['second']);
    clock.advance(500);
    assert.deepEqual(expired.splice(0), ['last']);
    assert.equal(clock.pending, 0);
  });

  it('has one timer, however many calls there are', () => {
    for (let i = 0; i < 1_000; i++) {
      deadlines.remove(add('settled'));
      clock.advance(1);
    }
    const last = add('last');
    assert.equal(clock.pending, 1);
    deadlines.remove(last);
    clock.advance(CALL_TIMEOUT_MS);
    assert.deepEqual([expired, clock.pending], [[], 0]);
  });

  it('expires the remaining calls when it is stopped, and leaves no timer', () => {
    add('left');
    deadlines.stop();
    assert.deepEqual([expired.splice(0), clock.pending], [['left'], 0]);
  });
});
