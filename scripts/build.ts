/**
 * `npm run build -- [FOLDER]`: compiles the server and the client to JavaScript with declarations, as the package ships
 * them, into FOLDER or `dist`. It does not check types, which takes three times as long: `npm run check` does. The
 * repository itself runs its TypeScript: Node strips types everywhere except below `node_modules`.
 */
import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, existsSync, readdirSync, rmSync } from 'node:fs';
import { extname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const [, , folder] = process.argv;
const DIST = resolve(folder ?? join(ROOT, 'dist'));
const SOURCE = join(ROOT, 'src');
/** The folder of the console's files, which `npm run build:console` builds. */
const CONSOLE = 'console';
/** Files that the server reads at run time, in addition to its modules. */
const READ_AT_RUN_TIME = new Set(['.lua']);

// Only `dist` is emptied, never a folder that was given. The console is kept: another script builds it.
for (const name of folder === undefined && existsSync(DIST) ? readdirSync(DIST) : [])
  if (name !== CONSOLE) rmSync(join(DIST, name), { recursive: true });
execFileSync('tsc', ['-p', join(ROOT, 'tsconfig.build.json'), '--outDir', DIST], {
  stdio: 'inherit',
  shell: process.platform === 'win32',
});
cpSync(SOURCE, DIST, {
  recursive: true,
  filter: (path) =>
    relative(SOURCE, path) !== CONSOLE && (extname(path) === '' || READ_AT_RUN_TIME.has(extname(path))),
});
chmodSync(join(DIST, 'main.js'), 0o755);
