import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const PROJECT = new URL('../../', import.meta.url);

const startArgs = argsOf(await readFile(new URL('package.json', PROJECT), 'utf8'));

/** V8's flags of `npm start`, for benches. */
export const SERVER_FLAGS = startArgs.filter((arg) => arg.startsWith('-'));
/** Names the server's bundle that a whole run shares, see `server-bundle.ts`. */
export const RUN_PROGRAM = 'TEST_RUN_PROGRAM';
/**
 * The program of `npm start` with its whole path, or its bundle, and no flags: they change how the garbage collector
 * works, no behaviour, and with other flags than its own Node compiles its own modules at each start, a fifth of the
 * processor time of a server's start. `test/system/npm-start.test.ts` has the flags and the modules.
 */
export const SERVER_ARGS = programArgs();
/** Node's own default place. A test that starts many servers compiles the same files once. */
export const COMPILE_CACHE = join(tmpdir(), 'node-compile-cache');
/** A bundle goes with its run, and with it its cache. */
export const cacheOfBundle = (program: string): string => join(dirname(program), 'compile-cache');
/** For the environment of {@link SERVER_ARGS}. */
export const SERVER_CACHE =
  process.env[RUN_PROGRAM] === undefined ? COMPILE_CACHE : cacheOfBundle(process.env[RUN_PROGRAM]);

function programArgs(): readonly string[] {
  const bundle = process.env[RUN_PROGRAM];
  return bundle === undefined ? startArgs.filter((arg) => !arg.startsWith('-')) : [bundle];
}

function argsOf(packageJson: string): readonly string[] {
  const { scripts } = JSON.parse(packageJson) as { scripts: { start: string } };
  const [exec, node, ...words] = scripts.start.split(' && ').at(-1)?.split(' ') ?? [];
  // Without `exec` a shell stays between npm and the server, and npm's SIGTERM ends the shell alone.
  if (exec !== 'exec' || node !== 'node') throw new Error(`"start" is ${scripts.start}, not exec node …`);
  return words.map((word) => (word.endsWith('.ts') ? fileURLToPath(new URL(word, PROJECT)) : word));
}
