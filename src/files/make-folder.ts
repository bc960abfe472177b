import { mkdirSync, statSync } from 'node:fs';
import { dirname } from 'node:path';

/**
 * Makes a folder, and those above it that are missing. Node's own recursive `mkdir` never ends where the folder
 * above is there and `mkdir` answers ENOENT all the same, as below /proc.
 * @throws Error of the system where one cannot be made
 */
export function makeFolder(path: string): void {
  const parent = dirname(path);
  if (parent !== path && statSync(parent, { throwIfNoEntry: false }) === undefined) makeFolder(parent);
  try {
    mkdirSync(path);
  } catch (error) {
    // Systems refuse in several ways what is there already.
    if (statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true) throw error;
  }
}
