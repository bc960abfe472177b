/**
 * `node bench/sandbox-attacks.ts [rounds]`: runs every attack on the selector sandbox with the default limits, and
 * prints how long each lasted while another exchange's selector was evaluated continuously. Exit code 1 if one lasted
 * longer than 400 ms. Meaningless on a busy machine.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { WorkerSandbox } from '../src/sandbox/sandbox.ts';
import { ATTACKS } from '../test/sandbox/attacks.ts';
import { element, json } from '../test/sandbox/elements.ts';
import { percentile } from './scenario.ts';

const LONGEST_MS = 400;
const rounds = Number(process.argv[2] ?? 3);

const sandbox = new WorkerSandbox();
const neighbour = sandbox.open(['env => env.msg.hdrs.a === "1"']);
const innocent = Array.from({ length: 100 }, () => element({ headers: ['a', '1'] }));
const evil = json({ n: 1 });

const waits: number[] = [];
let asking = true;
async function askOn(): Promise<void> {
  while (asking) {
    const startedAt = performance.now();
    const answers = await neighbour.select(innocent);
    waits.push(performance.now() - startedAt);
    if (!answers.every((answer) => answer.outcome === 'evaluated' && answer.verdicts[0]?.accepted)) {
      throw new Error('The selector of the other exchange returned a wrong verdict.');
    }
    await new Promise(setImmediate);
  }
}

await neighbour.select(innocent);
const loop = monitorEventLoopDelay({ resolution: 1 });
loop.enable();
const asked = askOn();
let longestMs = 0;
for (const { name, selector, ends } of ATTACKS) {
  const lasted: number[] = [];
  const ended = new Set<string>();
  for (let round = 0; round < rounds; round++) {
    const program = sandbox.open([selector]);
    const startedAt = performance.now();
    const [answer] = await program.select([evil]);
    lasted.push(performance.now() - startedAt);
    const how = answer?.outcome === 'overrun' ? answer.cause : 'error';
    if (!(ends as readonly string[]).includes(how)) throw new Error(`${name} ended by ${how}.`);
    ended.add(how);
    program.close();
  }
  const most = Math.max(...lasted);
  longestMs = Math.max(longestMs, most);
  console.log(`${most.toFixed(0).padStart(5)} ms  ${[...ended].join(', ').padEnd(20)} ${name}`);
}
asking = false;
await asked;
loop.disable();
await sandbox.stop();

const ms = (value: number): string => `${value.toFixed(1)} ms`;
console.log(
  `neighbour, batches of 100: ${waits.length} answered, p50 ${ms(percentile(waits, 0.5))}, ` +
    `p99 ${ms(percentile(waits, 0.99))}, longest ${ms(Math.max(...waits))}`,
);
console.log(`main loop delay: p99 ${ms(loop.percentile(99) / 1e6)}, longest ${ms(loop.max / 1e6)}`);
console.log(`longest containment: ${ms(longestMs)}, allowed ${LONGEST_MS} ms`);
process.exitCode = longestMs > LONGEST_MS ? 1 : 0;
