import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const PROJECT = new URL('../../', import.meta.url);

const startArgs = argsOf(await readFile(new URL('package.json', PROJECT), 'utf8'));

/** V8's flags of `npm start`, for benches. */
export const SERVER_FLAGS = startArgs.filter((arg) => arg.startsWith('-'));
/**
 * The program of `npm start` with its whole path, and no flags: they change how the garbage collector works, no behaviour, and
 * with other flags than its own Node compiles its own modules at each start, a fifth of the processor time of a server's start.
 * `test/system/npm-start.test.ts` has the flags.
 */
export const SERVER_ARGS = startArgs.filter((arg) => !arg.startsWith('-'));
/** Node's own default place. A test that starts many servers compiles the same files once. */
export const COMPILE_CACHE = join(tmpdir(), 'node-compile-cache');

function argsOf(packageJson: string): readonly string[] {
  const { scripts } = JSON.parse(packageJson) as { scripts: { start: string } };
  const [exec, node, ...words] = scripts.start.split(' && ').at(-1)?.split(' ') ?? [];
  // Without `exec` a shell stays between npm and the server, and npm's SIGTERM ends the shell alone.
  if (exec !== 'exec' || node !== 'node') throw new Error(`"start" is ${scripts.start}, not exec node …`);
  return words.map((word) => (word.endsWith('.ts') ? fileURLToPath(new URL(word, PROJECT)) : word));
}
