import type { Engine } from '../../src/engine/engine.ts';
import type { Storage } from '../../src/engine/storage.ts';
import { PLAIN_GROUP } from '../../src/model/element.ts';
import { startRedis } from '../../test/support/redis-servers.ts';
import { ELEMENT, elements, NAMESPACE } from '../quayside.ts';
import { openRedisEngine } from '../redis.ts';
import { RedisWrites } from '../reference/redis-writes.ts';
import { type BenchContext, type Finding, grouped, median, type Scenario } from '../scenario.ts';

const BATCH = 64;
/** Concurrent calls on both sides. */
const WINDOW = 2;
const QUEUE = { ns: NAMESPACE, name: 'engine' };
/** What the engine stores before the body: the content type and three lengths. */
const CONTENT_HEAD = `P..${'application/json'}....`;

/**
 * The Redis engine at its port, without HTTP, compared with `redis-benchmark` calling functions that make the same
 * writes: the cost of ids, repeats, order and the driver, in Redis and in Node.
 */
export const redisEngine: Scenario = {
  name: 'redis-engine',
  async run(context) {
    const server = await startRedis();
    const engine = await openRedisEngine(server.url);
    try {
      return await measure(context, engine, new RedisWrites(server.port));
    } finally {
      await engine.stop();
      await server.stop();
    }
  },
};

/** Elements per second. */
interface Rates {
  readonly own: number;
  readonly reference: number;
}

async function measure(context: BenchContext, { storage }: Engine, writes: RedisWrites): Promise<Finding[]> {
  const batches = context.quick ? 100 : 3_000;
  const rounds = context.quick ? 1 : 9;
  const batch = elements(BATCH);
  const inserts: Rates[] = [];
  const takes: Rates[] = [];
  // The first round is a warm-up for both.
  for (let round = 0; round <= rounds; round++) {
    const insert = {
      own: await rate(batches, () => storage.insert(QUEUE, batch)),
      reference: BATCH * (await writes.insert(batches, WINDOW, BATCH, CONTENT_HEAD + ELEMENT)),
    };
    const take = {
      own: await rate(batches, () => takeBatch(storage)),
      reference: BATCH * (await writes.take(batches, WINDOW, BATCH)),
    };
    if (round === 0 && !context.quick) continue;
    inserts.push(insert);
    takes.push(take);
  }
  return [findingOf(context, 'insert', inserts), findingOf(context, 'take', takes)];
}

async function takeBatch(storage: Storage): Promise<void> {
  const { deliveries } = await storage.take(QUEUE, { group: PLAIN_GROUP, count: BATCH, leaseMs: null });
  if (deliveries.length !== BATCH)
    throw new Error(`A take returned ${deliveries.length} elements instead of ${BATCH}.`);
}

/** Runs this many batches, {@link WINDOW} at a time. Returns elements per second. */
async function rate(batches: number, run: () => Promise<unknown>): Promise<number> {
  let left = batches;
  const worker = async (): Promise<void> => {
    while (left > 0) {
      left--;
      await run();
    }
  };
  const from = performance.now();
  await Promise.all(Array.from({ length: WINDOW }, worker));
  return (batches * BATCH * 1000) / (performance.now() - from);
}

function findingOf(context: BenchContext, verb: string, rounds: readonly Rates[]): Finding {
  const what = `${verb}, batches of ${BATCH}`;
  for (const { own, reference } of rounds) {
    const ratio = (own / reference).toFixed(3);
    context.note(`${what}: ${grouped(own)}/s; redis-benchmark ${grouped(reference)}/s; ratio ${ratio}`);
  }
  return {
    what,
    figure: `${grouped(median(rounds.map(({ own }) => own)))}/s`,
    reference: `${grouped(median(rounds.map(({ reference }) => reference)))}/s (redis-benchmark)`,
    ratio: median(rounds.map(({ own, reference }) => own / reference)),
    target: { kind: 'at least', ratio: 0.5 },
  };
}
