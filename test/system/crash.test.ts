import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { freshSeed } from '../support/random.ts';
import { runCrash, summaryOf } from './crash-run.ts';

/** `npm run test:crash` kills the server 50 times. */
const KILLS = 3;

describe('A server killed under load', () => {
  it(`loses, duplicates and changes no element in ${KILLS} kills`, async (t) => {
    const seed = Number(process.env.CRASH_SEED ?? freshSeed());
    const report = await runCrash({ kills: KILLS, seed });
    t.diagnostic(summaryOf(report, seed));
    assert.deepEqual(report.faults, [], `seed ${seed}`);
    assert.equal(report.verdict.counts.crashes, KILLS);
  });
});
