import type { Engine } from '../../src/engine/engine.ts';
import type { FakeClock } from '../support/clock.ts';

/** The service's promise: every call settles within this time, ms. */
export const ANSWERED_MS = 5_000;

const ALLOWED = ['storage-unavailable', 'outcome-unknown'];

/** Lets `lengthMs` pass. Returns the outcomes that are wrong: successes, other errors, calls that have not settled. */
export async function inTime(
  clock: FakeClock,
  calls: readonly Promise<string>[],
  lengthMs = ANSWERED_MS,
): Promise<string[]> {
  for (let passed = 0; passed < lengthMs; passed += 100) {
    await turns();
    clock.advance(100);
  }
  await turns();
  const settled = await settledOf(calls);
  const outcomes = await Promise.all(calls.map((call, i) => (settled[i] ? call : 'not settled in time')));
  return outcomes.filter((outcome) => !ALLOWED.includes(outcome));
}

export function settledOf(calls: readonly Promise<unknown>[]): Promise<boolean[]> {
  const no = Promise.resolve(false);
  return Promise.all(calls.map((call) => Promise.race([call.then(() => true), no.then(() => no)])));
}

/** Waits for as many turns of the event loop as a call needs to be sent. */
export async function turns(): Promise<void> {
  for (let turn = 0; turn < 4; turn++) await new Promise((resolve) => setImmediate(resolve));
}

/** Lets fake and real time pass until `succeeds` does not throw. @throws its last error, after a minute */
export async function passUntil(clock: FakeClock, succeeds: () => Promise<unknown>): Promise<void> {
  const end = performance.now() + 60_000;
  let done = false;
  while (!done) {
    const attempt = succeeds().then(
      () => true,
      (error: unknown) => {
        if (performance.now() > end) throw error;
        return false;
      },
    );
    let passed = 0;
    do {
      await new Promise((resolve) => setTimeout(resolve, 2));
      clock.advance(50);
      passed += 50;
    } while (passed < ANSWERED_MS && !(await settledOf([attempt]))[0]);
    done = await attempt;
  }
}

export async function stopped(engine: Engine, clock: FakeClock): Promise<void> {
  await passTo(clock, engine.stop());
}

/** Advances the clock until the call has settled, and no further. */
export async function passTo<T>(clock: FakeClock, call: Promise<T>): Promise<T> {
  while (!(await settledOf([call.catch(() => {})]))[0]) {
    await turns();
    clock.advance(100);
  }
  return call;
}

/**
 * The same for a call that should succeed: the clock advances at the speed of real time, as the machine may be slow.
 */
export async function passGently<T>(clock: FakeClock, call: Promise<T>): Promise<T> {
  while (!(await settledOf([call.catch(() => {})]))[0]) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    clock.advance(5);
  }
  return call;
}
