import { setTimeout as delay } from 'node:timers/promises';
import { jsonOf, QueueClient } from '../../test/support/http-client.ts';
import { ordinaryLoad } from '../load/ordinary.ts';
import { residentBytesOf } from '../process.ts';
import { createServer, elements, NAMESPACE, openEngine } from '../quayside.ts';
import { type BenchContext, type Finding, grouped, percentile, type Scenario } from '../scenario.ts';
import { limit } from '../shared.ts';

const QUEUE = 'browsed';
const BATCH = 1_000;
/** One in this many elements matches. */
const RARITY = 1_000;
const MIN_LOOKED = 50_000;
const MAX_GROWTH_MIB = 64;
const MAX_P99_RATIO = 2;
/** How long the ordinary load runs alone, ms. */
const ALONE_MS = 10_000;
const SAMPLE_MS = 20;
const MIB = 1_048_576;

/** Browses a queue on SQLite with a header selector: elements per second, memory, and delay of other requests. */
export const browse: Scenario = {
  name: 'browse',
  async run(context) {
    const count = context.quick ? 50_000 : 1_000_000;
    await using server = await createServer(context);
    await fill(server.dataDir, count);
    await server.start();
    const client = new QueueClient({ url: server.url });
    try {
      // The first pages start the selector thread.
      await look(client, 2);
      const before = residentBytesOf(server.pid);
      const from = performance.now();
      const [found, peak] = await withPeak(server.pid, look(client));
      const seconds = (performance.now() - from) / 1000;
      if (found !== count / RARITY) throw new Error(`${found} elements were found in ${count}`);
      const alone = await ordinaryLoad(client, delay(context.quick ? 1_000 : ALONE_MS));
      const busy = await ordinaryLoad(client, look(client));
      return findings(context, { perSecond: count / seconds, growth: peak - before, alone, busy });
    } finally {
      client.close();
      await server.stop();
    }
  },
};

interface Measured {
  readonly perSecond: number;
  /** Growth of resident memory, bytes. */
  readonly growth: number;
  readonly alone: readonly number[];
  readonly busy: readonly number[];
}

function findings(context: BenchContext, { perSecond, growth, alone, busy }: Measured): Finding[] {
  const [before, during] = [percentile(alone, 0.99), percentile(busy, 0.99)];
  context.note(
    `medians: ${ms(percentile(busy, 0.5))} while it is browsed, ${ms(percentile(alone, 0.5))} before`,
  );
  return [
    {
      what: 'elements looked at a second, with a selector of a header',
      figure: grouped(perSecond),
      reference: grouped(MIN_LOOKED),
      ratio: perSecond / MIN_LOOKED,
      target: { kind: 'at least', ratio: 1 },
    },
    limit(
      'growth of memory',
      `${(growth / MIB).toFixed(1)} MiB`,
      `${MAX_GROWTH_MIB} MiB`,
      growth / (MAX_GROWTH_MIB * MIB),
    ),
    limit(
      'p99 of insert and get while another browses',
      ms(during),
      `${MAX_P99_RATIO} times ${ms(before)}, that of the load alone`,
      during / (MAX_P99_RATIO * before),
    ),
  ];
}

/** Inserts elements with their number in a header. */
async function fill(dataDir: string, count: number): Promise<void> {
  const engine = await openEngine(dataDir);
  try {
    for (let from = 0; from < count; from += BATCH) {
      const batch = elements(BATCH).map((element, i) => ({ ...element, headers: ['n', String(from + i)] }));
      await engine.storage.insert({ ns: NAMESPACE, name: QUEUE }, batch);
    }
  } finally {
    await engine.stop();
  }
}

/** Returns how many elements matched, in this many pages or in all. */
async function look(client: QueueClient, pages = Number.POSITIVE_INFINITY): Promise<number> {
  let found = 0;
  let after: string | null = null;
  for (let page = 0; page < pages; page += 1) {
    const query = {
      where: `env.msg.hdrs.n % ${RARITY} === 0`,
      limit: 1_000,
      body: 'none',
      ...(after !== null && { after }),
    };
    const answer = await client.request('GET', `/q/${NAMESPACE}/${QUEUE}/elements`, { query });
    if (answer.status !== 200) throw new Error(`browsing was answered ${answer.status}`);
    const { elements, next } = jsonOf<{ elements: unknown[]; next: string | null }>(answer);
    found += elements.length;
    if (next === null) break;
    after = next;
  }
  return found;
}

/** The result, and the peak memory of the process, bytes. */
async function withPeak<T>(pid: number, work: Promise<T>): Promise<[T, number]> {
  let peak = 0;
  let isOver = false;
  const sample = async (): Promise<void> => {
    while (!isOver) {
      peak = Math.max(peak, residentBytesOf(pid));
      await delay(SAMPLE_MS);
    }
  };
  const sampling = sample();
  try {
    return [await work, peak];
  } finally {
    isOver = true;
    await sampling;
  }
}

function ms(value: number): string {
  return `${value.toFixed(1)} ms`;
}
