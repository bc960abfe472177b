import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Engine } from '../../src/engine/engine.ts';
import { PLAIN_GROUP } from '../../src/model/element.ts';
import { runInsertPop } from '../load/pairs.ts';
import { residentBytesOf } from '../process.ts';
import {
  AUTHORIZATION,
  benchPath,
  createServer,
  ELEMENT,
  elements,
  fill,
  fillStopped,
  NAMESPACE,
  openEngine,
} from '../quayside.ts';
import { type BenchContext, type Finding, grouped, median, type Scenario } from '../scenario.ts';

export const DEPTH_QUEUE = 'depth';
const BATCH = 64;
const MEGABYTE = 1024 * 1024;
/** Limit of the server's memory growth; the ratio is relative to it, so 1 is the limit. */
const GROWTH_LIMIT = 64 * MEGABYTE;

/**
 * The cost of an insert and a take in a deep queue compared with a shallow one, at the engine's port, where HTTP hides
 * nothing; and the cost of the depth in server memory under the same load.
 */
export const depth: Scenario = {
  name: 'depth',
  async run(context) {
    const [deep, shallow] = context.quick ? [100_000, 10_000] : [10_000_000, 10_000];
    return [...(await costs(context, deep, shallow)), await memory(context, deep, shallow)];
  },
};

async function costs(context: BenchContext, deep: number, shallow: number): Promise<Finding[]> {
  const folder = await mkdtemp(path.join(tmpdir(), 'quayside-bench-'));
  const engines: Engine[] = [];
  try {
    for (const count of [deep, shallow]) {
      const engine = await openEngine(path.join(folder, String(count)));
      engines.push(engine);
      const from = performance.now();
      await fill(engine, DEPTH_QUEUE, count);
      context.note(`filled ${grouped(count)} at ${grouped((count * 1000) / (performance.now() - from))}/s`);
    }
    const [deepEngine, shallowEngine] = engines;
    if (deepEngine === undefined || shallowEngine === undefined) throw new Error('There is no engine.');
    return await depthCosts(
      context,
      { engine: deepEngine, count: deep },
      { engine: shallowEngine, count: shallow },
    );
  } finally {
    for (const engine of engines) await engine.stop();
    await rm(folder, { recursive: true });
  }
}

/** An engine whose queue {@link DEPTH_QUEUE} holds `count` elements. */
export interface Filled {
  readonly engine: Engine;
  readonly count: number;
}

/** The cost of a batch in the deep queue compared with the shallow one, in interleaved rounds. */
export async function depthCosts(context: BenchContext, deep: Filled, shallow: Filled): Promise<Finding[]> {
  const batches = context.quick ? 20 : 100;
  const rounds = context.quick ? 1 : 25;
  const inserts: Costs[] = [];
  const takes: Costs[] = [];
  for (let round = 0; round < rounds; round++) {
    inserts.push([await insertCost(deep.engine, batches), await insertCost(shallow.engine, batches)]);
    takes.push([await takeCost(deep.engine, batches), await takeCost(shallow.engine, batches)]);
  }
  return [
    costFinding('insert', inserts, deep.count, shallow.count),
    costFinding('take', takes, deep.count, shallow.count),
  ];
}

/** Cost per element, µs. */
type Costs = readonly [deep: number, shallow: number];

function insertCost(engine: Engine, batches: number): Promise<number> {
  const batch = elements(BATCH);
  return cost(batches, async () => {
    await engine.storage.insert({ ns: NAMESPACE, name: DEPTH_QUEUE }, batch);
  });
}

function takeCost(engine: Engine, batches: number): Promise<number> {
  const options = { group: PLAIN_GROUP, count: BATCH, leaseMs: null };
  return cost(batches, async () => {
    const { deliveries } = await engine.storage.take({ ns: NAMESPACE, name: DEPTH_QUEUE }, options);
    if (deliveries.length !== BATCH)
      throw new Error(`A take returned ${deliveries.length} elements instead of ${BATCH}.`);
  });
}

async function cost(batches: number, run: () => Promise<void>): Promise<number> {
  const from = performance.now();
  for (let batch = 0; batch < batches; batch++) await run();
  return ((performance.now() - from) * 1000) / (batches * BATCH);
}

function costFinding(verb: string, rounds: readonly Costs[], deep: number, shallow: number): Finding {
  return {
    what: `cost of ${verb} at ${grouped(deep)} elements`,
    figure: `${median(rounds.map(([cost]) => cost)).toFixed(2)} µs`,
    reference: `${median(rounds.map(([, cost]) => cost)).toFixed(2)} µs at ${grouped(shallow)}`,
    ratio: median(rounds.map(([a, b]) => a / b)),
    target: { kind: 'at most', ratio: 1.3 },
  };
}

async function memory(context: BenchContext, deep: number, shallow: number): Promise<Finding> {
  const [own, reference] = [
    await residentAfterLoad(context, deep),
    await residentAfterLoad(context, shallow),
  ];
  return {
    what: `server memory at ${grouped(deep)} elements, after load`,
    figure: `${(own / MEGABYTE).toFixed(1)} MiB`,
    reference: `${(reference / MEGABYTE).toFixed(1)} MiB at ${grouped(shallow)}; ratio is the growth as a share of ${GROWTH_LIMIT / MEGABYTE} MiB`,
    ratio: Math.max(0, own - reference) / GROWTH_LIMIT,
    target: { kind: 'at most', ratio: 1 },
  };
}

async function residentAfterLoad(context: BenchContext, count: number): Promise<number> {
  await using server = await createServer(context);
  await fillStopped(server, [DEPTH_QUEUE], count);
  const from = performance.now();
  await server.start();
  context.note(`the server starts in ${grouped(performance.now() - from)} ms on ${grouped(count)} elements`);
  const seconds = context.quick ? 1 : 5;
  const { url, pid } = server;
  const load = {
    url,
    pid,
    queuePath: benchPath(DEPTH_QUEUE),
    authorization: AUTHORIZATION,
    connections: 64,
    seconds,
  };
  await runInsertPop(load, ELEMENT);
  const resident = residentBytesOf(server.pid);
  await server.stop();
  return resident;
}
