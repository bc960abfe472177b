import { execFileSync } from 'node:child_process';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const INSTALL = fileURLToPath(new URL('../../scripts/debian-packages.sh', import.meta.url));

/** Compiles a C file to a library for LD_PRELOAD in the given folder. Returns the library's path. */
export function compileLibrary(source: URL, folder: string): string {
  execFileSync('sh', [INSTALL, 'gcc', 'libc6-dev'], { stdio: ['ignore', 'ignore', 'inherit'] });
  const library = join(folder, `${basename(source.pathname, '.c')}.so`);
  const options = ['-O1', '-Wall', '-shared', '-fPIC'];
  execFileSync('gcc', [...options, '-o', library, fileURLToPath(source), '-ldl'], { stdio: 'inherit' });
  return library;
}
