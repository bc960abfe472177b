import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const FOLDER = fileURLToPath(new URL('.', import.meta.url));

/**
 * Installs what the bench is compared with (`bench/reference/package.json`), as its lock file says, unless it is
 * there. The service needs none of it, so `npm ci` of the project does not bring it.
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
