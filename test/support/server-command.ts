import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const PROJECT = new URL('../../', import.meta.url);

/** What `npm start` gives to Node: flags, and the program with its whole path. */
export const SERVER_ARGS = argsOf(await readFile(new URL('package.json', PROJECT), 'utf8'));
/** Node's own default place. A test that starts many servers compiles the same files once. */
export const COMPILE_CACHE = join(tmpdir(), 'node-compile-cache');

function argsOf(packageJson: string): readonly string[] {
  const { scripts } = JSON.parse(packageJson) as { scripts: { start: string } };
  const [exec, node, ...words] = scripts.start.split(' && ').at(-1)?.split(' ') ?? [];
  // Without `exec` a shell stays between npm and the server, and npm's SIGTERM ends the shell alone.
  if (exec !== 'exec' || node !== 'node') throw new Error(`"start" is ${scripts.start}, not exec node …`);
  return words.map((word) => (word.endsWith('.ts') ? fileURLToPath(new URL(word, PROJECT)) : word));
}
