import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const PROJECT = new URL('../../', import.meta.url);

const startArgs = argsOf(await readFile(new URL('package.json', PROJECT), 'utf8'));

/** The V8 flags of `npm start`, for benches. */
export const SERVER_FLAGS = startArgs.filter((arg) => arg.startsWith('-'));
/** Environment variable with the path of the server bundle that a whole run shares, see `server-bundle.ts`. */
export const RUN_PROGRAM = 'TEST_RUN_PROGRAM';
/**
 * One thread for garbage collection and compilation instead of four: a start takes a twentieth less processor time. The
 * option is Node's, not V8's.
 */
const ONE_HELPER = '--v8-pool-size=1';
/**
 * The program of `npm start` with its full path, or its bundle, without V8 flags: they affect only garbage collection,
 * and with flags other than its own, Node compiles its built-in modules at each start, a fifth of a server's start in
 * processor time. `test/system/npm-start.test.ts` uses the flags and the modules.
 */
export const SERVER_ARGS = programArgs();
/** Node's default folder. A test that starts many servers compiles the same files only once. */
export const COMPILE_CACHE = join(tmpdir(), 'node-compile-cache');
/** The compile cache of a bundle, which is removed with the bundle at the end of the run. */
export const cacheOfBundle = (program: string): string => join(dirname(program), 'compile-cache');
/** Environment variable for servers started with {@link SERVER_ARGS}. */
export const SERVER_CACHE =
  process.env[RUN_PROGRAM] === undefined ? COMPILE_CACHE : cacheOfBundle(process.env[RUN_PROGRAM]);

/** The name of the bundle of `test/engines/sqlite-caller.ts`. */
export const SQLITE_CALLER = 'sqlite-caller';

/**
 * The program `test/engines/sqlite-caller.ts`, or its bundle, which starts in less than half the processor time: a
 * process that is killed stores nothing in the compile cache.
 */
export function sqliteCaller(): string {
  const bundle = process.env[RUN_PROGRAM];
  return bundle === undefined
    ? fileURLToPath(new URL('test/engines/sqlite-caller.ts', PROJECT))
    : join(dirname(bundle), `${SQLITE_CALLER}.js`);
}

function programArgs(): readonly string[] {
  const bundle = process.env[RUN_PROGRAM];
  return bundle === undefined ? startArgs.filter((arg) => !arg.startsWith('-')) : [ONE_HELPER, bundle];
}

function argsOf(packageJson: string): readonly string[] {
  const { scripts } = JSON.parse(packageJson) as { scripts: { start: string } };
  const [exec, node, ...words] = scripts.start.split(' && ').at(-1)?.split(' ') ?? [];
  // Without `exec`, a shell runs between npm and the server, and npm's SIGTERM ends only the shell.
  if (exec !== 'exec' || node !== 'node') throw new Error(`"start" is ${scripts.start}, not exec node …`);
  return words.map((word) => (word.endsWith('.ts') ? fileURLToPath(new URL(word, PROJECT)) : word));
}
