import type { Engine } from '../../src/engine/engine.ts';
import { type Declaration, parseDeclaration } from '../../src/exchange/declaration.ts';
import { type NewElement, PLAIN_GROUP } from '../../src/model/element.ts';
import { WorkerSandbox } from '../../src/sandbox/sandbox.ts';
import { ExchangeNode } from '../exchange-node.ts';
import { elements, NAMESPACE } from '../quayside.ts';
import { type BenchContext, type Finding, grouped, interleave, median, type Scenario } from '../scenario.ts';

/** As many elements as an exchange takes in one round trip. */
const BATCH = 256;
/** Concurrent batches, for exchange and reference alike. */
const WINDOW = 2;
const HEADERS = ['type', 'order', 'region', 'eu'];
const PAYLOAD = JSON.stringify({ order: 1, note: 'x'.repeat(1000) });

/** The throughput of an exchange compared with the engine alone, and with the sandbox alone. */
export const exchange: Scenario = {
  name: 'exchange',
  async run(context) {
    await using node = await ExchangeNode.start();
    return [await headerSelectors(context, node), await payloadSelector(context, node)];
  },
};

async function headerSelectors(context: BenchContext, node: ExchangeNode): Promise<Finding> {
  const count = context.quick ? 2_000 : 50_000;
  const sample = elements(1).map((element) => ({ ...element, headers: HEADERS }));
  return compare(context, {
    what: `${grouped(count)} stored elements to two queues, header selectors`,
    against: 'the engine alone: take and two inserts, the same batches',
    target: 0.6,
    own: async (round) => {
      const source = `headers-${round}`;
      await store(node.engine, source, sample, count);
      const declaration = declare(source, [
        'env => env.msg.hdrs.type === "order"',
        'env => env.msg.hdrs.region !== "us"',
      ]);
      return count / (await node.forward(source, declaration, count));
    },
    reference: async (round) => {
      const source = `engine-${round}`;
      await store(node.engine, source, sample, count);
      return count / (await moveByHand(node.engine, source, sample, count));
    },
  });
}

async function payloadSelector(context: BenchContext, node: ExchangeNode): Promise<Finding> {
  const count = context.quick ? 500 : 10_000;
  const sample = elements(1).map((element) => ({ ...element, headers: HEADERS, body: Buffer.from(PAYLOAD) }));
  const selectors = [
    'env => { env.msg.payload.seen = true; return true }',
    'env => env.msg.hdrs.region !== "us"',
  ];
  return compare(context, {
    what: `${grouped(count)} stored elements to two queues, a selector changes 1 KiB of JSON`,
    against: 'the sandbox alone',
    target: 0.7,
    own: async (round) => {
      const source = `payload-${round}`;
      await store(node.engine, source, sample, count);
      return count / (await node.forward(source, declare(source, selectors), count));
    },
    reference: () => selectAlone(selectors, sample, count),
  });
}

interface Comparison {
  readonly what: string;
  readonly against: string;
  readonly target: number;
  /** Both return elements per millisecond. */
  own(round: number): Promise<number>;
  reference(round: number): Promise<number>;
}

async function compare(context: BenchContext, comparison: Comparison): Promise<Finding> {
  const { what, against, target, own, reference } = comparison;
  const rounds = context.quick ? 1 : 5;
  if (!context.quick) {
    await own(-1);
    await reference(-1);
  }
  const pairs = await interleave(rounds, own, reference);
  for (const [mine, other] of pairs) {
    context.note(`${what}: ${shown(mine)}; ${against} ${shown(other)}; ratio ${(mine / other).toFixed(3)}`);
  }
  return {
    what,
    figure: shown(median(pairs.map(([mine]) => mine))),
    reference: `${shown(median(pairs.map(([, other]) => other)))} (${against})`,
    ratio: median(pairs.map(([mine, other]) => mine / other)),
    target: { kind: 'at least', ratio: target },
  };
}

function shown(perMs: number): string {
  return `${grouped(perMs * 1000)}/s`;
}

async function store(engine: Engine, queue: string, sample: NewElement[], count: number): Promise<void> {
  const key = { ns: NAMESPACE, name: queue };
  for (let left = count; left > 0; left -= 1000) {
    const some = Array.from({ length: Math.min(1000, left) }, () => sample[0] as NewElement);
    await engine.storage.insert(key, some);
  }
}

function declare(source: string, selectors: readonly string[]): Declaration {
  return parseDeclaration({
    src: { ns: NAMESPACE, queue: source },
    dst: selectors.map((selector, i) => ({ ns: NAMESPACE, queue: `${source}-to-${i}`, selector })),
    consumer: {},
  });
}

/** The engine calls of an exchange without its selectors: a pop and two inserts per batch. */
async function moveByHand(
  engine: Engine,
  queue: string,
  sample: NewElement[],
  count: number,
): Promise<number> {
  const { storage } = engine;
  const key = { ns: NAMESPACE, name: queue };
  const copies = Array.from({ length: BATCH }, () => sample[0] as NewElement);
  let moved = 0;
  const worker = async (): Promise<void> => {
    for (;;) {
      const { deliveries } = await storage.take(key, { group: PLAIN_GROUP, count: BATCH, leaseMs: null });
      if (deliveries.length === 0) return;
      const some = copies.slice(0, deliveries.length);
      await Promise.all([0, 1].map((i) => storage.insert({ ns: NAMESPACE, name: `${queue}-to-${i}` }, some)));
      moved += deliveries.length;
    }
  };
  const from = performance.now();
  await Promise.all(Array.from({ length: WINDOW }, worker));
  if (moved !== count) throw new Error(`${moved} of ${count} elements were moved.`);
  return performance.now() - from;
}

/** Returns elements per millisecond. */
async function selectAlone(
  selectors: readonly string[],
  sample: NewElement[],
  count: number,
): Promise<number> {
  const sandbox = new WorkerSandbox();
  const program = sandbox.open(selectors);
  const batch = Array.from({ length: BATCH }, (_, i) => ({
    ...(sample[0] as NewElement),
    id: `e${i}`,
    matureAt: 0,
  }));
  try {
    await program.select(batch);
    const from = performance.now();
    for (let left = count; left > 0; left -= BATCH)
      await program.select(batch.slice(0, Math.min(BATCH, left)));
    return count / (performance.now() - from);
  } finally {
    program.close();
    await sandbox.stop();
  }
}
