import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { freshSeed } from '../support/random.ts';
import { runExchangeCrash } from './exchange-crash-run.ts';

/** `npm run test:crash:exchanges` kills the server 20 times. */
const KILLS = Number(process.env.EXCHANGE_KILLS ?? 2);

describe('Exchanges of a server killed under load', () => {
  it(`forward each element exactly once to each of its destinations in ${KILLS} kills`, async (t) => {
    const seed = Number(process.env.CRASH_SEED ?? freshSeed());
    const { faults, inserted, arrived } = await runExchangeCrash({ kills: KILLS, seed });
    t.diagnostic(
      `kills=${KILLS} inserted=${inserted} arrived=${arrived} faults=${faults.length} seed=${seed}`,
    );
    assert.deepEqual(faults.slice(0, 20), [], `seed ${seed}`);
    assert.ok(inserted > 0, 'no insert was acknowledged');
  });
});
