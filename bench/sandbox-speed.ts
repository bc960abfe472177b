/**
 * `node bench/sandbox-speed.ts [rounds]`: the cost per message of the selector sandbox, from `select` to its answer, in
 * batches of 100, one at a time. The kinds of selectors take turns, so that noise of neighbors affects all. The main
 * thread's share is the time that a front end on the same thread loses.
 */
import type { SelectorProgram, SelectorSandbox } from '../src/sandbox/sandbox.ts';
import { WorkerSandbox } from '../src/sandbox/sandbox.ts';
import { json } from '../test/sandbox/elements.ts';
import { median } from './scenario.ts';

const rounds = Number(process.argv[2] ?? 20);
const CALLS = 10;

const item = (n: number) => ({
  sku: `A-${n}`,
  quantity: n % 9,
  price: 12.5 + n,
  tags: ['x', 'y'],
  note: 'as agreed',
});
const order = (n: number) => ({ order: n, items: Array.from({ length: 13 }, (_, at) => item(at)) });
const batch = Array.from({ length: 100 }, (_, n) =>
  json(order(n), [
    'type',
    `order${n % 7}`,
    'region',
    'eu-west',
    'trace-id',
    '4bf92f3577b34da6a3ce929d0e0e4736',
  ]),
);

const SELECTORS: Readonly<Record<string, readonly string[]>> = {
  'headers, one destination': ['env => env.msg.hdrs.type === "order3"'],
  'headers, two destinations': [
    'env => env.msg.hdrs.type === "order3"',
    'env => env.msg.hdrs.region !== "us"',
  ],
  'sets a header': ['env => { env.msg.hdrs.seen = "1"; return true }'],
  'reads the payload': ['env => env.msg.payload.order % 2 === 0'],
  'changes the payload': ['env => { env.msg.payload.seen = true; return true }'],
};

interface Kind {
  readonly name: string;
  readonly program: SelectorProgram;
  readonly us: number[];
  readonly mainUs: number[];
}

function open(sandbox: SelectorSandbox): Kind[] {
  return Object.entries(SELECTORS).map(([name, selectors]) => {
    return { name, program: sandbox.open(selectors), us: [], mainUs: [] };
  });
}

async function measure({ program, us, mainUs }: Kind): Promise<void> {
  const startedAt = performance.now();
  const busy = performance.eventLoopUtilization();
  for (let call = 0; call < CALLS; call++) await program.select(batch);
  const messages = CALLS * batch.length;
  us.push(((performance.now() - startedAt) * 1000) / messages);
  mainUs.push((performance.eventLoopUtilization(busy).active * 1000) / messages);
}

const sandbox = new WorkerSandbox();
const kinds = open(sandbox);
for (const kind of kinds) await kind.program.select(batch);
for (let round = 0; round < rounds; round++) for (const kind of kinds) await measure(kind);
await sandbox.stop();

console.log(`bodies of ${batch[0]?.body.length} bytes`);
for (const { name, us, mainUs } of kinds) {
  const [middle, best, main] = [median(us), Math.min(...us), median(mainUs)].map((value) => value.toFixed(1));
  console.log(`${name.padEnd(28)} ${middle} µs a message (best round ${best}), of which main thread ${main}`);
}
