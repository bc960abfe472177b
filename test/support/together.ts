import { globSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

const TESTS = new URL('../', import.meta.url);
/** A hook outside `describe`. */
const OUTER_HOOK = /^(?:before|after|beforeEach|afterEach)\(/m;

/**
 * Runs the test files of a folder in this process, one after another: loading the same few hundred modules again for
 * each of 150 files took a good part of the processor time of `npm test`. A file may not have hooks outside `describe`,
 * since they would run for the tests of all files.
 */
export async function runTogether(folder: string): Promise<void> {
  for (const file of globSync(`${folder}/**/*.test.ts`, { cwd: fileURLToPath(TESTS) }).sort()) {
    const url = new URL(file, TESTS);
    if (OUTER_HOOK.test(await readFile(url, 'utf8')))
      throw new Error(`test/${file} has a hook outside describe`);
    await import(url.href);
  }
}
