import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { freshSeed } from '../support/random.ts';
import { runCrash, summaryOf } from './crash-run.ts';

/** `npm run test:crash` kills fifty times. */
const KILLS = 3;

describe('a server that is killed under load', () => {
  it(`loses nothing, doubles nothing and changes nothing in ${KILLS} kills`, async (t) => {
    const seed = Number(process.env.CRASH_SEED ?? freshSeed());
    const report = await runCrash({ kills: KILLS, seed });
    t.diagnostic(summaryOf(report, seed));
    assert.deepEqual(report.faults, [], `seed ${seed}`);
    assert.equal(report.verdict.counts.crashes, KILLS);
  });
});
