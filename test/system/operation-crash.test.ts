import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { freshSeed } from '../support/random.ts';
import { runOperationCrash } from './operation-crash-run.ts';

/** CI kills once in each kind of operation; `npm run test:crash:operations` 200 times in all. */
const KILLS = Number(process.env.OPERATION_KILLS ?? 9);

describe('a server that is killed while it runs bulk operations', () => {
  it(`continues each, loses no element and changes none twice, in ${KILLS} kills`, async (t) => {
    const seed = Number(process.env.CRASH_SEED ?? freshSeed());
    const { faults, cut, elements } = await runOperationCrash({ kills: KILLS, seed });
    t.diagnostic(`kills=${KILLS} cut=${cut} elements=${elements} faults=${faults.length} seed=${seed}`);
    assert.deepEqual(faults.slice(0, 20), [], `seed ${seed}`);
    assert.ok(elements > 0);
  });
});
