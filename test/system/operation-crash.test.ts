import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { freshSchema, sharedPostgres } from '../engines/postgres.ts';
import { freshPrefix, sharedRedis } from '../engines/redis.ts';
import { freshSeed } from '../support/random.ts';
import { withParameter } from '../support/run-servers.ts';
import { runOperationCrash } from './operation-crash-run.ts';

/** Each kind of operation is interrupted once; `npm run test:crash:operations` kills 200 times. */
const KILLS = Number(process.env.OPERATION_KILLS ?? 3);
/** With a shared engine, a node waits seven seconds before it continues the operation of another node. */
const KILLS_SHARED = Math.ceil(KILLS / 10);

const ENGINES: Readonly<Record<string, { readonly kills: number; readonly url: () => Promise<string> }>> = {
  SQLite: { kills: KILLS, url: async () => 'sqlite:N.db' },
  Redis: {
    kills: KILLS_SHARED,
    url: async () => withParameter(await sharedRedis(), 'prefix', freshPrefix()),
  },
  PostgreSQL: {
    kills: KILLS_SHARED,
    url: async () => withParameter(await sharedPostgres(), 'schema', freshSchema()),
  },
};

describe('A server killed while it runs bulk operations', { concurrency: true }, () => {
  for (const [name, { kills, url }] of Object.entries(ENGINES)) {
    it(`continues each operation, loses no element and changes none twice, in ${kills} kills on ${name}`, async (t) => {
      const seed = Number(process.env.CRASH_SEED ?? freshSeed());
      const { faults, cut, elements } = await runOperationCrash({ url: await url(), kills, seed });
      t.diagnostic(`kills=${kills} cut=${cut} elements=${elements} faults=${faults.length} seed=${seed}`);
      assert.deepEqual(faults.slice(0, 20), [], `seed ${seed}`);
      assert.ok(elements > 0);
    });
  }
});
