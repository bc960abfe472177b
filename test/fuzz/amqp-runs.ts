import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import fc from 'fast-check';
import { memoryInUse } from '../support/memory.ts';
import { type Broken, broken, writes } from './amqp-broken.ts';
import { RECORDED } from './amqp-sessions.ts';
import { ends, LATE_MS, talk } from './amqp-talk.ts';
import { cuts } from './mutations.ts';

/** Frames per test; `npm run test:fuzz` sends a million in four tests. */
const FRAMES = Number(process.env.FUZZ_FRAMES ?? 6_000) / 4;
/** Every recorded session has more frames. */
const FRAMES_A_SESSION = 10;
/** Concurrent sessions. */
const AT_ONCE = 4;
const RUNS = Math.ceil(FRAMES / FRAMES_A_SESSION / AT_ONCE);
/** Runs between two checks of the target. */
const LOOK_AFTER = 25;
/**
 * Bound on the memory kept after the last three quarters of the runs. A leak of 100 bytes per frame would exceed it.
 */
const MOST_LEFT_BYTES = 2 * 1024 * 1024 + (FRAMES * 100 * 3) / 4;

export const SESSIONS = RUNS * AT_ONCE;

/** The server under test. */
export interface Target {
  readonly port: number;
  /** Fails if sessions left state behind or an unexpected failure was logged. Purges the queues. */
  sound(): Promise<void>;
}

/** Runs recorded sessions with one mutated frame each, all of which must end. */
export async function sayBroken(test: TestContext, target: Target, isLoggedIn: boolean): Promise<void> {
  let runs = 0;
  let atQuarter = 0;
  const run = async (sessions: readonly Broken[]): Promise<void> => {
    await Promise.all(sessions.map((session) => talk(target.port, writes(session, isLoggedIn))));
    runs += 1;
    if (runs % LOOK_AFTER === 0) await target.sound();
    if (runs === Math.ceil(RUNS / 4)) atQuarter = await memoryInUse();
  };
  const together = fc.array(broken, { minLength: AT_ONCE, maxLength: AT_ONCE });
  await fc.assert(fc.asyncProperty(together, run), { numRuns: RUNS });
  await target.sound();
  const left = (await memoryInUse()) - atQuarter;
  test.diagnostic(`${left} bytes were kept since a quarter of the ${SESSIONS} sessions`);
  const { all, late, longestMs } = ends;
  test.diagnostic(
    `${late} of ${all} connections ended after ${LATE_MS} ms; the last after ${longestMs.toFixed(1)} ms`,
  );
  assert.ok(left < MOST_LEFT_BYTES, `${left} bytes were leaked`);
}

/** Runs recorded sessions, cut off after each of the byte counts of `cuts`. */
export async function sayCut(target: Target): Promise<void> {
  for (const { login, frames } of RECORDED) {
    const first = Buffer.concat([...login]);
    const said = Buffer.concat([first, ...frames]);
    for (const ends of cuts(said.length)) {
      const cut = (end: number): Buffer[] => [first.subarray(0, end), said.subarray(first.length, end)];
      await Promise.all(ends.map((end) => talk(target.port, cut(end))));
    }
    await target.sound();
  }
}
