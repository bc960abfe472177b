import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Db } from 'mongodb';
import { ServerTime } from '../../src/engines/mongodb/server-time.ts';
import { GivenTime } from '../../src/engines/mongodb/settings.ts';
import { FakeClock } from '../support/clock.ts';

/** A server that is asked for its time, and how often it was. */
function stage(given: GivenTime | null = null) {
  const clock = new FakeClock();
  const server = { now: 1_000_000, asked: 0 };
  const command = async (): Promise<object> => {
    server.asked += 1;
    return { localTime: new Date(server.now) };
  };
  const time = new ServerTime({ command } as unknown as Db, clock, given);
  return { clock, server, time };
}

describe('The time of a MongoDB server', () => {
  it('is asked for, and for a second carried on by the own clock', async () => {
    const { clock, server, time } = stage();
    assert.equal(time.estimate, Number.NEGATIVE_INFINITY);
    assert.equal((await time.recent()).getTime(), 1_000_000);
    clock.advance(999.5);
    assert.equal((await time.recent()).getTime(), 1_000_999);
    assert.equal(server.asked, 1);
    clock.advance(1);
    server.now = 1_001_100;
    assert.equal((await time.recent()).getTime(), 1_001_100);
    assert.equal(server.asked, 2);
  });

  it('never goes back because an answer was late', async () => {
    const { clock, time } = stage();
    time.saw(new Date(1_000_000));
    clock.advance(100);
    time.saw(new Date(1_000_050));
    assert.equal(time.estimate, 1_000_100);
    time.saw(new Date(1_000_150));
    assert.equal(time.estimate, 1_000_150);
  });

  it('follows a clock that was set back', () => {
    const { time } = stage();
    time.saw(new Date(1_000_000));
    time.saw(new Date(900_000));
    assert.equal(time.estimate, 900_000);
  });

  it('is asked for again when the server may be another one', async () => {
    const { server, time } = stage();
    await time.read();
    time.forget();
    server.now = 5;
    assert.equal((await time.recent()).getTime(), 5);
  });

  it('is the given one in tests', async () => {
    const { server, time } = stage(new GivenTime(() => 42));
    assert.equal((await time.recent()).getTime(), 42);
    assert.equal((await time.read()).getTime(), 42);
    assert.equal(time.estimate, 42);
    assert.deepEqual(time.expression, { $literal: new Date(42) });
    assert.equal(server.asked, 0);
    assert.equal(stage().time.expression, '$$NOW');
  });
});
