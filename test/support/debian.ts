import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const INSTALL = fileURLToPath(new URL('../../scripts/debian-packages.sh', import.meta.url));

/** Installs Debian's packages that are missing. @throws Error if that fails */
export function needDebian(...packages: readonly string[]): void {
  execFileSync('sh', [INSTALL, ...packages], { stdio: ['ignore', 'ignore', 'inherit'] });
}
