import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Engine } from '../../src/engine/engine.ts';
import { PLAIN_GROUP } from '../../src/model/element.ts';
import { ELEMENT, elements, NAMESPACE, openEngine } from '../quayside.ts';
import { RawSqlite } from '../reference/raw-sqlite.ts';
import { type BenchContext, type Finding, grouped, median, type Scenario } from '../scenario.ts';

const BATCH = 64;
/** Concurrent calls: while one batch is in its transaction, the next is prepared, as under real load. */
const WINDOW = 2;
const QUEUE = { ns: NAMESPACE, name: 'engine' };

/**
 * The embedded engine at its port, without HTTP, compared with raw prepared statements on the same schema in one
 * thread: the cost of the second thread, ids, checksums and counts.
 */
export const engine: Scenario = {
  name: 'engine',
  async run(context) {
    const folder = await mkdtemp(path.join(tmpdir(), 'quayside-bench-'));
    try {
      return await measure(context, folder);
    } finally {
      await rm(folder, { recursive: true });
    }
  },
};

async function measure(context: BenchContext, folder: string): Promise<Finding[]> {
  const model = path.join(folder, 'model');
  await (await openEngine(model)).stop();
  const raw = new RawSqlite(path.join(folder, 'raw.db'), path.join(model, 'N.db'));
  const own = await openEngine(path.join(folder, 'own'));
  try {
    const batches = context.quick ? 50 : 500;
    const rounds = context.quick ? 1 : 9;
    await insertRound(own, raw, batches);
    await takeRound(own, raw, batches);
    const inserts: Rates[] = [];
    const takes: Rates[] = [];
    for (let round = 0; round < rounds; round++) {
      inserts.push(await insertRound(own, raw, batches));
      takes.push(await takeRound(own, raw, batches));
    }
    return [findingOf(context, 'insert', inserts), findingOf(context, 'take', takes)];
  } finally {
    raw.close();
    await own.stop();
  }
}

/** Elements per second, of the engine and of the reference. */
interface Rates {
  readonly own: number;
  readonly raw: number;
}

async function insertRound(own: Engine, raw: RawSqlite, batches: number): Promise<Rates> {
  const batch = elements(BATCH);
  const body = Buffer.from(ELEMENT);
  return {
    own: await rate(batches, () => own.storage.insert(QUEUE, batch)),
    raw: await rate(batches, () => raw.insert(BATCH, 'application/json', body)),
  };
}

async function takeRound(own: Engine, raw: RawSqlite, batches: number): Promise<Rates> {
  const options = { group: PLAIN_GROUP, count: BATCH, leaseMs: null };
  const full = (taken: number): void => {
    if (taken !== BATCH) throw new Error(`A take returned ${taken} elements instead of ${BATCH}.`);
  };
  return {
    own: await rate(batches, () =>
      own.storage.take(QUEUE, options).then((result) => full(result.deliveries.length)),
    ),
    raw: await rate(batches, () => full(raw.take(BATCH))),
  };
}

/** Runs this many batches, {@link WINDOW} at a time. Returns elements per second. */
async function rate(batches: number, run: () => unknown): Promise<number> {
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
  const what = `${verb}, batches of ${BATCH}, synchronous=FULL`;
  for (const { own, raw } of rounds) {
    context.note(`${what}: ${grouped(own)}/s; raw ${grouped(raw)}/s; ratio ${(own / raw).toFixed(3)}`);
  }
  return {
    what,
    figure: `${grouped(median(rounds.map(({ own }) => own)))}/s`,
    reference: `${grouped(median(rounds.map(({ raw }) => raw)))}/s (raw statements)`,
    ratio: median(rounds.map(({ own, raw }) => own / raw)),
    target: { kind: 'at least', ratio: 0.7 },
  };
}
