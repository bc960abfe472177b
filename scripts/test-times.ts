/**
 * `node scripts/test-times.ts [FILE…]`: runs the files of `npm test` one after another, on the servers that a whole run
 * shares, and prints for each the processor time and the time that passed, the costliest first. The sum of processor
 * time is what decides how long `npm test` takes on few cores. On a busy machine it comes out larger, up to one and a
 * half times as large was seen: compare two states in turn, not with figures of another hour.
 *
 * Of Chromium it counts less than half: what a page used is lost when the browser ends its process.
 * `perf stat -e task-clock` has it.
 *
 * The output of a file that failed stands above its line.
 *
 * A file of `test/groups/` stands for the files of its folder, which run singly here: each then loads its modules
 * itself, about half a second that it does not need in `npm test`. Named as an argument, a file of `test/groups/` runs
 * as it does there.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { globSync, readdirSync, readFileSync } from 'node:fs';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { globalSetup, globalTeardown } from '../test/support/run-servers.ts';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
/** Of /proc: ticks of the clock in a second. */
const TICKS = 100;

interface Times {
  readonly file: string;
  readonly processor: number;
  readonly passed: number;
  readonly failed: boolean;
}

const { scripts } = JSON.parse(readFileSync(`${ROOT}package.json`, 'utf8'));
/**
 * What stands before `--test` there. One is for V8: with the small heap that it begins with, it marks all of the heap
 * about every second of a long test process, a tenth of its processor time.
 */
const FLAGS = scripts.test.split(' --test ')[0].split(' ').slice(1);

const given = process.argv.slice(2);
const files = given.length > 0 ? given : filesOfNpmTest();
// The shared servers end with this process, also if it is interrupted.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(1));
await globalSetup();
try {
  const times: Times[] = [];
  for (const file of files) {
    times.push(await run(file));
    print(times.at(-1));
  }
  console.log('\ncostliest first:');
  for (const each of times.sort((a, b) => b.processor - a.processor)) print(each);
  const sum = times.reduce((total, { processor }) => total + processor, 0);
  console.log(`${sum.toFixed(1).padStart(7)} s of processor time in all`);
  if (times.some(({ failed }) => failed)) process.exitCode = 1;
} finally {
  await globalTeardown();
}

function filesOfNpmTest(): string[] {
  const patterns = [...scripts.test.matchAll(/"(test\/[^"]+)"/g)].map(([, pattern]) => pattern);
  return patterns.flatMap((pattern) =>
    globSync(pattern, { cwd: ROOT })
      .sort()
      .flatMap((file) => {
        const folder = /^test\/groups\/(.+)\.test\.ts$/.exec(file)?.[1];
        return folder === undefined ? [file] : globSync(`test/${folder}/**/*.test.ts`, { cwd: ROOT }).sort();
      }),
  );
}

async function run(file: string): Promise<Times> {
  const from = { processor: processorTime(), passed: performance.now() };
  const args = [...FLAGS, '--test-reporter=tap', file];
  const test = spawn(process.execPath, args, { cwd: ROOT, stdio: ['ignore', 'pipe', 'ignore'] });
  const [output, [code]] = await Promise.all([text(test.stdout), once(test, 'exit')]);
  // A failure that does not repeat can only be found in what this run said of it.
  if (code !== 0) console.log(output);
  return {
    file,
    processor: processorTime() - from.processor,
    passed: (performance.now() - from.passed) / 1000,
    failed: code !== 0,
  };
}

function print(times: Times | undefined): void {
  if (times === undefined) return;
  const { file, processor, passed, failed } = times;
  const columns = [processor, passed].map((seconds) => seconds.toFixed(1).padStart(7)).join('');
  console.log(`${columns}  ${file}${failed ? '  FAILED' : ''}`);
}

/** Seconds that this process, those that it started and theirs have used, also those that ended and were waited for. */
function processorTime(): number {
  const parents = new Map<number, number>();
  const ticks = new Map<number, number>();
  for (const id of readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)) {
    const fields = statOf(id);
    parents.set(id, Number(fields[1]));
    ticks.set(
      id,
      fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0),
    );
  }
  const isOurs = (id: number | undefined): boolean =>
    id !== undefined && (id === process.pid || isOurs(parents.get(id)));
  return [...ticks].reduce((sum, [id, used]) => (isOurs(id) ? sum + used : sum), 0) / TICKS;
}

/** The fields after the name, which may have spaces; none if the process has ended. */
function statOf(id: number): string[] {
  try {
    const stat = readFileSync(`/proc/${id}/stat`, 'utf8');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  } catch {
    return [];
  }
}
