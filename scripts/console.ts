/**
 * Builds the console's pages into `dist/console`, unless they are newer than everything that they are made of. `npm ci` runs it,
 * and so does `npm start`, for those whose npm runs no scripts of packages. Where only what a server needs at run time is installed,
 * there is nothing to build with, and the pages stay as they are.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const SOURCE = join(ROOT, 'src', 'console');
const BUILT = join(ROOT, 'dist', 'console', 'index.html');
const VITE = join(ROOT, 'node_modules', 'vite', 'bin', 'vite.js');

if (existsSync(VITE) && !isBuilt())
  execFileSync(process.execPath, [VITE, 'build', '--logLevel', 'warn'], { cwd: ROOT, stdio: 'inherit' });

function isBuilt(): boolean {
  const builtAt = statSync(BUILT, { throwIfNoEntry: false })?.mtimeMs ?? Number.NEGATIVE_INFINITY;
  const sources = readdirSync(SOURCE, { recursive: true, encoding: 'utf8' }).map((name) =>
    join(SOURCE, name),
  );
  const others = ['vite.config.ts', 'package-lock.json'].map((name) => join(ROOT, name));
  return [...sources, ...others].every((path) => statSync(path).mtimeMs <= builtAt);
}
