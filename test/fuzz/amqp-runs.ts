import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import fc from 'fast-check';
import { memoryInUse } from '../support/memory.ts';
import { type MutatedSession, mutatedSessions, writesOf } from './amqp-broken.ts';
import { RECORDED } from './amqp-sessions.ts';
import { ends, LATE_MS, talk } from './amqp-talk.ts';
import { cuts } from './mutations.ts';

/** Frames per test; `npm run test:fuzz` sends a million in four tests. */
const FRAMES = Number(process.env.FUZZ_FRAMES ?? 3_000) / 4;
/** Every recorded session has more frames. */
const FRAMES_A_SESSION = 10;
/** Concurrent sessions. */
const CONCURRENCY = 4;
const RUNS = Math.ceil(FRAMES / FRAMES_A_SESSION / CONCURRENCY);
/** Runs between two checks of the target. */
const CHECK_EVERY = 25;
/**
 * Bound on the memory kept after the last three quarters of the runs. A leak of 100 bytes per frame would exceed it.
 */
const MAX_LEAKED_BYTES = 2 * 1024 * 1024 + (FRAMES * 100 * 3) / 4;

export const SESSIONS = RUNS * CONCURRENCY;

/** The server under test. */
export interface Target {
  readonly port: number;
  /** Fails if sessions left state behind or an unexpected failure was logged. Purges the queues. */
  checkState(): Promise<void>;
}

/** Runs recorded sessions with one mutated frame each, all of which must end. */
export async function runMutated(test: TestContext, target: Target, isLoggedIn: boolean): Promise<void> {
  let runs = 0;
  let atQuarter = 0;
  const run = async (sessions: readonly MutatedSession[]): Promise<void> => {
    await Promise.all(sessions.map((session) => talk(target.port, writesOf(session, isLoggedIn))));
    runs += 1;
    if (runs % CHECK_EVERY === 0) await target.checkState();
    if (runs === Math.ceil(RUNS / 4)) atQuarter = await memoryInUse();
  };
  const together = fc.array(mutatedSessions, { minLength: CONCURRENCY, maxLength: CONCURRENCY });
  await fc.assert(fc.asyncProperty(together, run), { numRuns: RUNS });
  await target.checkState();
  const leakedBytes = (await memoryInUse()) - atQuarter;
  test.diagnostic(`${leakedBytes} bytes were kept since a quarter of the ${SESSIONS} sessions`);
  const { all, late, longestMs } = ends;
  test.diagnostic(
    `${late} of ${all} connections ended after ${LATE_MS} ms; the last after ${longestMs.toFixed(1)} ms`,
  );
  assert.ok(leakedBytes < MAX_LEAKED_BYTES, `${leakedBytes} bytes were leaked`);
}

/** Runs recorded sessions, cut off after each of the byte counts of `cuts`. */
export async function runTruncated(target: Target): Promise<void> {
  for (const { login, frames } of RECORDED) {
    const first = Buffer.concat([...login]);
    const whole = Buffer.concat([first, ...frames]);
    for (const ends of cuts(whole.length)) {
      const cut = (end: number): Buffer[] => [first.subarray(0, end), whole.subarray(first.length, end)];
      await Promise.all(ends.map((end) => talk(target.port, cut(end))));
    }
    await target.checkState();
  }
}
