/**
 * Builds the console's pages into `dist/console` unless they are newer than all their sources. `npm ci` runs it. `npm
 * start` runs it, too, because npm may be configured to run no install scripts. If only run-time dependencies are
 * installed, Vite is missing and the pages stay as they are.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const SOURCE = join(ROOT, 'src', 'console');
const FOLDER = join(ROOT, 'dist', 'console');
const INDEX = 'index.html';
const VITE = join(ROOT, 'node_modules', 'vite', 'bin', 'vite.js');

if (existsSync(VITE) && !isBuilt()) {
  const buildFolder = `${FOLDER}.${process.pid}`;
  try {
    const args = [VITE, 'build', '--logLevel', 'warn', '--outDir', buildFolder];
    execFileSync(process.execPath, args, { cwd: ROOT, stdio: 'inherit' });
    publish(buildFolder);
  } finally {
    rmSync(buildFolder, { recursive: true, force: true });
  }
}

/**
 * Moves the built files into place one by one, `index.html` last, so that a server that reads the pages, or another
 * process that builds them at the same time (such as another test), never finds `index.html` without its files. The
 * names of all other files contain a hash of their content.
 */
function publish(buildFolder: string): void {
  const names = filesIn(buildFolder).sort((a, b) => Number(a === INDEX) - Number(b === INDEX));
  for (const name of names) {
    mkdirSync(dirname(join(FOLDER, name)), { recursive: true });
    renameSync(join(buildFolder, name), join(FOLDER, name));
  }
  for (const name of filesIn(FOLDER)) if (!names.includes(name)) rmSync(join(FOLDER, name), { force: true });
}

function filesIn(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((name) =>
    statSync(join(folder, name), { throwIfNoEntry: false })?.isFile(),
  );
}

function isBuilt(): boolean {
  const builtAt =
    statSync(join(FOLDER, INDEX), { throwIfNoEntry: false })?.mtimeMs ?? Number.NEGATIVE_INFINITY;
  const sources = readdirSync(SOURCE, { recursive: true, encoding: 'utf8' }).map((name) =>
    join(SOURCE, name),
  );
  const others = ['vite.config.ts', 'package-lock.json'].map((name) => join(ROOT, name));
  // The folder as well, which a deleted file changes.
  return [SOURCE, ...sources, ...others].every((path) => statSync(path).mtimeMs <= builtAt);
}
