import { execFile } from 'node:child_process';
import { copyFile, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

/**
 * Installs what the lock file of a folder names, unless it is installed. For tools that the server does not need, so
 * that `npm ci` of the project does not bring them.
 */
export async function installTools(folder: string): Promise<void> {
  const lock = join(folder, 'package-lock.json');
  /** The lock file by which the tools were installed. */
  const installed = join(folder, 'node_modules', '.installed-by.json');
  const wanted = await readFile(lock, 'utf8');
  const present = await readFile(installed, 'utf8').catch(() => null);
  if (present === wanted) return;
  await run('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'], { cwd: folder });
  await copyFile(lock, installed);
}
