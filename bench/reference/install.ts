import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const FOLDER = fileURLToPath(new URL('.', import.meta.url));

/**
 * Installs the packages for comparison (`bench/reference/package.json`) as locked, unless they are installed. The
 * service needs none of them, so `npm ci` of the project does not install them.
 */
export function installReferences(note: (line: string) => void): void {
  const found = existsSync(`${FOLDER}node_modules/.package-lock.json`);
  if (found) return;
  note('installing what the bench is compared with');
  execFileSync('npm', ['ci', '--no-audit', '--no-fund'], {
    cwd: FOLDER,
    stdio: ['ignore', 'ignore', 'inherit'],
  });
}
