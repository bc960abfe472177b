import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import fc from 'fast-check';
import { memoryInUse } from '../support/memory.ts';
import { type Broken, broken, writes } from './amqp-broken.ts';
import { RECORDED } from './amqp-sessions.ts';
import { ends, LATE_MS, talk } from './amqp-talk.ts';
import { cuts } from './mutations.ts';

/** Frames sent by one test; `npm run test:fuzz` sends a million in four. */
const FRAMES = Number(process.env.FUZZ_FRAMES ?? 6_000) / 4;
/** A recorded session has more than that. */
const FRAMES_A_SESSION = 10;
/** Sessions that run at the same time. */
const AT_ONCE = 4;
const RUNS = Math.ceil(FRAMES / FRAMES_A_SESSION / AT_ONCE);
/** After so many runs it is seen to it that all is sound. */
const LOOK_AFTER = 25;
/** What may be left of the runs of the last three quarters. A leak of 100 bytes a frame would be more. */
const MOST_LEFT_BYTES = 2 * 1024 * 1024 + (FRAMES * 100 * 3) / 4;

export const SESSIONS = RUNS * AT_ONCE;

/** What the bytes are said to. */
export interface Target {
  readonly port: number;
  /** Fails if something was left behind, or failed that should not. Tidies up. */
  sound(): Promise<void>;
}

/** Says recorded sessions of which one frame is broken, each of which has to come to its end. */
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
  assert.ok(left < MOST_LEFT_BYTES, 'memory stays flat');
}

/** Says recorded sessions up to each of the bytes after which they are cut. */
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
