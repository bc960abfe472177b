import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Client } from '../../src/engines/sqlite/client.ts';
import { SqliteStats } from '../../src/engines/sqlite/stats.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { SILENT_LOG } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';

const QUEUE = { ns: 'N', name: 'q' };

/** The counts that a client is asked to store, flattened, and what its calls fail with. */
class StoredCounts {
  readonly stored: unknown[][] = [];
  failure: QuaysideError | null = null;

  handle(): number {
    return 1;
  }

  begin(): { value(one: unknown): void } {
    const values: unknown[] = [];
    this.stored.push(values);
    return { value: (one) => values.push(one) };
  }

  async end(): Promise<void> {
    if (this.failure !== null) throw this.failure;
  }
}

describe('statistics that SQLite did not store', () => {
  for (const [code, kept] of [
    ['storage-unavailable', 2],
    ['outcome-unknown', 1],
  ] as const) {
    it(`${kept === 2 ? 'are stored by the next flush' : 'are not stored twice'} after ${code}`, async () => {
      const client = new StoredCounts();
      const clock = new FakeClock(0);
      const stats = new SqliteStats(client as unknown as Client, clock, SILENT_LOG);
      stats.add(QUEUE, '', { put: 1 });
      client.failure = new QuaysideError(code, 'planted');
      await assert.rejects(stats.flush(), { code });
      client.failure = null;
      stats.add(QUEUE, '', { put: 1 });
      await stats.flush();
      assert.deepEqual(client.stored.at(-1), [1, 1, '', kept, 0, 0, 0, 0, 0]);
      assert.equal(clock.pending, 0);
    });
  }
});
