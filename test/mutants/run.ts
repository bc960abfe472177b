/**
 * `npm run test:mutants -- [--part NAME] [--suite NAME] [--only TEXT]`: plants each bug of `mutants.ts` in a copy of the
 * source and tells whether the tests find it. Exit code 1 if one was not found.
 *
 * A suite must pass without a bug first, or a failure would say nothing. A suite that hangs found its bug.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { parseArgs } from 'node:util';
import { type Edit, MUTANTS, type Mutant, SUITES, type Suite } from './mutants.ts';

const REPOSITORY = new URL('../../', import.meta.url).pathname;
/** Histories a model may use to find a bug. */
const MODEL_RUNS = '300';
/** After this a suite counts as hung. */
const LIMIT_MS = 4 * 60 * 1000;

const { values } = parseArgs({
  options: { part: { type: 'string' }, suite: { type: 'string' }, only: { type: 'string' } },
});
const mutants = Object.entries(MUTANTS)
  .filter(([part]) => values.part === undefined || part === values.part)
  .flatMap(([, ofPart]) => ofPart)
  .filter(({ suite }) => values.suite === undefined || suite === values.suite)
  .filter(({ name }) => name.includes(values.only ?? ''));

const folder = mkdtempSync(join(tmpdir(), 'quayside-mutants-'));
try {
  process.exitCode = (await runAll(folder)) ? 0 : 1;
} finally {
  rmSync(folder, { recursive: true });
}

async function runAll(copy: string): Promise<boolean> {
  for (const part of ['src', 'test', 'scripts', 'package.json', 'package-lock.json', 'tsconfig.json']) {
    cpSync(join(REPOSITORY, part), join(copy, part), { recursive: true });
  }
  symlinkSync(join(REPOSITORY, 'node_modules'), join(copy, 'node_modules'));
  for (const name of new Set(mutants.map(({ suite }) => suite))) {
    if (!(await passes(copy, SUITES[name], '10'))) {
      console.log(`the suite "${name}" fails without any bug planted`);
      return false;
    }
  }
  let found = 0;
  for (const mutant of mutants) if (await isFound(copy, mutant)) found++;
  console.log(`${found} of ${mutants.length} planted bugs found`);
  return found === mutants.length;
}

async function isFound(copy: string, { name, edits, suite }: Mutant): Promise<boolean> {
  const from = performance.now();
  const originals = new Map(edits.map(({ file }) => [file, readFileSync(join(copy, file), 'utf8')]));
  try {
    for (const edit of edits) plant(copy, edit);
    const found = !(await passes(copy, SUITES[suite], MODEL_RUNS));
    const seconds = ((performance.now() - from) / 1000).toFixed(0);
    console.log(`${found ? 'found    ' : 'NOT FOUND'} ${name} (${suite}, ${seconds} s)`);
    return found;
  } finally {
    for (const [file, text] of originals) writeFileSync(join(copy, file), text);
  }
}

/** @throws Error where the text stands not exactly once: the source has moved on, and the mutant must follow */
function plant(copy: string, { file, search, replace }: Edit): void {
  const path = join(copy, file);
  const parts = readFileSync(path, 'utf8').split(search);
  if (parts.length !== 2) throw new Error(`${file} has ${parts.length - 1} times: ${search}`);
  writeFileSync(path, parts.join(replace));
}

async function passes(copy: string, { files, pattern }: Suite, modelRuns: string): Promise<boolean> {
  const filter = pattern === null ? [] : [`--test-name-pattern=${pattern}`];
  // A failed test leaves servers and sockets open, for which the process would wait until the limit.
  const options = ['--test', '--test-force-exit', '--test-reporter=tap'];
  const tests = spawn(process.execPath, [...options, ...filter, ...files], {
    cwd: copy,
    stdio: ['ignore', 'pipe', 'ignore'],
    env: { ...process.env, CONTRACT: 'whole', MODEL_RUNS: modelRuns, MODEL_SHRINK: '0' },
    // A group of its own: the runner starts a process for each file, which would run on if only the runner were killed.
    detached: true,
  });
  const limit = setTimeout(() => process.kill(-(tests.pid ?? 0), 'SIGKILL'), LIMIT_MS);
  const exit = once(tests, 'exit') as Promise<[number | null]>;
  const [output, [code]] = await Promise.all([text(tests.stdout), exit]);
  clearTimeout(limit);
  // A pattern that fits no name any more runs nothing, and passes as a file without a suite. A failure whose report was
  // cut off by the forced exit counts no suite either.
  if (code === 0 && pattern !== null && /^# suites 0$/m.test(output))
    throw new Error(`No test of ${files.join(', ')} has the name ${pattern}.`);
  if (code === null) console.log(`${files.join(', ')}: ended by a signal, as after ${LIMIT_MS / 1000} s`);
  return code === 0;
}
