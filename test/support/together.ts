import { globSync, readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

const TESTS = new URL('../', import.meta.url);
/** A hook outside `describe`. */
const OUTER_HOOK = /^(?:before|after|beforeEach|afterEach)\(/m;

/**
 * Runs test files in this process, one after another: loading the same few hundred modules again for each of 200 files
 * took a good part of the processor time of `npm test`. A file may not have hooks outside `describe`, since they would
 * run for the tests of all files.
 * @param pattern of their paths below `test`; {@link filesOf} reads it from the source of the caller
 */
export async function runTogether(pattern: string): Promise<void> {
  for (const file of globSync(pattern, { cwd: fileURLToPath(TESTS) }).sort()) {
    const url = new URL(file, TESTS);
    if (OUTER_HOOK.test(await readFile(url, 'utf8')))
      throw new Error(`test/${file} has a hook outside describe`);
    await import(url.href);
  }
}

/** Returns the test files that this one runs together, or this one. Paths are below the project. */
export function filesOf(path: string): string[] {
  const source = readFileSync(new URL(`../${path}`, TESTS), 'utf8');
  const pattern = /^await runTogether\('(.+)'\)/m.exec(source)?.[1];
  return pattern === undefined
    ? [path]
    : globSync(`test/${pattern}`, { cwd: fileURLToPath(new URL('..', TESTS)) }).sort();
}
