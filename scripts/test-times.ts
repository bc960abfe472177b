/**
 * `node scripts/test-times.ts [FILE…]`: runs the test files of `npm test` one by one, on the same shared servers, and
 * prints the processor time and the elapsed time of each, the costliest first. On few cores, the sum of processor times
 * determines how long `npm test` takes. On a busy machine the same work was measured at up to 1.5 times as much:
 * compare two versions in alternating runs, not with figures of another hour.
 *
 * Chromium is undercounted by more than half, because the time of a page is lost when the browser ends its renderer
 * process. `perf stat -e task-clock` counts it.
 *
 * The output of a failed file is printed above its line.
 *
 * A file of `test/all/` is replaced by the files of its group, which are run separately: each then loads its modules
 * itself, which costs about half a second that `npm test` does not spend. A file of `test/all/` given as an
 * argument runs as in `npm test`.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { globSync, readdirSync, readFileSync } from 'node:fs';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { globalSetup, globalTeardown } from '../test/support/run-servers.ts';
import { filesOf } from '../test/support/together.ts';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
/** Clock ticks per second in /proc. */
const TICKS = 100;

interface Times {
  readonly file: string;
  readonly processor: number;
  readonly passed: number;
  readonly failed: boolean;
}

const { scripts } = JSON.parse(readFileSync(`${ROOT}package.json`, 'utf8'));
/**
 * The Node flags of `npm test`. One sets V8's initial heap: with the small default, V8 marks the whole heap about once
 * a second in a long test process, which takes a tenth of its processor time.
 */
const FLAGS = scripts.test.split(' --test ')[0].split(' ').slice(1);

const given = process.argv.slice(2);
const files = given.length > 0 ? given : filesOfNpmTest();
// Exit on a signal, so that the shared servers end with this process.
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
  return patterns.flatMap((pattern) => globSync(pattern, { cwd: ROOT }).sort().flatMap(filesOf));
}

async function run(file: string): Promise<Times> {
  const from = { processor: processorTime(), passed: performance.now() };
  const args = [...FLAGS, '--test-reporter=spec', file];
  const test = spawn(process.execPath, args, { cwd: ROOT, stdio: ['ignore', 'pipe', 'ignore'] });
  const [output, [code]] = await Promise.all([text(test.stdout), once(test, 'exit')]);
  // Print the output now: a failure may not repeat.
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

/** Processor seconds used by this process and its descendants, including those that ended and were waited for. */
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

/** The fields of /proc/ID/stat after the process name (which may contain spaces); empty if the process has ended. */
function statOf(id: number): string[] {
  try {
    const stat = readFileSync(`/proc/${id}/stat`, 'utf8');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  } catch {
    return [];
  }
}
