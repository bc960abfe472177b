import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { freshSeed, type Random, seededRandom } from '../support/random.ts';
import { ServerProcess } from '../support/server-process.ts';
import { until } from '../support/until.ts';

/** `npm run test:crash:batches` kills the server 200 times. */
const KILLS = Number(process.env.BATCH_KILLS ?? 3);
const PRODUCERS = 4;
const LINES = 50;
/** The time of a kill after one more batch was stored. */
const KILL_AFTER_MS = { least: 0, most: 150 };

/** The lines of one request, whose bodies start with `name`. */
interface Batch {
  readonly name: string;
  readonly isKeyed: boolean;
  isStored: boolean;
}

describe('Batch inserts on a server killed under load', () => {
  it(`are stored completely or not at all, and with keys exactly once, in ${KILLS} kills`, async (t) => {
    const seed = Number(process.env.CRASH_SEED ?? freshSeed());
    const config = { http: { users: { test1: 'test1' } }, namespaces: { N: { url: 'sqlite:N.db' } } };
    await using server = await ServerProcess.create({ config });
    const run = new InsertRun(server, seededRandom(seed));
    const { batches, counts } = await run.run();
    t.diagnostic(`kills=${KILLS} batches=${batches.length} elements=${counts.size} seed=${seed}`);
    for (const { name, isKeyed, isStored } of batches) {
      const found = Array.from({ length: LINES }, (_, i) => counts.get(`${name} ${i}`) ?? 0);
      const expected = isStored || found[0] === 1 ? 1 : 0;
      assert.ok(
        found.every((count) => count === expected),
        `seed ${seed}: of ${name}, ${isKeyed ? 'with' : 'without'} keys, there are ${found}`,
      );
      if (isKeyed) assert.equal(expected, 1, `seed ${seed}: ${name} was repeated until it was stored`);
    }
    assert.ok(batches.some(({ isStored }) => isStored));
  });
});

class InsertRun {
  readonly #server: ServerProcess;
  readonly #random: Random;
  readonly #client: QueueClient;
  readonly #batches: Batch[] = [];
  #isStopping = false;

  constructor(server: ServerProcess, random: Random) {
    this.#server = server;
    this.#random = random;
    this.#client = new QueueClient({ url: () => server.url });
  }

  async run(): Promise<{ batches: readonly Batch[]; counts: ReadonlyMap<string, number> }> {
    await this.#server.start();
    const producers = Array.from({ length: PRODUCERS }, (_, i) => this.#produce(i));
    for (let kill = 1; kill <= KILLS; kill += 1) {
      const before = this.#stored;
      await until(() => this.#stored !== before, 5);
      await delay(this.#random.between(KILL_AFTER_MS.least, KILL_AFTER_MS.most));
      await this.#server.kill();
      await this.#server.start();
    }
    this.#isStopping = true;
    await Promise.all(producers);
    const counts = await this.#drain();
    this.#client.close();
    await this.#server.stop();
    return { batches: this.#batches, counts };
  }

  get #stored(): number {
    return this.#batches.filter(({ isStored }) => isStored).length;
  }

  /** Sends batches with and without keys alternately. A batch with keys is repeated until it is stored. */
  async #produce(producer: number): Promise<void> {
    for (let n = 0; !this.#isStopping; n += 1) {
      const isKeyed = n % 2 === 0;
      const batch: Batch = { name: `${producer}-${n}`, isKeyed, isStored: false };
      this.#batches.push(batch);
      do batch.isStored = await this.#send(batch);
      while (isKeyed && !batch.isStored);
    }
  }

  async #send({ name, isKeyed }: Batch): Promise<boolean> {
    const lines = Array.from({ length: LINES }, (_, i) => {
      const text = `${name} ${i}`;
      return isKeyed ? { text, key: text } : { text };
    });
    try {
      const answer = await this.#client.insertLines('N', 'work', lines);
      if (answer.status === 200) {
        assert.equal(jsonOf<{ ids: string[] }>(answer).ids.length, LINES);
        return true;
      }
    } catch (error) {
      if (error instanceof assert.AssertionError) throw error;
      // The connection broke, or the server is not listening yet.
      await delay(10);
    }
    return false;
  }

  /** The number of elements with each body. */
  async #drain(): Promise<Map<string, number>> {
    const counts = new Map<string, number>();
    for (;;) {
      const answer = await this.#client.request('POST', '/q/N/work/take', { query: { count: 1000, to: 0 } });
      if (answer.status !== 200) return counts;
      for (const line of answer.body.toString().trimEnd().split('\n')) {
        const { text } = JSON.parse(line) as { text: string };
        counts.set(text, (counts.get(text) ?? 0) + 1);
      }
    }
  }
}
