import { execFileSync } from 'node:child_process';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { needDebian } from './debian.ts';

/** Compiles a C file to a library for LD_PRELOAD in the given folder. Returns the library's path. */
export function compileLibrary(source: URL, folder: string): string {
  needDebian('gcc', 'libc6-dev');
  const library = join(folder, `${basename(source.pathname, '.c')}.so`);
  const options = ['-O1', '-Wall', '-shared', '-fPIC'];
  execFileSync('gcc', [...options, '-o', library, fileURLToPath(source), '-ldl'], { stdio: 'inherit' });
  return library;
}
