import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { CALL_TIMEOUT_MS, PendingCall, PendingCalls } from '../../src/engine/calls.ts';
import { FakeClock } from '../support/clock.ts';

class Call extends PendingCall {
  readonly expire: () => void;

  constructor(calls: PendingCalls, deadlineAt: number, expire = (): void => {}, bytes = 0) {
    super(calls, deadlineAt, bytes);
    this.expire = expire;
    calls.add(this);
  }
}

describe('The deadlines of pending calls', () => {
  const clock = new FakeClock();
  const calls = new PendingCalls(clock);
  const expired: string[] = [];

  const add = (name: string, deadlineAt = calls.deadline()): Call =>
    new Call(calls, deadlineAt, () => expired.push(name));

  it('expire calls in order when their time has passed, except settled ones', () => {
    const settled = add('settled');
    add('first');
    clock.advance(1_000);
    add('second');
    settled.resolve(null);
    clock.advance(CALL_TIMEOUT_MS - 1_001);
    assert.deepEqual(expired.splice(0), []);
    clock.advance(1);
    assert.deepEqual(expired.splice(0), ['first']);
    clock.advance(1_000);
    assert.deepEqual(expired.splice(0), ['second']);
    assert.equal(clock.pending, 0);
  });

  it('expire a call at the deadline that it had before it was added, ahead of calls that were made later', () => {
    const early = calls.deadline();
    clock.advance(1_000);
    add('last');
    add('second', early + 500);
    add('first', early);
    add('settled', early + 200).resolve(null);
    clock.advance(CALL_TIMEOUT_MS - 1_000);
    assert.deepEqual(expired.splice(0), ['first']);
    clock.advance(500);
    assert.deepEqual(expired.splice(0), ['second']);
    clock.advance(500);
    assert.deepEqual(expired.splice(0), ['last']);
    assert.equal(clock.pending, 0);
  });

  it('have one timer, however many calls there are', () => {
    for (let i = 0; i < 1_000; i++) {
      add('settled').resolve(null);
      clock.advance(1);
    }
    const last = add('last');
    assert.equal(clock.pending, 1);
    last.resolve(null);
    clock.advance(CALL_TIMEOUT_MS);
    assert.deepEqual([expired, clock.pending], [[], 0]);
  });

  it('expire the remaining calls when they are stopped, and leave no timer', () => {
    add('left');
    calls.stop();
    assert.deepEqual([expired.splice(0), clock.pending], [['left'], 0]);
  });
});

const MIB = 1024 * 1024;

describe('The limit of pending calls', () => {
  const callsNow = (): PendingCalls => new PendingCalls(new FakeClock());
  const add = (calls: PendingCalls, bytes: number): Call =>
    new Call(calls, calls.deadline(), undefined, bytes);

  it('admits calls until the server has been unreachable for two seconds', () => {
    const calls = callsNow();
    for (const downMs of [0, 1, 2_000]) assert.equal(calls.rejection(downMs), null);
    assert.equal(calls.rejection(2_001)?.code, 'storage-unavailable');
  });

  it('bounds the bytes of pending calls, more tightly without a connection', () => {
    const calls = callsNow();
    const first = add(calls, 16 * MIB);
    assert.equal(calls.rejection(1)?.code, 'storage-unavailable');
    assert.equal(calls.rejection(0), null);
    const second = add(calls, 48 * MIB);
    assert.equal(calls.rejection(0)?.code, 'storage-unavailable');
    second.resolve(null);
    assert.equal(calls.rejection(0), null);
    first.resolve(null);
    first.resolve(null);
    assert.equal(calls.rejection(1), null);
    add(calls, 16 * MIB - 1000);
    assert.equal(calls.rejection(1), null, 'a call that settles is subtracted once');
    add(calls, 0);
    assert.equal(calls.rejection(1)?.code, 'storage-unavailable');
  });

  it('counts calls without elements, too', () => {
    const calls = callsNow();
    let count = 0;
    while (calls.rejection(1) === null) {
      add(calls, 0);
      count += 1;
    }
    assert.ok(count > 30_000 && count < 40_000, `${count} calls`);
  });
});

describe('A pending call', () => {
  it('settles once', async () => {
    const calls = new PendingCalls(new FakeClock());
    const call = new Call(calls, calls.deadline());
    call.resolve('first');
    call.reject(new Error('second'));
    call.resolve('third');
    assert.equal(await call.outcome, 'first');
  });
});
