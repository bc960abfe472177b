import { setTimeout as delay } from 'node:timers/promises';
import { jsonOf, QueueClient } from '../../test/support/http-client.ts';
import { createServer, ELEMENT, NAMESPACE } from '../quayside.ts';
import { type BenchContext, type Finding, percentile, type Scenario } from '../scenario.ts';
import { limit } from '../shared.ts';

/** A selector that the VM interrupts, one that only the watchdog ends, and one that fills the memory. */
const ATTACKS = [
  'env => { while (1); }',
  'env => /^(a+)+$/.test("a".repeat(40) + "b")',
  'env => { const a = []; for (;;) a.push(new Array(1e5).fill(0)); }',
];

/** How long one attack may occupy the sandbox (issue of the exchanges, reliability page section 1). */
const CONTAINED_MS = 400;
/** HTTP shares no thread with the sandbox: a stall would appear as an answer that takes as long as an attack. */
const HTTP_P99_MS = CONTAINED_MS / 10;

/**
 * Exchanges with attacking selectors, restarted whenever they are stopped, together with HTTP inserts and an honest
 * exchange. Each honest element waits for at most one call of each attacker.
 */
export const exchangeAttack: Scenario = {
  name: 'exchange-attack',
  async run(context) {
    await using server = await createServer(context);
    await server.start();
    const client = new QueueClient({ url: server.url });
    try {
      await create(client, 'honest', 'env => env.msg.hdrs.x === undefined');
      const free = await measure(client, context);
      for (const [i, selector] of ATTACKS.entries()) await create(client, `attack-${i}`, selector);
      const attacking = new AbortController();
      const attacks = ATTACKS.map((_, i) => attack(client, `attack-${i}`, attacking.signal));
      const attacked = await measure(client, context);
      attacking.abort();
      const struck = (await Promise.all(attacks)).reduce((sum, count) => sum + count, 0);
      context.note(`attackers were stopped ${struck} times, and started again`);
      await server.stop();
      return findings(free, attacked);
    } finally {
      client.close();
    }
  },
};

interface Measured {
  /** Times from sending an insert to its answer, ms. */
  readonly inserts: readonly number[];
  /** Times from sending an insert to the answer of a get on the honest exchange's destination, ms. */
  readonly forwards: readonly number[];
}

function findings(free: Measured, attacked: Measured): Finding[] {
  const inserts = percentile(attacked.inserts, 0.99);
  const longest = Math.max(...attacked.forwards);
  const most = ATTACKS.length * CONTAINED_MS;
  return [
    limit(
      'HTTP insert p99 while three exchanges attack',
      ms(inserts),
      `${ms(HTTP_P99_MS)} (without attacks ${ms(percentile(free.inserts, 0.99))})`,
      inserts / HTTP_P99_MS,
    ),
    limit(
      `longest of ${attacked.forwards.length} elements through another exchange at the same time`,
      ms(longest),
      `${ms(most)} (without attacks ${ms(Math.max(...free.forwards))})`,
      longest / most,
    ),
  ];
}

async function measure(client: QueueClient, context: BenchContext): Promise<Measured> {
  const lengthMs = context.quick ? 1_000 : 10_000;
  const until = performance.now() + lengthMs;
  const inserts: number[] = [];
  const forwards: number[] = [];
  const insert = async (): Promise<void> => {
    while (performance.now() < until)
      inserts.push(await timed(() => client.insert(NAMESPACE, 'other', ELEMENT)));
  };
  const forward = async (): Promise<void> => {
    while (performance.now() < until) {
      forwards.push(
        await timed(async () => {
          await client.insert(NAMESPACE, 'honest', ELEMENT);
          await client.get(NAMESPACE, 'honest-out', { to: 30_000 });
        }),
      );
    }
  };
  await Promise.all([insert(), forward()]);
  return { inserts, forwards };
}

/** Feeds an attacker and restarts it whenever it is stopped. Returns the number of restarts. */
async function attack(client: QueueClient, id: string, signal: AbortSignal): Promise<number> {
  let struck = 0;
  while (!signal.aborted) {
    for (let i = 0; i < 3; i++) await client.insert(NAMESPACE, id, ELEMENT);
    while (!signal.aborted && !(await isStopped(client, id))) await delay(20);
    if (signal.aborted) break;
    struck += 1;
    await client.request('POST', `/x/${id}/start`);
  }
  return struck;
}

async function isStopped(client: QueueClient, id: string): Promise<boolean> {
  return jsonOf<{ stopped: boolean | null }>(await client.request('GET', `/x/${id}`)).stopped === true;
}

async function create(client: QueueClient, id: string, selector: string): Promise<void> {
  const body = JSON.stringify({
    src: { ns: NAMESPACE, queue: id },
    dst: [{ ns: NAMESPACE, queue: `${id}-out`, selector }],
    consumer: {},
  });
  const { status } = await client.request('PUT', `/x/${id}`, { body });
  if (status !== 201) throw new Error(`Exchange ${id} could not be created: ${status}.`);
}

async function timed(call: () => Promise<unknown>): Promise<number> {
  const from = performance.now();
  await call();
  return performance.now() - from;
}

function ms(value: number): string {
  return `${value.toFixed(1)} ms`;
}
