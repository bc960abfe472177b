import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import { Retries } from '../../src/util/retries.ts';
import { FakeClock } from '../support/clock.ts';

const DELAY_MS = 500;

describe('work that is retried until it succeeds', () => {
  let clock: FakeClock;
  let retries: Retries;
  let failures: string[];
  let tries: number;

  beforeEach(() => {
    clock = new FakeClock();
    failures = [];
    tries = 0;
    retries = new Retries({ clock, delayMs: DELAY_MS, failed: (name) => failures.push(name) });
  });

  /** Work that fails the given number of times. */
  const failing = (times: number) => async (): Promise<void> => {
    tries += 1;
    if (tries <= times) throw new Error('planted');
  };

  const passed = async (): Promise<void> => {
    clock.advance(DELAY_MS);
    await new Promise(setImmediate);
  };

  it('is repeated after a delay, and only its first failure is reported', async () => {
    await retries.do('read', failing(3));
    clock.advance(DELAY_MS - 1);
    assert.equal(tries, 1);
    for (let i = 0; i < 10; i++) await passed();
    assert.deepEqual([tries, failures, clock.pending], [4, ['read'], 0]);
    tries = 0;
    await retries.do('read', failing(1));
    assert.deepEqual(failures, ['read', 'read'], 'it had succeeded in between');
  });

  it('has one pending retry per name', async () => {
    await Promise.all([
      retries.do('a', failing(9)),
      retries.do('a', failing(9)),
      retries.do('b', failing(9)),
    ]);
    assert.deepEqual([clock.pending, failures], [2, ['a', 'b']]);
    await retries.do('a', async () => {});
    assert.equal(clock.pending, 1);
  });

  it('is not retried after a stop', async () => {
    await retries.do('waiting', failing(9));
    const { promise, reject } = Promise.withResolvers<void>();
    const running = retries.do('running', () => promise);
    retries.stop();
    reject(new Error('planted'));
    await running;
    assert.deepEqual([clock.pending, tries, failures], [0, 1, ['waiting']]);
  });
});
