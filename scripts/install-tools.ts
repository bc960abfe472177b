import { execFile } from 'node:child_process';
import { copyFile, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

/**
 * Runs `npm ci` in a folder unless its lock file has not changed since the last run. For tools that the server does not
 * need and that the project's own `npm ci` therefore does not install.
 */
export async function installTools(folder: string): Promise<void> {
  const lock = join(folder, 'package-lock.json');
  /** A copy of the lock file from which the tools were installed. */
  const installed = join(folder, 'node_modules', '.installed-by.json');
  const wanted = await readFile(lock, 'utf8');
  const present = await readFile(installed, 'utf8').catch(() => null);
  if (present === wanted) return;
  await run('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'], { cwd: folder });
  await copyFile(lock, installed);
}
