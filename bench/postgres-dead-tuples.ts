/**
 * `node bench/postgres-dead-tuples.ts [--quick]`: the cost of a take while an unrelated transaction stays open.
 * PostgreSQL then cannot remove anything that the queue has finished since, and the index of waiting deliveries starts
 * with more and more dead entries.
 *
 * Each figure is printed next to the time of the same query from the very front of the index, as a plain `ORDER BY …
 * LIMIT` runs it. The engine starts where it last found something (`watermark.ts`).
 */
import { parseArgs } from 'node:util';
import pg from 'pg';
import type { Engine } from '../src/engine/engine.ts';
import { open } from '../src/engines/postgres/index.ts';
import { PLAIN_GROUP } from '../src/model/element.ts';
import { systemClock } from '../src/util/clock.ts';
import { PostgresServer } from '../test/support/postgres-server.ts';
import { elements, NAMESPACE } from './quayside.ts';
import { grouped, median } from './scenario.ts';

const SCHEMA = 'bench';
const QUEUE = { ns: NAMESPACE, name: 'dead tuples' };
const BATCH = 64;
/** Concurrent calls. */
const WINDOW = 2;
/** Elements always stored, so that a take is never short. */
const STOCK = 20_000;

/** How a plain query finds the first eligible deliveries. */
const FROM_THE_FRONT = `SELECT seq FROM ${SCHEMA}.delivery
  WHERE subscription = (SELECT min(id) FROM ${SCHEMA}.subscription) AND lease_until IS NULL AND due_at <= ${SCHEMA}.now_ms()
  ORDER BY due_at, seq LIMIT ${BATCH} FOR UPDATE SKIP LOCKED`;

const { values } = parseArgs({ options: { quick: { type: 'boolean', default: false } } });
const [steps, perStep, samples] = values.quick ? [1, 10_000, 5] : [4, 250_000, 200];

const server = await PostgresServer.start();
try {
  await measure();
} finally {
  server.dispose();
}

async function measure(): Promise<void> {
  const engine = open({
    url: server.url(),
    dataDir: '',
    namespaces: [{ name: NAMESPACE, groups: null, deadLetter: null, retentionMs: null }],
    clock: systemClock,
    dedupWindowMs: 24 * 3600 * 1000,
    settings: { schema: SCHEMA },
    log: { info: () => {}, warn: (fields, message) => console.warn(message, fields) },
  });
  await engine.start();
  const [holder, looker] = [await connected(), await connected()];
  // Forces the plan that a queue's query should have; whether PostgreSQL would choose it is not measured here.
  await looker.query('SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off');
  await repeat(STOCK / BATCH, () => engine.storage.insert(QUEUE, elements(BATCH)));
  await churn(engine, perStep);
  const before = await report('no other transaction', engine, looker);

  await holder.query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()');
  let after = before;
  for (let step = 1; step <= steps; step++) {
    const rate = await churn(engine, perStep);
    const held = `transaction held open, ${grouped(step * perStep)} dead, ${grouped(rate)}/s through the queue`;
    after = await report(held, engine, looker);
  }
  await holder.query('COMMIT');
  console.log(
    `a take with ${grouped(steps * perStep)} dead entries costs ${(after / before).toFixed(2)} times as much`,
  );
  await Promise.all([holder.end(), looker.end()]);
  await engine.stop();
}

/** Inserts and pops this many elements, so that the stock stays the same. Returns elements per second. */
async function churn({ storage }: Engine, count: number): Promise<number> {
  const from = performance.now();
  await repeat(count / BATCH, () => Promise.all([storage.insert(QUEUE, elements(BATCH)), take(storage)]));
  return (count * 1000) / (performance.now() - from);
}

async function take(storage: Engine['storage']): Promise<void> {
  const { deliveries } = await storage.take(QUEUE, { group: PLAIN_GROUP, count: BATCH, leaseMs: null });
  if (deliveries.length !== BATCH)
    throw new Error(`A take returned ${deliveries.length} elements instead of ${BATCH}.`);
}

/** Prints the median cost of a take, of a status and of a query from the front, ms. Returns that of a take. */
async function report(what: string, engine: Engine, looker: pg.Client): Promise<number> {
  const takes: number[] = [];
  const statuses: number[] = [];
  const looks: number[] = [];
  for (let sample = 0; sample < samples; sample++) {
    await engine.storage.insert(QUEUE, elements(BATCH));
    takes.push(await timed(() => take(engine.storage)));
    statuses.push(await timed(() => engine.storage.counts(QUEUE)));
    if (sample % 20 === 0) looks.push(await timed(() => looker.query(FROM_THE_FRONT)));
  }
  const ms = (times: readonly number[]): string => `${median(times).toFixed(2)} ms`;
  console.log(`${what}: take of ${BATCH} ${ms(takes)}, from the front ${ms(looks)}; status ${ms(statuses)}`);
  return median(takes);
}

async function timed(run: () => Promise<unknown>): Promise<number> {
  const from = performance.now();
  await run();
  return performance.now() - from;
}

async function repeat(count: number, run: () => Promise<unknown>): Promise<void> {
  let left = count;
  const caller = async (): Promise<void> => {
    while (left > 0) {
      left -= 1;
      await run();
    }
  };
  await Promise.all(Array.from({ length: WINDOW }, caller));
}

async function connected(): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: server.url() });
  await client.connect();
  return client;
}
