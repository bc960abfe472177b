import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { CLIENT_ENGINES } from '../client/server.ts';
import { freshSeed } from '../support/random.ts';
import { runClientCrash } from './client-crash-run.ts';

/**
 * Kills per engine, of the server, the worker, and both in turn. `npm run test:crash:client` kills a thousand times in
 * all.
 */
const KILLS = Number(process.env.CLIENT_KILLS ?? 2);

describe('The client library while server and worker are killed under load', () => {
  for (const engine of CLIENT_ENGINES) {
    it(`loses no element and handles no committed element again in ${KILLS} kills on ${engine.name}`, async (t) => {
      const seed = Number(process.env.CRASH_SEED ?? freshSeed());
      const { faults, inserted, repeated } = await runClientCrash(await engine.url(), KILLS, seed);
      t.diagnostic(
        `kills=${KILLS} inserted=${inserted} repeated=${repeated} faults=${faults.length} seed=${seed}`,
      );
      assert.deepEqual(faults.slice(0, 20), [], `seed ${seed}`);
    });
  }
});
