import { globSync, readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

const TESTS = new URL('../', import.meta.url);
/** A hook outside `describe`. */
const OUTER_HOOK = /^(?:before|after|beforeEach|afterEach)\(/m;
/** The statement of a file in `test/all`. */
const STATEMENT = /^await runTogether\('(.+?)'(?:, \{ part: (\d+), of: (\d+) \})?\);$/m;

/** One of several equally large parts of the files, counted from 1: the parts run concurrently, each in a process. */
interface Part {
  readonly part: number;
  readonly of: number;
}

const WHOLE: Part = { part: 1, of: 1 };

/**
 * Runs test files in this process, one after another: loading the same few hundred modules again for each of 200 files
 * took a good part of the processor time of `npm test`. A file may not have hooks outside `describe`, since they would
 * run for the tests of all files.
 * @param pattern of their paths below `test`; {@link filesOf} reads it, and the part, from the source of the caller
 */
export async function runTogether(pattern: string, part = WHOLE): Promise<void> {
  for (const file of filesBelowTests(pattern, part)) {
    const url = new URL(file, TESTS);
    if (OUTER_HOOK.test(await readFile(url, 'utf8')))
      throw new Error(`test/${file} has a hook outside describe`);
    await import(url.href);
  }
}

/** Returns the test files that this one runs together, or this one. Paths are below the project. */
export function filesOf(path: string): string[] {
  const found = STATEMENT.exec(readFileSync(new URL(`../${path}`, TESTS), 'utf8'));
  if (found === null) return [path];
  const [, pattern = '', part = 1, of = 1] = found;
  return filesBelowTests(pattern, { part: Number(part), of: Number(of) }).map((file) => `test/${file}`);
}

/** Every n-th file, so that a new file moves only the files after it. */
function filesBelowTests(pattern: string, { part, of }: Part): string[] {
  const files = globSync(pattern, { cwd: fileURLToPath(TESTS) }).sort();
  return files.filter((_, at) => at % of === part - 1);
}
