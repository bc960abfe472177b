import { setTimeout as delay } from 'node:timers/promises';
import type { OperationRecord } from '../../src/model/records.ts';
import { jsonOf, QueueClient } from '../../test/support/http-client.ts';
import { ordinaryLoad } from '../load/ordinary.ts';
import { createServer, fillStopped, NAMESPACE } from '../quayside.ts';
import { type BenchContext, type Finding, grouped, percentile, type Scenario } from '../scenario.ts';
import { limit } from '../shared.ts';

const SOURCE = 'bulk';
const TARGET = 'moved';
/** How long the ordinary load runs alone, ms. */
const ALONE_MS = 10_000;
const FASTEST_MOVE = 20_000;
const MAX_P99_RATIO = 3;

/** A bulk move on SQLite under ordinary load: elements moved per second, and delay of ordinary requests. */
export const bulkMove: Scenario = {
  name: 'bulk-move',
  async run(context) {
    const count = context.quick ? 50_000 : 1_000_000;
    await using server = await createServer(context);
    await fillStopped(server, [SOURCE], count);
    await server.start();
    const client = new QueueClient({ url: server.url });
    try {
      const alone = await ordinaryLoad(client, delay(context.quick ? 1_000 : ALONE_MS));
      const from = performance.now();
      const moving = move(client, count);
      const busy = await ordinaryLoad(client, moving);
      const seconds = (performance.now() - from) / 1000;
      context.note(`${grouped(busy.length)} requests during the move, ${grouped(alone.length)} before it`);
      return findings(context, { perSecond: count / seconds, alone, busy });
    } finally {
      client.close();
      await server.stop();
    }
  },
};

function findings(
  context: BenchContext,
  { perSecond, alone, busy }: { perSecond: number; alone: readonly number[]; busy: readonly number[] },
): Finding[] {
  const [before, during] = [percentile(alone, 0.99), percentile(busy, 0.99)];
  context.note(`medians: ${ms(percentile(busy, 0.5))} during it, ${ms(percentile(alone, 0.5))} before`);
  return [
    {
      what: 'elements moved a second under ordinary load',
      figure: grouped(perSecond),
      reference: grouped(FASTEST_MOVE),
      ratio: perSecond / FASTEST_MOVE,
      target: { kind: 'at least', ratio: 1 },
    },
    limit(
      'p99 of insert and get during the move',
      ms(during),
      `${MAX_P99_RATIO} times ${ms(before)}, that of the load alone`,
      during / (MAX_P99_RATIO * before),
    ),
  ];
}

/** Resolves once all elements are moved. */
async function move(client: QueueClient, count: number): Promise<void> {
  const body = JSON.stringify({
    action: 'move',
    source: { ns: NAMESPACE, queue: SOURCE },
    to: { ns: NAMESPACE, queue: TARGET },
  });
  const headers = { 'content-type': 'application/json' };
  const { id } = jsonOf<OperationRecord>(await client.request('POST', '/operations', { body, headers }));
  for (;;) {
    const { state, changed } = jsonOf<OperationRecord>(await client.request('GET', `/operations/${id}`));
    if (state !== 'running' && changed === count) return;
    if (state !== 'running') throw new Error(`the move is ${state} after ${changed} elements`);
    await delay(50);
  }
}

function ms(value: number): string {
  return `${value.toFixed(1)} ms`;
}
