/**
 * `npm run test:mutants -- [--part NAME] [--suite NAME] [--only TEXT] [--jobs N]`: plants each bug of `mutants.ts` in a
 * copy of the source, and prints whether the tests find it. The exit code is 1 if one was not found.
 *
 * Each suite must pass without a bug first, or its failure would prove nothing. A suite is stopped at its first failed
 * test; one that hangs has found its bug, which is printed with the result. Each of the N jobs (default 2) has its own
 * copy.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { type Edit, MUTANTS, type Mutant, SUITES, type Suite } from './mutants.ts';

const REPOSITORY = new URL('../../', import.meta.url).pathname;
/** Files that the suites need, including those to build the console. */
const COPIED = [
  'src',
  'test',
  'scripts',
  'package.json',
  'package-lock.json',
  'tsconfig.json',
  'vite.config.ts',
] as const;
/** Number of histories that a model may run to find a bug. */
const MODEL_RUNS = '300';
/**
 * A suite counts as hung after this time, or if it takes several times as long as without a bug. Model suites have only
 * this limit, since they run more histories with a bug.
 */
const MAX_MS = 4 * 60 * 1000;
const MIN_MS = 30_000;
const HUNG_FACTOR = 6;

const { values } = parseArgs({
  options: {
    part: { type: 'string' },
    suite: { type: 'string' },
    only: { type: 'string' },
    jobs: { type: 'string', default: '2' },
  },
});
const mutants = Object.entries(MUTANTS)
  .filter(([part]) => values.part === undefined || part === values.part)
  .flatMap(([, ofPart]) => ofPart)
  .filter(({ suite }) => values.suite === undefined || suite === values.suite)
  .filter(({ name }) => name.includes(values.only ?? ''));

/** The time after which each suite counts as hung, ms. */
const limits = new Map<string, number>();
const folder = mkdtempSync(join(tmpdir(), 'quayside-mutants-'));
try {
  process.exitCode = (await runAll(copies(Number(values.jobs)))) ? 0 : 1;
} finally {
  rmSync(folder, { recursive: true });
}

function copies(count: number): string[] {
  return Array.from({ length: count }, (_, at) => {
    const copy = join(folder, String(at));
    for (const part of COPIED) {
      cpSync(join(REPOSITORY, part), join(copy, part), { recursive: true });
    }
    symlinkSync(join(REPOSITORY, 'node_modules'), join(copy, 'node_modules'));
    return copy;
  });
}

async function runAll(folders: readonly string[]): Promise<boolean> {
  const broken: string[] = [];
  await inParallel(folders, new Set(mutants.map(({ suite }) => suite)), async (copy, name) => {
    const from = performance.now();
    if (!(await run(copy, SUITES[name], '10', MAX_MS)).hasPassed) broken.push(name);
    const ms = HUNG_FACTOR * (performance.now() - from);
    limits.set(name, name.includes('model') ? MAX_MS : Math.min(MAX_MS, Math.max(MIN_MS, ms)));
  });
  for (const name of broken) console.log(`the suite "${name}" fails without any bug planted`);
  if (broken.length > 0) return false;
  let found = 0;
  await inParallel(folders, mutants, async (copy, mutant) => {
    if (await isFound(copy, mutant)) found += 1;
  });
  console.log(`${found} of ${mutants.length} planted bugs found`);
  return found === mutants.length;
}

/** Processes all items, one at a time in each folder. */
async function inParallel<T>(
  folders: readonly string[],
  items: Iterable<T>,
  work: (copy: string, item: T) => Promise<void>,
): Promise<void> {
  const rest = [...items].values();
  await Promise.all(
    folders.map(async (copy) => {
      for (const item of rest) await work(copy, item);
    }),
  );
}

async function isFound(copy: string, { name, edits, suite }: Mutant): Promise<boolean> {
  const from = performance.now();
  const originals = new Map(edits.map(({ file }) => [file, readFileSync(join(copy, file), 'utf8')]));
  try {
    for (const edit of edits) plant(copy, edit);
    const { hasPassed, hasHung } = await run(copy, SUITES[suite], MODEL_RUNS, limits.get(suite) ?? MAX_MS);
    const seconds = ((performance.now() - from) / 1000).toFixed(0);
    const how = hasHung ? `hung, ${seconds} s` : `${seconds} s`;
    console.log(`${hasPassed ? 'NOT FOUND' : 'found    '} ${name} (${suite}, ${how})`);
    return !hasPassed;
  } finally {
    for (const [file, text] of originals) writeFileSync(join(copy, file), text);
  }
}

/** @throws Error if the text does not occur exactly once: the source has changed, and the mutant must follow */
function plant(copy: string, { file, search, replace }: Edit): void {
  const path = join(copy, file);
  const parts = readFileSync(path, 'utf8').split(search);
  if (parts.length !== 2) throw new Error(`${file} has ${parts.length - 1} times: ${search}`);
  writeFileSync(path, parts.join(replace));
}

async function run(
  copy: string,
  { files, pattern }: Suite,
  modelRuns: string,
  limitMs: number,
): Promise<{ hasPassed: boolean; hasHung: boolean }> {
  const filter = pattern === null ? [] : [`--test-name-pattern=${pattern}`];
  // A failed test leaves servers and sockets open, which would keep the process alive until the limit.
  const options = ['--test', '--test-force-exit', '--test-reporter=tap'];
  const tests = spawn(process.execPath, [...options, ...filter, ...files], {
    cwd: copy,
    stdio: ['ignore', 'pipe', 'ignore'],
    env: { ...process.env, CONTRACT: 'whole', MODEL_RUNS: modelRuns, MODEL_SHRINK: '0' },
    // A separate process group: the runner starts a process for each file, which would survive if only the runner were
    // killed.
    detached: true,
  });
  const exit = once(tests, 'exit') as Promise<[number | null]>;
  const end = (): void => {
    try {
      process.kill(-(tests.pid ?? 0), 'SIGKILL');
    } catch {
      // It has already ended.
    }
  };
  const limit = setTimeout(end, limitMs);
  let hasFailed = false;
  let hasSuites = true;
  for await (const line of createInterface({ input: tests.stdout })) {
    if (line === '# suites 0') hasSuites = false;
    if (hasFailed || !/^ *not ok /.test(line)) continue;
    hasFailed = true;
    end();
  }
  const [code] = await exit;
  clearTimeout(limit);
  // A pattern that matches no name any more runs nothing, and passes as a file without a suite. A failure whose report
  // was truncated by the forced exit counts no suite either.
  if (code === 0 && pattern !== null && !hasSuites)
    throw new Error(`No test of ${files.join(', ')} has the name ${pattern}.`);
  return { hasPassed: code === 0, hasHung: code === null && !hasFailed };
}
