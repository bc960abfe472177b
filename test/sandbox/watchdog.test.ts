import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { type Progress, Watchdog } from '../../src/sandbox/watchdog.ts';
import { FakeClock } from '../support/clock.ts';

/** A watchdog on a simulated thread. */
function watched() {
  const clock = new FakeClock();
  const heard: string[] = [];
  const thread = { progress: { head: null, steps: 0 } as Progress, busyMs: 0 };
  const watchdog = new Watchdog(clock, () => thread.progress, {
    busyMs: async () => thread.busyMs,
    onSuspect: () => heard.push('suspect'),
    onStuck: () => heard.push('stuck'),
  });
  /** Advances the clock in small steps, so that the watchdog's checks in between run. */
  const pass = async (ms: number): Promise<void> => {
    for (let passed = 0; passed < ms; passed += 10) {
      clock.advance(10);
      await turn();
    }
  };
  return { clock, heard, thread, watchdog, pass };
}

const head = { limitMs: 100 };

describe('the watchdog of the selector worker', () => {
  it('reports a busy thread that makes no progress for its limit, after a first suspicion', async () => {
    const { clock, heard, thread, watchdog, pass } = watched();
    thread.progress = { head, steps: 0 };
    thread.busyMs = 90;
    watchdog.check();
    await pass(30);
    assert.deepEqual(heard, []);
    await pass(10);
    assert.deepEqual(heard, ['suspect']);
    await pass(50);
    assert.deepEqual(heard, ['suspect']);
    await pass(20);
    assert.deepEqual(heard, ['suspect', 'stuck']);
    assert.equal(clock.pending, 0);
  });

  it('starts counting again at every progress and every new head', async () => {
    const { heard, thread, watchdog, pass } = watched();
    thread.busyMs = 1000;
    thread.progress = { head, steps: 0 };
    watchdog.check();
    for (let step = 1; step < 5; step += 1) {
      await pass(90);
      thread.progress = step % 2 === 0 ? { head, steps: step } : { head: { limitMs: 100 }, steps: step - 1 };
    }
    assert.equal(heard.includes('stuck'), false);
    await pass(120);
    assert.equal(heard.at(-1), 'stuck');
  });

  it('waits for a thread without processor time, but not forever', async () => {
    const { heard, thread, watchdog, pass } = watched();
    thread.progress = { head, steps: 0 };
    thread.busyMs = 39;
    watchdog.check();
    await pass(390);
    assert.deepEqual(heard, ['suspect']);
    await pass(20);
    assert.deepEqual(heard, ['suspect', 'stuck']);
  });

  it('does not report a thread that makes progress while it is being checked', async () => {
    const { clock, heard, thread, watchdog } = watched();
    thread.progress = { head, steps: 0 };
    thread.busyMs = 100;
    watchdog.check();
    clock.advance(100);
    thread.progress = { head, steps: 1 };
    await turn();
    assert.deepEqual(heard, ['suspect']);
    watchdog.stop();
  });

  it('treats a thread that cannot be queried as gone', async () => {
    const clock = new FakeClock();
    const heard: string[] = [];
    const watchdog = new Watchdog(clock, () => ({ head, steps: 0 }), {
      busyMs: () => Promise.reject(new Error('not running')),
      onSuspect: () => {},
      onStuck: () => heard.push('stuck'),
    });
    watchdog.check();
    clock.advance(150);
    await turn();
    assert.deepEqual(heard, []);
    watchdog.stop();
  });

  it('has no timer while there is nothing to watch', async () => {
    const { clock, thread, watchdog, pass } = watched();
    watchdog.check();
    assert.equal(clock.pending, 0);
    thread.progress = { head, steps: 0 };
    watchdog.check();
    watchdog.check();
    assert.equal(clock.pending, 1);
    thread.progress = { head: null, steps: 1 };
    await pass(20);
    assert.equal(clock.pending, 0);
    thread.progress = { head, steps: 1 };
    watchdog.check();
    watchdog.stop();
    assert.equal(clock.pending, 0);
  });
});
