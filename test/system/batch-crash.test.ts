import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { freshSeed } from '../support/random.ts';
import { runBatchCrash } from './batch-crash-run.ts';

/** `npm run test:crash:batches` kills two hundred times. */
const KILLS = Number(process.env.BATCH_KILLS ?? 8);

describe('inserts, takes and settlements of many, of a server that is killed under load', () => {
  it(`lose nothing and bring nothing twice in ${KILLS} kills`, async (t) => {
    const seed = Number(process.env.CRASH_SEED ?? freshSeed());
    const { faults, inserted, committed } = await runBatchCrash(KILLS, seed);
    t.diagnostic(
      `kills=${KILLS} inserted=${inserted} committed=${committed} faults=${faults.length} seed=${seed}`,
    );
    assert.deepEqual(faults.slice(0, 20), [], `seed ${seed}`);
    assert.ok(committed > 0, 'some elements were committed');
  });
});
