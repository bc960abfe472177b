import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { freshSeed } from '../support/random.ts';
import { runBatchCrash } from './batch-crash-run.ts';

/** `npm run test:crash:batches` kills the server 200 times. */
const KILLS = Number(process.env.BATCH_KILLS ?? 4);

describe('Batch inserts, takes and settlements on a server killed under load', () => {
  it(`lose no element and deliver no committed element again in ${KILLS} kills`, async (t) => {
    const seed = Number(process.env.CRASH_SEED ?? freshSeed());
    const { faults, inserted, committed } = await runBatchCrash(KILLS, seed);
    t.diagnostic(
      `kills=${KILLS} inserted=${inserted} committed=${committed} faults=${faults.length} seed=${seed}`,
    );
    assert.deepEqual(faults.slice(0, 20), [], `seed ${seed}`);
    assert.ok(committed > 0, 'no element was committed');
  });
});
